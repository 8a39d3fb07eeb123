package org.batchllm.spark;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;

/**
 * The job of tests/bindings/make_job.py. Arguments: a model directory, the job, and a file for the tokens.
 */
public final class ThroughSpark {
    private ThroughSpark() {}

    public static void main(String[] arguments) throws IOException {
        SparkSession spark = SparkSession.builder().getOrCreate();
        // A schema is an object in the job; here it must be text.
        Dataset<Row> rows = spark.read()
                .schema("id long, prompt string, max_tokens int, temperature double, seed long, json_schema string")
                .json(arguments[1]);
        BatchLlmOptions options = new BatchLlmOptions()
                                          .model(arguments[0])
                                          .keyColumn("id")
                                          .maxTokensColumn("max_tokens")
                                          .temperatureColumn("temperature")
                                          .seedColumn("seed")
                                          .jsonSchemaColumn("json_schema")
                                          .partitions(5);
        List<Row> answers = BatchLlm.transform(rows, options).persist().orderBy("id").collectAsList();
        try (PrintWriter out = new PrintWriter(
                     Files.newBufferedWriter(Path.of(arguments[2]), StandardCharsets.UTF_8))) {
            for (Row answer : answers) {
                List<Integer> tokens = answer.getList(answer.fieldIndex("tokens"));
                out.println(String.join(" ", tokens.stream().map(String::valueOf).toList()));
            }
        }
        spark.stop();
    }
}
