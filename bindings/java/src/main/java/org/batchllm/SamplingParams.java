package org.batchllm;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;
import java.util.function.ToDoubleFunction;
import java.util.function.ToLongFunction;

/** How text is generated for a row. Immutable; parameters that are not set have the library's defaults. */
public final class SamplingParams {
    /** Greedy, up to 128 tokens. */
    public static final SamplingParams DEFAULT = builder().build();

    private static final Map<String, ToLongFunction<Builder>> INTEGERS = new LinkedHashMap<>();
    private static final Map<String, ToDoubleFunction<Builder>> NUMBERS = new LinkedHashMap<>();

    static {
        INTEGERS.put("max_tokens", params -> params.maxTokens);
        INTEGERS.put("top_k", params -> params.topK);
        INTEGERS.put("samples", params -> params.samples);
        INTEGERS.put("seed", params -> params.seed);
        INTEGERS.put("ignore_eos", params -> params.ignoreEos ? 1 : 0);
        INTEGERS.put("logprobs", params -> params.logprobs);
        INTEGERS.put("min_tokens", params -> params.minTokens);
        INTEGERS.put("prompt_logprobs", params -> params.promptLogprobs);
        INTEGERS.put("parse_special", params -> params.parseSpecial ? 1 : 0);
        INTEGERS.put("add_special", params -> params.addSpecial ? 1 : 0);
        INTEGERS.put("task", params -> params.task.number);
        INTEGERS.put("pooling", params -> params.pooling.number);
        INTEGERS.put("normalize", params -> params.normalize == null ? 0 : params.normalize ? 1 : -1);
        INTEGERS.put("dimensions", params -> params.dimensions);
        NUMBERS.put("temperature", params -> params.temperature);
        NUMBERS.put("top_p", params -> params.topP);
        NUMBERS.put("min_p", params -> params.minP);
        NUMBERS.put("repetition_penalty", params -> params.repetitionPenalty);
        NUMBERS.put("presence_penalty", params -> params.presencePenalty);
        NUMBERS.put("frequency_penalty", params -> params.frequencyPenalty);
    }

    private final Builder values;

    private SamplingParams(Builder values) {
        this.values = values;
    }

    /**
     * A builder with the library's defaults.
     *
     * @return a builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * A builder with these parameters.
     *
     * @return a builder
     */
    public Builder toBuilder() {
        return new Builder(values);
    }

    /** The constraint; null: none. */
    Constraint constraint() {
        return values.constraint;
    }

    /**
     * The native parameters, one for all rows or one for each row. Each field takes one native call, and only if some
     * row does not have its default. The caller must delete them.
     */
    static batchllm_params_column column(List<SamplingParams> rows) {
        batchllm_params_column column = Native.batchllm_params_column_create(rows.size());
        try {
            fill(column, rows);
        } catch (Throwable thrown) {
            column.delete();
            throw thrown;
        }
        return column;
    }

    private static void fill(batchllm_params_column column, List<SamplingParams> rows) {
        Builder defaults = new Builder();
        INTEGERS.forEach((name, field) -> {
            if (rows.stream().allMatch(row -> field.applyAsLong(row.values) == field.applyAsLong(defaults))) return;
            Native.batchllm_params_set_integers(
                    column, name, rows.stream().mapToLong(row -> field.applyAsLong(row.values)).toArray());
        });
        NUMBERS.forEach((name, field) -> {
            if (rows.stream().allMatch(row -> field.applyAsDouble(row.values) == field.applyAsDouble(defaults))) return;
            Native.batchllm_params_set_numbers(
                    column, name, rows.stream().mapToDouble(row -> field.applyAsDouble(row.values)).toArray());
        });
        long[] offsets = new long[rows.size() + 1];
        if (lists(rows, offsets, row -> row.stopTokens.length)) {
            int[] tokens = new int[(int) offsets[rows.size()]];
            int end = 0;
            for (SamplingParams row : rows) {
                for (int token : row.values.stopTokens) tokens[end++] = token;
            }
            Native.batchllm_params_set_stop_tokens(column, tokens, offsets);
        }
        if (lists(rows, offsets, row -> row.stopStrings.size())) {
            Texts texts = new Texts(rows, row -> row.stopStrings);
            Native.batchllm_params_set_stop_strings(column, texts.bytes, texts.starts, offsets);
        }
        if (lists(rows, offsets, row -> row.badWords.size())) {
            Texts texts = new Texts(rows, row -> row.badWords);
            Native.batchllm_params_set_bad_words(column, texts.bytes, texts.starts, offsets);
        }
        if (lists(rows, offsets, row -> row.biases.size())) {
            int[] tokens = new int[(int) offsets[rows.size()]];
            float[] biases = new float[tokens.length];
            int end = 0;
            for (SamplingParams row : rows) {
                for (Map.Entry<Integer, Float> bias : row.values.biases.entrySet()) {
                    tokens[end] = bias.getKey();
                    biases[end++] = bias.getValue();
                }
            }
            Native.batchllm_params_set_biases(column, tokens, biases, offsets);
        }
    }

