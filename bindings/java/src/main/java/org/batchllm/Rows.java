package org.batchllm;

import java.io.ByteArrayOutputStream;
import java.nio.LongBuffer;
import java.util.ArrayList;
import java.util.Arrays;
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
    private static final int[] NONE = {};

    private final TextColumn text;
    private final boolean chat; // whether the texts are conversations
    private final TokenColumn tokens;
    private final TextColumn textContinuations;
    private final TokenColumn tokenContinuations;
    private final Object continuationRows;
    private final Object tags;
    private final List<SamplingParams> params;
    private final boolean common; // whether `params` are one item for all rows
    private final Table table;
    private final List<List<?>> pictures; // of each row; null: none
    private final int[] nulls; // the numbers of rows without a prompt, rising; the columns have only the others

    private Rows(
            Table table,
            TextColumn text,
            boolean chat,
            TokenColumn tokens,
            TextColumn textContinuations,
            TokenColumn tokenContinuations,
            Object continuationRows,
            Object tags,
            List<SamplingParams> params,
            boolean common,
            List<List<?>> pictures,
            int[] nulls) {
        this.table = table;
        this.text = text;
        this.chat = chat;
        this.tokens = tokens;
        this.textContinuations = textContinuations;
        this.tokenContinuations = tokenContinuations;
        this.continuationRows = continuationRows;
        this.tags = tags;
        this.params = params;
        this.common = common;
        this.pictures = pictures;
        this.nulls = nulls;
    }

    private static Rows ofPrompts(TextColumn text, boolean chat, TokenColumn tokens, int[] nulls) {
        return new Rows(null, text, chat, tokens, null, null, null, null, null, false, null, nulls);
    }

    private static Rows ofTexts(Collection<? extends CharSequence> prompts, boolean chat) {
        List<CharSequence> given = new ArrayList<>(prompts.size());
        int[] nulls = split(prompts, given);
        return ofPrompts(TextColumn.of(given), chat, null, nulls);
    }

    /** Adds the items that are not null to `given`, and returns the numbers of the others. */
    private static <T> int[] split(Collection<? extends T> items, List<T> given) {
        int[] nulls = new int[items.size()];
        int count = 0;
        int row = 0;
        for (T item : items) {
            if (item == null) nulls[count++] = row;
            else given.add(item);
            row++;
        }
        return Arrays.copyOf(nulls, count);
    }

    /**
     * Prompts to be continued, as text, which goes through the model's tokenizer.
     *
     * @param prompts one for each row
     * @return rows with default parameters
     */
    public static Rows ofText(TextColumn prompts) {
        return ofPrompts(Objects.requireNonNull(prompts, "prompts is null"), false, null, NONE);
    }

    /**
     * The same from strings.
     *
     * @param prompts one for each row; a row whose prompt is null gets {@link Status#ROW_NULL}
     * @return rows with default parameters
     */
    public static Rows ofText(Collection<? extends CharSequence> prompts) {
        return ofTexts(prompts, false);
    }

    /**
     * The same from strings.
     *
     * @param prompts one for each row; a row whose prompt is null gets {@link Status#ROW_NULL}
     * @return rows with default parameters
     */
    public static Rows ofText(String... prompts) {
        return ofTexts(Arrays.asList(prompts), false);
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
        return ofPrompts(Objects.requireNonNull(conversations, "conversations is null"), true, null, NONE);
    }

    /**
     * The same from strings.
     *
     * @param conversations one for each row; a row whose conversation is null gets {@link Status#ROW_NULL}
     * @return rows with default parameters
     */
    public static Rows ofChat(Collection<? extends CharSequence> conversations) {
        return ofTexts(conversations, true);
    }

    /**
     * The same from strings.
     *
     * @param conversations one for each row; a row whose conversation is null gets {@link Status#ROW_NULL}
     * @return rows with default parameters
     */
    public static Rows ofChat(String... conversations) {
        return ofTexts(Arrays.asList(conversations), true);
    }

    /**
     * A table's rows. A row without a prompt gets {@link Status#ROW_NULL}. The table must be open when the rows are
     * added.
     *
     * @param table the table, whose prompts are the rows
     * @return rows with default parameters
     */
    public static Rows ofTable(Table table) {
        return new Rows(Objects.requireNonNull(table, "table is null"), null, false, null, null, null, null, null, null, false, null, NONE);
    }

    /**
     * Prompts to be continued, as token ids.
     *
     * @param prompts one for each row
     * @return rows with default parameters
     */
    public static Rows ofTokens(TokenColumn prompts) {
        return ofPrompts(null, false, Objects.requireNonNull(prompts, "prompts is null"), NONE);
    }

    /**
     * The same from arrays.
     *
     * @param prompts one for each row; a row whose prompt is null gets {@link Status#ROW_NULL}
     * @return rows with default parameters
     */
    public static Rows ofTokens(Collection<int[]> prompts) {
        List<int[]> given = new ArrayList<>(prompts.size());
        int[] nulls = split(prompts, given);
        return ofPrompts(null, false, TokenColumn.of(given), nulls);
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
        return ofScores(prompts, false, continuations, rows);
    }

    /**
     * The same after conversations, as {@link #ofChat} takes them: what the assistant may answer.
     *
     * @param conversations one for each row
     * @param continuations those of all rows, row after row
     * @param rows n + 1 offsets: row i's continuations are [rows[i], rows[i + 1]), at least one
     * @return rows to be scored
     */
    public static Rows ofChatScores(TextColumn conversations, TextColumn continuations, LongBuffer rows) {
        return ofScores(conversations, true, continuations, rows);
    }

    private static Rows ofScores(TextColumn prompts, boolean chat, TextColumn continuations, LongBuffer rows) {
        return new Rows(
                null,
                Objects.requireNonNull(prompts, "prompts is null"),
                chat,
                null,
                Objects.requireNonNull(continuations, "continuations is null"),
                null,
                Buffers.of(rows),
                null,
                null,
                false,
                null,
                NONE);
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
                Objects.requireNonNull(prompts, "prompts is null"),
                null,
                Objects.requireNonNull(continuations, "continuations is null"),
                Buffers.of(rows),
                null,
                null,
                false,
                null,
                NONE);
    }

    /**
     * The same from strings, with the same continuations for every prompt.
     *
     * @param prompts one for each row; a row whose prompt is null gets {@link Status#ROW_NULL}
     * @param continuations the continuations of every prompt
     * @return rows to be scored
     */
    public static Rows ofScores(Collection<String> prompts, Collection<String> continuations) {
        int place = 0;
        for (String continuation : continuations) {
            if (continuation == null) throw new IllegalArgumentException("continuation " + place + " is null");
            place++;
        }
        List<String> given = new ArrayList<>(prompts.size());
        int[] nulls = split(prompts, given);
        long[] rows = new long[given.size() + 1];
        String[] all = new String[Math.multiplyExact(given.size(), continuations.size())];
        int end = 0;
        for (int i = 0; i < given.size(); i++) {
            for (String continuation : continuations) all[end++] = continuation;
            rows[i + 1] = end;
        }
        return new Rows(
                null,
                TextColumn.of(given),
                false,
                null,
                TextColumn.of(all),
                null,
                rows,
                null,
                null,
                false,
                null,
                nulls);
    }

    /**
     * Gives the rows tags, by which results refer to them. Tags need not be distinct.
     *
     * @param values one for each row, 64 bits; without them rows are numbered 0, 1, ... as they are added
     * @return rows with tags
     */
    public Rows withTags(long... values) {
        return copy(values, params, common, pictures);
    }

    /**
     * Gives the rows tags, by which results refer to them.
     *
     * @param values one for each row
     * @return rows with tags
     */
    public Rows withTags(LongBuffer values) {
        return copy(Buffers.of(values), params, common, pictures);
    }

    /**
     * Sampling parameters of all rows. For rows to be scored, only {@link SamplingParams.Builder#addSpecial}, {@link
     * SamplingParams.Builder#parseSpecial} and {@link SamplingParams.Builder#adapter} apply, and a constraint is an error.
     *
     * @param values parameters for every row
     * @return rows with parameters
     */
    public Rows withParams(SamplingParams values) {
        return copy(tags, List.of(Objects.requireNonNull(values, "values is null")), true, pictures);
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
        return copy(tags, copied, false, pictures);
    }

    /**
     * The pictures of each row: JPEG, PNG or WebP files, in memory (byte[]) or by name (String): a path in or below the
     * engine's {@link EngineOptions.Builder#imageFolders}, or a "data:" URL. Texts have the model's placeholder once for
     * each of them; in conversations, parts {"type": "image"} stand for them (docs/pictures.md). A picture that cannot
     * be read gives its row {@link Status#ROW_PICTURE}.
     *
     * @param files for each row a list, empty or null for a row without pictures; nulls in it are left out; neither copied nor to be changed
     * @return rows with pictures
     */
    public Rows withPictures(List<? extends List<?>> files) {
        if (text == null) {
            throw new IllegalArgumentException("rows with pictures are texts or conversations");
        }
        if (files.size() != size()) {
            throw new IllegalArgumentException("pictures of " + files.size() + " rows for " + size() + " rows");
        }
        return copy(tags, params, common, new ArrayList<>(files));
    }

    private Rows copy(
            Object newTags, List<SamplingParams> newParams, boolean newCommon, List<List<?>> newPictures) {
        return new Rows(
                table,
                text,
                chat,
                tokens,
                textContinuations,
                tokenContinuations,
                continuationRows,
                newTags,
                newParams,
                newCommon,
                newPictures,
                nulls);
    }

    /**
     * How many rows there are.
     *
     * @return n
     */
    public long size() {
        return nulls.length + (table != null ? table.size() : text != null ? text.size() : tokens.size());
    }

    private boolean scored() {
        return textContinuations != null || tokenContinuations != null;
    }

    private static void refuseConstraints(List<SamplingParams> params) {
        if (params.stream().noneMatch(one -> one.constraint() != null)) return;
        throw new IllegalArgumentException("constraint: only generated text has one, and these rows are scored");
    }

    boolean tagged() {
        return tags != null;
    }

    /** The same rows with another task than in their parameters. */
    Rows withTask(Task task) {
        if (scored()) {
            throw new IllegalArgumentException("rows to be scored have no other task");
        }
        if (params == null) return withParams(SamplingParams.builder().task(task).build());
        Map<SamplingParams, SamplingParams> changed = new IdentityHashMap<>();
        List<SamplingParams> all = new ArrayList<>(params.size());
        for (SamplingParams one : params) {
            all.add(changed.computeIfAbsent(one, from -> from.toBuilder().task(task).build()));
        }
        return copy(tags, all, common, pictures);
    }

    /**
     * Adds the rows.
     *
     * @param firstTag of rows without tags
     */
    void addTo(batchllm_engine engine, Constraints constraints, Adapters adapters, long firstTag) {
        if (nulls.length == 0) {
            addPart(engine, constraints, adapters, tags, params, pictures, false);
            return;
        }
        long[] all = tags instanceof long[] ? (long[]) tags : new long[(int) size()];
        for (int i = 0; i < all.length && !(tags instanceof long[]); i++) {
            all[i] = tags == null ? firstTag + i : ((LongBuffer) tags).get(i);
        }
        int[] given = new int[all.length - nulls.length];
        for (int row = 0, null_ = 0, end = 0; row < all.length; row++) {
            if (null_ < nulls.length && nulls[null_] == row) null_++;
            else given[end++] = row;
        }
        if (given.length > 0) {
            List<List<?>> some = pictures == null ? null : new ArrayList<>(given.length);
            for (int i = 0; some != null && i < given.length; i++) some.add(pictures.get(given[i]));
            addPart(engine, constraints, adapters, picked(all, given), picked(params, given), some, false);
        }
        addPart(engine, constraints, adapters, picked(all, nulls), picked(params, nulls), null, true);
    }

    private static long[] picked(long[] values, int[] rows) {
        return Arrays.stream(rows).mapToLong(row -> values[row]).toArray();
    }

    private List<SamplingParams> picked(List<SamplingParams> values, int[] rows) {
        if (values == null || common) return values;
        List<SamplingParams> some = new ArrayList<>(rows.length);
        for (int row : rows) some.add(values.get(row));
        return some;
    }

    /** Texts or conversations, with pictures, with continuations or with both. given: of each row; null: none. */
    private void addPictures(
            batchllm_engine engine, Object tags, batchllm_params_column column, List<List<?>> given) {
        List<byte[]> files = new ArrayList<>();
        ByteArrayOutputStream kinds = new ByteArrayOutputStream();
        long[] rows = new long[Math.toIntExact(text.size()) + 1];
        for (int i = 0; i + 1 < rows.length; i++) {
            for (Object picture : given == null || given.get(i) == null ? List.of() : given.get(i)) {
                if (picture == null) continue;
                boolean named = picture instanceof String;
                kinds.write(named ? Native.BATCHLLM_PICTURE_NAME : Native.BATCHLLM_PICTURE_BYTES);
                files.add(named ? Utf8.bytes((String) picture) : (byte[]) picture);
            }
            rows[i + 1] = files.size();
        }
        long[] offsets = new long[files.size() + 1];
        for (int i = 0; i < files.size(); i++) offsets[i + 1] = offsets[i] + files.get(i).length;
        byte[] bytes = new byte[Math.toIntExact(offsets[files.size()])];
        for (int i = 0; i < files.size(); i++) {
            System.arraycopy(files.get(i), 0, bytes, (int) offsets[i], files.get(i).length);
        }
        int asChat = chat ? 1 : 0;
        byte[] kind = kinds.toByteArray();
        if (textContinuations == null) {
            Native.batchllm_add_picture_columns(
                    engine, asChat, text.bytes, text.offsets, rows, bytes, offsets, kind, tags, column);
        } else {
            Native.batchllm_add_score_picture_columns(
                    engine, asChat, text.bytes, text.offsets, rows, bytes, offsets, kind, textContinuations.bytes,
                    textContinuations.offsets, continuationRows, tags, column);
        }
    }

    private void addPart(
            batchllm_engine engine,
            Constraints constraints,
            Adapters adapters,
            Object tags,
            List<SamplingParams> params,
            List<List<?>> pictures,
            boolean withoutPrompts) {
        batchllm_params_column column = params == null || params.isEmpty() ? null : SamplingParams.column(params);
        try {
            if (column != null && scored()) refuseConstraints(params);
            if (column != null) constraints.set(engine, column, params);
            if (column != null) adapters.set(engine, column, params);
            if (column != null && common) Native.batchllm_check_params(engine, column);
            if (withoutPrompts) {
                Native.batchllm_add_null_rows(engine, tags, column);
            } else if (table != null) {
                try (Handle.Use use = table.handle.share()) {
                    Native.batchllm_add_table_rows(engine, table.table, tags, column);
                }
            } else if (pictures != null || chat && textContinuations != null) {
                addPictures(engine, tags, column, pictures);
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
                        tags,
                        column);
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
