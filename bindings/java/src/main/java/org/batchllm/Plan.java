package org.batchllm;

import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Which rows share which prefix, and in which order they are computed. A plan is made without an engine or a
 * model; it can be saved and used by a later job. Only one thread may use it at a time.
 */
public final class Plan implements AutoCloseable {
    final batchllm_plan plan;
    final Handle handle;

    Plan(batchllm_plan plan) {
        this.plan = plan;
        handle = new Handle("plan", plan::delete);
    }

    /**
     * Plans rows.
     *
     * @param rows token ids
     * @return a plan, which must be closed
     */
    public static Plan create(TokenColumn rows) {
        return create(rows, PlanOptions.builder().build(), null, null);
    }

    /**
     * Plans rows.
     *
     * @param rows token ids
     * @param options of the plan
     * @param decodeLengths how many tokens each row is expected to generate, for the order of groups; null: all the
     *     same
     * @param previous a plan of an earlier version of the rows, or null: unchanged rows keep their groups, and
     *     only new or changed rows are planned
     * @return a plan, which must be closed
     */
    public static Plan create(TokenColumn rows, PlanOptions options, int[] decodeLengths, Plan previous) {
        return create(rows, options, decodeLengths, previous, null);
    }

    /**
     * Plans rows that have adapters: rows whose adapters differ in content share nothing.
     *
     * @param rows token ids
     * @param options of the plan
     * @param decodeLengths as above, or null
     * @param previous as above, or null
     * @param adapters of each row, where null means none; null: no row has one
     * @return a plan, which must be closed
     */
    public static Plan create(
            TokenColumn rows, PlanOptions options, int[] decodeLengths, Plan previous, List<Adapter> adapters) {
        NativeLog.refuseCallsWhileLogging();
        Handle.Use use = previous == null ? () -> {} : previous.handle.use();
        batchllm_plan_options made = null;
        Adapters known = new Adapters();
        batchllm_params_column column = null;
        try {
            made = options.make();
            if (adapters != null) {
                column = Native.batchllm_params_column_create(adapters.size());
                List<SamplingParams> params = new ArrayList<>(adapters.size());
                for (Adapter adapter : adapters) params.add(SamplingParams.builder().adapter(adapter).build());
                known.set(null, column, params);
            }
            return new Plan(
                    Native.batchllm_plan_create_from(
                            rows.tokens, rows.offsets, decodeLengths, column, made, previous == null ? null : previous.plan));
        } finally {
            if (column != null) column.delete();
            known.clear();
            if (made != null) made.delete();
            use.close();
        }
    }

    /**
     * Reads a plan file.
     *
     * @param file written by {@link #save} or by the batchllm program
     * @return a plan, which must be closed
     */
    public static Plan load(Path file) {
        NativeLog.refuseCallsWhileLogging();
        return new Plan(Native.batchllm_plan_load_from(file.toString()));
    }

    /**
     * Writes a plan file atomically: an existing file is replaced or, on any error, left as it was.
     *
     * @param file the file to write
     */
    public void save(Path file) {
        try (Handle.Use use = handle.use()) {
            Native.batchllm_plan_save(plan, file.toString());
        }
    }

    /**
     * What the plan shares.
     *
     * @return a copy
     */
    public PlanStats stats() {
        try (Handle.Use use = handle.use()) {
            batchllm_plan_stats stats = new batchllm_plan_stats();
            try {
                Native.batchllm_plan_get_stats(plan, stats);
                return new PlanStats(stats);
            } finally {
                stats.delete();
            }
        }
    }

    /**
     * All groups. Rows that share nothing are groups of one.
     *
     * @return a copy
     */
    public Groups groups() {
        try (Handle.Use use = handle.use()) {
            batchllm_plan_groups groups = Native.batchllm_plan_groups_of(plan);
            try {
                return new Groups(groups);
            } finally {
                groups.delete();
            }
        }
    }

