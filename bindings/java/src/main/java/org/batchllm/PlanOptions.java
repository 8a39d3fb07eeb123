package org.batchllm;

/** How rows are planned. Immutable; options that are not set have the library's defaults. */
public final class PlanOptions {
    private final Sharing sharing;
    private final int levels;
    private final GroupOrder order;
    private final int minPrefixTokens;
    private final boolean selfContained;
    private final long tokenizerFingerprint;
    private final double headCost;

    private PlanOptions(Builder from) {
        sharing = from.sharing;
        levels = from.levels;
        order = from.order;
        minPrefixTokens = from.minPrefixTokens;
        selfContained = from.selfContained;
        tokenizerFingerprint = from.tokenizerFingerprint;
        headCost = from.headCost;
    }

    /**
     * A builder with the library's defaults.
     *
     * @return a builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The native options. The caller must delete them. */
    batchllm_plan_options make() {
        batchllm_plan_options options = new batchllm_plan_options();
        options.setEnlarge(sharing.number);
        options.setLevels(levels);
        options.setOrder(order.number);
        options.setMin_prefix_tokens(minPrefixTokens);
        options.setSelf_contained(selfContained ? 1 : 0);
        options.setTokenizer_fingerprint(tokenizerFingerprint);
        options.setHead_cost(headCost);
        return options;
    }

    /** Sets options. */
    public static final class Builder {
        private Sharing sharing = Sharing.OPTIMAL;
        private int levels;
        private GroupOrder order = GroupOrder.DECODE_FIRST;
        private int minPrefixTokens;
        private boolean selfContained;
        private long tokenizerFingerprint;
        private double headCost;

        private Builder() {}

        /**
         * Which prefixes rows share.
         *
         * @param value default {@link Sharing#OPTIMAL}
         * @return this
         */
        public Builder sharing(Sharing value) {
            sharing = value;
            return this;
        }

        /**
         * Whether prefixes also share their beginnings (heads).
         *
         * @param value 0 (the default): they share those heads that save more than they cost, by headCost; 1: one
         *     shared prefix per row; 2: they share all heads
         * @return this
         */
        public Builder levels(int value) {
            levels = value;
            return this;
        }

        /**
         * The order of groups.
         *
         * @param value default {@link GroupOrder#DECODE_FIRST}
         * @return this
         */
        public Builder order(GroupOrder value) {
            order = value;
            return this;
        }

        /**
         * Prefixes shorter than this are not shared.
         *
         * @param value tokens; default 0: 16
         * @return this
         */
        public Builder minPrefixTokens(int value) {
            minPrefixTokens = value;
            return this;
        }

        /**
         * Whether the plan contains the rows' tokens.
         *
         * @param value default false
         * @return this
         */
        public Builder selfContained(boolean value) {
            selfContained = value;
            return this;
        }

        /**
         * The tokenizer that the tokens come from: an engine with another one rejects the plan.
         *
         * @param value {@link Tokenizer#fingerprint}; default 0: unknown, never compared
         * @return this
         */
        public Builder tokenizerFingerprint(long value) {
            tokenizerFingerprint = value;
            return this;
        }

        /**
         * What a head costs each token below it, for levels 0.
         *
         * @param value computed tokens, {@link EngineInfo#headCost}; default 0: not known, so no heads are shared
         * @return this
         */
        public Builder headCost(double value) {
            headCost = value;
            return this;
        }

        /**
         * The options so far.
         *
         * @return options that later calls here do not change
         */
        public PlanOptions build() {
            return new PlanOptions(this);
        }
    }
}
