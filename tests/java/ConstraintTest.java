import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.ResourceBundle;
import java.util.Set;
import org.batchllm.BatchLlm;
import org.batchllm.BatchLlmException;
import org.batchllm.Constraint;
import org.batchllm.EncodedColumn;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.FinishReason;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;
import org.batchllm.TextColumn;
import org.batchllm.Tokenizer;

/** Rows with constraints. */
final class ConstraintTest {
    private static final String TOY =
            "{\"type\": \"object\", \"properties\": {\"b\": {\"enum\": [\"x\", \"y\"]}, \"a\": {\"type\": \"boolean\"}},"
                    + " \"required\": [\"a\", \"b\"], \"additionalProperties\": false}";
    private static final String UNIQUE =
            "{\"type\": \"array\", \"uniqueItems\": true, \"items\": {\"type\": \"integer\"}, \"maxItems\": 2}";

    private static SamplingParams with(Constraint constraint) {
        return SamplingParams.builder().constraint(constraint).build();
    }

    private static List<String> texts(Engine engine, SamplingParams... params) {
        Rows rows = Rows.ofText(Collections.nCopies(params.length, "Once upon")).withParams(Arrays.asList(params));
        try (Results results = engine.generate(rows)) {
            for (Result result : results) Check.that(result.ok(), String.valueOf(result.error()));
            return results.texts();
        }
    }

    public static void a_null_is_named() {
        Check.throwing(NullPointerException.class, "texts is null", () -> Constraint.ofChoices((List<String>) null));
        Check.throwing(NullPointerException.class, "texts is null", () -> Constraint.ofChoices((String[]) null));
        Check.throwing(IllegalArgumentException.class, "choice 1 is null", () -> Constraint.ofChoices("a", null));
        Check.throwing(NullPointerException.class, "expression is null", () -> Constraint.ofRegex(null));
        Check.throwing(NullPointerException.class, "schema is null", () -> Constraint.ofJsonSchema(null));
        Check.throwing(NullPointerException.class, "grammar is null", () -> Constraint.ofGbnf(null));
        Check.throwing(NullPointerException.class, "grammar is null", () -> Constraint.ofLark(null));
        Check.throwing(NullPointerException.class, "marker is null", () -> Constraint.ofRegex("a").withStartAfter(null));
        SamplingParams.Builder builder = SamplingParams.builder();
        Check.throwing(IllegalArgumentException.class, "stopStrings: text 1 is null", () -> builder.stopStrings("a", null));
        Check.throwing(NullPointerException.class, "badWords is null", () -> builder.badWords((String[]) null));
        Check.throwing(NullPointerException.class, "stopTokens is null", () -> builder.stopTokens((int[]) null));
        Check.throwing(IllegalArgumentException.class, "biases: the bias of token 5 is null",
                () -> builder.biases(Collections.singletonMap(5, null)));
        Check.throwing(IllegalArgumentException.class, "biases: a token is null", () -> builder.biases(Collections.singletonMap(null, 1f)));
        Check.throwing(NullPointerException.class, "biases is null", () -> builder.biases(null));
        Check.throwing(NullPointerException.class, "modelDirectory is null", () -> EngineOptions.builder(null));
    }

    public static void rows_to_be_scored_have_none() {
        try (Engine engine = Jobs.modelEngine()) {
            Rows rows = Rows.ofScores(List.of("Once", "upon"), List.of("a", "b"));
            String says = "only generated text has one";
            SamplingParams constrained = with(Constraint.ofChoices("a"));
            Check.throwing(IllegalArgumentException.class, says, () -> engine.add(rows.withParams(constrained)));
            Check.throwing(
                    IllegalArgumentException.class,
                    says,
                    () -> engine.add(rows.withParams(List.of(SamplingParams.DEFAULT, constrained))));
            try (Results results = engine.generate(rows)) {
                Check.that(results.size() == 2 && results.get(1).ok(), "rows after a wrong constraint");
            }
        }
    }

    public static void every_row_keeps_to_its_own() {
        try (Engine engine = Jobs.modelEngine()) {
            List<String> found = texts(
                    engine,
                    with(Constraint.ofChoices("red", "grün 😀")),
                    with(Constraint.ofRegex("[0-9]{3}-ü")),
                    with(Constraint.ofJsonSchema(TOY)),
                    with(Constraint.ofGbnf("root ::= \"x\" | \"(\" root \")\"")).toBuilder().maxTokens(9).build(),
                    with(Constraint.ofLark("start: \"z\" /[0-9]/")),
                    SamplingParams.builder().maxTokens(2).build());
            Check.that(Set.of("red", "grün 😀").contains(found.get(0)), found.get(0));
            Check.that(found.get(1).matches("[0-9]{3}-ü"), found.get(1));
            Check.that(found.get(2).matches("\\{\"b\":\"[xy]\",\"a\":(true|false)\\}"), found.get(2));
            Check.that(found.get(3).matches("\\(*x?\\)*"), found.get(3));
            Check.that(found.get(4).matches("z[0-9]"), found.get(4));
        }
    }

    public static void a_row_that_ends_with_its_constraint_has_stopped() {
        try (Engine engine = Jobs.modelEngine();
                Results results = engine.generate(
                        Rows.ofText("a", "b").withParams(with(Constraint.ofChoices(List.of("yes", "no")))))) {
            for (Result result : results) {
                Check.equal(FinishReason.STOP, result.finishReason());
                Check.that(Set.of("yes", "no").contains(result.text()), result.text());
            }
        }
    }

