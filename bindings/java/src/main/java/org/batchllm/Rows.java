package org.batchllm;

import java.nio.LongBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * Rows for an engine, as columns: prompts, with their tags and parameters. Immutable; the `with` methods return changed
 * copies that share the columns.
 */
public final class Rows {
    private final TextColumn text;
    private final boolean chat; // whether the texts are conversations
    private final TokenColumn tokens;
    private final TextColumn textContinuations;
    private final TokenColumn tokenContinuations;
    private final Object continuationRows;
    private final Object tags;
    private final List<SamplingParams> params;
    private final Table table;

    private Rows(
            Table table,
            TextColumn text,
            boolean chat,
            TokenColumn tokens,
            TextColumn textContinuations,
            TokenColumn tokenContinuations,
            Object continuationRows,
            Object tags,
            List<SamplingParams> params) {
        this.table = table;
        this.text = text;
        this.chat = chat;
        this.tokens = tokens;
        this.textContinuations = textContinuations;
        this.tokenContinuations = tokenContinuations;
        this.continuationRows = continuationRows;
        this.tags = tags;
        this.params = params;
    }

    /**
     * Prompts to be continued, as text, which goes through the model's tokenizer.
     *
     * @param prompts one for each row
     * @return rows with default parameters
     */
    public static Rows ofText(TextColumn prompts) {
        return new Rows(null, Objects.requireNonNull(prompts), false, null, null, null, null, null, null);
    }

    /**
     * The same from strings.
     *
     * @param prompts one for each row
     * @return rows with default parameters
     */
    public static Rows ofText(Collection<? extends CharSequence> prompts) {
        return ofText(TextColumn.of(prompts));
    }

    /**
     * The same from strings.
     *
     * @param prompts one for each row
     * @return rows with default parameters
     */
    public static Rows ofText(String... prompts) {
        return ofText(TextColumn.of(prompts));
    }

    /**
     * Conversations to be answered, rendered with the model's chat template. A row whose conversation is invalid, or
     * rejected by the template, gets {@link Status#ROW_TEMPLATE}.
     *
     * @param conversations one for each row, as JSON: a list of messages, [{"role": "user", "content": "Hello"}], or an
     *     object with such a list as "messages" and other members for the template (docs/chat.md)
     * @return rows with default parameters
     */
    public static Rows ofChat(TextColumn conversations) {
        return new Rows(null, Objects.requireNonNull(conversations), true, null, null, null, null, null, null);
    }

    /**
     * The same from strings.
     *
     * @param conversations one for each row
     * @return rows with default parameters
     */
    public static Rows ofChat(Collection<? extends CharSequence> conversations) {
        return ofChat(TextColumn.of(conversations));
    }

    /**
     * The same from strings.
     *
     * @param conversations one for each row
     * @return rows with default parameters
     */
    public static Rows ofChat(String... conversations) {
        return ofChat(TextColumn.of(conversations));
    }

    /**
     * A table's rows. A row without a prompt gets {@link Status#ROW_NULL}. The table must be open when the rows are
     * added.
     *
     * @param table the table, whose prompts are the rows
     * @return rows with default parameters
     */
    public static Rows ofTable(Table table) {
        return new Rows(Objects.requireNonNull(table), null, false, null, null, null, null, null, null);
    }

    /**
     * Prompts to be continued, as token ids.
     *
     * @param prompts one for each row
     * @return rows with default parameters
     */
    public static Rows ofTokens(TokenColumn prompts) {
        return new Rows(null, null, false, Objects.requireNonNull(prompts), null, null, null, null, null);
    }

    /**
     * Prompts to be scored, not continued: the log-probability of each of the given continuations after
     * the row's prompt. A continuation is tokenized by itself, without special tokens, and appended.
     *
     * @param prompts one for each row
     * @param continuations those of all rows, row after row
     * @param rows n + 1 offsets: row i's continuations are [rows[i], rows[i + 1]), at least one
     * @return rows to be scored
     */
    public static Rows ofScores(TextColumn prompts, TextColumn continuations, LongBuffer rows) {
        return new Rows(
                null,
                Objects.requireNonNull(prompts),
                false,
                null,
                Objects.requireNonNull(continuations),
                null,
                Buffers.of(rows),
                null,
                null);
    }

    /**
     * The same from token ids.
     *
     * @param prompts one for each row
     * @param continuations those of all rows, row after row
     * @param rows n + 1 offsets: row i's continuations are [rows[i], rows[i + 1]), at least one
     * @return rows to be scored
     */
    public static Rows ofScores(TokenColumn prompts, TokenColumn continuations, LongBuffer rows) {
        return new Rows(
                null,
                null,
                false,
                Objects.requireNonNull(prompts),
                null,
                Objects.requireNonNull(continuations),
                Buffers.of(rows),
                null,
                null);
    }

