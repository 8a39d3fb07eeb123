package org.batchllm.spark;

/** One row on its way through an engine. */
final class Request implements Windows.HasPrompt {
    /**
     * The row's columns; null in the prompt's place, which {@link #prompt} has in less memory, unless the
     * prompt has what is no token id.
     */
    final Object[] columns;
    final byte[] prompt;
    final long key;
    /** Of rows to be scored, as bytes like the prompt; else null. */
    final byte[][] continuations;
    final RowParams params;

    Feed feed; // of the engine's thread, while it has the row

    Request(Object[] columns, byte[] prompt, long key, byte[][] continuations, RowParams params) {
        this.columns = columns;
        this.prompt = prompt;
        this.key = key;
        this.continuations = continuations;
        this.params = params;
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
        return bytes;
    }
}
