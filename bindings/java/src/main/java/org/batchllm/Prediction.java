package org.batchllm;

/** What a plan's rows are predicted to take: {@link Plan#predict}. Immutable, and with nothing to close. */
public final class Prediction {
    final batchllm_prediction prediction;
    final Handle handle;

    Prediction(batchllm_prediction prediction) {
        this.prediction = prediction;
        handle = new Handle("prediction", prediction::delete); // freed when nothing refers to it
    }

    /**
     * The device, for people.
     *
     * @return its name
     */
    public String device() {
        try (Handle.Use use = handle.share()) {
            return prediction.getDevice();
        }
    }

    /**
     * How many devices.
     *
     * @return at least 1
     */
    public int devices() {
        try (Handle.Use use = handle.share()) {
            return prediction.getDevices();
        }
    }

    /**
     * How long the rows take.
     *
     * @return seconds in steps, of the device that takes longest
     */
    public double seconds() {
        try (Handle.Use use = handle.share()) {
            return prediction.getSeconds();
        }
    }

    /**
     * Of that, on all devices, the products of the layers.
     *
     * @return seconds
     */
    public double linearSeconds() {
        try (Handle.Use use = handle.share()) {
            return prediction.getLinear_seconds();
        }
    }

    /**
     * Of that, on all devices, attention.
     *
     * @return seconds
     */
    public double attentionSeconds() {
        try (Handle.Use use = handle.share()) {
            return prediction.getAttention_seconds();
        }
    }

    /**
     * Of that, on all devices, all the rest: norms, activations, logits, sampling, launches.
     *
     * @return seconds
     */
    public double otherSeconds() {
        try (Handle.Use use = handle.share()) {
            return prediction.getOther_seconds();
        }
    }

    /**
     * Batches of all devices.
     *
     * @return the number
     */
    public long steps() {
        try (Handle.Use use = handle.share()) {
            return prediction.getSteps();
        }
    }

    /**
     * How often a row's pages are taken for another's.
     *
     * @return the number
     */
    public long preemptions() {
        try (Handle.Use use = handle.share()) {
            return prediction.getPreemptions();
        }
    }

    /**
     * The plan's rows.
     *
     * @return the number
     */
    public long rows() {
        try (Handle.Use use = handle.share()) {
            return prediction.getRows();
        }
    }

    /**
     * Prompt tokens of all rows, n samples of a row counted as n rows.
     *
     * @return tokens
     */
    public long logicalPromptTokens() {
        try (Handle.Use use = handle.share()) {
            return prediction.getLogical_prompt_tokens();
        }
    }

    /**
     * Prompt tokens that are computed.
     *
     * @return tokens
     */
    public long processedPromptTokens() {
        try (Handle.Use use = handle.share()) {
            return prediction.getProcessed_prompt_tokens();
        }
    }

    /**
     * Tokens that are computed again after preemption.
     *
     * @return tokens
     */
    public long recomputedTokens() {
        try (Handle.Use use = handle.share()) {
            return prediction.getRecomputed_tokens();
        }
    }

    /**
     * Tokens that are generated.
     *
     * @return tokens
     */
    public long completionTokens() {
        try (Handle.Use use = handle.share()) {
            return prediction.getCompletion_tokens();
        }
    }

    /**
     * What sharing saves of the prompt tokens.
     *
     * @return 1 - processed / logical
     */
    public double savingRatio() {
        try (Handle.Use use = handle.share()) {
            return prediction.getSaving_ratio();
        }
    }

    /**
     * Most KV pages in use at once.
     *
     * @return pages of all devices
     */
    public long kvPagesPeak() {
        try (Handle.Use use = handle.share()) {
            return prediction.getKv_pages_peak();
        }
    }

    /**
     * KV pages that there are.
     *
     * @return pages of all devices
     */
    public long kvPagesTotal() {
        try (Handle.Use use = handle.share()) {
            return prediction.getKv_pages_total();
        }
    }

    /**
     * The size of a KV page.
     *
     * @return bytes
     */
    public long kvPageBytes() {
        try (Handle.Use use = handle.share()) {
            return prediction.getKv_page_bytes();
        }
    }

    @Override
    public String toString() {
        return "Prediction(" + rows() + " rows in " + seconds() + " s on " + device() + ")";
    }
}
