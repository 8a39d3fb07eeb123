package org.batchllm;

/**
 * Options of how rows are planned, which engines and plans have in common. Public in the builders that extend it.
 *
 * @param <B> the builder that its methods return
 */
abstract class PlanningBuilder<B extends PlanningBuilder<B>> implements Cloneable {
    // null: the library's default
    Sharing sharing;
    Integer levels;
    Integer minPrefixTokens;

    PlanningBuilder() {}

    @SuppressWarnings("unchecked")
    private B self() {
        return (B) this;
    }

    /** The options so far, which later calls of this builder do not change. */
    @SuppressWarnings("unchecked")
    B copy() {
        try {
            return (B) clone();
        } catch (CloneNotSupportedException impossible) {
            throw new AssertionError(impossible);
        }
    }

    /**
     * Which prefixes rows share.
     *
     * @param value default {@link Sharing#OPTIMAL}
     * @return this
     */
    public B sharing(Sharing value) {
        sharing = value;
        return self();
    }

    /**
     * Whether prefixes also share their beginnings (common prefixes).
     *
     * @param value 0 (the default): they share those common prefixes that save more than they cost, with the engine's model or by
     *     the plan's commonPrefixCost; 1: one shared prefix per row; 2: they share all common prefixes
     * @return this
     */
    public B levels(int value) {
        levels = value;
        return self();
    }

    /**
     * Prefixes shorter than this are not shared.
     *
     * @param value tokens; default 0: 16
     * @return this
     */
    public B minPrefixTokens(int value) {
        minPrefixTokens = value;
        return self();
    }
}
