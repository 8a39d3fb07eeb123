package org.batchllm;

/** What of a batch's prompts is shared. */
public enum Sharing {
    /** Nothing: equal rows and samples are computed singly too. */
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
