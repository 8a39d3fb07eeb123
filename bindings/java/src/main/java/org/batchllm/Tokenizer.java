package org.batchllm;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;

/** Text to token ids and back. Any number of threads may use a tokenizer at once. */
public final class Tokenizer implements AutoCloseable {
    private final batchllm_tokenizer tokenizer;
    private final Handle handle;

    private Tokenizer(batchllm_tokenizer tokenizer) {
        this.tokenizer = tokenizer;
        handle = new Handle("tokenizer", tokenizer::delete);
    }

    /**
     * Reads a tokenizer.
     *
     * @param path a tokenizer.json, or a model directory that contains one
     * @return a tokenizer, which must be closed
     */
    public static Tokenizer load(Path path) {
        NativeLog.refuseCallsWhileLogging();
        return new Tokenizer(Native.batchllm_tokenizer_create_from(path.toString()));
    }

    /** Adds a plan to a report. Used by Report. */
    void add(batchllm_report report, batchllm_plan plan) {
        try (Handle.Use use = handle.share()) {
            Native.batchllm_report_add_plan_of(report, plan, tokenizer);
        }
    }

    /**
     * Encodes texts, on every core, in one native call.
     *
     * @param texts the texts to encode
     * @param addSpecial whether the tokenizer's template adds BOS and the like
     * @param parseSpecial whether special tokens spelled out in the text are parsed as special tokens
     * @return a row of tokens for each text; must be closed
     */
    public EncodedColumn encode(TextColumn texts, boolean addSpecial, boolean parseSpecial) {
        int flags =
                (addSpecial ? Native.BATCHLLM_ENCODE_ADD_SPECIAL : 0)
                        | (parseSpecial ? Native.BATCHLLM_ENCODE_PARSE_SPECIAL : 0);
        try (Handle.Use use = handle.share()) {
            return new EncodedColumn(Native.batchllm_encode_column(tokenizer, texts.bytes, texts.offsets, flags, 0));
        }
    }

    /**
     * Encodes one text: adds BOS and the like, and parses special tokens. For many texts, use columns.
     *
     * @param text the text to encode
     * @return token ids
     */
    public int[] encode(String text) {
        try (EncodedColumn column = encode(TextColumn.of(text), true, true)) {
            column.requireOk(0);
            return column.tokens(0);
        }
    }

    /**
     * Decodes rows of tokens, on every core, in one native call.
     *
     * @param rows the rows to decode
     * @param skipSpecial whether special tokens are left out of the text
     * @return a text for each row; must be closed
     */
    public DecodedColumn decode(TokenColumn rows, boolean skipSpecial) {
        int flags = skipSpecial ? Native.BATCHLLM_DECODE_SKIP_SPECIAL : 0;
        try (Handle.Use use = handle.share()) {
            return new DecodedColumn(Native.batchllm_decode_column(tokenizer, rows.tokens, rows.offsets, flags, 0));
        }
    }

    /**
     * Decodes one row, without special tokens. For many rows, use columns.
     *
     * @param tokens the row to decode
     * @return the text
     */
    public String decode(int... tokens) {
        return decode(List.of(tokens)).get(0);
    }

    /**
     * Decodes rows, without special tokens.
     *
     * @param rows the rows to decode
     * @return a text for each row
     */
    public List<String> decode(Collection<int[]> rows) {
        try (DecodedColumn column = decode(TokenColumn.of(rows), true)) {
            List<String> texts = new ArrayList<>(column.size());
            for (int i = 0; i < column.size(); i++) {
                column.requireOk(i);
                texts.add(column.text(i));
            }
            return texts;
        }
    }

    /**
     * Renders conversations with the model's chat template, in one native call. Encode the result with parseSpecial,
     * but without addSpecial.
     *
     * @param conversations as for {@link Rows#ofChat(TextColumn)}
     * @param generationPrompt whether the text ends where the assistant's answer begins, unless a conversation says
     *     otherwise
     *     @return a text for each conversation; must be closed
     */
    public DecodedColumn applyChatTemplate(TextColumn conversations, boolean generationPrompt) {
        int flags = generationPrompt ? 0 : Native.BATCHLLM_CHAT_NO_GENERATION_PROMPT;
        try (Handle.Use use = handle.share()) {
            return new DecodedColumn(
                    Native.batchllm_chat_column(tokenizer, conversations.bytes, conversations.offsets, flags, 0));
        }
    }

    /**
     * A hash of everything that affects how text becomes tokens.
     *
     * @return never 0
     */
    public long fingerprint() {
        try (Handle.Use use = handle.share()) {
            return Native.batchllm_tokenizer_fingerprint(tokenizer);
        }
    }

    /**
     * The size of the vocabulary.
     *
     * @return token ids are below it
     */
    public long vocabulary() {
        try (Handle.Use use = handle.share()) {
            return Native.batchllm_tokenizer_vocabulary(tokenizer);
        }
    }

    /** Frees the tokenizer. Throws while in use. */
    @Override
    public void close() {
        handle.close();
    }
}
