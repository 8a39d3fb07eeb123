package org.batchllm;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Objects;

/**
 * Prompts made from a table's columns and a template:
 *
 * <pre>{@code
 * Table table = Table.builder("Is this review kind?\nTitle: {title}\nReview: {text}\nAnswer:")
 *         .column("title", titles)
 *         .column("text", texts)
 *         .build();
 * Results results = engine.generate(Rows.ofTable(table));
 * }</pre>
 *
 * <p>A table is immutable; any number of threads may use it at once.
 */
public final class Table implements AutoCloseable {
    final batchllm_table table;
    final Handle handle;
    private final long rows;

    private Table(batchllm_table table) {
        this.table = table;
        handle = new Handle("table", table::delete);
        rows = Native.batchllm_table_rows(table);
    }

    /**
     * Starts a table.
     *
     * @param template the prompt: {name} is the row's cell in the column of that name, {{ and }} write a brace
     * @return a builder without columns
     */
    public static Builder builder(String template) {
        return new Builder(template);
    }

    /**
     * A template's parts, for prompts that are made where there is no table, such as in a query.
     *
     * @param template as for {@link #builder}
     * @return a text, the name of the column that follows it, and so on; the last one is a text
     */
    public static List<String> parts(String template) {
        return strings(Native.batchllm_template_parts(Utf8.bytes(template), new int[0]));
    }

    /**
     * The same with the columns in the one order in which a sample of rows shares most.
     *
     * @param template as for {@link #builder}; its lines have one column each
     * @param columns how many columns it has
     * @param cells [rows * columns] a number for each cell, row by row, columns as they first appear in the template:
     *     equal cells have equal numbers
     * @param lengths [rows * columns] of the cells, in bytes
     * @return parts
     */
    public static List<String> partsInOrder(String template, int columns, long[] cells, int[] lengths) {
        return strings(Native.batchllm_template_parts_in_order(Utf8.bytes(template), columns, cells, lengths));
    }

    private static List<String> strings(batchllm_column column) {
        try {
            long[] offsets = Buffers.longs((ByteBuffer) Native.batchllm_column_column_offsets(column));
            byte[] text = new byte[(int) offsets[offsets.length - 1]];
            ((ByteBuffer) Native.batchllm_column_column_text(column)).get(text);
            List<String> found = new ArrayList<>();
            for (int i = 0; i + 1 < offsets.length; i++) {
                int begin = (int) offsets[i];
                found.add(new String(text, begin, (int) offsets[i + 1] - begin, StandardCharsets.UTF_8));
            }
            return found;
        } finally {
            column.delete();
        }
    }

    /**
     * How many rows there are.
     *
     * @return n
     */
    public long size() {
        return rows;
    }

    /**
     * A row's prompt.
     *
     * @param row from 0
     * @return its text, or the JSON of a conversation; null if a cell that the template names is null
     */
    public String prompt(long row) {
        Objects.checkIndex(Math.toIntExact(row), Math.toIntExact(rows));
        try (Handle.Use use = handle.share()) {
            ByteBuffer statuses = (ByteBuffer) Native.batchllm_table_column_statuses(table);
            if (statuses.order(ByteOrder.nativeOrder()).getInt((int) row * Integer.BYTES) != Status.OK) return null;
            ByteBuffer offsets = (ByteBuffer) Native.batchllm_table_column_offsets(table);
            offsets.order(ByteOrder.nativeOrder());
            long begin = offsets.getLong((int) row * Long.BYTES);
            long end = offsets.getLong((int) row * Long.BYTES + Long.BYTES);
            byte[] bytes = new byte[Math.toIntExact(end - begin)];
            ByteBuffer text = (ByteBuffer) Native.batchllm_table_column_text(table);
            text.position(Math.toIntExact(begin));
            text.get(bytes);
            return new String(bytes, StandardCharsets.UTF_8);
        }
    }