    /** The texts of all rows, each followed by a zero byte, and the offset of each. */
    private static final class Texts {
        final byte[] bytes;
        final long[] starts;

        Texts(List<SamplingParams> rows, Function<Builder, List<byte[]>> field) {
            List<byte[]> texts = new ArrayList<>();
            for (SamplingParams row : rows) texts.addAll(field.apply(row.values));
            starts = new long[texts.size()];
            bytes = new byte[texts.stream().mapToInt(text -> text.length + 1).sum()];
            int end = 0;
            for (int i = 0; i < starts.length; i++) {
                starts[i] = end;
                System.arraycopy(texts.get(i), 0, bytes, end, texts.get(i).length);
                end += texts.get(i).length + 1;
            }
        }
    }

    /** Offsets of lists of these lengths; returns whether any list has an item. */
    private static boolean lists(List<SamplingParams> rows, long[] offsets, ToLongFunction<Builder> length) {
        int i = 0;
        for (SamplingParams row : rows) {
            offsets[i + 1] = offsets[i] + length.applyAsLong(row.values);
            i++;
        }
        return offsets[i] > 0;
    }

    /** Sets parameters. A value out of range fails only the rows that have it. */
    public static final class Builder {
        private int maxTokens = 128;
        private float temperature;
        private float topP = 1;
        private float minP;
        private int topK;
        private float repetitionPenalty = 1;
        private float presencePenalty;
        private float frequencyPenalty;
        private int samples = 1;
        private long seed;
        private boolean ignoreEos;
        private int logprobs = -1;
        private int minTokens;
        private int promptLogprobs = -1;
        private boolean parseSpecial = true;
        private boolean addSpecial = true;
        private int[] stopTokens = {};
        private List<byte[]> stopStrings = List.of();
        private List<byte[]> badWords = List.of();
        private Map<Integer, Float> biases = Map.of();
        private Constraint constraint;
        private Task task = Task.GENERATE;
        private Pooling pooling = Pooling.MODEL;
        private Boolean normalize;
        private int dimensions;

        private Builder() {}

        private Builder(Builder from) {
            maxTokens = from.maxTokens;
            temperature = from.temperature;
            topP = from.topP;
            minP = from.minP;
            topK = from.topK;
            repetitionPenalty = from.repetitionPenalty;
            presencePenalty = from.presencePenalty;
            frequencyPenalty = from.frequencyPenalty;
            samples = from.samples;
            seed = from.seed;
            ignoreEos = from.ignoreEos;
            logprobs = from.logprobs;
            minTokens = from.minTokens;
            promptLogprobs = from.promptLogprobs;
            parseSpecial = from.parseSpecial;
            addSpecial = from.addSpecial;
            stopTokens = from.stopTokens;
            stopStrings = from.stopStrings;
            badWords = from.badWords;
            biases = from.biases;
            constraint = from.constraint;
            task = from.task;
            pooling = from.pooling;
            normalize = from.normalize;
            dimensions = from.dimensions;
        }

        /**
         * Maximum tokens generated.
         *
         * @param value at least 1; default 128
         * @return this
         */
        public Builder maxTokens(int value) {
            maxTokens = value;
            return this;
        }

        /**
         * What logits are divided by.
         *
         * @param value 0, the default: always the likeliest token
         * @return this
         */
        public Builder temperature(double value) {
            temperature = (float) value;
            return this;
        }

        /**
         * Samples from the likeliest tokens that together have this probability.
         *
         * @param value in (0, 1]; default 1: off
         * @return this
         */
        public Builder topP(double value) {
            topP = (float) value;
            return this;
        }

        /**
         * Samples only from tokens with at least this share of the likeliest token's probability.
         *
         * @param value in [0, 1); default 0: off
         * @return this
         */
        public Builder minP(double value) {
            minP = (float) value;
            return this;
        }

        /**
         * Samples from this many of the likeliest tokens.
         *
         * @param value at least 1; default 0: off, as is -1
         * @return this
         */
        public Builder topK(int value) {
            topK = value;
            return this;
        }

        /**
         * Makes tokens less likely that are already in the prompt or the output, as in CTRL.
         *
         * @param value above 0; default 1: off
         * @return this
         */
        public Builder repetitionPenalty(double value) {
            repetitionPenalty = (float) value;
            return this;
        }

        /**
         * Subtracted from the logit of each token that is already in the output.
         *
         * @param value in [-2, 2]; default 0
         * @return this
         */
        public Builder presencePenalty(double value) {
            presencePenalty = (float) value;
            return this;
        }

