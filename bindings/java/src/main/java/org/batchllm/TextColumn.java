package org.batchllm;

import java.nio.ByteBuffer;
import java.nio.LongBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Iterator;
import java.util.List;

/**
 * Texts in one buffer of UTF-8 with n + 1 offsets: text i is the bytes [offsets[i], offsets[i + 1]).
 *
 * <p>Direct buffers are passed to the library without a copy: do not change them during a call that uses the column.
 * Arrays are copied for the duration of the call.
 */
public final class TextColumn {
    final Object bytes;
    final Object offsets;
    private final long size;

    private TextColumn(Object bytes, Object offsets, long size) {
        this.bytes = bytes;
        this.offsets = offsets;
        this.size = size;
    }

    /**
     * Texts that are already in a buffer.
     *
     * @param utf8 the texts, from the buffer's position to its limit
     * @param offsets n + 1 of them, in bytes from the buffer's position
     * @return a column over the buffers
     */
    public static TextColumn of(ByteBuffer utf8, LongBuffer offsets) {
        return new TextColumn(Buffers.of(utf8), Buffers.of(offsets), Buffers.rows(offsets));
    }

    /**
     * Texts that are already in an array.
     *
     * @param utf8 the texts
     * @param offsets n + 1 of them, in bytes
     * @return a column over the arrays
     */
    public static TextColumn of(byte[] utf8, long[] offsets) {
        return new TextColumn(utf8, offsets, Buffers.rows(LongBuffer.wrap(offsets)));
    }

    /**
     * Strings, encoded into one buffer. A string that is not valid Unicode (half of a surrogate pair) only makes its
     * own row fail.
     *
     * @param texts the strings
     * @return a column with its own memory
     * @throws IllegalArgumentException if one is null, which {@link Rows#ofText(Collection)} takes; the
     *     message names its row
     */
    public static TextColumn of(Collection<? extends CharSequence> texts) {
        long[] offsets = new long[texts.size() + 1];
        int rows = 0;
        for (CharSequence text : texts) {
            if (text == null) {
                throw new IllegalArgumentException("row " + rows + " is null: a column has no nulls, but Rows.ofText takes them");
            }
            offsets[rows + 1] = offsets[rows] + Utf8.length(text);
            rows++;
        }
        if (offsets[rows] > Integer.MAX_VALUE - 8) {
            throw new IllegalArgumentException(
                    offsets[rows] + " bytes of text do not fit an array of 2 GiB: add fewer rows at once");
        }
        byte[] utf8 = new byte[(int) offsets[rows]];
        int end = 0;
        for (CharSequence text : texts) end = Utf8.encode(text, utf8, end);
        return new TextColumn(utf8, offsets, rows);
    }

    /**
     * Strings, encoded into one buffer.
     *
     * @param texts the strings
     * @return a column with its own memory
     */
    public static TextColumn of(String... texts) {
        return of(Arrays.asList(texts));
    }

    /**
     * The remaining strings of an iterator, encoded into one buffer.
     *
     * @param texts the strings
     * @return a column with its own memory
     */
    public static TextColumn of(Iterator<? extends CharSequence> texts) {
        List<CharSequence> list = new ArrayList<>();
        texts.forEachRemaining(list::add);
        return of(list);
    }

    /**
     * How many texts there are.
     *
     * @return n
     */
    public long size() {
        return size;
    }
}
