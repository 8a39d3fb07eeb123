import java.nio.file.Path;
import java.util.Random;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;
import org.batchllm.TokenColumn;

/** Engines and rows for several tests. */
final class Jobs {
    static final Path MODEL = Path.of(System.getenv("BATCHLLM_TEXT_MODEL"));

    private Jobs() {}

    static EngineOptions.Builder sim() {
        return EngineOptions.builder().backend("sim").backendOptions("vocabulary=1000");
    }

    static Engine simEngine() {
        return Engine.create(sim().build());
    }

    static Engine modelEngine() {
        return Engine.create(EngineOptions.builder(MODEL).backend("cpu").computeType("f32").build());
    }

    static SamplingParams tokens(int max) {
        return SamplingParams.builder().maxTokens(max).build();
    }

    /** Rows of 21 to 41 tokens in families of ten that share the first 20. */
    static int[][] rows(int count) {
        Random draw = new Random(1);
        int[][] rows = new int[count][];
        for (int i = 0; i < count; i++) {
            Random family = new Random(i / 10 * 1000003L); // similar seeds begin alike
            rows[i] = new int[21 + draw.nextInt(21)];
            for (int j = 0; j < rows[i].length; j++) rows[i][j] = (j < 20 ? family : draw).nextInt(1000);
        }
        return rows;
    }

    static TokenColumn column(int[][] rows) {
        return TokenColumn.of(java.util.Arrays.asList(rows));
    }

    static Rows simRows(int count, int maxTokens) {
        return Rows.ofTokens(column(rows(count))).withParams(tokens(maxTokens));
    }
}
