package org.batchllm.spark;

/** One result of one row. */
final class Answer {
    final Request request;
    boolean first; // of the row's
    String text;
    int[] tokens;
    String finishReason;
    String error;
    int sample;
    long promptTokens;
    long sharedTokens;
    float[] logprobs;
    double[] scores;
    float[] embedding;
    String label; // the likeliest
    float score; // its probability
    float[] probabilities; // of all labels

    Answer(Request request) {
        this.request = request;
    }

    static Answer error(Request request, String error) {
        Answer answer = new Answer(request);
        answer.finishReason = "error";
        answer.error = error;
        return answer;
    }
}
