import java.nio.file.Path;
import java.util.Collections;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.FinishReason;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;

/**
 * A program with a loop of its own: it steps the engine, hands out results as they finish, and cancels a
 * row that is not wanted any more. Usage: EventLoop MODEL_DIRECTORY
 */
public final class EventLoop {
    public static void main(String[] args) {
        Path model = Path.of(args.length > 0 ? args[0] : ".");
        SamplingParams params = SamplingParams.builder().maxTokens(24).ignoreEos(true).build();
        try (Engine engine = Engine.create(EngineOptions.builder(model).build())) {
            engine.add(Rows.ofText(Collections.nCopies(4, "Once upon a time")).withParams(params));
            for (int steps = 0; !engine.step().done(); steps++) {
                if (steps == 8) engine.cancel(2); // from any thread
                handOut(engine);
                // ... and whatever else the program has to do between two steps
            }
            handOut(engine);
        }
    }

    private static void handOut(Engine engine) {
        try (Results results = engine.poll()) {
            for (Result result : results) {
                String how =
                        result.finishReason() == FinishReason.CANCELLED ? "cancelled" : result.ok() ? "done" : "failed";
                System.out.println("row " + result.tag() + " " + how + " after " + result.tokens().length + " tokens");
            }
        }
    }
}
