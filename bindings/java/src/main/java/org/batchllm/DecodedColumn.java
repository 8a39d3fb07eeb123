package org.batchllm;

import java.nio.ByteBuffer;

/**
 * The texts that {@link Tokenizer#decode(TokenColumn, boolean)} or {@link Tokenizer#applyChatTemplate(TextColumn,
 * boolean)} returns.
 */
public final class DecodedColumn extends MadeColumn {
    private final ByteBuffer text;

    DecodedColumn(batchllm_column column) {
        super(column);
        text = readable(Native.batchllm_column_column_text(column));
    }

    /**
     * All texts.
     *
     * @return UTF-8, a read-only buffer over the library's memory
     */
    public ByteBuffer text() {
        try (Handle.Use use = handle.share()) {
            return lend(Native.batchllm_column_column_text(column));
        }
    }

    /**
     * One text. Bytes that are not UTF-8 become U+FFFD: tokens may end in the middle of a character.
     *
     * @param i from 0
     * @return a copy
     */
    public String text(int i) {
        try (Handle.Use use = handle.share()) {
            return Results.Columns.string(text, from(i), to(i));
        }
    }
}
