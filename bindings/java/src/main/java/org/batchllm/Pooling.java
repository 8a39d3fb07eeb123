package org.batchllm;

/** How a row's vector is made from the hidden states after the model's last norm. */
public enum Pooling {
    /** As in the model's modules.json and 1_Pooling/config.json; without them like {@link #LAST}. The default. */
    MODEL(Native.BATCHLLM_POOLING_MODEL),
    /** The hidden state of the last token: prefixes are shared as in generation. */
    LAST(Native.BATCHLLM_POOLING_LAST),
    /** The mean over all tokens: only equal rows are shared. */
    MEAN(Native.BATCHLLM_POOLING_MEAN),
    /** The hidden state of the first token, the only one that is computed. */
    FIRST(Native.BATCHLLM_POOLING_FIRST);

    final int number;

    Pooling(int number) {
        this.number = number;
    }
}
