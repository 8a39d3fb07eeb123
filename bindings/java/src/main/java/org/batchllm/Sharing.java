package org.batchllm;

/** Which prefixes prompts share. */
public enum Sharing {
    /** None: even equal rows and samples of a row are computed separately. */
    NONE(Native.BATCHLLM_ENLARGE_NONE),
    /** The exact optimum of single-level sharing; the default. */
    OPTIMAL(Native.BATCHLLM_ENLARGE_OPTIMAL),
    /** BatchLLM's Algorithm 1. */
    PAPER(Native.BATCHLLM_ENLARGE_PAPER);

    final int number;

    Sharing(int number) {
        this.number = number;
    }

    static Sharing of(int number) {
        for (Sharing sharing : values()) {
            if (sharing.number == number) return sharing;
        }
        throw new IllegalArgumentException("no way of sharing has the number " + number);
    }
}
