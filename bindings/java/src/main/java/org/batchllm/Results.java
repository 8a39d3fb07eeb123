package org.batchllm;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.function.Function;

/**
 * A batch of results as columns: one result for each row, or adjacent ones for a row with several samples. Any number
 * of threads may read it. It outlives its engine.
 *
 * <p>The columns are read-only direct buffers over the library's memory, in the machine's byte order;
 * item i of a column with offsets is [offsets[i], offsets[i + 1]). A buffer stays readable after
 * {@link #close}, which frees the memory at once if no column was taken, and otherwise when the garbage
 * collector finds that no column, and no view of one, is in use any more. {@link #get} and the iterator make copies and
 * do not take columns.
 */
public final class Results implements AutoCloseable, Iterable<Result> {
    private enum Column {
        TAGS(Native::batchllm_results_column_tags),
        STATUSES(Native::batchllm_results_column_statuses),
        FINISH_REASONS(Native::batchllm_results_column_finish_reasons),
        SAMPLES(Native::batchllm_results_column_samples),
        PROMPT_TOKENS(Native::batchllm_results_column_prompt_tokens),
        SHARED_TOKENS(Native::batchllm_results_column_shared_tokens),
        TOKEN_OFFSETS(Native::batchllm_results_column_token_offsets),
        TOKENS(Native::batchllm_results_column_tokens),
        TEXT_OFFSETS(Native::batchllm_results_column_text_offsets),
        TEXT(Native::batchllm_results_column_text),
        ERROR_OFFSETS(Native::batchllm_results_column_error_offsets),
        ERRORS(Native::batchllm_results_column_errors),
        LOGPROB_OFFSETS(Native::batchllm_results_column_logprob_offsets),
        LOGPROBS(Native::batchllm_results_column_logprobs),
        TOP_OFFSETS(Native::batchllm_results_column_top_offsets),
        TOP_TOKENS(Native::batchllm_results_column_top_tokens),
        TOP_LOGPROBS(Native::batchllm_results_column_top_logprobs),
        SCORE_OFFSETS(Native::batchllm_results_column_score_offsets),
        SCORES(Native::batchllm_results_column_scores),
        SCORE_TOKEN_OFFSETS(Native::batchllm_results_column_score_token_offsets),
        SCORE_LOGPROBS(Native::batchllm_results_column_score_logprobs),
        EMBEDDING_OFFSETS(Native::batchllm_results_column_embedding_offsets),
        EMBEDDINGS(Native::batchllm_results_column_embeddings),
        LABEL_OFFSETS(Native::batchllm_results_column_label_offsets),
        LABEL_LOGITS(Native::batchllm_results_column_label_logits),
        LABEL_PROBABILITIES(Native::batchllm_results_column_label_probabilities),
        PROMPT_LOGPROB_OFFSETS(Native::batchllm_results_column_prompt_logprob_offsets),
        PROMPT_LOGPROBS(Native::batchllm_results_column_prompt_logprobs),
        PROMPT_TOP_OFFSETS(Native::batchllm_results_column_prompt_top_offsets),
        PROMPT_TOP_TOKENS(Native::batchllm_results_column_prompt_top_tokens),
        PROMPT_TOP_LOGPROBS(Native::batchllm_results_column_prompt_top_logprobs);

        final Function<batchllm_results, Object> root;

        Column(Function<batchllm_results, Object> root) {
            this.root = root;
        }
    }

    /** All columns, for code that uses them only while the results are open. */
    static final class Columns {
        final LongBuffer tags;
        final IntBuffer statuses;
        final IntBuffer finishReasons;
        final IntBuffer samples;
        final LongBuffer promptTokens;
        final LongBuffer sharedTokens;
        final LongBuffer tokenOffsets;
        final IntBuffer tokens;
        final LongBuffer textOffsets;
        final ByteBuffer text;
        final LongBuffer errorOffsets;
        final ByteBuffer errors;
        final LongBuffer logprobOffsets;
        final FloatBuffer logprobs;
        final LongBuffer topOffsets;
        final IntBuffer topTokens;
        final FloatBuffer topLogprobs;
        final LongBuffer scoreOffsets;
        final DoubleBuffer scores;
        final LongBuffer scoreTokenOffsets;
        final FloatBuffer scoreLogprobs;
        final LongBuffer embeddingOffsets;
        final FloatBuffer embeddings;
        final LongBuffer labelOffsets;
        final FloatBuffer labelLogits;
        final FloatBuffer labelProbabilities;
        final LongBuffer promptLogprobOffsets;
        final FloatBuffer promptLogprobs;
        final LongBuffer promptTopOffsets;
        final IntBuffer promptTopTokens;
        final FloatBuffer promptTopLogprobs;

