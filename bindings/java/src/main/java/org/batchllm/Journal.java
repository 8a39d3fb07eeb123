package org.batchllm;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.util.BitSet;
import java.util.List;
import java.util.Objects;

/**
 * What makes a job resumable. It says which rows are done, refuses to continue another job, keeps other runs away from
 * the output, and keeps results so that the process may be killed at any moment:
 *
 * <pre>{@code
 * try (Journal journal = Journal.builder(Path.of("answers.jsonl")).input(questions).model(folder).resume().open()) {
 *     BitSet done = journal.done();
 *     ... run the rows that are not in done; with the results of each poll:
 *     journal.appendLines(rows, lines, null);
 *     ... when all rows have results:
 *     journal.sync();
 * }
 * }</pre>
 *
 * <p>Rows are numbered from 0, in any way that stays the same when the job is resumed, such as by their place in the
 * input. OUTPUT.state, beside the output, holds what resuming needs.
 *
 * <p>Results are lines of the output, one for each row, in the order in which rows finish. Or, after {@link
 * Builder#blocks}, they are blocks of bytes in OUTPUT.blocks, each with the results of some rows in any form; when all
 * rows are done, the caller makes the output from them and calls {@link #finish}.
 *
 * <p>One thread at a time uses a journal.
 */
public final class Journal implements AutoCloseable {
    private final batchllm_journal journal;
    private final Handle handle;

    private Journal(batchllm_journal journal) {
        this.journal = journal;
        handle = new Handle("journal", journal::delete);
    }

    /**
     * Starts a journal for an output.
     *
     * @param output a file; a link leads to one
     * @return a builder that refuses an output that exists
     */
    public static Builder builder(Path output) {
        return new Builder(output);
    }

    /**
     * The rows that earlier runs have done.
     *
     * @return a copy
     */
    public BitSet done() {
        try (Handle.Use use = handle.use()) {
            return BitSet.valueOf((ByteBuffer) Native.batchllm_journal_column_done(journal));
        }
    }

    /**
     * How many rows all runs have done.
     *
     * @return with those that failed
     */
    public long rows() {
        batchllm_journal_info info = info();
        return info.getRows_done() + info.getRows_written();
    }

    /**
     * How many rows of all runs have failed.
     *
     * @return at most {@link #rows}
     */
    public long failed() {
        batchllm_journal_info info = info();
        return info.getFailed_done() + info.getFailed_written();
    }

    /**
     * Whether the output was finished, by an earlier run or this one.
     *
     * @return always false for lines
     */
    public boolean complete() {
        return info().getComplete() != 0;
    }

    /**
     * How many blocks there are, of all runs.
     *
     * @return 0 for lines
     */
    public int blocks() {
        return Math.toIntExact(info().getBlocks());
    }

    private batchllm_journal_info info() {
        try (Handle.Use use = handle.use()) {
            batchllm_journal_info info = new batchllm_journal_info();
            Native.batchllm_journal_get_info(journal, info);
            return info;
        }
    }

    /**
     * The files that an engine reads for rows from now on are listed beside the output, so that the job is not resumed
     * after one of them has changed. Call it once, before rows that name pictures are added.
     *
     * @param engine with {@link EngineOptions.Builder#imageFolders}; it may be closed before the journal
     * @throws BatchLlmException.JournalMismatch if a file is not what an earlier run has read
     */
    public void usePictures(Engine engine) {
        try (Handle.Use use = handle.use()) {
            engine.listPictures(journal);
        }
    }

    /**
     * Appends a line for each row. When this returns, they survive the process; after {@link #sync}, they survive the
     * machine. On a full disk, as many whole lines as fit are kept.
     *
     * @param rows each row once in all runs
     * @param lines a line for each row, without its line end
     * @param failed which of these rows have failed; null: none
     */
    public void appendLines(long[] rows, List<? extends CharSequence> lines, boolean[] failed) {
        long[] offsets = new long[lines.size() + 1];
        for (int i = 0; i < lines.size(); i++) offsets[i + 1] = offsets[i] + Utf8.length(lines.get(i)) + 1;
        byte[] text = new byte[Math.toIntExact(offsets[lines.size()])];
        for (int i = 0; i < lines.size(); i++) text[Utf8.encode(lines.get(i), text, (int) offsets[i])] = '\n';
        try (Handle.Use use = handle.use()) {
            Native.batchllm_journal_append_line_column(journal, rows, flags(failed), text, offsets);
        }
    }

    /**
     * Appends the results of rows as one block, or, if this throws, nothing of it.
     *
     * @param rows each row once in all runs; at least one
     * @param block the bytes, in any form
     * @param failed which of these rows have failed; null: none
     */
    public void appendBlock(long[] rows, byte[] block, boolean[] failed) {
        try (Handle.Use use = handle.use()) {
            Native.batchllm_journal_append_block_of(journal, rows, flags(failed), block);
        }
    }

