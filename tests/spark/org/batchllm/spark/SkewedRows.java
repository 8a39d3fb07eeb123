package org.batchllm.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.apache.spark.api.java.function.MapFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.batchllm.Plan;
import org.batchllm.TokenColumn;
import scala.collection.immutable.ArraySeq;

/** A job whose rows are determined by their numbers: 500 prefixes, one of them with 30 % of the rows. */
final class SkewedRows {
    static final int VOCABULARY = 32_000;
    static final StructType SCHEMA = new StructType()
                                             .add("id", DataTypes.LongType)
                                             .add("prompt", DataTypes.createArrayType(DataTypes.IntegerType))
                                             .add("note", DataTypes.StringType);

    private SkewedRows() {}

    static int[] prompt(long id) {
        Random own = new Random(1_000_003 * id + 17);
        int number = own.nextInt(10) < 3 ? 0 : 1 + own.nextInt(499);
        Random shared = new Random(number);
        int length = 150 + shared.nextInt(150);
        int[] prompt = new int[length + 20 + own.nextInt(60)];
        Arrays.setAll(prompt, i -> (i < length ? shared : own).nextInt(VOCABULARY));
        return prompt;
    }

    static String note(long id) {
        return "row " + id;
    }

    static Dataset<Row> rows(SparkSession spark, long count, int partitions) {
        return spark.range(0, count, 1, partitions)
                .map((MapFunction<Long, Row>) id
                        -> RowFactory.create(id, ArraySeq.unsafeWrapArray(prompt(id)), note(id)),
                        Encoders.row(SCHEMA));
    }

    /** A plan of rows [0, count), as in a single process. */
    static Plan plan(int count) {
        List<int[]> prompts = new ArrayList<>();
        for (int id = 0; id < count; ++id) prompts.add(prompt(id));
        return Plan.create(TokenColumn.of(prompts));
    }
}
