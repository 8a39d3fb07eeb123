import java.io.IOException;
import java.nio.LongBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.ResourceBundle;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import org.batchllm.BatchLlm;
import org.batchllm.BatchLlmException;
import org.batchllm.DecodedColumn;
import org.batchllm.EncodedColumn;
import org.batchllm.Engine;
import org.batchllm.EngineInfo;
import org.batchllm.EngineOptions;
import org.batchllm.EngineStats;
import org.batchllm.FinishReason;
import org.batchllm.Plan;
import org.batchllm.PlanOptions;
import org.batchllm.PlanStats;
import org.batchllm.Progress;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;
import org.batchllm.Sharing;
import org.batchllm.Status;
import org.batchllm.TextColumn;
import org.batchllm.TokenColumn;
import org.batchllm.Tokenizer;

/** Everything that the package does, once. */
final class EngineTest {
    private static final SamplingParams BYTES =
            SamplingParams.builder().maxTokens(6).ignoreEos(true).addSpecial(false).build();

    public static void generate_gives_results_in_the_order_of_the_rows() {
        int[][] rows = Jobs.rows(300);
        try (Engine engine = Jobs.simEngine()) {
            List<SamplingParams> params = new ArrayList<>();
            for (int i = 0; i < rows.length; i++) params.add(Jobs.tokens(1 + i % 17));
            Rows job = Rows.ofTokens(Jobs.column(rows)).withParams(params);
            Check.equal(300L, job.size());
            for (int again = 0; again < 2; again++) {
                try (Results results = engine.generate(job)) {
                    Check.equal(300, results.size());
                    for (int i = 0; i < 300; i++) {
                        Result result = results.get(i);
                        Check.equal((long) i, result.tag());
                        Check.equal(1 + i % 17, result.tokens().length);
                        Check.equal((long) rows[i].length, result.promptTokens());
                        Check.equal(FinishReason.LENGTH, result.finishReason());
                        Check.that(result.ok() && result.error() == null, result.toString());
                    }
                }
            }
            EngineInfo info = engine.info();
            Check.equal("sim", info.backend());
            Check.equal(1, info.deviceCount());
            Check.that(info.stepTokens() > 0 && info.hidden() > 0 && info.maxRequestTokens() > 0, info.toString());
            Check.throwing(BatchLlmException.InvalidArgument.class, "device is 1", () -> engine.info(1));
            EngineStats stats = engine.stats();
            Check.equal(info.kvPages(), stats.kvPagesTotal());
            Check.equal(info.kvPageBytes(), stats.kvPageBytes());
            Check.equal(0L, info.stateSlots() + info.stateSlotBytes());
            Check.equal(0L, stats.stateSlotsTotal() + stats.stateSlotsPeak() + stats.stateSlotBytes());
            Check.equal(600L, stats.rows());
            Check.equal(600L, stats.rowsDone());
            Check.that(stats.savingRatio() > 0.4, "saving " + stats.savingRatio());
            Check.equal(stats.logicalPromptTokens() - stats.processedPromptTokens(), stats.sharedPromptTokens());
        }
    }

