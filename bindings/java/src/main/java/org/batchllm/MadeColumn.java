package org.batchllm;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.LongBuffer;

/**
 * A column that a tokenizer has returned. Any number of threads may read it, and it outlives its tokenizer. Its buffers
 * are read-only and stay readable after {@link #close}, like those of {@link Results}.
 */
public abstract class MadeColumn implements AutoCloseable {
    final batchllm_column column;
    final Handle handle;
    private final NativeMemory memory;
    private final int size;
    private final LongBuffer offsets;
    private final IntBuffer statuses;
    private final LongBuffer errorOffsets;
    private final ByteBuffer errors;

    MadeColumn(batchllm_column column) {
        this.column = column;
        memory = new NativeMemory(column);
        handle = new Handle("column", memory::release);
        size = Math.toIntExact(column.getCount());
        offsets = readable(Native.batchllm_column_column_offsets(column)).asLongBuffer();
        statuses = readable(Native.batchllm_column_column_statuses(column)).asIntBuffer();
        errorOffsets = readable(Native.batchllm_column_column_error_offsets(column)).asLongBuffer();
        errors = readable(Native.batchllm_column_column_errors(column));
    }

    /** A buffer for internal use while the column is open. */
    static ByteBuffer readable(Object root) {
        return ((ByteBuffer) root).order(ByteOrder.nativeOrder());
    }

    /** A buffer for callers. */
    final ByteBuffer lend(Object root) {
        return memory.lend((ByteBuffer) root);
    }

    /** [from, to) of item i. */
    final int from(int i) {
        if (i < 0 || i >= size) throw new IndexOutOfBoundsException("item " + i + " of " + size);
        return (int) offsets.get(i);
    }

    final int to(int i) {
        return (int) offsets.get(i + 1);
    }

    final void requireOk(int i) {
        int status = status(i);
        if (status != Status.OK) {
            throw new BatchLlmException(status, "item " + i + ": " + Status.name(status) + ": " + error(i));
        }
    }

    /**
     * How many items there are.
     *
     * @return the number, also when closed
     */
    public int size() {
        return size;
    }

    /**
     * The status of an item.
     *
     * @param i from 0
     * @return {@link Status#OK}, or a ROW_ number if the item failed; such an item is empty
     */
    public int status(int i) {
        try (Handle.Use use = handle.share()) {
            return statuses.get(i);
        }
    }

    /**
     * Why an item failed.
     *
     * @param i from 0
     * @return a text; null if it did not
     */
    public String error(int i) {
        try (Handle.Use use = handle.share()) {
            if (statuses.get(i) == Status.OK) return null;
            return Results.Columns.string(errors, (int) errorOffsets.get(i), (int) errorOffsets.get(i + 1));
        }
    }

    /**
     * The {@link Status} of each item.
     *
     * @return [size]
     */
    public IntBuffer statuses() {
        try (Handle.Use use = handle.share()) {
            return lend(Native.batchllm_column_column_statuses(column)).asIntBuffer();
        }
    }

    /**
     * Where each item is in the column's buffer.
     *
     * @return [size + 1]
     */
    public LongBuffer offsets() {
        try (Handle.Use use = handle.share()) {
            return lend(Native.batchllm_column_column_offsets(column)).asLongBuffer();
        }
    }

    /** Closes the column; its memory is freed once no buffer over it is in use. Throws while in use. */
    @Override
    public void close() {
        handle.close();
    }

    @Override
    public String toString() {
        return size + " items";
    }
}
