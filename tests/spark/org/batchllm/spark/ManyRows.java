package org.batchllm.spark;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.java.function.MapFunction;
import org.apache.spark.api.java.function.MapPartitionsFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.ArraySeq;

/**
 * Any number of short rows through Spark on sim: each has one result, and no executor grows. Argument: how many rows.
 * Run by scripts/long spark, whose executors have all of their Java heap from the start, so that growth does not come
 * from Java.
 */
public final class ManyRows {
    private static final int ROWS_A_PARTITION = 100_000;
    private static final int SHARING = 8;

    public static void main(String[] arguments) {
        long count = Long.parseLong(arguments[0]);
        int partitions = (int) Math.max(4, count / ROWS_A_PARTITION);
        SparkSession spark = SparkSession.builder().getOrCreate();
        StructType schema = new StructType()
                                    .add("id", DataTypes.LongType)
                                    .add("prompt", DataTypes.createArrayType(DataTypes.IntegerType));
        Dataset<Row> rows = spark.range(0, count, 1, partitions)
                                    .map((MapFunction<Long, Row>) id
                                            -> RowFactory.create(id, ArraySeq.unsafeWrapArray(prompt(id))),
                                            Encoders.row(schema));
        BatchLlmOptions options = new BatchLlmOptions()
                                          .keyColumn("id")
                                          .backend("sim")
                                          .backendOptions("vocabulary=32000,eos_token=2,mean_length=3")
                                          .maxTokens(4)
                                          .partitions(partitions);
        long start = System.nanoTime();
        Dataset<Row> results = BatchLlm.transform(rows, options);
        Dataset<Row> sums = results
                                    .mapPartitions(measured(), Encoders.row(new StructType()
                                                                                .add("rows", DataTypes.LongType)
                                                                                .add("ids", DataTypes.LongType)
                                                                                .add("wrong", DataTypes.LongType)
                                                                                .add("executor", DataTypes.StringType)
                                                                                .add("ended", DataTypes.LongType)
                                                                                .add("resident", DataTypes.LongType)))
                                    .cache();
        Row all = sums.agg(functions.sum("rows"), functions.sum("ids"), functions.sum("wrong")).first();
        double seconds = (System.nanoTime() - start) * 1e-9;
        String memory = "";
        String grows = "";
        for (Row executor : sums.select("executor").distinct().orderBy("executor").collectAsList()) {
            List<Row> ends = sums.filter(functions.col("executor").equalTo(executor.get(0)))
                                     .orderBy("ended")
                                     .collectAsList();
            int early = Math.max(1, ends.size() / 5);
            long first = most(ends.subList(0, early));
            long rest = most(ends.subList(early, ends.size()));
            memory += String.format("; executor %s %d MiB after a fifth, %d MiB at most later", executor.get(0), first,
                    rest);
            // Like tests/cli/stream.py: after a fifth of the job, memory must not grow any more.
            if (rest > 1.1 * first + 16) grows += " executor " + executor.get(0);
        }
        System.out.printf("rows through Spark: %d rows, %.0f s%s%n", count, seconds, memory);
        boolean complete = all.getLong(0) == count && all.getLong(1) == count * (count - 1) / 2 && all.getLong(2) == 0;
        if (!complete) System.out.println("FAILED rows through Spark: " + all);
        if (!grows.isEmpty()) System.out.println("FAILED rows through Spark: memory grows:" + grows);
        spark.stop();
        if (!complete || !grows.isEmpty()) System.exit(1);
    }

    /** The most memory, in MiB, that a process had when one of its partitions ended. */
    private static long most(List<Row> ends) {
        return ends.stream().mapToLong(end -> end.<Long>getAs("resident") >> 20).max().orElse(0);
    }

    /** Groups of eight rows share twelve tokens; each row has four of its own. No two rows are equal. */
    private static int[] prompt(long id) {
        int[] prompt = new int[16];
        for (int i = 0; i < prompt.length; ++i) {
            long number = i < 12 ? id / SHARING : id;
            long digit = i % 3 == 0 ? number % 1000 : i % 3 == 1 ? number / 1000 % 1000 : number / 1_000_000;
            prompt[i] = (int) (3 + digit + i);
        }
        return prompt;
    }

    /**
     * One row per partition: how many rows, the sum of their ids, how many are wrong, the time, and the memory of the
     * process.
     */
    private static MapPartitionsFunction<Row, Row> measured() {
        return (Iterator<Row> rows) -> {
            long count = 0;
            long ids = 0;
            long wrong = 0;
            while (rows.hasNext()) {
                Row row = rows.next();
                ++count;
                ids += row.<Long>getAs("id");
                if (row.getAs("error") != null || row.<Long>getAs("completion_tokens") < 1) ++wrong;
            }
            return List.of(RowFactory.create(count, ids, wrong, SparkEnv.get().executorId(), System.nanoTime(),
                                   resident()))
                    .iterator();
        };
    }

    private static long resident() throws IOException {
        return Long.parseLong(Files.readString(Path.of("/proc/self/statm")).split(" ")[1]) * 4096;
    }
}
