import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;

/**
 * Which of some answers fits best: nothing is generated, the answers are scored. Answers of one token
 * cost one position of logits together. Usage: Rank MODEL_DIRECTORY
 */
public final class Rank {
    public static void main(String[] args) {
        Path model = Path.of(args.length > 0 ? args[0] : ".");
        List<String> prompts = List.of("Is water wet? Answer:", "Is fire cold? Answer:");
        List<String> answers = List.of(" yes", " no", " perhaps");
        try (Engine engine = Engine.create(EngineOptions.builder(model).build());
                Results results = engine.generate(Rows.ofScores(prompts, answers))) {
            for (Result result : results) {
                if (!result.ok()) continue;
                int best = 0;
                for (int i = 0; i < answers.size(); i++) {
                    String answer = prompts.get((int) result.tag()) + answers.get(i);
                    System.out.printf(Locale.ROOT, "%s: %.3f%n", answer, result.scores()[i]);
                    if (result.scores()[i] > result.scores()[best]) best = i;
                }
                System.out.println("->" + answers.get(best));
            }
        }
    }
}
