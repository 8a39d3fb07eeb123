package org.batchllm;

/** An engine's progress after a step. */
public final class Progress {
    private final long rowsWaiting;
    private final long rowsRunning;
    private final long rowsDone;
    private final long decodeTokens;
    private final long ownTokens;
    private final long prefixTokens;
    private final long pagesUsed;
    private final long pagesTotal;
    private final long tokensLeft;
    private final long tokensDone;
    private final double seconds;

    Progress(batchllm_progress progress) {
        rowsWaiting = progress.getRows_waiting();
        rowsRunning = progress.getRows_running();
        rowsDone = progress.getRows_done();
        decodeTokens = progress.getDecode_tokens();
        ownTokens = progress.getOwn_tokens();
        prefixTokens = progress.getPrefix_tokens();
        pagesUsed = progress.getPages_used();
        pagesTotal = progress.getPages_total();
        tokensLeft = progress.getTokens_left();
        tokensDone = progress.getTokens_done();
        seconds = progress.getSeconds();
    }

    /** Whether nothing is left to do: no row waits or runs. */
    public boolean done() {
        return rowsWaiting + rowsRunning == 0;
    }

    /** Rows that have not started. */
    public long rowsWaiting() {
        return rowsWaiting;
    }

    /** Rows that are being computed. */
    public long rowsRunning() {
        return rowsRunning;
    }

    /** Rows with a result, polled or not. */
    public long rowsDone() {
        return rowsDone;
    }

    /** Tokens that the step generated. */
    public long decodeTokens() {
        return decodeTokens;
    }

    /** Prompt tokens of the step that belong to a single row. */
    public long ownTokens() {
        return ownTokens;
    }

    /** Prompt tokens of the step that rows share. */
    public long prefixTokens() {
        return prefixTokens;
    }

    /** KV pages in use. */
    public long pagesUsed() {
        return pagesUsed;
    }

    /** The number of KV pages. */
    public long pagesTotal() {
        return pagesTotal;
    }

    /** Prompt tokens still to compute plus the maximum tokens still to generate. */
    public long tokensLeft() {
        return tokensLeft;
    }

    /** Prompt tokens computed plus tokens generated in all steps so far. */
    public long tokensDone() {
        return tokensDone;
    }

    /** Time since the engine's first step, in seconds. */
    public double seconds() {
        return seconds;
    }

    @Override
    public String toString() {
        return rowsDone + " rows done, " + rowsRunning + " running, " + rowsWaiting + " waiting";
    }
}
