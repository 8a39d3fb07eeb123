package org.batchllm.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.broadcast.Broadcast;
import org.batchllm.Constraint;

/**
 * Connects a task to the engine that it shares with others: windows of rows go in through {@link SharedEngine#submit},
 * answers come out here. The queue is bounded by the rows that the task has submitted.
 */
final class Feed {
    final BatchLlmOptions options;
    /** Whether prompts are tokens rather than text. */
    final boolean tokens;
    final boolean scored;
    final Constraint constraint; // for rows without their own; null: none
    final Broadcast<byte[]> plan; // null: none

    private final LinkedBlockingQueue<List<Answer>> answers = new LinkedBlockingQueue<>();
    private volatile Throwable failure;
    private volatile boolean abandoned;

    Feed(BatchLlmOptions options, boolean tokens, boolean scored, Constraint constraint, Broadcast<byte[]> plan) {
        this.constraint = constraint;
        this.options = options;
        this.tokens = tokens;
        this.scored = scored;
        this.plan = plan;
    }

    // ---- The task's side ----

    /** Answers, or an empty list if none came in time. Throws if the engine has failed. */
    List<Answer> take(long milliseconds) throws InterruptedException {
        List<Answer> first = answers.poll(milliseconds, TimeUnit.MILLISECONDS);
        if (failure != null) throw new IllegalStateException("batchllm: " + failure.getMessage(), failure);
        if (first == null) return List.of();
        List<List<Answer>> more = new ArrayList<>();
        if (answers.drainTo(more) == 0) return first;
        List<Answer> all = new ArrayList<>(first);
        more.forEach(all::addAll);
        return all;
    }

    // ---- The engine's side ----

    void answer(List<Answer> some) {
        if (!abandoned) answers.add(some);
    }

    void fail(Throwable cause) {
        failure = cause;
        answers.add(List.of());
    }

    void abandon() {
        abandoned = true;
        answers.clear();
    }

    boolean abandoned() {
        return abandoned;
    }
}
