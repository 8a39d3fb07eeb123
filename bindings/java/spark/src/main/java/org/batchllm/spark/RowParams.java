package org.batchllm.spark;

import java.io.Serializable;
import org.batchllm.Constraint;

/** Sampling parameters that may differ from row to row; constraint and the name of an adapter: null for none. */
record RowParams(int maxTokens, double temperature, long seed, Constraint constraint, String adapter)
        implements Serializable {
    private static final long serialVersionUID = 1;
}
