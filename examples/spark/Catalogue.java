// Rows of a JSONL file, {"id": .., "prompt": .., "max_tokens": ..}, through a model. docs/spark.md has the
// commands.
//   spark-submit --jars batchllm.jar,batchllm-spark.jar --class Catalogue catalogue.jar MODEL ROWS OUTPUT
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.batchllm.spark.BatchLlm;
import org.batchllm.spark.BatchLlmMetrics;
import org.batchllm.spark.BatchLlmOptions;

public final class Catalogue {
    public static void main(String[] arguments) {
        SparkSession spark = SparkSession.builder().appName("catalogue").getOrCreate();
        Dataset<Row> rows = spark.read().json(arguments[1]);

        BatchLlmMetrics metrics = new BatchLlmMetrics(spark.sparkContext());
        BatchLlmOptions options = new BatchLlmOptions().model(arguments[0]).maxTokensColumn("max_tokens");
        Dataset<Row> answers = BatchLlm.transform(rows, options, metrics);

        // Written as they are: whatever needs them twice (an order, a count) reads them back.
        answers.drop("prompt").write().json(arguments[2]);
        System.out.println(metrics);
        spark.read().json(arguments[2]).orderBy("batchllm_key").select("id", "text").show(5, 60);
        spark.stop();
    }
}
