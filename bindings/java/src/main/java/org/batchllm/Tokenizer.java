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
     * @param path a tokenizer.json, or a model directory that has one
     * @return to be closed
     */
    public static Tokenizer load(Path path) {
        NativeLog.refuseCallsWhileLogging();
        return new Tokenizer(Native.batchllm_tokenizer_create_from(path.toString()));
    }

    /** For Report. */
    void add(batchllm_report report, batchllm_plan plan) {
        try (Handle.Use use = handle.share()) {
            Native.batchllm_report_add_plan_of(report, plan, tokenizer);
        }
    }

    /**
     * Encodes texts, on every core, in one native call.
     *
     * @param texts to be encoded
     * @param addSpecial whether the tokenizer's template adds BOS and the like
     * @param parseSpecial whether special tokens written in the text are taken as such
     * @return a row of tokens each, to be closed
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
     * Encodes one text, with what the template adds, and special tokens taken as such. For many texts
     * use the columns.
     *
     * @param text to be encoded
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
     * @param rows to be decoded
     * @param skipSpecial whether special tokens are left out of the text
     * @return a text each, to be closed
     */
    public DecodedColumn decode(TokenColumn rows, boolean skipSpecial) {
        int flags = skipSpecial ? Native.BATCHLLM_DECODE_SKIP_SPECIAL : 0;
        try (Handle.Use use = handle.share()) {
            return new DecodedColumn(Native.batchllm_decode_column(tokenizer, rows.tokens, rows.offsets, flags, 0));
        }
    }

    /**
     * Decodes one row, special tokens left out. For many rows use the columns.
     *
     * @param tokens to be decoded
     * @return the text
     */
    public String decode(int... tokens) {
        return decode(List.of(tokens)).get(0);
    }

    /**
     * Decodes rows, special tokens left out.
     *
     * @param rows to be decoded
     * @return a text each
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
     * The text that a model sees of conversations, in one native call. Encode it with special tokens
     * parsed and none added.
     *
     * @param conversations as for {@link Rows#ofChat(TextColumn)}
     * @param generationPrompt whether the text ends where the assistant begins, where a conversation does
     *     not say
     * @return a text each, to be closed
     */
    public DecodedColumn applyChatTemplate(TextColumn conversations, boolean generationPrompt) {
        int flags = generationPrompt ? 0 : Native.BATCHLLM_CHAT_NO_GENERATION_PROMPT;
        try (Handle.Use use = handle.share()) {
            return new DecodedColumn(
                    Native.batchllm_chat_column(tokenizer, conversations.bytes, conversations.offsets, flags, 0));
        }
    }

    /**
     * A hash of everything that changes how text becomes tokens.
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

    /** Frees the tokenizer. Throws during a use. */
    @Override
    public void close() {
        handle.close();
    }
}
