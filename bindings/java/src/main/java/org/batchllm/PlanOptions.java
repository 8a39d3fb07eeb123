package org.batchllm;

/** How rows are planned. Immutable; options that are not set have the library's defaults. */
public final class PlanOptions {
    private final Builder values;

    private PlanOptions(Builder values) {
        this.values = values;
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
        if (values.sharing != null) options.setEnlarge(values.sharing.number);
        if (values.levels != null) options.setLevels(values.levels);
        if (values.minPrefixTokens != null) options.setMin_prefix_tokens(values.minPrefixTokens);
        options.setSelf_contained(values.selfContained ? 1 : 0);
        options.setTokenizer_fingerprint(values.tokenizerFingerprint);
        options.setCommon_prefix_cost(values.commonPrefixCost);
        return options;
    }

    /** Sets options. */
    public static final class Builder extends PlanningBuilder<Builder> {
        private boolean selfContained;
        private long tokenizerFingerprint;
        private double commonPrefixCost;

        private Builder() {}

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
         * What a common prefix costs each token below it, for levels 0.
         *
         * @param value computed tokens, {@link EngineInfo#commonPrefixCost}; default 0: not known, so no common prefixes are shared
         * @return this
         */
        public Builder commonPrefixCost(double value) {
            commonPrefixCost = value;
            return this;
        }

        /**
         * The options so far.
         *
         * @return options that later calls here do not change
         */
        public PlanOptions build() {
            return new PlanOptions(copy());
        }
    }
}
