package org.batchllm.spark;

/** One result of one row. */
final class Answer implements Cloneable {
    Request request;
    boolean first; // the first answer of its row
    String text;
    int[] tokens;
    String finishReason;
    String error;
    int sample;
    long promptTokens;
    long sharedTokens;
    float[] logprobs;
    float[] promptLogprobs;
    double[] scores;
    float[] embedding;
    String label; // the likeliest label
    float score; // its probability
    float[] probabilities; // of all labels

    Answer(Request request) {
        this.request = request;
    }

    /** The same answer for another row. */
    Answer of(Request other) {
        try {
            Answer copy = (Answer) clone();
            copy.request = other;
            return copy;
        } catch (CloneNotSupportedException e) {
            throw new AssertionError(e);
        }
    }

    static Answer error(Request request, String error) {
        Answer answer = new Answer(request);
        answer.finishReason = "error";
        answer.error = error;
        return answer;
    }
}
