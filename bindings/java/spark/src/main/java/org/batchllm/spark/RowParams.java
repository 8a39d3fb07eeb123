package org.batchllm.spark;

import java.io.Serializable;

/** Sampling parameters that may differ from row to row. */
record RowParams(int maxTokens, double temperature, long seed) implements Serializable {
    private static final long serialVersionUID = 1;
}
