package org.batchllm;

import java.nio.charset.StandardCharsets;

/** Strings as UTF-8. Half of a surrogate pair without its other half becomes bytes that are not UTF-8, so that its row
 * fails instead of running with another text. */
final class Utf8 {
    private Utf8() {}

    /** A text for native code, which adds a zero byte; null for null. */
    static byte[] terminable(String text) {
        if (text == null) return null;
        if (text.indexOf('\0') >= 0) {
            throw new IllegalArgumentException("a zero character in \"" + text.replace("\0", "\\0") + "\"");
        }
        return bytes(text);
    }

    static byte[] bytes(CharSequence text) {
        byte[] bytes = new byte[Math.toIntExact(length(text))];
        encode(text, bytes, 0);
        return bytes;
    }

    static String string(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    private static boolean pairAt(CharSequence text, int i) {
        return Character.isHighSurrogate(text.charAt(i))
                && i + 1 < text.length()
                && Character.isLowSurrogate(text.charAt(i + 1));
    }

    /** How many bytes {@link #encode} writes. */
    static long length(CharSequence text) {
        long length = 0;
        for (int i = 0, end = text.length(); i < end; i++) {
            char c = text.charAt(i);
            if (c < 0x80) {
                length++;
            } else if (c < 0x800) {
                length += 2;
            } else if (Character.isSurrogate(c) && pairAt(text, i)) {
                length += 4;
                i++;
            } else {
                length += 3;
            }
        }
        return length;
    }

    /** Writes a text at `at`; returns where it ends. */
    static int encode(CharSequence text, byte[] out, int at) {
        for (int i = 0, end = text.length(); i < end; i++) {
            int c = text.charAt(i);
            if (c < 0x80) {
                out[at++] = (byte) c;
            } else if (c < 0x800) {
                out[at++] = (byte) (0xc0 | c >> 6);
                out[at++] = (byte) (0x80 | c & 0x3f);
            } else if (Character.isSurrogate((char) c) && pairAt(text, i)) {
                int point = Character.toCodePoint((char) c, text.charAt(++i));
                out[at++] = (byte) (0xf0 | point >> 18);
                out[at++] = (byte) (0x80 | point >> 12 & 0x3f);
                out[at++] = (byte) (0x80 | point >> 6 & 0x3f);
                out[at++] = (byte) (0x80 | point & 0x3f);
            } else {
                out[at++] = (byte) (0xe0 | c >> 12);
                out[at++] = (byte) (0x80 | c >> 6 & 0x3f);
                out[at++] = (byte) (0x80 | c & 0x3f);
            }
        }
        return at;
    }
}
