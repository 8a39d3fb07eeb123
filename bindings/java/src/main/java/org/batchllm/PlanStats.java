package org.batchllm;

import java.util.Locale;

/** What a plan shares. */
public final class PlanStats {
    private final Sharing sharing;
    private final int levels;
    private final boolean selfContained;
    private final long rows;
    private final long groups;
    private final long groupedRows;
    private final long reusedRows;
    private final long knownRows;
    private final long logicalTokens;
    private final long processedTokens;
    private final long longestPrefix;
    private final long largestGroup;
    private final double savingRatio;
    private final double seconds;
    private final long tokenizerFingerprint;

    PlanStats(batchllm_plan_stats stats) {
        sharing = Sharing.of(stats.getEnlarge());
        levels = stats.getLevels();
        selfContained = stats.getSelf_contained() != 0;
        rows = stats.getRows();
        groups = stats.getGroups();
        groupedRows = stats.getGrouped_rows();
        reusedRows = stats.getReused_rows();
        knownRows = stats.getKnown_rows();
        logicalTokens = stats.getLogical_tokens();
        processedTokens = stats.getProcessed_tokens();
        longestPrefix = stats.getLongest_prefix();
        largestGroup = stats.getLargest_group();
        savingRatio = stats.getSaving_ratio();
        seconds = stats.getSeconds();
        tokenizerFingerprint = stats.getTokenizer_fingerprint();
    }

    /** How prefixes were chosen, as in {@link PlanOptions.Builder#sharing}. */
    public Sharing sharing() {
        return sharing;
    }

    /**
     * As requested: 1: one shared prefix per row; 2: prefixes also share common prefixes; 0: those common prefixes that save more than they cost.
     */
    public int levels() {
        return levels;
    }

    /** Whether the plan contains the rows' tokens. */
    public boolean selfContained() {
        return selfContained;
    }

    /** Rows planned. */
    public long rows() {
        return rows;
    }

    /** Groups with a shared prefix of at least one token. */
    public long groups() {
        return groups;
    }

    /** Rows in those groups. */
    public long groupedRows() {
        return groupedRows;
    }

    /** Rows kept from the previous plan. */
    public long reusedRows() {
        return reusedRows;
    }

    /** Rows that the previous plan has too, alone or in groups. */
    public long knownRows() {
        return knownRows;
    }

    /** Sum of the prompts' lengths. */
    public long logicalTokens() {
        return logicalTokens;
    }

    /** Tokens of each group's prefix, counted once, plus the rows' own tokens. */
    public long processedTokens() {
        return processedTokens;
    }

    /** The longest shared prefix, in tokens. */
    public long longestPrefix() {
        return longestPrefix;
    }

    /** The largest group, in rows. */
    public long largestGroup() {
        return largestGroup;
    }

    /** 1 - processed / logical tokens. */
    public double savingRatio() {
        return savingRatio;
    }

    /** Time spent planning, in seconds; 0 for a loaded plan. */
    public double seconds() {
        return seconds;
    }

    /** The tokenizer that the rows' tokens come from; 0: unknown. */
    public long tokenizerFingerprint() {
        return tokenizerFingerprint;
    }

    @Override
    public String toString() {
        return String.format(
                Locale.ROOT,
                "%,d rows, %,d of them in %,d groups. Prompts: %,d tokens, %,d to compute, %.1f %% saved by sharing",
                rows,
                groupedRows,
                groups,
                logicalTokens,
                processedTokens,
                100 * savingRatio);
    }
}
