package org.batchllm;

import java.util.Locale;

/** Statistics of an engine so far. */
public final class EngineStats {
    private final long rows;
    private final long rowsDone;
    private final long rowsFailed;
    private final long rowsDeduplicated;
    private final long logicalPromptTokens;
    private final long processedPromptTokens;
    private final long sharedPromptTokens;
    private final long recomputedTokens;
    private final long completionTokens;
    private final long steps;
    private final long preemptions;
    private final long groups;
    private final long kvPagesTotal;
    private final long kvPagesPeak;
    private final long kvPageBytes;
    private final long stateSlotsTotal;
    private final long stateSlotsPeak;
    private final long stateSlotBytes;
    private final long constrainedResults;
    private final long cutOffResults;
    private final long draftTokens;
    private final long draftTokensAccepted;
    private final double savingRatio;
    private final double loadSeconds;
    private final double tokenizeSeconds;
    private final double planSeconds;
    private final double scheduleSeconds;
    private final double backendSeconds;
    private final double runSeconds;

    EngineStats(batchllm_stats stats) {
        rows = stats.getRows();
        rowsDone = stats.getRows_done();
        rowsFailed = stats.getRows_failed();
        rowsDeduplicated = stats.getRows_deduplicated();
        logicalPromptTokens = stats.getLogical_prompt_tokens();
        processedPromptTokens = stats.getProcessed_prompt_tokens();
        sharedPromptTokens = stats.getShared_prompt_tokens();
        recomputedTokens = stats.getRecomputed_tokens();
        completionTokens = stats.getCompletion_tokens();
        steps = stats.getSteps();
        preemptions = stats.getPreemptions();
        groups = stats.getGroups();
        kvPagesTotal = stats.getKv_pages_total();
        kvPagesPeak = stats.getKv_pages_peak();
        kvPageBytes = stats.getKv_page_bytes();
        stateSlotsTotal = stats.getState_slots_total();
        stateSlotsPeak = stats.getState_slots_peak();
        stateSlotBytes = stats.getState_slot_bytes();
        constrainedResults = stats.getConstrained_results();
        cutOffResults = stats.getCut_off_results();
        draftTokens = stats.getDraft_tokens();
        draftTokensAccepted = stats.getDraft_tokens_accepted();
        savingRatio = stats.getSaving_ratio();
        loadSeconds = stats.getLoad_seconds();
        tokenizeSeconds = stats.getTokenize_seconds();
        planSeconds = stats.getPlan_seconds();
        scheduleSeconds = stats.getSchedule_seconds();
        backendSeconds = stats.getBackend_seconds();
        runSeconds = stats.getRun_seconds();
    }

    /** Rows added. */
    public long rows() {
        return rows;
    }

    /** Rows with a result. */
    public long rowsDone() {
        return rowsDone;
    }

    /** How many of those have an error. */
    public long rowsFailed() {
        return rowsFailed;
    }

    /** Rows that got the answer of an equal greedy row. */
    public long rowsDeduplicated() {
        return rowsDeduplicated;
    }

    /** Prompt tokens of rows that have started, counting n samples as n rows. */
    public long logicalPromptTokens() {
        return logicalPromptTokens;
    }

    /** Prompt tokens computed, once on each device, not counting recomputation. */
    public long processedPromptTokens() {
        return processedPromptTokens;
    }

    /** Logical minus processed prompt tokens. */
    public long sharedPromptTokens() {
        return sharedPromptTokens;
    }

    /** Tokens computed again after preemption. */
    public long recomputedTokens() {
        return recomputedTokens;
    }

    /** Tokens generated. */
    public long completionTokens() {
        return completionTokens;
    }

    /** Steps run. */
    public long steps() {
        return steps;
    }

    /** How often a row was preempted: it lost its pages and started again. */
    public long preemptions() {
        return preemptions;
    }

    /** Groups that share a prefix. */
    public long groups() {
        return groups;
    }

    /** KV pages of all devices. */
    public long kvPagesTotal() {
        return kvPagesTotal;
    }

    /** The most KV pages in use at once. */
    public long kvPagesPeak() {
        return kvPagesPeak;
    }

    /** The size of a KV page, in bytes. */
    public long kvPageBytes() {
        return kvPageBytes;
    }

    /** State slots of all devices; 0 for a model whose layers have no state. */
    public long stateSlotsTotal() {
        return stateSlotsTotal;
    }

    /** The most state slots in use at once. */
    public long stateSlotsPeak() {
        return stateSlotsPeak;
    }

    /** The size of a state slot, in bytes. */
    public long stateSlotBytes() {
        return stateSlotBytes;
    }

    /** Results of rows with a constraint that ended by themselves or at their max_tokens. */
    public long constrainedResults() {
        return constrainedResults;
    }

    /** How many of these max_tokens cut off: their texts are only the beginnings of valid ones. */
    public long cutOffResults() {
        return cutOffResults;
    }

    /** Tokens that drafts proposed and steps computed. */
    public long draftTokens() {
        return draftTokens;
    }

    /** How many of these were right: tokens that needed no step of their own. */
    public long draftTokensAccepted() {
        return draftTokensAccepted;
    }

    /** 1 - processed / logical prompt tokens. */
    public double savingRatio() {
        return savingRatio;
    }

    /** Time to create the engine, in seconds. */
    public double loadSeconds() {
        return loadSeconds;
    }

    /** Time spent in the tokenizer, in seconds. */
    public double tokenizeSeconds() {
        return tokenizeSeconds;
    }

    /** Time spent planning, in seconds. */
    public double planSeconds() {
        return planSeconds;
    }

    /** Time spent scheduling, in seconds. */
    public double scheduleSeconds() {
        return scheduleSeconds;
    }

    /** Time spent in the model, in seconds; with backend "sim" its modelled time. */
    public double backendSeconds() {
        return backendSeconds;
    }

    /** Time spent in steps, in seconds. */
    public double runSeconds() {
        return runSeconds;
    }

    @Override
    public String toString() {
        return String.format(
                Locale.ROOT,
                "%,d of %,d rows done (%,d failed). Prompts: %,d tokens, %,d computed, %.1f %% saved by sharing. Generated: %,d"
                        + " tokens in %.1f s",
                rowsDone,
                rows,
                rowsFailed,
                logicalPromptTokens,
                processedPromptTokens,
                100 * savingRatio,
                completionTokens,
                runSeconds);
    }
}
