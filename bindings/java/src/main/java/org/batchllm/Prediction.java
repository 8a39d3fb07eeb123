package org.batchllm;

/** How long a plan's rows are predicted to take: {@link Plan#predict}. Immutable; need not be closed. */
public final class Prediction {
    final batchllm_prediction prediction;
    final Handle handle;

    Prediction(batchllm_prediction prediction) {
        this.prediction = prediction;
        handle = new Handle("prediction", prediction::delete); // freed when nothing refers to it
    }

    /** The device, for display. */
    public String device() {
        try (Handle.Use use = handle.share()) {
            return prediction.getDevice();
        }
    }

    /** How many devices. */
    public int devices() {
        try (Handle.Use use = handle.share()) {
            return prediction.getDevices();
        }
    }

    /** How long the rows take: seconds in steps, on the busiest device. */
    public double seconds() {
        try (Handle.Use use = handle.share()) {
            return prediction.getSeconds();
        }
    }

    /** Time for the matrix products of the layers, summed over all devices, in seconds. */
    public double linearSeconds() {
        try (Handle.Use use = handle.share()) {
            return prediction.getLinear_seconds();
        }
    }

    /** Time for attention, summed over all devices, in seconds. */
    public double attentionSeconds() {
        try (Handle.Use use = handle.share()) {
            return prediction.getAttention_seconds();
        }
    }

    /** Time for everything else, summed over all devices, in seconds: norms, activations, logits, sampling, launches. */
    public double otherSeconds() {
        try (Handle.Use use = handle.share()) {
            return prediction.getOther_seconds();
        }
    }

    /** Steps, summed over all devices. */
    public long steps() {
        try (Handle.Use use = handle.share()) {
            return prediction.getSteps();
        }
    }

    /** How often a row is preempted: its pages are given to another row. */
    public long preemptions() {
        try (Handle.Use use = handle.share()) {
            return prediction.getPreemptions();
        }
    }

    /** The plan's rows. */
    public long rows() {
        try (Handle.Use use = handle.share()) {
            return prediction.getRows();
        }
    }

    /** Prompt tokens of all rows, counting n samples of a row as n rows. */
    public long logicalPromptTokens() {
        try (Handle.Use use = handle.share()) {
            return prediction.getLogical_prompt_tokens();
        }
    }

    /** Prompt tokens that are computed. */
    public long processedPromptTokens() {
        try (Handle.Use use = handle.share()) {
            return prediction.getProcessed_prompt_tokens();
        }
    }

    /** Tokens that are computed again after preemption. */
    public long recomputedTokens() {
        try (Handle.Use use = handle.share()) {
            return prediction.getRecomputed_tokens();
        }
    }

    /** Tokens that are generated. */
    public long completionTokens() {
        try (Handle.Use use = handle.share()) {
            return prediction.getCompletion_tokens();
        }
    }

    /** The share of prompt tokens that sharing saves: 1 - processed / logical. */
    public double savingRatio() {
        try (Handle.Use use = handle.share()) {
            return prediction.getSaving_ratio();
        }
    }

    /** The most KV pages in use at once, of all devices. */
    public long kvPagesPeak() {
        try (Handle.Use use = handle.share()) {
            return prediction.getKv_pages_peak();
        }
    }

    /** For {@link PlanOptions.Builder#commonPrefixCost}, on this device; 0: not known. */
    public double commonPrefixCost() {
        try (Handle.Use use = handle.share()) {
            return prediction.getCommon_prefix_cost();
        }
    }

    /** The number of KV pages of all devices. */
    public long kvPagesTotal() {
        try (Handle.Use use = handle.share()) {
            return prediction.getKv_pages_total();
        }
    }

    /** The size of a KV page, in bytes. */
    public long kvPageBytes() {
        try (Handle.Use use = handle.share()) {
            return prediction.getKv_page_bytes();
        }
    }

    /** Memory that the model's weights take on each device, in bytes. */
    public long weightBytes() {
        try (Handle.Use use = handle.share()) {
            return prediction.getWeight_bytes();
        }
    }

    @Override
    public String toString() {
        return "Prediction(" + rows() + " rows in " + seconds() + " s on " + device() + ")";
    }
}
