import java.nio.file.Path;
import java.util.List;
import org.batchllm.Constraint;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;

/** Answers that keep to a JSON schema, and vectors of the same texts. Usage: Structured MODEL_DIRECTORY */
final class Structured {
    private static final String ANIMAL =
            "{\"type\": \"object\", \"properties\": {\"animal\": {\"enum\": [\"cat\", \"dog\", \"fish\"]}, \"legs\": {\"enum\": [0, 2, 4]}},"
                    + " \"required\": [\"animal\", \"legs\"], \"additionalProperties\": false}";

    public static void main(String[] args) {
        Rows rows = Rows.ofText(List.of("It purrs. As JSON:", "It barks. As JSON:", "It swims. As JSON:"));
        SamplingParams params = SamplingParams.builder().constraint(Constraint.ofJsonSchema(ANIMAL)).build();
        try (Engine engine = Engine.create(EngineOptions.builder(Path.of(args.length > 0 ? args[0] : ".")).build())) {
            try (Results results = engine.generate(rows.withParams(params))) {
                for (Result result : results) System.out.println(result.tag() + ": " + result.text());
            }
            try (Results results = engine.embed(rows)) {
                System.out.println(results.size() + " vectors, " + results.embeddings().remaining() + " numbers in all");
            }
        }
    }
}
