package org.batchllm.spark;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Prompts as bytes whose unsigned order is the order of the prompts: text as UTF-8, tokens as four
 * big-endian bytes each. A token of text also has about four bytes, so both kinds of lengths have the same unit.
 */
final class Prompts {
    /** Bytes per token, in weights and limits. */
    static final int TOKEN_BYTES = 4;

    private Prompts() {}

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static byte[] bytes(int[] tokens) {
        ByteBuffer buffer = ByteBuffer.allocate(Math.multiplyExact(tokens.length, TOKEN_BYTES));
        buffer.asIntBuffer().put(tokens);
        return buffer.array();
    }

    static int[] tokens(byte[] bytes) {
        int[] tokens = new int[bytes.length / TOKEN_BYTES];
        tokens(bytes, tokens, 0);
        return tokens;
    }

    /** The same into an array, from `at` on. */
    static void tokens(byte[] bytes, int[] into, int at) {
        ByteBuffer.wrap(bytes).asIntBuffer().get(into, at, bytes.length / TOKEN_BYTES);
    }

    /** The length of the longest common prefix of a and b. */
    static int common(byte[] a, byte[] b) {
        int differ = Arrays.mismatch(a, b);
        return differ < 0 ? a.length : differ;
    }

    /** A hash of a key, a prompt and pictures, each a byte[] or a String. The prompt and the pictures may be null. */
    static long hash(long key, byte[] prompt, Object[] pictures) {
        long hash = hash(key, prompt);
        if (pictures == null) return hash;
        for (Object one : pictures)
            hash = one instanceof byte[] ? hash(hash, (byte[]) one) : hash(~hash, bytes((String) one));
        return hash;
    }

    /** A hash of a key and a prompt, which may be null. */
    static long hash(long key, byte[] prompt) {
        long hash = hash(key);
        if (prompt == null) return hash;
        ByteBuffer words = ByteBuffer.wrap(prompt);
        while (words.remaining() >= Long.BYTES) hash = hash(hash ^ words.getLong());
        long last = prompt.length;
        while (words.hasRemaining()) last = last << Byte.SIZE | words.get() & 0xff;
        return hash(hash ^ last);
    }

    /** Spreads keys evenly over 64 bits; a bijection (SplitMix64's finalizer). */
    static long hash(long key) {
        long z = key + 0x9e3779b97f4a7c15L;
        z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L;
        z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL;
        return z ^ (z >>> 31);
    }
}