        Columns(batchllm_results results) {
            Function<Column, ByteBuffer> bytes =
                    column -> ((ByteBuffer) column.root.apply(results)).order(ByteOrder.nativeOrder());
            tags = bytes.apply(Column.TAGS).asLongBuffer();
            statuses = bytes.apply(Column.STATUSES).asIntBuffer();
            finishReasons = bytes.apply(Column.FINISH_REASONS).asIntBuffer();
            samples = bytes.apply(Column.SAMPLES).asIntBuffer();
            promptTokens = bytes.apply(Column.PROMPT_TOKENS).asLongBuffer();
            sharedTokens = bytes.apply(Column.SHARED_TOKENS).asLongBuffer();
            tokenOffsets = bytes.apply(Column.TOKEN_OFFSETS).asLongBuffer();
            tokens = bytes.apply(Column.TOKENS).asIntBuffer();
            textOffsets = bytes.apply(Column.TEXT_OFFSETS).asLongBuffer();
            text = bytes.apply(Column.TEXT);
            errorOffsets = bytes.apply(Column.ERROR_OFFSETS).asLongBuffer();
            errors = bytes.apply(Column.ERRORS);
            logprobOffsets = bytes.apply(Column.LOGPROB_OFFSETS).asLongBuffer();
            logprobs = bytes.apply(Column.LOGPROBS).asFloatBuffer();
            topOffsets = bytes.apply(Column.TOP_OFFSETS).asLongBuffer();
            topTokens = bytes.apply(Column.TOP_TOKENS).asIntBuffer();
            topLogprobs = bytes.apply(Column.TOP_LOGPROBS).asFloatBuffer();
            scoreOffsets = bytes.apply(Column.SCORE_OFFSETS).asLongBuffer();
            scores = bytes.apply(Column.SCORES).asDoubleBuffer();
            scoreTokenOffsets = bytes.apply(Column.SCORE_TOKEN_OFFSETS).asLongBuffer();
            scoreLogprobs = bytes.apply(Column.SCORE_LOGPROBS).asFloatBuffer();
            embeddingOffsets = bytes.apply(Column.EMBEDDING_OFFSETS).asLongBuffer();
            embeddings = bytes.apply(Column.EMBEDDINGS).asFloatBuffer();
            labelOffsets = bytes.apply(Column.LABEL_OFFSETS).asLongBuffer();
            labelLogits = bytes.apply(Column.LABEL_LOGITS).asFloatBuffer();
            labelProbabilities = bytes.apply(Column.LABEL_PROBABILITIES).asFloatBuffer();
            promptLogprobOffsets = bytes.apply(Column.PROMPT_LOGPROB_OFFSETS).asLongBuffer();
            promptLogprobs = bytes.apply(Column.PROMPT_LOGPROBS).asFloatBuffer();
            promptTopOffsets = bytes.apply(Column.PROMPT_TOP_OFFSETS).asLongBuffer();
            promptTopTokens = bytes.apply(Column.PROMPT_TOP_TOKENS).asIntBuffer();
            promptTopLogprobs = bytes.apply(Column.PROMPT_TOP_LOGPROBS).asFloatBuffer();
        }

        int[] tokens(int i) {
            return ints(tokens, (int) tokenOffsets.get(i), (int) tokenOffsets.get(i + 1));
        }

        /** Null for a row that failed. */
        String text(int i) {
            if (statuses.get(i) != Status.OK) return null;
            return string(text, (int) textOffsets.get(i), (int) textOffsets.get(i + 1));
        }

