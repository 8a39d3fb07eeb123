package org.batchllm;

import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;

/** One result, in its own memory: it remains valid after the {@link Results} are closed. */
public final class Result {
    private final long tag;
    private final int status;
    private final String error;
    private final FinishReason finishReason;
    private final int sample;
    private final long promptTokens;
    private final long sharedTokens;
    private final int[] tokens;
    private final String text;
    private final TokenLogprobs logprobs;
    private final TokenLogprobs promptLogprobs;
    private final double[] scores;
    private final float[][] scoreLogprobs;
    private final float[] embedding;
    private final float[] labelLogits;
    private final float[] labelProbabilities;

    Result(Results.Columns columns, int i) {
        tag = columns.tags.get(i);
        status = columns.statuses.get(i);
        error = status == Status.OK ? null : Status.name(status) + ": " + columns.error(i);
        finishReason = FinishReason.of(columns.finishReasons.get(i));
        sample = columns.samples.get(i);
        promptTokens = columns.promptTokens.get(i);
        sharedTokens = columns.sharedTokens.get(i);
        tokens = columns.tokens(i);
        text = columns.text(i);
        logprobs = new TokenLogprobs(
                columns.logprobOffsets,
                columns.logprobs,
                columns.topOffsets,
                columns.topTokens,
                columns.topLogprobs,
                i);
        promptLogprobs = new TokenLogprobs(
                columns.promptLogprobOffsets,
                columns.promptLogprobs,
                columns.promptTopOffsets,
                columns.promptTopTokens,
                columns.promptTopLogprobs,
                i);
        int from = (int) columns.scoreOffsets.get(i);
        int to = (int) columns.scoreOffsets.get(i + 1);
        scores = new double[to - from];
        scoreLogprobs = new float[to - from][];
        for (int j = from; j < to; j++) {
            scores[j - from] = columns.scores.get(j);
            scoreLogprobs[j - from] =
                    Results.Columns.floats(
                            columns.scoreLogprobs,
                            (int) columns.scoreTokenOffsets.get(j),
                            (int) columns.scoreTokenOffsets.get(j + 1));
        }
        embedding = Results.Columns.floats(columns.embeddings, columns.embeddingOffsets, i);
        labelLogits = Results.Columns.floats(columns.labelLogits, columns.labelOffsets, i);
        labelProbabilities = Results.Columns.floats(columns.labelProbabilities, columns.labelOffsets, i);
    }

    /**
     * The row's tag.
     *
     * @return the tag from {@link Rows#withTags}, or the row's number
     */
    public long tag() {
        return tag;
    }

    /**
     * Whether the row failed, and how.
     *
     * @return {@link Status#OK} or one of the ROW_ numbers there
     */
    public int status() {
        return status;
    }

    /**
     * Whether the row succeeded.
     *
     * @return status() == OK
     */
    public boolean ok() {
        return status == Status.OK;
    }

    /**
     * Why the row failed.
     *
     * @return the status's name and a text: "ROW_TOO_LONG: ..."; null if it did not
     */
    public String error() {
        return error;
    }

    /**
     * Why the row ended.
     *
     * @return the reason
     */
    public FinishReason finishReason() {
        return finishReason;
    }

    /**
     * Which of the row's samples this is.
     *
     * @return a number from 0
     */
    public int sample() {
        return sample;
    }

    /**
     * The length of the prompt.
     *
     * @return tokens
     */
    public long promptTokens() {
        return promptTokens;
    }

    /**
     * How many of the prompt's tokens were not computed for this result alone.
     *
     * @return tokens
     */
    public long sharedTokens() {
        return sharedTokens;
    }

    /**
     * The generated tokens. An EOS or stop token that ended the row is its last token, but not part of
     * its text.
     *
     * @return a copy of the token ids
     */
    public int[] tokens() {
        return tokens.clone();
    }

    /**
     * The generated text. A row may end within a character; such bytes become U+FFFD.
     *
     * @return the text; null for a row that failed; empty if the engine has no tokenizer
     */
    public String text() {
        return text;
    }

    /**
     * The log-probability of each generated token, if {@link SamplingParams.Builder#logprobs} was set.
     *
     * @return a copy; otherwise empty
     */
    public float[] logprobs() {
        return logprobs.values.clone();
    }