        /**
         * Subtracted from a token's logit once for each time it is in the output.
         *
         * @param value in [-2, 2]; default 0
         * @return this
         */
        public Builder frequencyPenalty(double value) {
            frequencyPenalty = (float) value;
            return this;
        }

        /**
         * Number of results for the row.
         *
         * @param value at least 1; default 1
         * @return this
         */
        public Builder samples(int value) {
            samples = value;
            return this;
        }

        /**
         * Determines the random numbers, together with the engine's seed, the row's tag and the position.
         *
         * @param value 64 bits
         * @return this
         */
        public Builder seed(long value) {
            seed = value;
            return this;
        }

        /**
         * Whether the row continues after the model's EOS ids.
         *
         * @param value default false
         * @return this
         */
        public Builder ignoreEos(boolean value) {
            ignoreEos = value;
            return this;
        }

        /**
         * Log-probabilities of the chosen tokens, and of this many of the likeliest.
         *
         * @param value 0 to 20; default -1: none at all
         * @return this
         */
        public Builder logprobs(int value) {
            logprobs = value;
            return this;
        }

        /**
         * Whether special tokens spelled out in the text are parsed as special tokens.
         *
         * @param value default true; false for text that you do not trust
         * @return this
         */
        public Builder parseSpecial(boolean value) {
            parseSpecial = value;
            return this;
        }

        /**
         * Whether BOS and the like are added, as the tokenizer says.
         *
         * @param value default true
         * @return this
         */
        public Builder addSpecial(boolean value) {
            addSpecial = value;
            return this;
        }

        /**
         * Token ids that end the row, in addition to the model's EOS ids.
         *
         * @param values copied
         * @return this
         */
        public Builder stopTokens(int... values) {
            stopTokens = values.clone();
            return this;
        }

        /**
         * The row ends where the first of these appears, and its text is cut before it.
         *
         * @param values not empty, without zero characters
         * @return this
         */
        public Builder stopStrings(String... values) {
            stopStrings = terminable(values);
            return this;
        }

        /**
         * Texts that are never generated. Each is tokenized with and without a space before it; another spelling, or
         * the same text as other tokens, is not covered.
         *
         * @param values not empty, without zero characters
         * @return this
         */
        public Builder badWords(String... values) {
            badWords = terminable(values);
            return this;
        }

        private static List<byte[]> terminable(String[] values) {
            List<byte[]> texts = new ArrayList<>();
            for (String value : values) texts.add(Utf8.terminable(value));
            return List.copyOf(texts);
        }

        /**
         * The row does not end before this many tokens: EOS ids and stop tokens are excluded until then, and stop
         * strings apply only after them.
         *
         * @param value from 0, the default, to maxTokens
         * @return this
         */
        public Builder minTokens(int value) {
            minTokens = value;
            return this;
        }

        /**
         * Log-probabilities of the prompt's tokens, from the second on, and of this many of the likeliest tokens at
         * each position. Such a row shares no prefix: its whole prompt is computed for this row alone.
         *
         * @param value 0 to 20; default -1: none at all
         * @return this
         */
        public Builder promptLogprobs(int value) {
            promptLogprobs = value;
            return this;
        }

        /**
         * Numbers added to tokens' logits.
         *
         * @param values by token id; copied
         * @return this
         */
        public Builder biases(Map<Integer, Float> values) {
            biases = Map.copyOf(values);
            return this;
        }

        /**
         * A constraint on the output. Log-probabilities then refer to the model's distribution over the allowed tokens.
         *
         * @param value null, the default: no constraint
         * @return this
         */
        public Builder constraint(Constraint value) {
            constraint = value;
            return this;
        }

        /**
         * The kind of result. With a task other than {@link Task#GENERATE} only {@link #addSpecial} and {@link
         * #parseSpecial} of the parameters above apply.
         *
         * @param value default {@link Task#GENERATE}
         * @return this
         */
        public Builder task(Task value) {
            task = Objects.requireNonNull(value);
            return this;
        }

        /**
         * How a vector is made.
         *
         * @param value default {@link Pooling#MODEL}
         * @return this
         */
        public Builder pooling(Pooling value) {
            pooling = Objects.requireNonNull(value);
            return this;
        }

        /**
         * Whether a vector is scaled to length 1.
         *
         * @param value default: as in the model's modules.json, or false if there is no such file
         * @return this
         */
        public Builder normalize(boolean value) {
            normalize = value;
            return this;
        }

        /**
         * Keeps only this many elements of a vector, the first ones, before it is scaled.
         *
         * @param value default 0: all
         * @return this
         */
        public Builder dimensions(int value) {
            dimensions = value;
            return this;
        }

        /**
         * The parameters so far.
         *
         * @return parameters that later calls here do not change
         */
        public SamplingParams build() {
            return new SamplingParams(new Builder(this));
        }
    }
}