        String error(int i) {
            return string(errors, (int) errorOffsets.get(i), (int) errorOffsets.get(i + 1));
        }

        // duplicate(), because a buffer has only one position and other threads read through it too.

        static int[] ints(IntBuffer column, int from, int to) {
            int[] copy = new int[to - from];
            IntBuffer range = column.duplicate();
            range.position(from);
            range.get(copy);
            return copy;
        }

        static float[] floats(FloatBuffer column, int from, int to) {
            float[] copy = new float[to - from];
            FloatBuffer range = column.duplicate();
            range.position(from);
            range.get(copy);
            return copy;
        }

        static float[] floats(FloatBuffer column, LongBuffer offsets, int i) {
            return floats(column, (int) offsets.get(i), (int) offsets.get(i + 1));
        }

        static String string(ByteBuffer column, int from, int to) {
            byte[] copy = new byte[to - from];
            ByteBuffer range = column.duplicate();
            range.position(from);
            range.get(copy);
            return new String(copy, StandardCharsets.UTF_8);
        }
    }

    private final batchllm_results results;
    private final NativeMemory memory;
    private final Handle handle;
    private final int size;
    private final Map<Column, ByteBuffer> lent = new EnumMap<>(Column.class);
    private Columns columns;

    Results(batchllm_results results) {
        this.results = results;
        memory = new NativeMemory(results);
        handle = new Handle("batch of results", memory::release);
        size = Math.toIntExact(results.getCount());
    }

    /** A copy of these results in the order of their tags, 0 to rows - 1; closes these results. */
    Results byRow(long rows) {
        try (Handle.Use use = handle.share()) {
            return new Results(Native.batchllm_results_of_rows(results, 0, rows, 1));
        } finally {
            close();
        }
    }

    private Columns columns() {
        synchronized (lent) {
            if (columns == null) columns = new Columns(results);
            return columns;
        }
    }

    private ByteBuffer lend(Column column) {
        try (Handle.Use use = handle.share()) {
            synchronized (lent) {
                ByteBuffer bytes = lent.get(column);
                if (bytes == null) {
                    bytes = memory.lend((ByteBuffer) column.root.apply(results));
                    lent.put(column, bytes);
                }
                return bytes.duplicate().order(ByteOrder.nativeOrder());
            }
        }
    }

    /**
     * The number of results.
     *
     * @return the number, even after close
     */
    public int size() {
        return size;
    }

    /**
     * Whether there are no results.
     *
     * @return size() == 0
     */
    public boolean isEmpty() {
        return size == 0;
    }

    /**
     * A copy of one result.
     *
     * @param i from 0
     * @return the result
     */
    public Result get(int i) {
        checkIndex(i);
        try (Handle.Use use = handle.share()) {
            return new Result(columns(), i);
        }
    }

    private void checkIndex(int i) {
        if (i < 0 || i >= size) throw new IndexOutOfBoundsException("result " + i + " of " + size);
    }

    @Override
    public Iterator<Result> iterator() {
        return new Iterator<>() {
            private int next;

            @Override
            public boolean hasNext() {
                return next < size;
            }

            @Override
            public Result next() {
                if (next >= size) throw new NoSuchElementException();
                return get(next++);
            }
        };
    }

    /**
     * One result's text.
     *
     * @param i from 0
     * @return as {@link Result#text}
     */
    public String text(int i) {
        checkIndex(i);
        try (Handle.Use use = handle.share()) {
            return columns().text(i);
        }
    }

    /**
     * Every result's text.
     *
     * @return as many as there are results; null for a row that failed
     */
    public List<String> texts() {
        try (Handle.Use use = handle.share()) {
            List<String> texts = new ArrayList<>(size);
            for (int i = 0; i < size; i++) texts.add(columns().text(i));
            return texts;
        }
    }

    /**
     * One result's generated tokens.
     *
     * @param i from 0
     * @return a copy
     */
    public int[] tokens(int i) {
        checkIndex(i);
        try (Handle.Use use = handle.share()) {
            return columns().tokens(i);
        }
    }