    /**
     * The likeliest tokens for each item of {@link #logprobs}, likeliest first.
     *
     * @return as many lists; each empty if none were requested
     */
    public int[][] topTokens() {
        return copy(logprobs.topTokens);
    }

    /**
     * The log-probabilities of {@link #topTokens}.
     *
     * @return the same shape
     */
    public float[][] topLogprobs() {
        return copy(logprobs.topLogprobs);
    }

    /**
     * The log-probability of each token of the prompt, from the second on, if {@link
     * SamplingParams.Builder#promptLogprobs} was set. Only a row's first sample has them.
     *
     * @return a copy; otherwise empty
     */
    public float[] promptLogprobs() {
        return promptLogprobs.values.clone();
    }

    /**
     * The likeliest tokens at the position of each item of {@link #promptLogprobs}, likeliest first.
     *
     * @return as many lists; each empty if none were requested
     */
    public int[][] promptTopTokens() {
        return copy(promptLogprobs.topTokens);
    }

    /**
     * The log-probabilities of {@link #promptTopTokens}.
     *
     * @return the same shape
     */
    public float[][] promptTopLogprobs() {
        return copy(promptLogprobs.topLogprobs);
    }

    /**
     * The sum of each continuation's log-probabilities, for a scored row.
     *
     * @return one for each continuation; empty for other rows
     */
    public double[] scores() {
        return scores.clone();
    }

    /**
     * The log-probability of each token of each continuation, for a scored row.
     *
     * @return a list for each continuation
     */
    public float[][] scoreLogprobs() {
        return copy(scoreLogprobs);
    }

    /**
     * The vector of an embedded row.
     *
     * @return a copy; empty for other rows
     */
    public float[] embedding() {
        return embedding.clone();
    }

    /**
     * The logit of each label of a classified row, in the order of {@link Engine#labels}.
     *
     * @return a copy; empty for other rows
     */
    public float[] labelLogits() {
        return labelLogits.clone();
    }

    /**
     * The probability of each label of a classified row.
     *
     * @return a copy; empty for other rows
     */
    public float[] labelProbabilities() {
        return labelProbabilities.clone();
    }

    private static int[][] copy(int[][] lists) {
        int[][] copy = lists.clone();
        for (int i = 0; i < copy.length; i++) copy[i] = copy[i].clone();
        return copy;
    }

    private static float[][] copy(float[][] lists) {
        float[][] copy = lists.clone();
        for (int i = 0; i < copy.length; i++) copy[i] = copy[i].clone();
        return copy;
    }

    /** Log-probabilities of tokens, and the likeliest tokens at the position of each. */
    private static final class TokenLogprobs {
        final float[] values;
        final int[][] topTokens;
        final float[][] topLogprobs;

        TokenLogprobs(
                LongBuffer offsets, FloatBuffer values, LongBuffer topOffsets, IntBuffer tokens, FloatBuffer logprobs, int i) {
            int from = (int) offsets.get(i);
            int to = (int) offsets.get(i + 1);
            this.values = Results.Columns.floats(values, from, to);
            topTokens = new int[to - from][];
            topLogprobs = new float[to - from][];
            for (int j = from; j < to; j++) {
                int first = (int) topOffsets.get(j);
                int last = (int) topOffsets.get(j + 1);
                topTokens[j - from] = Results.Columns.ints(tokens, first, last);
                topLogprobs[j - from] = Results.Columns.floats(logprobs, first, last);
            }
        }
    }

    @Override
    public String toString() {
        if (!ok()) return "Result(tag " + tag + ", " + error + ")";
        if (finishReason == FinishReason.SCORED) return "Result(tag " + tag + ", " + scores.length + " scores)";
        if (finishReason == FinishReason.EMBEDDED) return "Result(tag " + tag + ", " + embedding.length + " dimensions)";
        if (finishReason == FinishReason.CLASSIFIED) return "Result(tag " + tag + ", " + labelLogits.length + " labels)";
        return "Result(tag " + tag + ", " + tokens.length + " tokens, " + finishReason + ", \"" + text + "\")";
    }
}
