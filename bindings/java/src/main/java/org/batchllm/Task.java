package org.batchllm;

/** The kind of a row's result. */
public enum Task {
    /** Tokens and text; the default. */
    GENERATE(Native.BATCHLLM_TASK_GENERATE),
    /** One vector: {@link Results#embeddings}. */
    EMBED(Native.BATCHLLM_TASK_EMBED),
    /**
     * Labels, from the model's classification head: {@link Results#labelLogits}, {@link Results#labelProbabilities}.
     */
    CLASSIFY(Native.BATCHLLM_TASK_CLASSIFY);

    final int number;

    Task(int number) {
        this.number = number;
    }
}