    /**
     * The rows' tags.
     *
     * @return [size], to be read as unsigned
     */
    public LongBuffer tags() {
        return lend(Column.TAGS).asLongBuffer();
    }

    /**
     * The {@link Status} of each row.
     *
     * @return [size]
     */
    public IntBuffer statuses() {
        return lend(Column.STATUSES).asIntBuffer();
    }

    /**
     * Why each row ended, as {@link FinishReason#number}.
     *
     * @return [size]
     */
    public IntBuffer finishReasons() {
        return lend(Column.FINISH_REASONS).asIntBuffer();
    }

    /**
     * Which of its row's samples each result is.
     *
     * @return [size]
     */
    public IntBuffer samples() {
        return lend(Column.SAMPLES).asIntBuffer();
    }

    /**
     * Lengths of the prompts.
     *
     * @return [size]
     */
    public LongBuffer promptTokens() {
        return lend(Column.PROMPT_TOKENS).asLongBuffer();
    }

    /**
     * How many of the prompt's tokens were not computed for each result alone.
     *
     * @return [size]
     */
    public LongBuffer sharedTokens() {
        return lend(Column.SHARED_TOKENS).asLongBuffer();
    }

    /**
     * Where each result's tokens are in {@link #tokens()}.
     *
     * @return [size + 1]
     */
    public LongBuffer tokenOffsets() {
        return lend(Column.TOKEN_OFFSETS).asLongBuffer();
    }

    /**
     * The generated tokens of all results.
     *
     * @return token ids
     */
    public IntBuffer tokens() {
        return lend(Column.TOKENS).asIntBuffer();
    }

    /**
     * Where each result's text is in {@link #text()}.
     *
     * @return [size + 1], in bytes
     */
    public LongBuffer textOffsets() {
        return lend(Column.TEXT_OFFSETS).asLongBuffer();
    }

    /**
     * The generated text of all results; empty if the engine has no tokenizer.
     *
     * @return UTF-8
     */
    public ByteBuffer text() {
        return lend(Column.TEXT);
    }

    /**
     * Where each result's error text is in {@link #errors}.
     *
     * @return [size + 1], in bytes
     */
    public LongBuffer errorOffsets() {
        return lend(Column.ERROR_OFFSETS).asLongBuffer();
    }

    /**
     * The error texts of all results, without the names of their statuses.
     *
     * @return UTF-8
     */
    public ByteBuffer errors() {
        return lend(Column.ERRORS);
    }

    /**
     * Where each result's log-probabilities are in {@link #logprobs}: rows that did not request them have none.
     *
     * @return [size + 1]
     */
    public LongBuffer logprobOffsets() {
        return lend(Column.LOGPROB_OFFSETS).asLongBuffer();
    }

    /**
     * The natural logarithms of the chosen tokens' probabilities.
     *
     * @return one for each token of results that requested them
     */
    public FloatBuffer logprobs() {
        return lend(Column.LOGPROBS).asFloatBuffer();
    }

    /**
     * Where the likeliest tokens for each item of {@link #logprobs} are in {@link #topTokens}.
     *
     * @return one more than logprobs
     */
    public LongBuffer topOffsets() {
        return lend(Column.TOP_OFFSETS).asLongBuffer();
    }

    /**
     * The likeliest tokens, likeliest first.
     *
     * @return token ids
     */
    public IntBuffer topTokens() {
        return lend(Column.TOP_TOKENS).asIntBuffer();
    }

    /**
     * The log-probabilities of {@link #topTokens}.
     *
     * @return the same shape
     */
    public FloatBuffer topLogprobs() {
        return lend(Column.TOP_LOGPROBS).asFloatBuffer();
    }

    /**
     * Where the log-probabilities of each result's prompt are in {@link #promptLogprobs}: rows that did not request
     * them have none, and only the first sample of a row has them.
     *
     * @return [size + 1]
     */
    public LongBuffer promptLogprobOffsets() {
        return lend(Column.PROMPT_LOGPROB_OFFSETS).asLongBuffer();
    }

    /**
     * The natural logarithms of the probabilities of the prompts' tokens, from the second token of each prompt on.
     *
     * @return one for each such token of prompts that requested them
     */
    public FloatBuffer promptLogprobs() {
        return lend(Column.PROMPT_LOGPROBS).asFloatBuffer();
    }

