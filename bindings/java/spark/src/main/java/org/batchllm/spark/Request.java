package org.batchllm.spark;

import java.util.Arrays;
import java.util.List;

/** One row on its way through an engine. */
final class Request implements Windows.HasPrompt {
    /**
     * The row's columns. The prompt is null here, since {@link #prompt} has it in less memory, unless it contains a
     * value that is not a token id.
     */
    final Object[] columns;
    final byte[] prompt;
    final long key;
    /** The continuations of a row to be scored, as bytes like the prompt; else null. */
    final byte[][] continuations;
    /** The row's pictures, each a byte[] or a String; null: none. */
    final Object[] pictures;
    final RowParams params;

    // Used by the engine's thread while it has the row:
    Feed feed;
    List<Request> alike; // rows like this one, which take its answers; null: none

    Request(Object[] columns, byte[] prompt, long key, byte[][] continuations, Object[] pictures, RowParams params) {
        this.columns = columns;
        this.prompt = prompt;
        this.key = key;
        this.continuations = continuations;
        this.pictures = pictures;
        this.params = params;
    }

    /** Whether the other row, of the same task and key, has the same answers. */
    boolean isLike(Request other) {
        return Arrays.equals(prompt, other.prompt) && params.equals(other.params)
                && Arrays.deepEquals(continuations, other.continuations) && Arrays.deepEquals(pictures, other.pictures);
    }

    @Override
    public byte[] prompt() {
        return prompt;
    }

    @Override
    public long bytes() {
        long bytes = prompt == null ? 0 : prompt.length;
        if (continuations != null) {
            for (byte[] one : continuations) bytes += one.length;
        }
        if (pictures != null) {
            for (Object one : pictures) bytes += one instanceof byte[] ? ((byte[]) one).length : ((String) one).length();
        }
        return bytes;
    }
}