    /**
     * Share of the fields' bytes that a row has in common with the beginning of the row before it, with rows and fields
     * in the given order. This and the next two are 0 for a table that was not reordered.
     *
     * @return from 0 to 1
     */
    public double givenHitRate() {
        return hitRate(0);
    }

    /**
     * The same with the rows sorted, which an engine achieves without moving fields.
     *
     * @return from 0 to 1
     */
    public double sortedHitRate() {
        return hitRate(1);
    }

    /**
     * The same for the order that was found.
     *
     * @return from 0 to 1
     */
    public double hitRate() {
        return hitRate(2);
    }

    private double hitRate(int which) {
        try (Handle.Use use = handle.share()) {
            return Native.batchllm_table_hit_rate(table, which);
        }
    }

    /** Frees the table. Throws while in use. */
    @Override
    public void close() {
        handle.close();
    }

    /** Collects columns. */
    public static final class Builder {
        private final String template;
        private final List<String> names = new ArrayList<>();
        private final List<TextColumn> columns = new ArrayList<>();
        private final List<byte[]> valid = new ArrayList<>(); // null: every cell is valid
        private boolean reorder;
        private boolean chat;
        private String system;

        private Builder(String template) {
            this.template = Objects.requireNonNull(template, "template is null");
        }

        /**
         * A column without nulls.
         *
         * @param name as in the template
         * @param cells one for each row
         * @return this
         */
        public Builder column(String name, TextColumn cells) {
            return add(name, cells, null);
        }

        /**
         * A column of strings. If a cell that the template names is null, the row has no prompt and gets {@link
         * Status#ROW_NULL}.
         *
         * @param name as in the template
         * @param cells one for each row; some may be null
         * @return this
         */
        public Builder column(String name, Collection<? extends CharSequence> cells) {
            byte[] present = new byte[cells.size()];
            List<CharSequence> filled = new ArrayList<>(cells.size());
            for (CharSequence cell : cells) {
                present[filled.size()] = (byte) (cell == null ? 0 : 1);
                filled.add(cell == null ? "" : cell);
            }
            return add(name, TextColumn.of(filled), present);
        }

        private Builder add(String name, TextColumn cells, byte[] present) {
            names.add(Objects.requireNonNull(name, "name is null"));
            columns.add(Objects.requireNonNull(cells, "cells is null"));
            valid.add(present);
            return this;
        }

        /**
         * Whether each row gets its fields in the order that lets rows share most. Whole lines move: each line of the
         * template from that of its first field to that of its last field must have exactly one field. Answers may
         * change.
         *
         * @param value default false: in the template's order
         * @return this
         */
        public Builder reorder(boolean value) {
            reorder = value;
            return this;
        }

        /**
         * Whether the template's text becomes the user's message in the model's chat template.
         *
         * @param value default false
         * @return this
         */
        public Builder chat(boolean value) {
            chat = value;
            return this;
        }

        /**
         * With {@link #chat}: the system message before it.
         *
         * @param text default null: none
         * @return this
         */
        public Builder system(String text) {
            system = text;
            return this;
        }

        /**
         * Makes the prompts. The columns are copied.
         *
         * @return a table, which must be closed
         */
        public Table build() {
            NativeLog.refuseCallsWhileLogging();
            batchllm_frame frame = Native.batchllm_frame_create(names.size());
            try {
                for (int i = 0; i < names.size(); i++) {
                    TextColumn cells = columns.get(i);
                    byte[] present = valid.get(i);
                    if (present == null) {
                        present = new byte[Math.toIntExact(cells.size())];
                        Arrays.fill(present, (byte) 1);
                    }
                    Native.batchllm_frame_name(frame, i, Utf8.bytes(names.get(i)));
                    Native.batchllm_frame_extend(frame, i, cells.bytes, cells.offsets, present);
                }
                return new Table(Native.batchllm_table_create_from(frame, Utf8.bytes(template), reorder ? 1 : 0,
                        chat ? 1 : 0, Utf8.bytes(system == null ? "" : system)));
            } finally {
                frame.delete();
            }
        }
    }
}
