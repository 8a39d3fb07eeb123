package org.batchllm.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.MapPartitionsFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.functions;
import org.batchllm.Plan;
import scala.collection.immutable.ArraySeq;

/**
 * 20,000 rows, 500 prefixes, one of them with 30 % of the rows, on a cluster of two executors: once undisturbed, and
 * once with one executor that kills itself (kill -9) in the middle of a partition. In between, constraints from the
 * options and from a column in both executors, and warnings of their engines. Arguments: a folder for its files, and
 * one with a model that has a tokenizer.
 */
public final class ClusterTest {
    private static final int ROWS = 20_000;
    private static final int PARTITIONS = 12;

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        SparkSession spark = SparkSession.builder().getOrCreate();
        Dataset<Row> rows = SkewedRows.rows(spark, ROWS, 4);
        BatchLlmOptions options = new BatchLlmOptions()
                                          .keyColumn("id")
                                          .backend("sim")
                                          .backendOptions("vocabulary=32000,eos_token=2,mean_length=20")
                                          .maxTokens(64)
                                          .partitions(PARTITIONS)
                                          .temperature(1)
                                          .seed(7);

        BatchLlmMetrics metrics = new BatchLlmMetrics(spark.sparkContext());
        BatchLlm.transform(rows, options, metrics).write().parquet(folder.resolve("calm").toString());
        System.out.println("undisturbed: " + metrics);
        check(metrics.rows() == ROWS && metrics.errors() == 0, "rows and errors");
        double best;
        try (Plan plan = SkewedRows.plan(ROWS)) {
            best = plan.stats().savingRatio();
            System.out.printf("saving ratio: %.4f, in one process %.4f%n", metrics.savingRatio(), best);
            check(metrics.savingRatio() > best - 0.02 && metrics.savingRatio() <= best, "saving ratio");
        }

        Dataset<String> engines =
                BatchLlm.transform(rows, options).mapPartitions(engines(), Encoders.STRING());
        Set<String> found = new TreeSet<>(engines.collectAsList());
        System.out.println("executor: engines loaded, open, devices: " + found);
        check(found.equals(Set.of("0: 1, 1, 3", "1: 1, 1, 3")),
                "one engine an executor, on the device of its tasks");
        constrained(spark, arguments[1]);
        warned(spark, options);

        Path marks = Files.createDirectories(folder.resolve("marks"));
        BatchLlmMetrics metricsOfKilled = new BatchLlmMetrics(spark.sparkContext());
        Dataset<Row> disturbed = BatchLlm.transform(rows, options, metricsOfKilled);
        disturbed = disturbed.mapPartitions(killed(marks.toString()), Encoders.row(disturbed.schema()));
        disturbed.write().parquet(folder.resolve("killed").toString());
        check(Files.exists(marks.resolve("killed")), "no executor was killed");
        // Only the tasks that ended: Spark does not count what the lost executor computed.
        System.out.printf("an executor killed: saving ratio %.4f, %s%n", metricsOfKilled.savingRatio(), metricsOfKilled);
        check(metricsOfKilled.savingRatio() > best - 0.02 && metricsOfKilled.savingRatio() <= best, "saving ratio after a loss");