    /** Greedy, so that a bias decides what is written wherever the constraint leaves a choice. */
    private static String biased(Engine engine, Constraint constraint, String likely) {
        Map<Integer, Float> biases = new HashMap<>();
        float bias = 1000;
        try (Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL)) {
            for (int i = 0; i < likely.length(); i++) {
                try (EncodedColumn one =
                        tokenizer.encode(TextColumn.of(likely.substring(i, i + 1)), false, false)) {
                    biases.put(one.tokens(0)[0], bias);
                }
                bias /= 2;
            }
        }
        return texts(engine, with(constraint).toBuilder().biases(biases).maxTokens(40).build()).get(0);
    }

    public static void options_change_how_json_is_written() {
        Constraint toy = Constraint.ofJsonSchema(TOY);
        Constraint number = Constraint.ofJsonSchema("{\"type\": \"integer\", \"minimum\": 1, \"maximum\": 9}");
        try (Engine engine = Jobs.modelEngine()) {
            Check.that(biased(engine, toy, " ").matches("\\{\"b\":.*"), "spaces were not asked for");
            String spaced = biased(engine, toy.withFlexibleWhitespace(true), " ");
            Check.that(spaced.startsWith("{ \""), spaced);
            Check.that(biased(engine, toy, "a").startsWith("{\"b\":"), "the order is the schema's");
            String ordered = biased(engine, toy.withAnyMemberOrder(true), "a");
            Check.that(ordered.startsWith("{\"a\":"), ordered);
            Check.equal(1, biased(engine, number, ".0").length());
            String decimal = biased(engine, number.withAnyNumbers(true), ".0");
            Check.that(decimal.matches("[1-9]\\.0"), decimal);
            String behind = biased(engine, Constraint.ofRegex("b+").withStartAfter("yy"), "y");
            Check.that(behind.startsWith("yyb"), behind);
        }
    }

    public static void a_wrong_one_fails_the_call_and_adds_no_row() {
        try (Engine engine = Jobs.modelEngine()) {
            Check.throwing(BatchLlmException.InvalidArgument.class, "regex: character 1",
                    () -> engine.add(Rows.ofText("a", "b").withParams(with(Constraint.ofRegex("(a")))));
            Check.throwing(BatchLlmException.Unsupported.class, "#/uniqueItems",
                    () -> engine.prepare(Constraint.ofJsonSchema(UNIQUE)));
            Check.throwing(BatchLlmException.InvalidArgument.class, "",
                    () -> engine.prepare(Constraint.ofJsonSchema("{\"type\": 5}")));
            Check.throwing(IllegalArgumentException.class, "zero character",
                    () -> engine.prepare(Constraint.ofChoices("a\0b")));
            Check.throwing(BatchLlmException.class, "", () -> engine.prepare(Constraint.ofChoices("\ud83d")));
            Check.equal(0L, engine.stats().rows());
        }
        try (Engine engine = Jobs.simEngine()) {
            Check.throwing(BatchLlmException.InvalidState.class, "tokenizer", () -> engine.prepare(Constraint.ofRegex("a")));
        }
    }

    public static void a_loose_schema_says_what_it_does_not_enforce() {
        List<String> lines = new ArrayList<>();
        System.Logger logger = new System.Logger() {
            @Override
            public String getName() {
                return "test";
            }

            @Override
            public boolean isLoggable(Level level) {
                return level.compareTo(Level.WARNING) >= 0;
            }

            @Override
            public void log(Level level, ResourceBundle bundle, String message, Throwable thrown) {
                lines.add(level + " " + message);
            }

            @Override
            public void log(Level level, ResourceBundle bundle, String format, Object... values) {
                lines.add(level + " " + format);
            }
        };
        Constraint loose = Constraint.ofJsonSchema(UNIQUE).withLooseSchema(true);
        EngineOptions options = EngineOptions.builder(Jobs.MODEL).backend("cpu").computeType("f32").logger(logger).build();
        try (Engine engine = Engine.create(options)) {
            lines.clear();
            List<String> warnings = engine.prepare(loose);
            Check.that(warnings.size() == 1 && warnings.get(0).startsWith("#/uniqueItems:"), warnings.toString());
            Check.equal(warnings, engine.prepare(Constraint.ofJsonSchema(UNIQUE).withLooseSchema(true)));
            Check.equal(1, lines.size());
            Check.that(lines.get(0).startsWith("WARNING ") && lines.get(0).endsWith(warnings.get(0)), lines.get(0));
            Check.equal(List.of(), engine.prepare(Constraint.ofJsonSchema(TOY).withLooseSchema(true)));
        }
    }

    public static void equal_ones_are_made_once_and_cost_no_call_a_row() {
        try (Engine engine = Jobs.modelEngine()) {
            long few = calls(engine, 20);
            long many = calls(engine, 2000);
            Check.that(many < few + 500, few + " calls for 20 rows, " + many + " for 2,000");
        }
        Check.equal(Constraint.ofChoices("a", "b"), Constraint.ofChoices(List.of("a", "b")));
        Check.that(!Constraint.ofGbnf("x").equals(Constraint.ofLark("x")), "grammars of two languages");
        Check.that(!Constraint.ofJsonSchema("true").equals(Constraint.ofJsonSchema("true").withAnyNumbers(true)), "numbers");
    }

    private static long calls(Engine engine, int count) {
        List<SamplingParams> params = new ArrayList<>();
        for (int i = 0; i < count; i++) params.add(with(Constraint.ofChoices("a" + i % 3, "b" + i % 3)));
        long start = BatchLlm.nativeCalls();
        try (Results results = engine.generate(Rows.ofText(Collections.nCopies(count, "a")).withParams(params))) {
            for (int i = 0; i < count; i++) Check.that(results.text(i).endsWith("" + i % 3), results.text(i));
        }
        return BatchLlm.nativeCalls() - start;
    }

    public static void main(String[] args) throws Exception {
        Check.run(ConstraintTest.class);
    }
}
