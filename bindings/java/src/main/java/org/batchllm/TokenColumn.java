package org.batchllm;

import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.util.Collection;

/**
 * Rows of token ids in one buffer with n + 1 offsets: row i is the tokens [offsets[i], offsets[i + 1]).
 *
 * <p>Direct buffers in the machine's byte order ({@link java.nio.ByteOrder#nativeOrder}) are passed to the library
 * without a copy: do not change them during a call that uses the column. Arrays, and direct buffers in the other byte
 * order, are copied for the duration of the call.
 */
public final class TokenColumn {
    final Object tokens;
    final Object offsets;
    private final long size;

    private TokenColumn(Object tokens, Object offsets, long size) {
        this.tokens = tokens;
        this.offsets = offsets;
        this.size = size;
    }

    /**
     * Rows that are already in a buffer.
     *
     * @param tokens the token ids, from the buffer's position to its limit
     * @param offsets n + 1 of them, in tokens from the buffer's position
     * @return a column over the buffers
     */
    public static TokenColumn of(IntBuffer tokens, LongBuffer offsets) {
        return new TokenColumn(Buffers.of(tokens), Buffers.of(offsets), Buffers.rows(offsets));
    }

    /**
     * Rows that are already in an array.
     *
     * @param tokens the token ids
     * @param offsets n + 1 of them, in tokens
     * @return a column over the arrays
     */
    public static TokenColumn of(int[] tokens, long[] offsets) {
        return new TokenColumn(tokens, offsets, Buffers.rows(LongBuffer.wrap(offsets)));
    }

    /**
     * Rows in separate arrays, copied into one.
     *
     * @param rows each row's token ids
     * @return a column with its own memory
     * @throws IllegalArgumentException if one is null, which {@link Rows#ofTokens(Collection)} takes; the
     *     message names its row
     */
    public static TokenColumn of(Collection<int[]> rows) {
        long[] offsets = new long[rows.size() + 1];
        int count = 0;
        for (int[] row : rows) {
            if (row == null) {
                throw new IllegalArgumentException("row " + count + " is null: a column has no nulls, but Rows.ofTokens takes them");
            }
            offsets[count + 1] = offsets[count] + row.length;
            count++;
        }
        if (offsets[count] > Integer.MAX_VALUE - 8) {
            throw new IllegalArgumentException(
                    offsets[count] + " tokens do not fit an array: add fewer rows at once");
        }
        int[] tokens = new int[(int) offsets[count]];
        int end = 0;
        for (int[] row : rows) {
            System.arraycopy(row, 0, tokens, end, row.length);
            end += row.length;
        }
        return new TokenColumn(tokens, offsets, count);
    }

    /**
     * How many rows there are.
     *
     * @return n
     */
    public long size() {
        return size;
    }
}
