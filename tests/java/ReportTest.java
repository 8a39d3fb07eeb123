import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import org.batchllm.BatchLlmException;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.FinishReason;
import org.batchllm.Plan;
import org.batchllm.PlanOptions;
import org.batchllm.Prediction;
import org.batchllm.Report;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;
import org.batchllm.Tokenizer;

/** Reports, predictions, and the parameters that forbid tokens or look at the prompt. */
final class ReportTest {
    public static void a_report_tells_what_an_engine_did() throws Exception {
        Path file = Files.createTempFile("report", ".html");
        try (Report report = Report.create("Tonight's <job>")) {
            try (Engine engine = Jobs.simEngine()) {
                engine.setReport(report);
                engine.generate(Jobs.simRows(60, 5)).close();
                try (Engine other = Jobs.simEngine()) {
                    Check.throwing(BatchLlmException.class, "", () -> other.setReport(report));
                }
                report.addFact("Data", "reviews of May");
                engine.setReport(null);
                engine.generate(Jobs.simRows(7, 5)).close();
            }
            String html = report.html();
            Check.that(html.contains("Tonight&#39;s &lt;job&gt;") || html.contains("&lt;job&gt;"), "title");
            Check.that(html.contains("reviews of May") && html.contains("60"), "facts");
            report.save(file);
            Check.equal(html, Files.readString(file));
        } finally {
            Files.delete(file);
        }
    }

    public static void a_plan_is_predicted_and_shown() {
        EngineOptions engine = EngineOptions.builder(Jobs.MODEL).build();
        int[][] rows = Jobs.rows(80);
        for (int[] row : rows) Arrays.setAll(row, i -> row[i] % 290); // the model's vocabulary
        try (Plan plan = Plan.create(Jobs.column(rows), PlanOptions.builder().selfContained(true).build(), null, null);
                Report report = Report.create("Plan")) {
            Prediction kept = plan.predict(engine, null, "h200", 10);
            Prediction given = plan.predict(engine, Jobs.column(rows), "h200", 10, 2, 4);
            Check.equal(80L, kept.rows());
            Check.equal(800L, kept.completionTokens());
            Check.equal(1, kept.devices());
            Check.that(kept.seconds() > 0 && kept.steps() >= 10 && kept.savingRatio() > 0.4, kept.toString());
            Check.that(kept.kvPagesPeak() > 0 && kept.kvPagesPeak() <= kept.kvPagesTotal() && kept.kvPageBytes() > 0, "pages");
            Check.that(kept.logicalPromptTokens() > kept.processedPromptTokens(), "tokens");
            Check.that(kept.linearSeconds() + kept.attentionSeconds() + kept.otherSeconds() > 0, "parts");
            Check.that(given.completionTokens() < 1600, "expected lengths: " + given.completionTokens());
            Check.throwing(BatchLlmException.InvalidArgument.class, "h300", () -> plan.predict(engine, null, "h300", 10));
            report.addPlan(plan, null);
            report.addPrediction(kept);
            try (Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL)) {
                report.addPlan(plan, tokenizer);
            }
            Check.that(report.html().contains("H200"), "the device is named");
        }
    }

    public static void min_tokens_bad_words_and_prompt_logprobs() {
        try (Engine engine = Jobs.modelEngine(); Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL)) {
            SamplingParams.Builder builder = SamplingParams.builder().maxTokens(8);
            int[] free = only(engine, builder.build()).tokens();
            builder.stopTokens(free[0]);
            Check.equal(1, only(engine, builder.build()).tokens().length);
            int[] later = only(engine, builder.minTokens(3).build()).tokens();
            Check.that(later.length > 3 && later[0] != free[0], "min_tokens");
            Result asked = only(engine, SamplingParams.builder().maxTokens(2).promptLogprobs(2).topK(-1).build());
            int prompt = tokenizer.encode("The capital of").length;
            Check.equal(prompt - 1, asked.promptLogprobs().length);
            Check.equal(prompt - 1, asked.promptTopTokens().length);
            Check.equal(2, asked.promptTopLogprobs()[0].length);
            // A token is a byte: a one-letter word is a token with and without a space before it.
            for (int i = 0; i < free.length; i++) {
                if (free[i] <= 32 || free[i] >= 127) continue;
                String word = String.valueOf((char) free[i]);
                int[] without = only(engine, SamplingParams.builder().maxTokens(8).badWords("zzz", word).build()).tokens();
                for (int token : without) Check.that(token != free[i], "a bad word is generated");
                return;
            }
            throw new AssertionError("nothing printable is generated: the test shows nothing");
        }
    }

    private static Result only(Engine engine, SamplingParams params) {
        try (Results results = engine.generate(Rows.ofText("The capital of").withParams(params))) {
            Check.that(results.get(0).ok(), results.get(0).toString());
            return results.get(0);
        }
    }

    public static void all_rows_can_be_cancelled() {
        try (Engine engine = Jobs.simEngine()) {
            engine.add(Jobs.simRows(50, 400));
            engine.step();
            engine.cancelAll();
            engine.run();
            try (Results results = engine.poll()) {
                Check.equal(50, results.size());
                for (Result result : results) Check.equal(FinishReason.CANCELLED, result.finishReason());
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Check.run(ReportTest.class);
    }
}
