import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.EngineStats;
import org.batchllm.Plan;
import org.batchllm.PlanStats;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;

/**
 * Many questions about a few documents: each document is computed once. The plan is saved, and used
 * again by the next run, which plans only what has changed. Usage: SharedPrefix MODEL_DIRECTORY PLAN_FILE
 */
public final class SharedPrefix {
    private static final List<String> DOCUMENTS =
            List.of(
                    "Lighthouses: The first ones were fires on hills. Towers with lamps and mirrors came later; the"
                            + " lens of rings that Fresnel built in 1822 threw the light of one lamp over thirty"
                            + " kilometres.",
                    "Bees: A hive of honey bees has one queen, some hundred drones and up to sixty thousand workers."
                            + " A worker tells the others where food is by a dance whose angle to the vertical is"
                            + " that to the sun.");
    private static final List<String> QUESTIONS =
            List.of("who is named?", "which number is largest?", "what is it about?");

    public static void main(String[] args) {
        if (args.length != 2) {
            System.err.println("usage: SharedPrefix MODEL_DIRECTORY PLAN_FILE");
            System.exit(2);
        }
        Path planFile = Path.of(args[1]);
        List<String> prompts = new ArrayList<>();
        for (String document : DOCUMENTS) {
            for (String question : QUESTIONS) prompts.add(document + " Question: " + question + " Answer:");
        }
        try (Engine engine = Engine.create(EngineOptions.builder(Path.of(args[0])).build())) {
            if (Files.exists(planFile)) {
                try (Plan saved = Plan.load(planFile)) {
                    engine.usePlan(saved);
                }
            }
            engine.add(Rows.ofText(prompts).withParams(SamplingParams.builder().maxTokens(16).build()));
            engine.buildGroups();
            try (Plan plan = engine.plan()) {
                PlanStats stats = plan.stats();
                System.out.printf(
                        "%d rows in %d groups, %d kept from the saved plan%n",
                        stats.rows(), stats.groups(), stats.reusedRows());
                plan.save(planFile);
            }
            engine.run();
            EngineStats stats = engine.stats();
            System.out.printf(
                    "%d prompt tokens, %d computed: %.0f %% saved%n",
                    stats.logicalPromptTokens(), stats.processedPromptTokens(), 100 * stats.savingRatio());
        }
    }
}