    private static byte[] flags(boolean[] failed) {
        if (failed == null) return null;
        byte[] flags = new byte[failed.length];
        for (int i = 0; i < failed.length; i++) flags[i] = (byte) (failed[i] ? 1 : 0);
        return flags;
    }

    /**
     * The rows of a block.
     *
     * @param block from 0 to {@link #blocks} - 1
     * @return their numbers
     */
    public long[] blockRows(int block) {
        try (Handle.Use use = handle.use()) {
            return Buffers.longs((ByteBuffer) Native.batchllm_journal_column_block_rows(journal, block));
        }
    }

    /**
     * The bytes of a block.
     *
     * @param block from 0 to {@link #blocks} - 1
     * @return a copy
     */
    public byte[] readBlock(int block) {
        try (Handle.Use use = handle.use()) {
            ByteBuffer found = (ByteBuffer) Native.batchllm_journal_column_block(journal, block);
            byte[] bytes = new byte[found.remaining()];
            found.order(ByteOrder.nativeOrder()).get(bytes);
            return bytes;
        }
    }

    /** Syncs to disk: what was appended survives a crash of the machine. */
    public void sync() {
        try (Handle.Use use = handle.use()) {
            Native.batchllm_journal_sync(journal);
        }
    }

    /**
     * For blocks, when the output has been made from them: gives it its name and removes them.
     *
     * @param made where it is, in the folder of the output; it is synced and renamed
     */
    public void finish(Path made) {
        try (Handle.Use use = handle.use()) {
            Native.batchllm_journal_finish(journal, made.toString());
        }
    }

    /** Releases the output, without a sync. A journal that was not written to leaves nothing behind. Throws while in use. */
    @Override
    public void close() {
        handle.close();
    }

    /** What identifies the job, and what happens to an output that exists. */
    public static final class Builder {
        private final Path output;
        private final ByteArrayOutputStream parts = new ByteArrayOutputStream();
        private Path input;
        private Path model;
        private int kind = Native.BATCHLLM_JOURNAL_LINES;
        private int existing = Native.BATCHLLM_JOURNAL_REFUSE;

        private Builder(Path output) {
            this.output = Objects.requireNonNull(output, "output is null");
        }

        /**
         * The job is identified by the content of its input.
         *
         * @param file a regular file; default: none
         * @return this
         */
        public Builder input(Path file) {
            input = file;
            return this;
        }

        /**
         * The job is identified by the content of a model's directory, of its weights by samples.
         *
         * @param folder default: none
         * @return this
         */
        public Builder model(Path folder) {
            model = folder;
            return this;
        }

        /**
         * Something else that changes results. A job cannot be resumed if it differs; the error shows both values.
         *
         * @param name each once
         * @param value as text
         * @return this
         */
        public Builder part(String name, Object value) {
            parts.writeBytes(Utf8.terminable(name));
            parts.write(0);
            parts.writeBytes(Utf8.terminable(String.valueOf(value)));
            parts.write(0);
            return this;
        }

        /**
         * Results are kept as blocks, from which the caller makes the output.
         *
         * @return this
         */
        public Builder blocks() {
            kind = Native.BATCHLLM_JOURNAL_BLOCKS;
            return this;
        }

        /**
         * The job continues; if there is no output, it starts.
         *
         * @return this
         */
        public Builder resume() {
            existing = Native.BATCHLLM_JOURNAL_RESUME;
            return this;
        }

        /**
         * The same, except that rows that failed are not done: the first append or sync replaces the output by a file
         * without their lines. With blocks they are done, but the output of a complete job of which rows failed must be what
         * was finished, and is locked: a job that begins again may take the other rows' results from it.
         *
         * @return this
         */
        public Builder resumeAndRetryFailed() {
            existing = Native.BATCHLLM_JOURNAL_RETRY;
            return this;
        }

        /**
         * The job starts over.
         *
         * @return this
         */
        public Builder overwrite() {
            existing = Native.BATCHLLM_JOURNAL_OVERWRITE;
            return this;
        }

        /**
         * Opens the journal and locks the output. Nothing that exists is changed before the first append or sync.
         *
         * @return a journal, which must be closed
         * @throws BatchLlmException.JournalExists if there is an output that is to be neither resumed nor overwritten
         * @throws BatchLlmException.JournalMismatch if it is another job's
         * @throws BatchLlmException.JournalFormat if the state is missing, or if lines of the output were changed
         * @throws BatchLlmException.InvalidState if another run is writing to it
         */
        public Journal open() {
            NativeLog.refuseCallsWhileLogging();
            return new Journal(Native.batchllm_journal_open_from(output.toString(), text(input), text(model), kind, existing,
                    parts.toByteArray(), null));
        }

        private static String text(Path path) {
            return path == null ? null : path.toString();
        }
    }
}
