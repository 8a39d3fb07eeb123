package org.batchllm;

/** Why a row ended. */
public enum FinishReason {
    /** An EOS id, stop token or stop string. */
    STOP(Native.BATCHLLM_FINISH_STOP),
    /** {@link SamplingParams.Builder#maxTokens} or the longest request. */
    LENGTH(Native.BATCHLLM_FINISH_LENGTH),
    /** {@link Engine#cancel}. */
    CANCELLED(Native.BATCHLLM_FINISH_CANCELLED),
    /** The row failed: see its status and error. */
    ERROR(Native.BATCHLLM_FINISH_ERROR),
    /** The row was scored, not continued. */
    SCORED(Native.BATCHLLM_FINISH_SCORED),
    /** The row has a vector: {@link Task#EMBED}. */
    EMBEDDED(Native.BATCHLLM_FINISH_EMBEDDED),
    /** The row has labels: {@link Task#CLASSIFY}. */
    CLASSIFIED(Native.BATCHLLM_FINISH_CLASSIFIED);

    private final int number;

    FinishReason(int number) {
        this.number = number;
    }

    /**
     * The C header's number, as in {@link Results#finishReasons}.
     *
     * @return BATCHLLM_FINISH_
     */
    public int number() {
        return number;
    }

    /**
     * A reason by its number.
     *
     * @param number BATCHLLM_FINISH_ in the C header
     * @return the reason
     */
    public static FinishReason of(int number) {
        for (FinishReason reason : values()) {
            if (reason.number == number) return reason;
        }
        throw new IllegalArgumentException("no finish reason has the number " + number);
    }
}
