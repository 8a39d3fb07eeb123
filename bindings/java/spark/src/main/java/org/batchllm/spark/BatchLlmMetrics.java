package org.batchllm.spark;

import java.io.Serializable;
import java.util.List;
import java.util.Locale;
import org.apache.spark.SparkContext;
import org.apache.spark.util.LongAccumulator;

/**
 * Counts of one or more transforms, as accumulators: correct on the driver after an action, and shown in
 * Spark's UI with each stage. Spark counts a task again if it runs again, but not if it was killed.
 */
public final class BatchLlmMetrics implements Serializable {
    private static final long serialVersionUID = 1;

    final LongAccumulator rows;
    final LongAccumulator errors;
    final LongAccumulator promptTokens;
    final LongAccumulator processedPromptTokens;
    final LongAccumulator completionTokens;
    final LongAccumulator cutOffResults;
    final Warnings warnings;

    public BatchLlmMetrics(SparkContext context) {
        rows = context.longAccumulator("batchllm rows");
        errors = context.longAccumulator("batchllm row errors");
        promptTokens = context.longAccumulator("batchllm prompt tokens");
        processedPromptTokens = context.longAccumulator("batchllm processed prompt tokens");
        completionTokens = context.longAccumulator("batchllm completion tokens");
        cutOffResults = context.longAccumulator("batchllm results cut off");
        warnings = new Warnings(context);
    }

    /** Number of results; with {@code samples} above 1 there are more than rows. */
    public long rows() {
        return rows.value();
    }

    /** How many of them have an error. */
    public long errors() {
        return errors.value();
    }

    /** Prompt tokens of all rows, shared or not. */
    public long promptTokens() {
        return promptTokens.value();
    }

    /**
     * How many of these were computed. The sum is exact, but tasks share engines, so a single task's count may
     * include tokens of others.
     */
    public long processedPromptTokens() {
        return processedPromptTokens.value();
    }

    public long completionTokens() {
        return completionTokens.value();
    }

    /** Results of rows with a constraint that maxTokens cut off: their texts are only the beginnings of valid ones. */
    public long cutOffResults() {
        return cutOffResults.value();
    }

    /**
     * Warnings of the executors' engines, for example that prompts could share more than they do. The driver logs each
     * one when the first task that reports it ends. Warnings that differ only in numbers are kept once.
     */
    public List<String> warnings() {
        return warnings.value();
    }

    /** 1 - processed / all prompt tokens. */
    public double savingRatio() {
        return promptTokens() == 0 ? 0 : 1 - (double) processedPromptTokens() / promptTokens();
    }

    @Override
    public String toString() {
        String cut = cutOffResults() == 0 ? "" : String.format(Locale.ROOT, " Cut off by maxTokens: %,d.", cutOffResults());
        return String.format(Locale.ROOT,
                "%,d rows (%,d errors). Prompts: %,d tokens, %,d computed, %.1f %% saved by sharing. Generated: %,d tokens.",
                rows(), errors(), promptTokens(), processedPromptTokens(), 100 * savingRatio(),
                completionTokens()) + cut;
    }
}
