package org.batchllm;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.util.Arrays;

/**
 * The remaining part of a buffer, in a form for native code: a direct buffer in the machine's byte order as it is, any
 * other buffer as an array. The buffer's own position does not move. An empty buffer becomes an empty array, because
 * that of an empty mapped file is direct but has no address.
 */
final class Buffers {
    private Buffers() {}

    static Object of(ByteBuffer buffer) {
        if (buffer.isDirect() && buffer.hasRemaining()) return buffer.slice();
        if (buffer.hasArray()) {
            return range(buffer.array(), buffer.arrayOffset() + buffer.position(), buffer.remaining());
        }
        byte[] copy = new byte[buffer.remaining()];
        buffer.duplicate().get(copy);
        return copy;
    }

    private static byte[] range(byte[] array, int from, int count) {
        return from == 0 && count == array.length ? array : Arrays.copyOfRange(array, from, from + count);
    }

    static Object of(IntBuffer buffer) {
        if (buffer.isDirect() && buffer.order() == ByteOrder.nativeOrder() && buffer.hasRemaining()) {
            return buffer.slice();
        }
        if (buffer.hasArray() && buffer.arrayOffset() == 0 && buffer.remaining() == buffer.array().length) {
            return buffer.array();
        }
        int[] copy = new int[buffer.remaining()];
        buffer.duplicate().get(copy);
        return copy;
    }

    static Object of(LongBuffer buffer) {
        if (buffer.isDirect() && buffer.order() == ByteOrder.nativeOrder() && buffer.hasRemaining()) {
            return buffer.slice();
        }
        if (buffer.hasArray() && buffer.arrayOffset() == 0 && buffer.remaining() == buffer.array().length) {
            return buffer.array();
        }
        long[] copy = new long[buffer.remaining()];
        buffer.duplicate().get(copy);
        return copy;
    }

    /** The number of rows of a column with n + 1 offsets. */
    static long rows(LongBuffer offsets) {
        if (!offsets.hasRemaining()) throw new IllegalArgumentException("no offsets: n rows have n + 1 of them");
        return offsets.remaining() - 1;
    }

    /** Items as an array that the caller owns. */
    static int[] ints(ByteBuffer bytes) {
        int[] copy = new int[bytes.remaining() / Integer.BYTES];
        bytes.order(ByteOrder.nativeOrder()).asIntBuffer().get(copy);
        return copy;
    }

    static long[] longs(ByteBuffer bytes) {
        long[] copy = new long[bytes.remaining() / Long.BYTES];
        bytes.order(ByteOrder.nativeOrder()).asLongBuffer().get(copy);
        return copy;
    }
}
