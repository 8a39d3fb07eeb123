package org.batchllm.spark;

import java.io.Serializable;
import java.util.Locale;
import org.apache.spark.SparkContext;
import org.apache.spark.util.LongAccumulator;

/**
 * Counts of one or more transforms, as accumulators: on the driver after an action, and in Spark's UI
 * with each stage. Spark counts a task again when it runs again, and not when it was killed.
 */
public final class BatchLlmMetrics implements Serializable {
    private static final long serialVersionUID = 1;

    final LongAccumulator rows;
    final LongAccumulator errors;
    final LongAccumulator promptTokens;
    final LongAccumulator processedPromptTokens;
    final LongAccumulator completionTokens;

    public BatchLlmMetrics(SparkContext context) {
        rows = context.longAccumulator("batchllm rows");
        errors = context.longAccumulator("batchllm row errors");
        promptTokens = context.longAccumulator("batchllm prompt tokens");
        processedPromptTokens = context.longAccumulator("batchllm processed prompt tokens");
        completionTokens = context.longAccumulator("batchllm completion tokens");
    }

    /** Results, so with {@code samples} more than rows. */
    public long rows() {
        return rows.value();
    }

    /** Of them, with an error. */
    public long errors() {
        return errors.value();
    }

    /** Of all rows, shared or not. */
    public long promptTokens() {
        return promptTokens.value();
    }

    /**
     * Computed. Exact in sum; engines being shared by tasks, a single task's count may hold others' tokens.
     */
    public long processedPromptTokens() {
        return processedPromptTokens.value();
    }

    public long completionTokens() {
        return completionTokens.value();
    }

    /** 1 - processed / all prompt tokens. */
    public double savingRatio() {
        return promptTokens() == 0 ? 0 : 1 - (double) processedPromptTokens() / promptTokens();
    }

    @Override
    public String toString() {
        return String.format(Locale.ROOT,
                "%,d rows (%,d errors). Prompts: %,d tokens, %,d computed, %.1f %% saved by sharing. Generated: %,d tokens.",
                rows(), errors(), promptTokens(), processedPromptTokens(), 100 * savingRatio(),
                completionTokens());
    }
}
