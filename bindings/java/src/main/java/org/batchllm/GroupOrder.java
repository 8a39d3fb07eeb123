package org.batchllm;

/** The order in which groups are computed. */
public enum GroupOrder {
    /** By BatchLLM's Eq. 4: groups that generate most relative to what they compute come first; the default. */
    DECODE_FIRST(Native.BATCHLLM_ORDER_DECODE_FIRST),
    /** In the order of their first rows. */
    ARRIVAL(Native.BATCHLLM_ORDER_ARRIVAL);

    final int number;

    GroupOrder(int number) {
        this.number = number;
    }
}