    public static void text_crosses_as_utf8_with_everything_that_java_strings_can_hold() {
        // A token is a byte, so the prompt's length is the number of bytes that arrived.
        String[] texts = {"plain", "a\0b", "é", "😀", "\u0800\uffff", "mixed \0é😀"};
        int[] bytes = {5, 3, 2, 4, 6, 13};
        try (Engine engine = Jobs.modelEngine();
                Results results = engine.generate(Rows.ofText(texts).withParams(BYTES));
                Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL)) {
            for (int i = 0; i < texts.length; i++) {
                Check.equal((long) bytes[i], results.get(i).promptTokens());
                int[] tokens = results.tokens(i);
                Check.equal(6, tokens.length);
                Check.equal(tokenizer.decode(tokens), results.text(i));
            }
            Check.equal(List.of(results.text(0), results.text(1)), results.texts().subList(0, 2));
        }
    }

    public static void half_a_surrogate_pair_fails_its_own_row() {
        try (Engine engine = Jobs.modelEngine();
                Results results = engine.generate(Rows.ofText("good", "bad \ud83d", "\ude00 bad").withParams(BYTES))) {
            Check.equal(Status.OK, results.get(0).status());
            Check.equal(Status.ROW_INVALID_UTF8, results.get(1).status());
            Check.equal(Status.ROW_INVALID_UTF8, results.get(2).status());
            Check.equal(FinishReason.ERROR, results.get(1).finishReason());
            Check.that(results.get(1).error().matches("ROW_INVALID_UTF8: .*UTF-8.*"), results.get(1).error());
            Check.equal("ROW_INVALID_UTF8", Status.name(Status.ROW_INVALID_UTF8));
        }
    }

    public static void strings_iterators_and_buffers_of_text_are_the_same_column() {
        List<String> texts = List.of("one", "", "zwei 😀", "trois é");
        byte[] utf8 = String.join("", texts).getBytes(StandardCharsets.UTF_8);
        long[] offsets = {0, 3, 3, 12, utf8.length};
        try (Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL)) {
            List<int[]> expected = encoded(tokenizer, TextColumn.of(utf8, offsets));
            Check.equal(expected.toArray(), encoded(tokenizer, TextColumn.of(texts)).toArray());
            Check.equal(expected.toArray(), encoded(tokenizer, TextColumn.of(texts.iterator())).toArray());
            Check.equal(expected.toArray(), encoded(tokenizer, TextColumn.of(texts.toArray(new String[0]))).toArray());
            Check.equal(4L, TextColumn.of(texts.iterator()).size());
        }
    }

    private static List<int[]> encoded(Tokenizer tokenizer, TextColumn texts) {
        try (EncodedColumn column = tokenizer.encode(texts, false, false)) {
            List<int[]> rows = new ArrayList<>();
            for (int i = 0; i < column.size(); i++) rows.add(column.tokens(i));
            return rows;
        }
    }

    public static void every_sampling_parameter_reaches_its_rows() {
        try (Engine engine = Jobs.modelEngine()) {
            String prompt = "Once upon a time";
            int[] plain;
            try (Results results = engine.generate(Rows.ofText(prompt).withParams(BYTES))) {
                plain = results.tokens(0);
            }
            List<SamplingParams> params = List.of(
                    BYTES,
                    BYTES.toBuilder().stopTokens(plain[2]).build(),
                    BYTES.toBuilder().biases(Map.of(65, 1000f)).build(),
                    BYTES.toBuilder().samples(3).temperature(1).seed(7).build(),
                    BYTES.toBuilder().logprobs(4).build(),
                    BYTES.toBuilder().biases(Map.of(66, 1000f)).stopStrings("BBB", "zz").build(),
                    BYTES.toBuilder().repetitionPenalty(-1).build(),
                    BYTES.toBuilder().topP(2).build(),
                    BYTES.toBuilder().minP(-1).build(),
                    BYTES.toBuilder().topK(-2).build(), // -1 is off
                    BYTES.toBuilder().presencePenalty(9).build(),
                    BYTES.toBuilder().frequencyPenalty(9).build(),
                    BYTES.toBuilder().temperature(-1).build());
            try (Results results =
                    engine.generate(Rows.ofText(Collections.nCopies(13, prompt)).withParams(params))) {
                Check.equal(15, results.size());
                Check.equal(plain, results.tokens(0));
                int stopAt = Arrays.stream(plain).boxed().collect(Collectors.toList()).indexOf(plain[2]);
                Check.equal(Arrays.copyOf(plain, stopAt + 1), results.tokens(1));
                Check.equal(FinishReason.STOP, results.get(1).finishReason());
                Check.equal("AAAAAA", results.text(2));
                for (int i = 3; i < 6; i++) {
                    Check.equal(3L, results.get(i).tag());
                    Check.equal(i - 3, results.get(i).sample());
                }
                Result logged = results.get(6);
                Check.equal(6, logged.logprobs().length);
                for (int i = 0; i < 6; i++) {
                    Check.equal(4, logged.topTokens()[i].length);
                    Check.equal(logged.tokens()[i], logged.topTokens()[i][0]); // greedy
                    Check.equal(logged.logprobs()[i], logged.topLogprobs()[i][0]);
                }
                Check.equal(0, results.get(0).logprobs().length);
                Check.equal("", results.text(7));
                Check.equal(FinishReason.STOP, results.get(7).finishReason());
                for (int i = 8; i < 15; i++) Check.equal(Status.ROW_INVALID_PARAMETER, results.get(i).status());
            }
        }
    }

    public static void what_no_row_can_run_with_fails_before_the_first_row() {
        try (Engine engine = Jobs.simEngine()) {
            SamplingParams cold = SamplingParams.builder().temperature(-1).build();
            for (SamplingParams wrong : List.of(cold, Jobs.tokens(0))) {
                Rows rows = Jobs.simRows(3, 1).withParams(wrong);
                String words = "no row can run: " + (wrong == cold ? "temperature is -1" : "max_tokens is 0");
                Check.throwing(BatchLlmException.InvalidArgument.class, words, () -> engine.generate(rows));
                Check.throwing(BatchLlmException.InvalidArgument.class, words, () -> engine.check(wrong));
                Check.equal(0L, engine.stats().rows());
            }
            // In a list of parameters, they are only their row's.
            Rows rows = Jobs.simRows(2, 1).withParams(List.of(cold, Jobs.tokens(1)));
            try (Results results = engine.generate(rows)) {
                Check.equal(Status.ROW_INVALID_PARAMETER, results.get(0).status());
                Check.equal(Status.OK, results.get(1).status());
            }
        }
    }

    public static void special_tokens_are_added_and_parsed_as_the_parameters_say() {
        try (Engine engine = Jobs.modelEngine();
                Results results = engine.generate(Rows.ofText("<s>", "<s>", "<s>").withParams(List.of(
                        BYTES,
                        BYTES.toBuilder().parseSpecial(false).build(),
                        BYTES.toBuilder().addSpecial(true).build())))) {
            Check.equal(1L, results.get(0).promptTokens());
            Check.equal(3L, results.get(1).promptTokens());
            Check.equal(2L, results.get(2).promptTokens());
        }
    }

    public static void scores_from_text_and_from_tokens_agree() {
        List<String> prompts = List.of("Is water wet?", "Is fire cold?");
        List<String> answers = List.of(" yes", " no");
        try (Engine engine = Jobs.modelEngine();
                Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL);
                Results text = engine.generate(Rows.ofScores(prompts, answers))) {
            TokenColumn promptTokens =
                    TokenColumn.of(List.of(tokenizer.encode(prompts.get(0)), tokenizer.encode(prompts.get(1))));
            List<int[]> continuations = encoded(tokenizer, TextColumn.of(" yes", " no", " yes", " no"));
            LongBuffer rows = LongBuffer.wrap(new long[] {0, 2, 4});
            try (Results tokens = engine.generate(Rows.ofScores(promptTokens, TokenColumn.of(continuations), rows))) {
                for (int i = 0; i < 2; i++) {
                    Result scored = text.get(i);
                    Check.equal(FinishReason.SCORED, scored.finishReason());
                    Check.equal(2, scored.scores().length);
                    Check.equal(scored.scores(), tokens.get(i).scores());
                    float[] yes = scored.scoreLogprobs()[0];
                    Check.equal(4, yes.length);
                    double sum = 0;
                    for (float logprob : yes) sum += logprob;
                    Check.that(Math.abs(sum - scored.scores()[0]) < 1e-4, sum + " is not " + scored.scores()[0]);
                }
            }
        }
    }

    public static void stream_gives_every_row_once_and_may_be_cancelled_on_the_way() {
        try (Engine engine = Jobs.simEngine()) {
            long[] tags = new long[200];
            for (int i = 0; i < 200; i++) tags[i] = 1000 + i;
            Iterator<Result> stream = engine.stream(Jobs.simRows(200, 50).withTags(tags));
            Set<Long> seen = new HashSet<>();
            engine.cancel(1000, 100);
            int cancelled = 0;
            while (stream.hasNext()) {
                Result result = stream.next();
                Check.that(seen.add(result.tag()), "twice: " + result);
                if (result.finishReason() == FinishReason.CANCELLED) cancelled++;
            }
            Check.equal(200, seen.size());
            Check.equal(100, cancelled);
            Check.throwing(NoSuchElementException.class, "", stream::next);
        }
    }

    public static void a_listener_is_told_stops_the_run_and_the_run_goes_on() {
        try (Engine engine = Jobs.simEngine()) {
            engine.add(Jobs.simRows(500, 40));
            List<Progress> told = new ArrayList<>();
            Check.equal(false, engine.run(progress -> told.add(progress) && told.size() < 5, Duration.ZERO));
            Check.equal(5, told.size());
            Check.that(!told.get(4).done() && told.get(4).tokensDone() > told.get(0).tokensDone(), "" + told.get(4));
            Check.throwing(IllegalArgumentException.class, "mine", () -> engine.run(progress -> {
                throw new IllegalArgumentException("mine");
            }, Duration.ZERO));
            Check.throwing(IllegalStateException.class, "listener", () -> engine.run(progress -> engine.run()));
            Check.equal(true, engine.run());
            try (Results results = engine.poll(100)) {
                Check.equal(100, results.size());
            }
            try (Results results = engine.poll()) {
                Check.equal(400, results.size());
            }
            try (Results results = engine.poll()) {
                Check.that(results.isEmpty(), "polled twice");
            }
        }
    }

    public static void a_listener_may_add_rows_and_poll() {
        try (Engine engine = Jobs.simEngine()) {
            engine.add(Jobs.simRows(10, 5));
            int[] polled = {0, 0};
            Check.equal(true, engine.run(progress -> {
                if (progress.done() && polled[1]++ < 3) engine.add(Jobs.simRows(10, 5));
                try (Results results = engine.poll()) {
                    polled[0] += results.size();
                }
                return true;
            }, Duration.ZERO));
            Check.equal(40, polled[0]);
        }
    }

    public static void generate_wants_an_engine_without_other_rows() {
        try (Engine engine = Jobs.simEngine()) {
            Rows job = Jobs.simRows(10, 3);
            engine.add(job);
            Check.throwing(IllegalStateException.class, "other rows", () -> engine.generate(job));
            engine.run();
            engine.poll().close();
            engine.generate(job).close();
            Check.throwing(IllegalArgumentException.class, "tags", () -> engine.generate(job.withTags(new long[10])));
            Check.throwing(BatchLlmException.Stopped.class, "stopped", () -> engine.generate(job, progress -> false));
        }
    }

    public static void a_plan_is_made_saved_loaded_and_used() throws IOException {
        Path file = Files.createTempFile("batchllm", ".plan");
        TokenColumn rows = Jobs.column(Jobs.rows(200));
        PlanOptions options =
                PlanOptions.builder()
                        .sharing(Sharing.OPTIMAL)
                        .levels(1)
                        .minPrefixTokens(8)
                        .selfContained(true)
                        .build();
        int[] decodeLengths = new int[200];
        Arrays.fill(decodeLengths, 5);
        try (Plan plan = Plan.create(rows, options, decodeLengths, null)) {
            PlanStats stats = plan.stats();
            Check.equal(200L, stats.rows());
            Check.equal(200L, stats.groupedRows());
            Check.equal(20L, stats.groups());
            Check.that(stats.selfContained() && stats.sharing() == Sharing.OPTIMAL, "options");
            Plan.Groups groups = plan.groups();
            Check.equal(20, groups.size());
            Check.equal(20L, groups.prefixTokens(3));
            Check.equal(0L, groups.commonPrefixTokens(3));
            long[] members = groups.rows(3);
            Check.equal(LongStream.range(members[0] / 10 * 10, members[0] / 10 * 10 + 10).toArray(), members);
            plan.save(file);
        }
        try (Plan loaded = Plan.load(file);
                Plan next = Plan.create(Jobs.column(Jobs.rows(200)), options, null, loaded);
                Engine engine = Engine.create(Jobs.sim().minPrefixTokens(8).build())) {
            Check.equal(200L, next.stats().reusedRows());
            engine.usePlan(loaded);
            engine.add(Rows.ofTokens(rows).withParams(Jobs.tokens(4)));
            engine.buildGroups();
            try (Plan used = engine.plan()) {
                Check.equal(200L, used.stats().reusedRows());
            }
            engine.run();
            Check.equal(200L, engine.stats().rowsDone());
        }
        Files.write(file, new byte[] {1, 2, 3});
        Check.throwing(BatchLlmException.PlanFormat.class, file.toString(), () -> Plan.load(file).close());
        Files.delete(file);
        Check.throwing(BatchLlmException.Io.class, file.toString(), () -> Plan.load(file).close());
    }

    public static void a_plan_of_another_tokenizer_is_refused() {
        PlanOptions options = PlanOptions.builder().tokenizerFingerprint(12345).build();
        try (Plan plan = Plan.create(Jobs.column(Jobs.rows(20)), options, null, null);
                Engine engine = Jobs.modelEngine()) {
            Check.throwing(BatchLlmException.PlanMismatch.class, "", () -> {
                engine.usePlan(plan);
                engine.add(Rows.ofText("text"));
                engine.buildGroups();
            });
        }
    }

    public static void a_tokenizer_encodes_and_decodes_columns() {
        try (Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL)) {
            Check.equal(new int[] {256, 'h', 'i'}, tokenizer.encode("hi"));
            Check.equal("hi", tokenizer.decode(256, 'h', 'i'));
            Check.equal(List.of("a", "bc"), tokenizer.decode(List.of(new int[] {'a'}, new int[] {'b', 'c'})));
            Check.that(tokenizer.fingerprint() != 0 && tokenizer.vocabulary() > 256, "no vocabulary");
            Check.throwing(BatchLlmException.class, "UTF8", () -> tokenizer.encode("\ud800"));
            try (EncodedColumn column = tokenizer.encode(TextColumn.of("é", "\ud800", "<s>x"), true, false)) {
                Check.equal(3, column.size());
                Check.equal(3, column.tokens(0).length);
                Check.equal(Status.ROW_INVALID_UTF8, column.status(1));
                Check.equal(0, column.tokens(1).length);
                Check.that(column.error(0) == null && column.error(1).contains("UTF-8"), "" + column.error(1));
                Check.equal(5, column.tokens(2).length);
                Check.equal((int) column.offsets().get(3), column.tokens().remaining());
                Check.equal(Status.ROW_INVALID_UTF8, column.statuses().get(1));
                try (DecodedColumn back = tokenizer.decode(column.column(), true)) {
                    Check.equal("é", back.text(0));
                    Check.equal("<s>x", back.text(2));
                    Check.equal(back.text(0).getBytes(StandardCharsets.UTF_8).length + 4, back.text().remaining());
                }
            }
        }
    }

    public static void conversations_go_through_the_models_template() throws IOException {
        Path model = Files.createTempDirectory("batchllm-chat");
        try (Stream<Path> files = Files.list(Jobs.MODEL)) {
            for (Path file : (Iterable<Path>) files::iterator) Files.copy(file, model.resolve(file.getFileName()));
        }
        Files.writeString(model.resolve("tokenizer_config.json"),
                "{\"chat_template\": \"{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
                        + "{% if add_generation_prompt %}[assistant]{% endif %}\"}");
        TextColumn chats = TextColumn.of("[{\"role\": \"user\", \"content\": \"😀?\"}]", "{not JSON");
        try (Engine engine = Engine.create(EngineOptions.builder(model).backend("cpu").computeType("f32").build());
                Tokenizer tokenizer = Tokenizer.load(model);
                DecodedColumn texts = tokenizer.applyChatTemplate(chats, true);
                DecodedColumn open = tokenizer.applyChatTemplate(chats, false);
                Results results = engine.generate(Rows.ofChat(chats).withParams(BYTES));
                Results same = engine.generate(Rows.ofText(texts.text(0)).withParams(BYTES))) {
            Check.equal("[user]😀?[assistant]", texts.text(0));
            Check.equal("[user]😀?", open.text(0));
            Check.equal(Status.ROW_TEMPLATE, texts.status(1));
            Check.equal(same.tokens(0), results.tokens(0));
            Check.equal(Status.ROW_TEMPLATE, results.get(1).status());
        } finally {
            try (Stream<Path> files = Files.list(model)) {
                for (Path file : (Iterable<Path>) files::iterator) Files.delete(file);
            }
            Files.delete(model);
        }
    }

    /** Keeps the messages; may try to call the engine, or throw. */
    private static final class Kept implements System.Logger {
        final List<String> lines = Collections.synchronizedList(new ArrayList<>());
        final Level least;
        volatile Runnable then = () -> {};

        Kept(Level least) {
            this.least = least;
        }

        @Override
        public String getName() {
            return "kept";
        }

        @Override
        public boolean isLoggable(Level level) {
            return level.getSeverity() >= least.getSeverity();
        }

        @Override
        public void log(Level level, ResourceBundle bundle, String message, Throwable thrown) {
            lines.add(level + " " + message);
            then.run();
        }

        @Override
        public void log(Level level, ResourceBundle bundle, String format, Object... params) {
            lines.add(level + " " + format);
            then.run();
        }
    }

    public static void log_lines_reach_the_engines_own_logger() {
        Kept debug = new Kept(System.Logger.Level.DEBUG);
        Kept info = new Kept(System.Logger.Level.INFO); // what is printed by default
        try (Engine one = Engine.create(Jobs.sim().logger(debug).build());
                Engine other = Engine.create(Jobs.sim().logger(info).build())) {
            one.generate(Jobs.simRows(5, 2)).close();
            other.generate(Jobs.simRows(5, 2)).close();
        }
        Check.that(debug.lines.stream().anyMatch(line -> line.startsWith("DEBUG sim")), "" + debug.lines);
        Check.equal(List.of(), info.lines);
    }

    public static void a_logger_that_throws_harms_nothing_and_one_that_calls_is_refused() {
        Kept logger = new Kept(System.Logger.Level.DEBUG);
        List<String> refused = new ArrayList<>();
        logger.then = () -> {
            try {
                Engine.create(Jobs.sim().build());
            } catch (IllegalStateException thrown) {
                refused.add(thrown.getMessage());
            }
            throw new IllegalStateException("a logger's own failure");
        };
        Thread.setDefaultUncaughtExceptionHandler((thread, thrown) -> refused.add("told: " + thrown.getMessage()));
        try (Engine engine = Engine.create(Jobs.sim().logger(logger).build())) {
            engine.generate(Jobs.simRows(5, 2)).close();
        } finally {
            Thread.setDefaultUncaughtExceptionHandler(null);
        }
        Check.that(refused.contains("a logger cannot call the library"), "" + refused);
        Check.that(refused.contains("told: a logger's own failure"), "" + refused);
    }

    public static void options_reach_the_engine() throws IOException {
        Path timeline = Files.createTempFile("batchllm", ".csv");
        EngineOptions options = Jobs.sim()
                .threads(1)
                .kvMemoryBytes(1 << 28)
                .stepTokens(64)
                .maxRequestTokens(100)
                .maxRequests(3)
                .sharing(Sharing.NONE)
                .levels(1)
                .minPrefixTokens(4)
                .seed(5)
                .timeline(timeline)
                .build();
        try (Engine engine = Engine.create(options)) {
            Check.equal(true, engine.run(progress -> {
                Check.that(progress.rowsRunning() <= 3, "maxRequests: " + progress);
                Check.that(progress.ownTokens() + progress.prefixTokens() + progress.decodeTokens() <= 64, "stepTokens");
                return true;
            }, Duration.ZERO));
            engine.add(Rows.ofTokens(TokenColumn.of(new int[101], new long[] {0, 101})));
            engine.add(Jobs.simRows(30, 3).withTags(new long[30]));
            engine.run();
            try (Results results = engine.poll()) {
                Check.equal(31, results.size());
                Check.equal(Status.ROW_TOO_LONG, results.get(0).status());
            }
            EngineStats stats = engine.stats();
            Check.equal(0L, stats.sharedPromptTokens());
            Check.equal(1L << 28, stats.kvPagesTotal() * stats.kvPageBytes());
        }
        Check.that(Files.readAllLines(timeline).size() > 5, "no timeline");
        Files.delete(timeline);
        Check.throwing(BatchLlmException.InvalidArgument.class, "pages",
                () -> Engine.create(Jobs.sim().backendOptions("pages=-1").build()));
        Check.throwing(BatchLlmException.InvalidArgument.class, "levels", () -> Engine.create(Jobs.sim().levels(9).build()));
        Engine.create(Jobs.sim().levels(0).build()).close();
        Check.throwing(BatchLlmException.InvalidArgument.class, "f99",
                () -> Engine.create(EngineOptions.builder(Jobs.MODEL).backend("cpu").computeType("f99").build()));
        Check.throwing(BatchLlmException.InvalidArgument.class, "kv_memory_fraction",
                () -> Engine.create(EngineOptions.builder(Jobs.MODEL).backend("cpu").kvMemoryFraction(7).build()));
    }

    public static void failures_are_exceptions_of_their_kind() throws IOException {
        Path none = Path.of("/nowhere/😀");
        BatchLlmException thrown = Check.throwing(BatchLlmException.Io.class, "/nowhere/😀", () -> Tokenizer.load(none));
        Check.equal("IO", Status.name(thrown.status()));
        Check.equal("IO", thrown.code());
        Check.throwing(BatchLlmException.Io.class, "/nowhere/😀",
                () -> Engine.create(EngineOptions.builder(none).backend("cpu").build()));
        Check.throwing(BatchLlmException.InvalidArgument.class, "abacus",
                () -> Engine.create(Jobs.sim().backend("abacus").build()));
        Check.throwing(IllegalArgumentException.class, "zero character", () -> Engine.create(Jobs.sim().backend("s\0m").build()));
        Path model = Files.createTempDirectory("batchllm-bad");
        Files.writeString(model.resolve("config.json"), "{\"model_type\": 7}");
        Check.throwing(BatchLlmException.ModelFormat.class, "config.json",
                () -> Engine.create(EngineOptions.builder(model).backend("cpu").build()));
        Files.writeString(model.resolve("tokenizer.json"), "{}");
        Check.throwing(BatchLlmException.TokenizerFormat.class, "tokenizer.json", () -> Tokenizer.load(model));
        Files.delete(model.resolve("config.json"));
        Files.delete(model.resolve("tokenizer.json"));
        Files.delete(model);
        try (Engine engine = Jobs.simEngine()) {
            Check.throwing(BatchLlmException.class, "", () -> engine.add(Rows.ofText("no tokenizer here")));
            Check.throwing(BatchLlmException.class, "", () -> engine.plan().close());
        }
    }

    public static void no_call_is_made_once_a_row() {
        try (Engine engine = Jobs.simEngine()) {
            Rows few = Jobs.simRows(200, 3);
            Rows many = Jobs.simRows(20000, 3);
            long start = BatchLlm.nativeCalls();
            engine.generate(few).close();
            long callsOfFew = BatchLlm.nativeCalls() - start;
            start = BatchLlm.nativeCalls();
            try (Results results = engine.generate(many)) {
                for (Result result : results) Check.equal(3, result.tokens().length);
            }
            long callsOfMany = BatchLlm.nativeCalls() - start;
            // More time means more slices, each with a few calls.
            Check.that(callsOfMany < callsOfFew + 500, callsOfFew + " calls for 200 rows, " + callsOfMany + " for 20,000");
        }
    }

    public static void the_version_is_the_librarys() {
        Check.that(BatchLlm.version().matches("0\\.\\d+\\.\\d+"), BatchLlm.version());
    }

    public static void main(String[] args) throws Exception {
        Check.run(EngineTest.class);
    }
}
