package org.batchllm;

import java.nio.IntBuffer;

/** The rows of token ids that {@link Tokenizer#encode(TextColumn, boolean, boolean)} returns. */
public final class EncodedColumn extends MadeColumn {
    private final IntBuffer tokens;

    EncodedColumn(batchllm_column column) {
        super(column);
        tokens = readable(Native.batchllm_column_column_tokens(column)).asIntBuffer();
    }

    /**
     * The token ids of all rows.
     *
     * @return a read-only buffer over the library's memory
     */
    public IntBuffer tokens() {
        try (Handle.Use use = handle.share()) {
            return lend(Native.batchllm_column_column_tokens(column)).asIntBuffer();
        }
    }

    /**
     * One row.
     *
     * @param i from 0
     * @return a copy
     */
    public int[] tokens(int i) {
        try (Handle.Use use = handle.share()) {
            return Results.Columns.ints(tokens, from(i), to(i));
        }
    }

    /**
     * The rows, for an engine or a plan. Nothing is copied.
     *
     * @return a column over the library's memory
     */
    public TokenColumn column() {
        return TokenColumn.of(tokens(), offsets());
    }
}
