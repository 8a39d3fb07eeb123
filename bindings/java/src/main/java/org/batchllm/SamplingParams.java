package org.batchllm;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;
import java.util.function.ToLongFunction;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/** How text is generated for a row. Immutable; parameters that are not set have the library's defaults. */
public final class SamplingParams {
    /** Greedy, up to 128 tokens. */
    public static final SamplingParams DEFAULT = builder().build();

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

    /** The adapter; null: none. */
    Adapter adapter() {
        return values.adapter;
    }

    /** What parameters ask for, each with the numbers of those that do; null asks for nothing. */
    static <T> Map<T, long[]> rowsOf(List<SamplingParams> params, Function<SamplingParams, T> asked) {
        Map<T, LongStream.Builder> rows = new LinkedHashMap<>();
        T last = null;
        LongStream.Builder ofLast = null;
        for (int i = 0; i < params.size(); i++) {
            T one = asked.apply(params.get(i));
            if (one == null) continue;
            // Neighbours often have the same object, whose hash then need not be computed again.
            if (one != last) ofLast = rows.computeIfAbsent(one, key -> LongStream.builder());
            last = one;
            ofLast.add(i);
        }
        Map<T, long[]> found = new LinkedHashMap<>();
        rows.forEach((one, those) -> found.put(one, those.build().toArray()));
        return found;
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
        ParameterSetters.INTEGERS.forEach((name, field) -> {
            if (rows.stream().allMatch(row -> field.applyAsLong(row.values) == field.applyAsLong(defaults))) return;
            Native.batchllm_params_set_integers(
                    column, name, rows.stream().mapToLong(row -> field.applyAsLong(row.values)).toArray());
        });
        ParameterSetters.NUMBERS.forEach((name, field) -> {
            if (rows.stream().allMatch(row -> field.applyAsDouble(row.values) == field.applyAsDouble(defaults))) return;
            Native.batchllm_params_set_numbers(
                    column, name, rows.stream().mapToDouble(row -> field.applyAsDouble(row.values)).toArray());
        });
        long[] offsets = new long[rows.size() + 1];
        ParameterSetters.TOKENS.forEach((name, field) -> {
            if (!lists(rows, offsets, row -> field.apply(row).length)) return;
            int[] tokens = rows.stream().flatMapToInt(row -> IntStream.of(field.apply(row.values))).toArray();
            Native.batchllm_params_set_tokens(column, name, tokens, offsets);
        });
        ParameterSetters.TEXTS.forEach((name, field) -> {
            if (!lists(rows, offsets, row -> field.apply(row).size())) return;
            Texts texts = new Texts(rows, field);
            Native.batchllm_params_set_texts(column, name, texts.bytes, texts.starts, offsets);
        });
        ParameterSetters.BIASES.forEach((name, field) -> {
            if (!lists(rows, offsets, row -> field.apply(row).size())) return;
            int[] tokens = new int[(int) offsets[rows.size()]];
            float[] biases = new float[tokens.length];
            int end = 0;
            for (SamplingParams row : rows) {
                for (Map.Entry<Integer, Float> bias : field.apply(row.values).entrySet()) {
                    tokens[end] = bias.getKey();
                    biases[end++] = bias.getValue();
                }
            }
            Native.batchllm_params_set_biases(column, name, tokens, biases, offsets);
        });
    }

    /** The texts of all rows, each followed by a zero byte, and the offset of each. */
    private static final class Texts {
        final byte[] bytes;
        final long[] starts;

        Texts(List<SamplingParams> rows, Function<ParameterSetters, List<byte[]>> field) {
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
    private static boolean lists(List<SamplingParams> rows, long[] offsets, ToLongFunction<ParameterSetters> length) {
        int i = 0;
        for (SamplingParams row : rows) {
            offsets[i + 1] = offsets[i] + length.applyAsLong(row.values);
            i++;
        }
        return offsets[i] > 0;
    }

    /**
     * Sets parameters. A value out of range fails only the rows that have it. With a task other than {@link
     * Task#GENERATE}, only {@link #addSpecial}, {@link #parseSpecial} and, for vectors, {@link #pooling}, {@link
     * #normalize} and {@link #dimensions} apply, and {@link #adapter}.
     */
    public static final class Builder extends ParameterSetters {
        private Constraint constraint;
        private Adapter adapter;

        private Builder() {}

        private Builder(Builder from) {
            copy(from);
            constraint = from.constraint;
            adapter = from.adapter;
        }

        @Override
        public Builder biases(Map<Integer, Float> values) {
            Objects.requireNonNull(values, "biases is null").forEach((token, bias) -> {
                if (token == null) throw new IllegalArgumentException("biases: a token is null");
                if (bias == null) throw new IllegalArgumentException("biases: the bias of token " + token + " is null");
            });
            return super.biases(values);
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
         * The adapter that the row goes through, for any task.
         *
         * @param value null, the default: the model as it is
         * @return this
         */
        public Builder adapter(Adapter value) {
            adapter = value;
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