    /**
     * Where the likeliest tokens for each item of {@link #promptLogprobs} are in {@link #promptTopTokens}.
     *
     * @return one more than promptLogprobs
     */
    public LongBuffer promptTopOffsets() {
        return lend(Column.PROMPT_TOP_OFFSETS).asLongBuffer();
    }

    /**
     * The likeliest tokens at the positions of the prompts' tokens, likeliest first.
     *
     * @return token ids
     */
    public IntBuffer promptTopTokens() {
        return lend(Column.PROMPT_TOP_TOKENS).asIntBuffer();
    }

    /**
     * The log-probabilities of {@link #promptTopTokens}.
     *
     * @return the same shape
     */
    public FloatBuffer promptTopLogprobs() {
        return lend(Column.PROMPT_TOP_LOGPROBS).asFloatBuffer();
    }

    /**
     * Where each result's scores are in {@link #scores}.
     *
     * @return [size + 1], in continuations
     */
    public LongBuffer scoreOffsets() {
        return lend(Column.SCORE_OFFSETS).asLongBuffer();
    }

    /**
     * The sum of each continuation's log-probabilities, for scored rows.
     *
     * @return one for each continuation
     */
    public DoubleBuffer scores() {
        return lend(Column.SCORES).asDoubleBuffer();
    }

    /**
     * Where each continuation's tokens are in {@link #scoreLogprobs}.
     *
     * @return one more than scores
     */
    public LongBuffer scoreTokenOffsets() {
        return lend(Column.SCORE_TOKEN_OFFSETS).asLongBuffer();
    }

    /**
     * The log-probability of each token of each continuation, for scored rows.
     *
     * @return one for each token
     */
    public FloatBuffer scoreLogprobs() {
        return lend(Column.SCORE_LOGPROBS).asFloatBuffer();
    }

    /**
     * Where each result's vector is in {@link #embeddings}: a row that was not embedded, or that failed, has none.
     *
     * @return [size + 1]
     */
    public LongBuffer embeddingOffsets() {
        return lend(Column.EMBEDDING_OFFSETS).asLongBuffer();
    }

    /**
     * The vectors of embedded rows, one after the other: [size, dimensions] if every row has a vector of the same size.
     *
     * @return numbers
     */
    public FloatBuffer embeddings() {
        return lend(Column.EMBEDDINGS).asFloatBuffer();
    }

    /**
     * The vectors as arrays, which are copies.
     *
     * @return one for each result; empty for a result without a vector
     */
    public float[][] embeddingArrays() {
        try (Handle.Use use = handle.share()) {
            Columns all = columns();
            float[][] vectors = new float[size][];
            for (int i = 0; i < size; i++) vectors[i] = Columns.floats(all.embeddings, all.embeddingOffsets, i);
            return vectors;
        }
    }

    /**
     * Where each result's labels are in {@link #labelLogits} and {@link #labelProbabilities}: a row that was not
     * classified, or that failed, has none.
     *
     * @return [size + 1]
     */
    public LongBuffer labelOffsets() {
        return lend(Column.LABEL_OFFSETS).asLongBuffer();
    }

    /**
     * The logits of classified rows' labels, in the order of {@link Engine#labels}.
     *
     * @return numbers
     */
    public FloatBuffer labelLogits() {
        return lend(Column.LABEL_LOGITS).asFloatBuffer();
    }

    /**
     * The probabilities of classified rows' labels. The model's problem_type determines how they are computed: softmax
     * over the labels, the sigmoid of each, or, for regression, the logits.
     *
     * @return the same shape as labelLogits
     */
    public FloatBuffer labelProbabilities() {
        return lend(Column.LABEL_PROBABILITIES).asFloatBuffer();
    }

    /** Closes the results; their memory is freed once no buffer over it is in use. Throws while in use. */
    @Override
    public void close() {
        handle.close();
        synchronized (lent) {
            lent.clear();
            columns = null;
        }
    }

    @Override
    public String toString() {
        return size + " results";
    }
}