        List<Row> calm = results(spark, folder.resolve("calm"));
        List<Row> killed = results(spark, folder.resolve("killed"));
        complete(calm);
        for (int i = 0; i < ROWS; ++i) {
            check(answer(calm.get(i)).equals(answer(killed.get(i))),
                    "row " + i + " after an executor was killed: " + killed.get(i)
                            + ", undisturbed: " + calm.get(i));
        }
        complete(killed);
        costs(marks);
        spark.stop();
        System.out.println("ok");
    }

    /** The options' schema for even rows, a column's expression for odd ones, wherever they run. */
    private static void constrained(SparkSession spark, String model) {
        Dataset<Row> rows = spark.range(0, 48, 1, 8).select(functions.col("id"),
                functions.expr("concat('Question ', id, '?')").as("prompt"),
                functions.expr("if(id % 2 = 0, null, concat('[', id % 10, ']{3}'))").as("must"));
        BatchLlmOptions options = new BatchLlmOptions()
                                          .keyColumn("id")
                                          .model(model)
                                          .backend("cpu")
                                          .threads(1)
                                          .computeType("f32")
                                          .kvMemoryBytes(64 << 20)
                                          .maxTokens(40)
                                          .partitions(4)
                                          .jsonSchema("{\"type\": \"array\", \"items\": {\"enum\": [1, \"b\"]}, \"minItems\": 2, \"maxItems\": 3}")
                                          .regexColumn("must");
        Dataset<String> texts = BatchLlm.transform(rows, options)
                                        .select("id", "text")
                                        .mapPartitions(textsWithExecutors(), Encoders.STRING());
        Set<String> executors = new TreeSet<>();
        int found = 0;
        for (String line : texts.collectAsList()) {
            String[] parts = line.split("\t");
            int id = Integer.parseInt(parts[1]);
            String expected = id % 2 == 0 ? "\\[(1|\"b\")(,(1|\"b\")){1,2}\\]" : (id % 10) + "{3}";
            check(parts[2].matches(expected), line);
            executors.add(parts[0]);
            ++found;
        }
        System.out.println("constrained rows: " + found + ", by executors " + executors);
        check(found == 48 && executors.size() == 2, found + " constrained rows, by executors " + executors);
    }

    /**
     * Prompts that begin with what differs: the driver's log says so once, although the engines of two executors found
     * it.
     */
    private static void warned(SparkSession spark, BatchLlmOptions options) {
        List<String> logged = Collections.synchronizedList(new ArrayList<>());
        Logger log = Logger.getLogger(BatchLlm.class.getName());
        Handler handler = new Handler() {
            @Override
            public void publish(LogRecord line) {
                logged.add(line.getMessage());
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };
        log.addHandler(handler);
        try {
            // 50 tokens of the row's own, followed by 200 that all rows share.
            Dataset<Row> rows = spark.range(0, 400, 1, 4).select(functions.col("id"),
                    functions.expr("concat(transform(sequence(1, 50), x -> cast(pmod(xxhash64(id, x), 32000) as int)),"
                            + " sequence(1000, 1199))").as("prompt"));
            BatchLlmMetrics metrics = new BatchLlmMetrics(spark.sparkContext());
            long answered = BatchLlm.transform(rows, options.partitions(4), metrics).filter("error is null").count();
            options.partitions(PARTITIONS);
            System.out.println("warned: " + metrics.warnings() + ", on the driver: " + logged);
            check(answered == 400, answered + " rows answered");
            check(metrics.warnings().size() == 1, metrics.warnings().toString());
            String text = metrics.warnings().get(0);
            check(text.contains("tokens are saved, and about") && text.contains("Put what rows have in common first"), text);
            check(logged.equals(List.of("on an executor: " + text)), logged.toString());
        } finally {
            log.removeHandler(handler);
        }
    }

    private static MapPartitionsFunction<Row, String> textsWithExecutors() {
        return rows -> {
            String executor = SparkEnv.get().executorId();
            List<String> lines = new ArrayList<>();
            rows.forEachRemaining(
                    row -> lines.add(executor + "\t" + row.get(0) + "\t" + row.getString(1)));
            return lines.iterator();
        };
    }

    private static List<Row> results(SparkSession spark, Path path) {
        Dataset<Row> results = spark.read().parquet(path.toString());
        check(results.count() == ROWS, results.count() + " results");
        return results.sort("id").collectAsList();
    }

    /** Each row once, in the order of the input, with its own columns. */
    private static void complete(List<Row> results) {
        for (int i = 0; i < ROWS; ++i) {
            Row row = results.get(i);
            check(row.<Long>getAs("id") == i, "row " + i + " in order is " + row.getAs("id"));
            check(row.getAs("note").equals(SkewedRows.note(i)), "row " + i + ": its note changed");
            check(row.getAs("prompt").equals(ArraySeq.unsafeWrapArray(SkewedRows.prompt(i))),
                    "row " + i + ": its prompt changed");
            check(row.getAs("error") == null && row.<Long>getAs("completion_tokens") > 0,
                    "row " + i + " has no tokens");
        }
    }

    private static List<Object> answer(Row row) {
        return List.of(
                row.getAs("id"), row.getAs("tokens"), row.getAs("finish_reason"), row.getAs("prompt_tokens"));
    }

    /**
     * Records when a partition's first result arrives and when its last one is out, and on which executor. The first
     * task that is half done once three partitions are finished kills its executor.
     */
    private static MapPartitionsFunction<Row, Row> killed(String folder) {
        return rows -> new Iterator<>() {
            final Path marks = Path.of(folder);
            final String mine = TaskContext.getPartitionId() + "-" + SparkEnv.get().executorId() + "-"
                    + TaskContext.get().taskAttemptId();
            int seen;

            @Override
            public boolean hasNext() {
                boolean more = rows.hasNext();
                if (seen == 0 && more) mark("begun-" + mine);
                if (!more) mark("finished-" + mine);
                return more;
            }

            @Override
            public Row next() {
                if (++seen == 500 && names(marks, "finished-").size() >= 3 && mark("killed")) {
                    mark("victim-" + mine);
                    names(marks, "finished-").forEach(name -> mark("then-" + name));
                    kill();
                }
                return rows.next();
            }

            private boolean mark(String name) {
                try {
                    Files.createFile(marks.resolve(name));
                    return true;
                } catch (FileAlreadyExistsException e) {
                    return false;
                } catch (IOException e) {
                    throw new UncheckedIOException(e);
                }
            }
        };
    }

    /** Describes the executor's process when all of a partition's rows are out. */
    private static MapPartitionsFunction<Row, String> engines() {
        return rows -> {
            rows.forEachRemaining(row -> {});
            return List
                    .of(SparkEnv.get().executorId() + ": " + SharedEngine.loaded() + ", " + Engines.open()
                            + ", " + TaskRows.devices(TaskContext.get()))
                    .iterator();
        };
    }

    private static void kill() {
        try {
            new ProcessBuilder("kill", "-9", Long.toString(ProcessHandle.current().pid())).start().waitFor();
        } catch (IOException | InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /**
     * Partitions that were finished when the executor was killed did not start again, and its other one did.
     */
    private static void costs(Path marks) {
        Map<String, Set<String>> begun = new HashMap<>();
        for (String name : names(marks, "begun-"))
            begun.computeIfAbsent(name.split("-")[1], part -> new TreeSet<>()).add(name.substring(6));
        Set<String> before = names(marks, "then-finished-")
                                     .stream()
                                     .map(name -> name.split("-")[2])
                                     .collect(Collectors.toSet());
        String victim = names(marks, "victim-").iterator().next();
        System.out.println("partition-executor-attempt: " + new TreeMap<>(begun).values()
                + ", killed: " + victim + ", finished before: " + before);
        check(begun.size() == PARTITIONS, begun.size() + " partitions");
        for (String part : before)
            check(begun.get(part).size() == 1,
                    "partition " + part + " was finished and computed again: " + begun.get(part));
        check(begun.get(victim.split("-")[1]).size() == 2,
                "the lost partition was computed so often: " + begun.get(victim.split("-")[1]));
        // Spark may run the partition of the other executor twice too, since it sends the whole stage again
        // when files of its shuffle are lost.
        int repeated = begun.values().stream().mapToInt(runs -> runs.size() - 1).sum();
        check(repeated <= 2, repeated + " partitions were computed again");
    }

    private static Set<String> names(Path marks, String prefix) {
        try (Stream<Path> files = Files.list(marks)) {
            return files.map(path -> path.getFileName().toString())
                    .filter(name -> name.startsWith(prefix))
                    .collect(Collectors.toSet());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static void check(boolean holds, String otherwise) {
        if (!holds) throw new AssertionError(otherwise);
    }
}