    /**
     * The same from strings, with the same continuations for every prompt.
     *
     * @param prompts one for each row
     * @param continuations the continuations of every prompt
     * @return rows to be scored
     */
    public static Rows ofScores(Collection<String> prompts, Collection<String> continuations) {
        int place = 0;
        for (String continuation : continuations) {
            if (continuation == null) throw new IllegalArgumentException("continuation " + place + " is null");
            place++;
        }
        long[] rows = new long[prompts.size() + 1];
        String[] all = new String[Math.multiplyExact(prompts.size(), continuations.size())];
        int end = 0;
        for (int i = 0; i < prompts.size(); i++) {
            for (String continuation : continuations) all[end++] = continuation;
            rows[i + 1] = end;
        }
        return ofScores(TextColumn.of(prompts), TextColumn.of(all), LongBuffer.wrap(rows));
    }

    /**
     * Gives the rows tags, by which results refer to them. Tags need not be distinct.
     *
     * @param values one for each row, 64 bits; without them rows are numbered 0, 1, ... as they are added
     * @return rows with tags
     */
    public Rows withTags(long... values) {
        return copy(values, params);
    }

    /**
     * Gives the rows tags, by which results refer to them.
     *
     * @param values one for each row
     * @return rows with tags
     */
    public Rows withTags(LongBuffer values) {
        return copy(Buffers.of(values), params);
    }

    /**
     * Sampling parameters of all rows. For rows to be scored, only {@link SamplingParams.Builder#addSpecial} and {@link
     * SamplingParams.Builder#parseSpecial} apply.
     *
     * @param values parameters for every row
     * @return rows with parameters
     */
    public Rows withParams(SamplingParams values) {
        return copy(tags, List.of(values));
    }

    /**
     * Sampling parameters of each row.
     *
     * @param values one for each row
     * @return rows with parameters
     */
    public Rows withParams(List<SamplingParams> values) {
        if (values.size() != size()) {
            throw new IllegalArgumentException(values.size() + " sampling parameters for " + size() + " rows");
        }
        List<SamplingParams> copied = new ArrayList<>(values);
        int missing = copied.indexOf(null);
        if (missing >= 0) throw new IllegalArgumentException("row " + missing + ": its sampling parameters are null");
        return copy(tags, copied);
    }

    private Rows copy(Object newTags, List<SamplingParams> newParams) {
        return new Rows(
                table, text, chat, tokens, textContinuations, tokenContinuations, continuationRows, newTags, newParams);
    }

    /**
     * How many rows there are.
     *
     * @return n
     */
    public long size() {
        return table != null ? table.size() : text != null ? text.size() : tokens.size();
    }

    boolean tagged() {
        return tags != null;
    }

    /** The same rows with another task than in their parameters. */
    Rows withTask(Task task) {
        if (textContinuations != null || tokenContinuations != null) {
            throw new IllegalArgumentException("rows to be scored have no other task");
        }
        if (params == null) return withParams(SamplingParams.builder().task(task).build());
        Map<SamplingParams, SamplingParams> changed = new IdentityHashMap<>();
        List<SamplingParams> all = new ArrayList<>(params.size());
        for (SamplingParams one : params) {
            all.add(changed.computeIfAbsent(one, from -> from.toBuilder().task(task).build()));
        }
        return copy(tags, all);
    }

    void addTo(batchllm_engine engine, Constraints constraints) {
        batchllm_params_column column = params == null || params.isEmpty() ? null : SamplingParams.column(params);
        try {
            if (column != null) constraints.set(engine, column, params);
            if (table != null) {
                try (Handle.Use use = table.handle.share()) {
                    Native.batchllm_add_table_rows(engine, table.table, tags, column);
                }
            } else if (textContinuations != null) {
                Native.batchllm_add_score_text_columns(
                        engine,
                        text.bytes,
                        text.offsets,
                        textContinuations.bytes,
                        textContinuations.offsets,
                        continuationRows,
                        tags,
                        column);
            } else if (tokenContinuations != null) {
                Native.batchllm_add_score_columns(
                        engine,
                        tokens.tokens,
                        tokens.offsets,
                        tokenContinuations.tokens,
                        tokenContinuations.offsets,
                        continuationRows,
                        tags);
            } else if (chat) {
                Native.batchllm_add_chat_column(engine, text.bytes, text.offsets, tags, column);
            } else if (text != null) {
                Native.batchllm_add_text_column(engine, text.bytes, text.offsets, tags, column);
            } else {
                Native.batchllm_add_token_column(engine, tokens.tokens, tokens.offsets, tags, column);
            }
        } finally {
            if (column != null) column.delete();
        }
    }
}
