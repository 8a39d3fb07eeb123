import java.io.IOException;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.FinishReason;
import org.batchllm.Pooling;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;
import org.batchllm.Task;
import org.batchllm.TokenColumn;

/** Rows that are embedded, classified or reranked, against tests/golden/embedding. */
final class EmbeddingTest {
    private static final Path GOLDEN = Path.of(System.getProperty("test.golden"), "embedding");

    private static Engine engine(String model) {
        return Engine.create(EngineOptions.builder(GOLDEN.resolve(model)).backend("cpu").computeType("f32")
                .kvMemoryBytes(16 << 20).build());
    }

    /** The lists under a key, which only have numbers, one per row. */
    private static List<double[]> lists(String model, String key) throws IOException {
        String text = Files.readString(GOLDEN.resolve(model).resolve("embedding.json"));
        List<double[]> lists = new ArrayList<>();
        Matcher found = Pattern.compile("\"" + key + "\":\\[([^\\]]*)\\]").matcher(text);
        while (found.find()) {
            lists.add(Stream.of(found.group(1).split(",")).mapToDouble(Double::parseDouble).toArray());
        }
        Check.that(lists.size() > 1, "no " + key + " in " + model);
        return lists;
    }

    private static Rows prompts(String model) throws IOException {
        List<int[]> prompts = new ArrayList<>();
        for (double[] row : lists(model, "prompt")) {
            prompts.add(Arrays.stream(row).mapToInt(id -> (int) id).toArray());
        }
        return Rows.ofTokens(TokenColumn.of(prompts));
    }

    private static void near(double[] expected, float[] found, double tolerance) {
        Check.equal(expected.length, found.length);
        for (int i = 0; i < found.length; i++) {
            Check.that(Math.abs(expected[i] - found[i]) < tolerance, i + ": " + expected[i] + " and " + found[i]);
        }
    }

    public static void vectors_are_the_references_in_the_order_of_the_rows() throws IOException {
        String model = "qwen3_last_bf16";
        Pooling[] poolings = {Pooling.LAST, Pooling.MEAN, Pooling.FIRST};
        String[] names = {"last", "mean", "first"};
        Rows rows = prompts(model);
        try (Engine engine = engine(model)) {
            for (int p = 0; p < poolings.length; p++) {
                List<double[]> expected = lists(model, names[p]);
                SamplingParams params = SamplingParams.builder().pooling(poolings[p]).normalize(false).build();
                try (Results results = engine.embed(rows.withParams(params))) {
                    float[][] vectors = results.embeddingArrays();
                    FloatBuffer flat = results.embeddings();
                    Check.equal(expected.size(), vectors.length);
                    Check.equal(expected.size() * vectors[0].length, flat.remaining());
                    for (int i = 0; i < vectors.length; i++) {
                        near(expected.get(i), vectors[i], 1e-4);
                        Check.equal(vectors[i], results.get(i).embedding());
                        for (float value : vectors[i]) Check.equal(value, flat.get());
                        Check.equal((long) i * vectors[i].length, results.embeddingOffsets().get(i));
                        Check.equal(FinishReason.EMBEDDED, results.get(i).finishReason());
                    }
                }
            }
            try (Results results = engine.embed(rows.withParams(SamplingParams.builder().dimensions(16).build()))) {
                for (Result result : results) { // normalised after the cut, as the model's files say
                    double length = 0;
                    for (float value : result.embedding()) length += value * value;
                    Check.equal(16, result.embedding().length);
                    Check.that(Math.abs(length - 1) < 1e-5, "length " + length);
                }
            }
        }
    }

    public static void labels_are_the_references() throws IOException {
        String model = "qwen3_labels_bf16";
        List<double[]> logits = lists(model, "logits");
        List<double[]> probabilities = lists(model, "probabilities");
        try (Engine engine = engine(model);
                Results results = engine.classify(prompts(model))) {
            Check.equal(List.of("refuted", "open", "supported"), engine.labels());
            Check.equal(logits.size(), results.size());
            Check.equal(3 * logits.size(), results.labelLogits().remaining());
            Check.equal(3 * logits.size(), results.labelProbabilities().remaining());
            Check.equal(3L * logits.size(), results.labelOffsets().get(results.size()));
            for (int i = 0; i < results.size(); i++) {
                Result result = results.get(i);
                Check.equal(FinishReason.CLASSIFIED, result.finishReason());
                near(logits.get(i), result.labelLogits(), 1e-3);
                near(probabilities.get(i), result.labelProbabilities(), 1e-4);
                Check.equal(0, result.embedding().length);
            }
        }
    }

    public static void tasks_are_mixed_and_a_row_that_fails_has_no_vector() {
        try (Engine engine = Jobs.simEngine()) {
            List<SamplingParams> params = List.of(
                    SamplingParams.builder().task(Task.EMBED).dimensions(8).build(),
                    Jobs.tokens(3),
                    SamplingParams.builder().task(Task.CLASSIFY).build(),
                    SamplingParams.builder().task(Task.EMBED).dimensions(8).build());
            TokenColumn prompts = TokenColumn.of(List.of(new int[] {1, 2}, new int[] {3}, new int[] {4}, new int[0]));
            try (Results results = engine.generate(Rows.ofTokens(prompts).withParams(params))) {
                Check.equal(8, results.get(0).embedding().length);
                Check.equal(3, results.get(1).tokens().length);
                Check.that(results.get(2).error().contains("no classification head"), results.get(2).error());
                Check.that(!results.get(3).ok() && results.get(3).embedding().length == 0, "an empty prompt");
                Check.equal(8, results.embeddingArrays()[0].length);
                Check.equal(0, results.embeddingArrays()[3].length);
            }
            Check.equal(List.of(), engine.labels());
            Rows scored = Rows.ofScores(List.of("a"), List.of("b"));
            Check.throwing(IllegalArgumentException.class, "no other task", () -> engine.embed(scored));
        }
    }

    public static void a_rank_is_the_share_of_the_first_continuation() {
        List<String> prompts = List.of("Is water wet?", "Is fire cold?");
        try (Engine engine = Jobs.modelEngine();
                Results scored = engine.generate(Rows.ofScores(prompts, List.of("y", "n")))) {
            double[] ranks = engine.rerank(prompts, "y", "n");
            Check.equal(2, ranks.length);
            for (int i = 0; i < 2; i++) {
                double[] scores = scored.get(i).scores();
                double yes = Math.exp(scores[0]);
                Check.that(Math.abs(ranks[i] - yes / (yes + Math.exp(scores[1]))) < 1e-6, "rank " + ranks[i]);
            }
            Check.that(Double.isNaN(engine.rerank(List.of("good", ""), "y", "\ud83d")[1]), "an error is not a rank");
        }
    }

    public static void main(String[] args) throws Exception {
        Check.run(EmbeddingTest.class);
    }
}
