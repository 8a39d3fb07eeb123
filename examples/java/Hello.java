import java.nio.file.Path;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;

/** Two prompts in, two texts out. Usage: Hello MODEL_DIRECTORY */
public final class Hello {
    public static void main(String[] args) {
        Path model = Path.of(args.length > 0 ? args[0] : ".");
        try (Engine engine = Engine.create(EngineOptions.builder(model).build());
                Results results = engine.generate(Rows.ofText("The capital of France is", "The capital of Peru is"))) {
            for (Result result : results) System.out.println(result.tag() + ": " + result.text());
        }
    }
}
