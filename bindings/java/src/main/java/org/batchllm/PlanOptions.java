package org.batchllm;

/** How rows are planned. Immutable; what is not set has the library's default. */
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
     * Options with the library's defaults, to be changed.
     *
     * @return a builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** To be deleted by the caller. */
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
         * What of the rows is shared.
         *
         * @param value default {@link Sharing#OPTIMAL}
         * @return this
         */
        public Builder sharing(Sharing value) {
            sharing = value;
            return this;
        }

        /**
         * Whether prefixes share heads too.
         *
         * @param value 0 (the default): they share those heads that save more than they cost, by headCost; 1: one
         *     shared prefix a row; 2: they share all
         * @return this
         */
        public Builder levels(int value) {
            levels = value;
            return this;
        }

        /**
         * In which order groups stand.
         *
         * @param value default {@link GroupOrder#DECODE_FIRST}
         * @return this
         */
        public Builder order(GroupOrder value) {
            order = value;
            return this;
        }

        /**
         * Shorter prefixes are not shared.
         *
         * @param value tokens; default 0: 16
         * @return this
         */
        public Builder minPrefixTokens(int value) {
            minPrefixTokens = value;
            return this;
        }

        /**
         * Whether the plan keeps the rows' tokens.
         *
         * @param value default false
         * @return this
         */
        public Builder selfContained(boolean value) {
            selfContained = value;
            return this;
        }

        /**
         * The tokenizer that the tokens are of: an engine with another one refuses the plan.
         *
         * @param value {@link Tokenizer#fingerprint}; default 0: unknown, never compared
         * @return this
         */
        public Builder tokenizerFingerprint(long value) {
            tokenizerFingerprint = value;
            return this;
        }

        /**
         * What each token below a head pays for it, with levels 0.
         *
         * @param value computed tokens, {@link EngineInfo#headCost}; default 0: not known, no head is shared
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
