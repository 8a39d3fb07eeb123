package org.batchllm;

/** How a row's vector is made of the hidden states after the model's last norm. */
public enum Pooling {
    /** As modules.json and 1_Pooling/config.json of the model say; without them as {@link #LAST}. The default. */
    MODEL(Native.BATCHLLM_POOLING_MODEL),
    /** Of the last token: prefixes are shared as in generation. */
    LAST(Native.BATCHLLM_POOLING_LAST),
    /** The mean over all tokens: nothing is shared but equal rows. */
    MEAN(Native.BATCHLLM_POOLING_MEAN),
    /** Of the first token, the only one that is computed. */
    FIRST(Native.BATCHLLM_POOLING_FIRST);

    final int number;

    Pooling(int number) {
        this.number = number;
    }
}