    /**
     * What to put first in the prompts so that rows share more.
     *
     * @return a sentence or two; "" if there is no advice
     */
    public String advice() {
        try (Handle.Use use = handle.use()) {
            return Native.batchllm_plan_advice_text(plan);
        }
    }

    /**
     * Predicts how long an engine would take for the plan's rows, before anything runs.
     *
     * @param engine the options of that engine, with a model directory, of which only config.json is read
     * @param rows the rows that the plan was made from; null: those in a self-contained plan
     * @param device "h200", "h100", or a file with a device's costs; "here" or null: this machine's, measured once and kept
     * @param maxTokens the tokens that each row generates
     * @return the figures
     */
    public Prediction predict(EngineOptions engine, TokenColumn rows, String device, int maxTokens) {
        return predict(engine, rows, device, maxTokens, 1, 0);
    }

    /**
     * The same for rows with several samples, or rows that the model is expected to end.
     *
     * @param engine the options of that engine, with a model directory, of which only config.json is read
     * @param rows the rows that the plan was made from; null: those in a self-contained plan
     * @param device "h200", "h100", or a file with a device's costs; "here" or null: this machine's, measured once and kept
     * @param maxTokens the tokens that each row generates
     * @param samples the samples of each row
     * @param expectedTokens the tokens that a row generates if the model may end it; 0: maxTokens
     * @return the figures
     */
    public Prediction predict(
            EngineOptions engine, TokenColumn rows, String device, int maxTokens, int samples, long expectedTokens) {
        try (Handle.Use use = handle.use()) {
            batchllm_prediction made = new batchllm_prediction();
            batchllm_engine_options options = null;
            long logNumber = NativeLog.add(engine.logger());
            try {
                options = engine.make(logNumber);
                Native.batchllm_plan_predict_rows(
                        plan,
                        rows == null ? null : rows.tokens,
                        rows == null ? null : rows.offsets,
                        maxTokens,
                        samples,
                        null,
                        options,
                        device,
                        expectedTokens,
                        made);
                return new Prediction(made);
            } catch (Throwable thrown) {
                made.delete();
                throw thrown;
            } finally {
                if (options != null) options.delete();
                NativeLog.remove(logNumber);
            }
        }
    }

    /** Frees the plan. Throws while in use. */
    @Override
    public void close() {
        handle.close();
    }

    /** The groups of a plan in scheduling order, as columns. */
    public static final class Groups {
        private final long[] prefixTokens;
        private final long[] commonPrefixTokens;
        private final long[] rowOffsets;
        private final long[] rows;

        private Groups(batchllm_plan_groups groups) {
            prefixTokens = Buffers.longs((ByteBuffer) Native.batchllm_plan_groups_column_prefix_tokens(groups));
            commonPrefixTokens = Buffers.longs((ByteBuffer) Native.batchllm_plan_groups_column_common_prefix_tokens(groups));
            rowOffsets = Buffers.longs((ByteBuffer) Native.batchllm_plan_groups_column_row_offsets(groups));
            rows = Buffers.longs((ByteBuffer) Native.batchllm_plan_groups_column_rows(groups));
        }

        /**
         * How many groups there are.
         *
         * @return the number
         */
        public int size() {
            return prefixTokens.length;
        }

        /**
         * The length of a group's shared prefix.
         *
         * @param group from 0
         * @return tokens; 0: a row that shares nothing
         */
        public long prefixTokens(int group) {
            return prefixTokens[group];
        }

        /**
         * The length of the part of the prefix that other groups share too.
         *
         * @param group from 0
         * @return tokens; 0 unless levels is 2
         */
        public long commonPrefixTokens(int group) {
            return commonPrefixTokens[group];
        }

        /**
         * A group's rows.
         *
         * @param group from 0
         * @return a copy of the row numbers
         */
        public long[] rows(int group) {
            return Arrays.copyOfRange(rows, (int) rowOffsets[group], (int) rowOffsets[group + 1]);
        }
    }
}
