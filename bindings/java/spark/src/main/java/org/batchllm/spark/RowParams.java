package org.batchllm.spark;

import java.io.Serializable;
import org.batchllm.Constraint;

/** Sampling parameters that may differ from row to row; constraint: null for none. */
record RowParams(int maxTokens, double temperature, long seed, Constraint constraint) implements Serializable {
    private static final long serialVersionUID = 1;
}
