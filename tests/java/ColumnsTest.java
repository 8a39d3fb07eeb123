import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ReadOnlyBufferException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.batchllm.BatchLlmException;
import org.batchllm.DecodedColumn;
import org.batchllm.EncodedColumn;
import org.batchllm.Engine;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;
import org.batchllm.Status;
import org.batchllm.TextColumn;
import org.batchllm.TokenColumn;
import org.batchllm.Tokenizer;

/** Buffers and arrays in every shape give the same rows, and wrong ones are refused. */
final class ColumnsTest {
    private static final int[] TOKENS = {5, 6, 7, 8, 9, 10, 11, 12, 13};
    private static final long[] OFFSETS = {0, 2, 5, 9};

    /** The lengths of the rows, according to a plan that contains tokens and the engine's results. */
    private static int[] lengths(TokenColumn column) {
        try (Engine engine = Jobs.simEngine();
                Results results = engine.generate(Rows.ofTokens(column).withParams(Jobs.tokens(2)))) {
            int[] found = new int[results.size() * 2];
            for (int i = 0; i < results.size(); i++) {
                found[2 * i] = (int) results.get(i).promptTokens();
                found[2 * i + 1] = results.get(i).status();
            }
            return found;
        }
    }

    private static String decoded(TokenColumn column) {
        try (Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL);
                DecodedColumn texts = tokenizer.decode(column, false)) {
            StringBuilder all = new StringBuilder();
            for (int i = 0; i < texts.size(); i++) all.append(texts.text(i)).append('|');
            return all.toString();
        }
    }

    private static IntBuffer direct(int[] items, ByteOrder order) {
        IntBuffer buffer = ByteBuffer.allocateDirect(items.length * 4).order(order).asIntBuffer();
        buffer.put(items).flip();
        return buffer;
    }

    private static LongBuffer direct(long[] items, ByteOrder order) {
        LongBuffer buffer = ByteBuffer.allocateDirect(items.length * 8).order(order).asLongBuffer();
        buffer.put(items).flip();
        return buffer;
    }

    public static void buffers_and_arrays_of_every_kind_are_the_same_rows() {
        int[] letters = "abcdefghi".chars().toArray();
        String expected = "ab|cde|fghi|";
        Check.equal(expected, decoded(TokenColumn.of(letters, OFFSETS)));
        for (ByteOrder order : new ByteOrder[] {ByteOrder.LITTLE_ENDIAN, ByteOrder.BIG_ENDIAN}) {
            Check.equal(expected, decoded(TokenColumn.of(direct(letters, order), direct(OFFSETS, order))));
        }
        Check.equal(expected, decoded(TokenColumn.of(IntBuffer.wrap(letters), LongBuffer.wrap(OFFSETS))));
        Check.equal(expected, decoded(TokenColumn.of(
                IntBuffer.wrap(letters).asReadOnlyBuffer(), LongBuffer.wrap(OFFSETS).asReadOnlyBuffer())));
        Check.equal(expected, decoded(TokenColumn.of(
                Arrays.asList(new int[] {'a', 'b'}, new int[] {'c', 'd', 'e'}, new int[] {'f', 'g', 'h', 'i'}))));
        Check.equal(new int[] {2, 0, 3, 0, 4, 0}, lengths(TokenColumn.of(TOKENS, OFFSETS)));
    }

    public static void a_buffer_counts_from_its_position_to_its_limit() {
        int[] letters = "xxabcdefghiyy".chars().toArray();
        long[] offsets = {77, 0, 2, 5, 9, 99};
        for (boolean native_ : new boolean[] {true, false}) {
            IntBuffer tokens = native_ ? direct(letters, ByteOrder.nativeOrder()) : IntBuffer.wrap(letters);
            LongBuffer rows = native_ ? direct(offsets, ByteOrder.nativeOrder()) : LongBuffer.wrap(offsets);
            tokens.position(2).limit(11);
            rows.position(1).limit(5);
            Check.equal("ab|cde|fghi|", decoded(TokenColumn.of(tokens, rows)));
            Check.equal(2, tokens.position());
            Check.equal("ab|cde|fghi|", decoded(TokenColumn.of(tokens.slice(), rows.slice())));
        }
        ByteBuffer text = ByteBuffer.wrap("__oneTwo__".getBytes());
        text.position(2).limit(8);
        ByteBuffer directText = ByteBuffer.allocateDirect(6).put(text.duplicate()).flip();
        for (ByteBuffer bytes : new ByteBuffer[] {text, directText, text.asReadOnlyBuffer(), text.slice()}) {
            try (Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL);
                    EncodedColumn column = tokenizer.encode(
                            TextColumn.of(bytes, LongBuffer.wrap(new long[] {0, 3, 6})), false, false)) {
                Check.equal("Two".chars().toArray(), column.tokens(1));
            }
        }
    }

    public static void a_null_prompt_is_its_row_s_error() {
        List<String> texts = Arrays.asList("a", null, "c", null);
        List<SamplingParams> each = List.of(Jobs.tokens(1), Jobs.tokens(2), Jobs.tokens(3), Jobs.tokens(4));
        try (Engine engine = Jobs.modelEngine()) {
            for (Rows rows : List.of(Rows.ofText(texts).withParams(each), Rows.ofText(texts).withParams(Jobs.tokens(2)))) {
                try (Results results = engine.generate(rows);
                        Results given = engine.generate(Rows.ofText("a", "b", "c", "d"))) {
                    Check.equal(4, results.size());
                    for (int i = 0; i < 4; i++) {
                        Result result = results.get(i);
                        Check.equal((long) i, result.tag());
                        if (texts.get(i) == null) {
                            Check.equal(Status.ROW_NULL, result.status());
                            Check.that(result.error().startsWith("ROW_NULL: "), result.error());
                            Check.that(result.text() == null && results.text(i) == null, "a null in, a null out");
                        } else {
                            Check.equal(Arrays.copyOf(given.tokens(i), result.tokens().length), result.tokens());
                        }
                    }
                    Check.equal(null, results.texts().get(3));
                }
            }
            try (Results tagged = engine.generate(Rows.ofScores(texts, List.of("x", "y")))) {
                Check.equal(2, tagged.get(2).scores().length);
                Check.equal(Status.ROW_NULL, tagged.get(1).status());
            }
            List<int[]> tokens = Arrays.asList(null, new int[] {5, 6}, null);
            try (Results results = engine.generate(Rows.ofTokens(tokens).withParams(Jobs.tokens(2)))) {
                Check.equal(Status.ROW_NULL, results.get(0).status());
                Check.equal(2, results.tokens(1).length);
                Check.equal(Status.ROW_NULL, results.get(2).status());
            }
            engine.add(Rows.ofChat((String) null));
            engine.add(Rows.ofText("a", null).withTags(7, 9).withParams(Jobs.tokens(1)));
            engine.run();
            try (Results results = engine.poll()) {
                long[] tags = new long[3];
                for (int i = 0; i < 3; i++) tags[i] = results.get(i).tag();
                Arrays.sort(tags);
                Check.equal(3, results.size());
                Check.equal(7L, tags[0]);
            }
        }
    }

    public static void a_null_in_a_column_is_refused_by_its_row() {
        List<String> texts = Arrays.asList("a", "b", null, "d", null);
        Check.throwing(IllegalArgumentException.class, "row 2 is null", () -> TextColumn.of(texts.iterator()));
        Check.throwing(IllegalArgumentException.class, "continuation 2 is null", () -> Rows.ofScores(List.of("x"), texts));
        Check.throwing(IllegalArgumentException.class, "row 1 is null",
                () -> TokenColumn.of(Arrays.asList(new int[] {1}, null)));
        Check.throwing(IllegalArgumentException.class, "row 1: its sampling parameters are null",
                () -> Rows.ofText("a", "b").withParams(Arrays.asList(Jobs.tokens(1), null)));
    }

    /** Whatever offsets, ids and texts: an exception that says why, or a result for every row. */
    public static void columns_at_random_are_refused_or_answered() {
        long seed = Long.getLong("test.seed", System.nanoTime());
        Random random = new Random(seed);
        long[] numbers = {0, 1, 2, 3, 4, 5, -1, Long.MAX_VALUE, Long.MIN_VALUE, 1L << 31, 1L << 40};
        int[] ids = {5, 6, 7, -1, 100000, Integer.MAX_VALUE, Integer.MIN_VALUE};
        String[] texts = {"", "a", "\ud83d", "h\u00e9llo", "[{\"role\":\"user\",\"content\":\"x\"}]", "[[[", null};
        int answered = 0;
        try (Engine engine = Jobs.modelEngine()) {
            for (int i = 0; i < 2000; i++) {
                int rows = random.nextInt(5);
                boolean good = random.nextBoolean();
                long[] offsets = new long[rows + 1];
                for (int k = 0; k <= rows; k++) offsets[k] = good ? k : numbers[random.nextInt(numbers.length)];
                int[] tokens = random.ints(good ? rows : 4, 0, ids.length).map(k -> ids[k]).toArray();
                List<String> some = Arrays.asList(
                        random.ints(rows, 0, texts.length).mapToObj(k -> texts[k]).toArray(String[]::new));
                LongBuffer order = random.nextBoolean() ? LongBuffer.wrap(offsets) : direct(offsets, ByteOrder.BIG_ENDIAN);
                try {
                    TokenColumn column = TokenColumn.of(IntBuffer.wrap(tokens), order);
                    Rows given = random.nextInt(4) == 0 ? Rows.ofScores(column, column, order)
                            : random.nextInt(3) == 0 ? Rows.ofText(some)
                            : random.nextInt(2) == 0 ? Rows.ofChat(some) : Rows.ofTokens(column);
                    try (Results results = engine.generate(given.withParams(Jobs.tokens(2)))) {
                        Check.equal(given.size(), (long) results.size());
                        for (Result result : results) Check.that(result.ok() == (result.error() == null), result.toString());
                        answered++;
                    }
                } catch (BatchLlmException | IllegalArgumentException refused) {
                    Check.that(String.valueOf(refused.getMessage()).length() > 9, "seed " + seed + ": " + refused);
                }
            }
        }
        Check.that(answered > 100, "seed " + seed + ": " + answered + " of 2000 calls had results");
    }

    public static void offsets_that_do_not_fit_are_refused_and_add_nothing() {
        try (Engine engine = Jobs.simEngine()) {
            long[][] wrong = {{0, 2, 10}, {0, 5, 2}, {-1, 2}, {3, Long.MAX_VALUE}, {Long.MIN_VALUE, 2}};
            for (long[] offsets : wrong) {
                Check.throwing(BatchLlmException.InvalidArgument.class, "offset",
                        () -> engine.add(Rows.ofTokens(TokenColumn.of(TOKENS, offsets))));
                Check.throwing(BatchLlmException.InvalidArgument.class, "offset",
                        () -> engine.add(Rows.ofTokens(TokenColumn.of(
                                direct(TOKENS, ByteOrder.nativeOrder()), direct(offsets, ByteOrder.nativeOrder())))));
            }
            Check.throwing(IllegalArgumentException.class, "offsets", () -> TokenColumn.of(TOKENS, new long[0]));
            Check.throwing(IllegalArgumentException.class, "offsets",
                    () -> TextColumn.of(ByteBuffer.allocate(1), LongBuffer.allocate(0)));
            Rows rows = Rows.ofTokens(TokenColumn.of(TOKENS, OFFSETS));
            Check.throwing(BatchLlmException.InvalidArgument.class, "2 tags for 3 rows", () -> engine.add(rows.withTags(1, 2)));
            Check.throwing(BatchLlmException.InvalidArgument.class, "0 tags for 3 rows", () -> engine.add(rows.withTags()));
            Check.throwing(BatchLlmException.InvalidArgument.class, "0 tags for 3 rows",
                    () -> engine.add(rows.withTags(ByteBuffer.allocateDirect(0).asLongBuffer())));
            Check.throwing(IllegalArgumentException.class, "1 sampling parameters for 3 rows",
                    () -> engine.add(rows.withParams(List.of(Jobs.tokens(1)))));
            Check.throwing(BatchLlmException.InvalidArgument.class, "",
                    () -> engine.add(Rows.ofScores(TokenColumn.of(TOKENS, OFFSETS), TokenColumn.of(TOKENS, OFFSETS),
                            LongBuffer.wrap(new long[] {0, 1, 2, 9}))));
            Check.throwing(NullPointerException.class, "", () -> Rows.ofTokens((TokenColumn) null));
            Check.equal(0L, engine.stats().rows());
            // No rows are left in the engine that would have to run first.
            Check.throwing(BatchLlmException.InvalidArgument.class, "offset",
                    () -> engine.generate(Rows.ofTokens(TokenColumn.of(TOKENS, new long[] {0, 5, 2}))));
            try (Results results = engine.generate(rows)) {
                Check.equal(3, results.size());
            }
        }
    }

    public static void an_empty_mapped_file_is_an_empty_column() throws IOException {
        Path file = Files.createTempFile("batchllm-columns", "");
        try (FileChannel channel = FileChannel.open(file)) {
            ByteBuffer empty = channel.map(FileChannel.MapMode.READ_ONLY, 0, 0).order(ByteOrder.nativeOrder());
            Check.that(empty.isDirect(), "it is no direct buffer");
            int[] expected = {0, Status.ROW_EMPTY};
            Check.equal(expected, lengths(TokenColumn.of(empty.asIntBuffer(), LongBuffer.wrap(new long[] {0, 0}))));
            Check.equal("|", decoded(TokenColumn.of(empty.asIntBuffer(), LongBuffer.wrap(new long[] {0, 0}))));
            try (Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL);
                    EncodedColumn column = tokenizer.encode(
                            TextColumn.of(empty, LongBuffer.wrap(new long[] {0, 0})), false, false)) {
                Check.equal(0, column.tokens(0).length);
            }
        } finally {
            Files.delete(file);
        }
    }

    public static void no_rows_are_rows_too() {
        try (Engine engine = Jobs.simEngine();
                Results direct = engine.generate(Rows.ofTokens(
                        TokenColumn.of(direct(new int[0], ByteOrder.nativeOrder()), direct(new long[] {0}, ByteOrder.nativeOrder()))));
                Results arrays = engine.generate(Rows.ofTokens(TokenColumn.of(new int[0], new long[] {0})));
                Results empty = engine.generate(Rows.ofTokens(TokenColumn.of(new int[0], new long[] {0, 0, 0})))) {
            Check.equal(0, direct.size());
            Check.equal(0, arrays.size());
            Check.equal(0, arrays.tokens().remaining());
            Check.equal(1, arrays.textOffsets().remaining());
            Check.equal(2, empty.size());
            Check.equal(Status.ROW_EMPTY, empty.get(1).status());
        }
    }

    public static void tags_have_all_64_bits_from_arrays_and_buffers() {
        long[] tags = {-1, Long.MIN_VALUE, 7};
        Rows rows = Rows.ofTokens(TokenColumn.of(TOKENS, OFFSETS)).withParams(Jobs.tokens(1));
        for (Rows tagged : new Rows[] {rows.withTags(tags), rows.withTags(direct(tags, ByteOrder.nativeOrder())),
            rows.withTags(direct(tags, ByteOrder.BIG_ENDIAN))}) {
            try (Engine engine = Jobs.simEngine()) {
                engine.add(tagged);
                engine.run();
                try (Results results = engine.poll()) {
                    long[] found = new long[3];
                    results.tags().get(found);
                    Arrays.sort(found);
                    Check.equal(new long[] {Long.MIN_VALUE, -1, 7}, found);
                }
            }
        }
    }

    public static void columns_of_results_are_read_only_and_say_what_the_rows_say() {
        try (Engine engine = Jobs.modelEngine();
                Results results = engine.generate(Rows.ofText("one", "two é", "\ud800").withParams(
                        SamplingParams.builder().maxTokens(5).logprobs(2).build()))) {
            Check.throwing(ReadOnlyBufferException.class, "", () -> results.tokens().put(0, 1));
            Check.that(results.text().isReadOnly() && results.text().isDirect(), "text");
            Check.equal(ByteOrder.nativeOrder(), results.tokens().order());
            Check.equal(ByteOrder.nativeOrder(), results.scores().order());
            LongBuffer offsets = results.tokenOffsets();
            IntBuffer tokens = results.tokens();
            Check.equal((int) offsets.get(3), tokens.remaining());
            for (int i = 0; i < 3; i++) {
                int[] row = new int[(int) (offsets.get(i + 1) - offsets.get(i))];
                tokens.position((int) offsets.get(i)).get(row);
                Check.equal(results.tokens(i), row);
                Check.equal((long) i, results.tags().get(i));
                Check.equal(results.get(i).status(), results.statuses().get(i));
                Check.equal(results.get(i).finishReason().number(), results.finishReasons().get(i));
                Check.equal(results.get(i).promptTokens(), results.promptTokens().get(i));
                Check.equal(results.get(i).sharedTokens(), results.sharedTokens().get(i));
                Check.equal(0, results.samples().get(i));
            }
            ByteBuffer errors = results.errors();
            byte[] error = new byte[errors.remaining()];
            errors.get(error);
            Check.equal(results.get(2).error(), Status.name(results.get(2).status()) + ": " + new String(error));
            Check.equal(0L, results.errorOffsets().get(2));
            Check.equal(results.logprobs().remaining(), (int) results.logprobOffsets().get(3));
            Check.equal(results.topTokens().remaining(), 2 * results.logprobs().remaining());
            Check.equal(results.topTokens().remaining(), results.topLogprobs().remaining());
            Check.equal((long) results.topTokens().remaining(), results.topOffsets().get(results.logprobs().remaining()));
            Check.equal(results.text().remaining(), (int) results.textOffsets().get(3));
            Check.equal(0L, results.scoreOffsets().get(3));
            Check.equal(0L, results.scoreTokenOffsets().get(0));
            Check.equal(0, results.scoreLogprobs().remaining());
            Check.throwing(IndexOutOfBoundsException.class, "3 of 3", () -> results.get(3));
            Check.throwing(IndexOutOfBoundsException.class, "-1 of 3", () -> results.text(-1));
        }
    }

    public static void main(String[] args) throws Exception {
        Check.run(ColumnsTest.class);
    }
}
