package org.batchllm.spark;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicLong;

/**
 * One engine for all tasks of this process that use the same model on the same device. One thread drives it: tasks
 * submit windows of rows and wait for answers, so that rows of several tasks fill the engine's steps together.
 *
 * <p>A row's tag is its key, since the tag is one of the things that determine the row's random numbers. The engine has
 * at most one row with a key at a time. An equal row takes its answers; a different one, from another job or from a
 * task that was killed and runs again, waits until the first is done. (If a job's keys repeat, Columns makes new ones
 * from keys and prompts.)
 */
final class SharedEngine implements AutoCloseable {
    private static final AtomicLong LOADED = new AtomicLong();
    private static final int MOST_WARNINGS = 20;

    private final LinkedBlockingQueue<Runnable> commands = new LinkedBlockingQueue<>();
    private final Thread thread;
    private final Set<Feed> feeds = ConcurrentHashMap.newKeySet();
    private volatile Throwable failure;
    /** Prompt tokens that the engine has computed and that no task has counted yet. */
    private final AtomicLong processed = new AtomicLong();
    /** Warnings from the engine's log that no task has taken yet. */
    private final Set<String> warnings = ConcurrentHashMap.newKeySet();

    // Used only by the thread.
    private NativeEngine engine;
    private boolean closing;
    private boolean added;
    private long counted;
    private final Map<Long, Request> running = new HashMap<>();
    private final Map<Long, Deque<Request>> held = new HashMap<>();

    /** Loads the model; throws if that fails. */
    SharedEngine(BatchLlmOptions options, String devices) {
        CountDownLatch loaded = new CountDownLatch(1);
        thread = new Thread(() -> drive(options, devices, loaded), "batchllm " + devices);
        thread.setDaemon(true);
        thread.start();
        boolean interrupted = false;
        while (true) {
            try {
                loaded.await();
                break;
            } catch (InterruptedException e) {
                interrupted = true; // loading cannot be stopped; the task sees it later
            }
        }
        if (interrupted) Thread.currentThread().interrupt();
        if (failure instanceof RuntimeException) throw(RuntimeException) failure;
        if (failure != null) throw new IllegalStateException(failure);
    }

    // ---- Any thread ----

    /** Submits rows. Every row gets its answers, in any order, on the feed. */
    void submit(Feed feed, List<Request> rows) {
        feeds.add(feed);
        commands.add(() -> add(feed, rows));
        // Whichever of the two comes second sees the other: the thread sets `failure`, then reads `feeds`.
        if (failure != null) feed.fail(failure);
    }

    /** Ends the feed's rows; their answers are discarded. */
    void abandon(Feed feed) {
        feed.abandon();
        feeds.remove(feed);
        commands.add(() -> cancel(feed));
    }

    /** How many engines this process has loaded so far. */
    static long loaded() {
        return LOADED.get();
    }

    boolean failed() {
        return failure != null;
    }

    /** Prompt tokens computed since the last call by any task. */
    long takeProcessed() {
        return processed.getAndSet(0);
    }

    /** Warnings of the engine since the last call by any task. */
    List<String> takeWarnings() {
        return warnings.stream().filter(warnings::remove).toList();
    }

    private void warn(String text) {
        if (warnings.size() < MOST_WARNINGS) warnings.add(text);
    }

    /** Frees the model. No task may use it after this. */
    @Override
    public void close() {
        commands.add(() -> closing = true);
        boolean interrupted = false;
        while (true) {
            try {
                thread.join();
                break;
            } catch (InterruptedException e) {
                interrupted = true;
            }
        }
        if (interrupted) Thread.currentThread().interrupt();
    }

    // ---- The thread ----

    private void drive(BatchLlmOptions options, String devices, CountDownLatch loaded) {
        try (NativeEngine created = new NativeEngine(options, devices, this::warn)) {
            engine = created;
            LOADED.incrementAndGet();
            loaded.countDown();
            while (!closing) {
                takeCommands();
                if (running.isEmpty()) continue;
                boolean more = engine.step();
                List<Answer> answers = engine.poll(running::get);
                if (!answers.isEmpty()) {
                    count();
                    deliver(answers);
                }
                if (!more && !running.isEmpty() && !added)
                    throw new IllegalStateException("rows without results");
                added = false;
            }
        } catch (Throwable e) {
            failure = e;
            for (Feed feed : feeds) feed.fail(e);
        } finally {
            loaded.countDown();
        }
    }

    /** Takes all pending commands; waits for one if the engine has nothing to do. */
    private void takeCommands() throws InterruptedException {
        Runnable command = running.isEmpty() ? commands.take() : commands.poll();
        for (; command != null; command = commands.poll()) command.run();
    }

    private void add(Feed feed, List<Request> rows) {
        if (feed.abandoned()) return;
        List<Request> free = new ArrayList<>(rows.size());
        for (Request row : rows) {
            row.feed = feed;
            Request first = running.putIfAbsent(row.key, row);
            if (first == null) {
                free.add(row);
            } else if (first.feed == feed && first.isLike(row)) {
                if (first.alike == null) first.alike = new ArrayList<>();
                first.alike.add(row);
            } else {
                held.computeIfAbsent(row.key, key -> new ArrayDeque<>()).add(row);
            }
        }
        start(feed, free);
    }

    /** Starts rows whose keys are free and that are in `running`. A failure here is the feed's own. */
    private void start(Feed feed, List<Request> rows) {
        if (rows.isEmpty()) return;
        List<Answer> refused;
        try {
            refused = engine.add(feed, rows);
        } catch (RuntimeException e) {
            feed.fail(e);
            startHeld(rows);
            return;
        }
        if (!refused.isEmpty()) deliver(refused);
        if (refused.size() == rows.size()) return;
        added = true;
        try {
            engine.plan(feed);
        } catch (RuntimeException e) {
            feed.fail(e); // this ends the task, which then cancels its rows
        }
    }

    /** Starts rows that waited for the keys of these rows, which have left the engine. */
    private void startHeld(Iterable<Request> gone) {
        Map<Feed, List<Request>> next = new IdentityHashMap<>();
        for (Request row : gone) {
            running.remove(row.key);
            Deque<Request> waiting = held.get(row.key);
            if (waiting == null) continue;
            Request first = waiting.poll();
            if (waiting.isEmpty()) held.remove(row.key);
            running.put(first.key, first);
            next.computeIfAbsent(first.feed, feed -> new ArrayList<>()).add(first);
        }
        next.forEach(this::start);
    }

    private void cancel(Feed feed) {
        held.values().forEach(rows -> rows.removeIf(row -> row.feed == feed));
        held.values().removeIf(Deque::isEmpty);
        for (Request row : running.values()) {
            if (row.feed == feed) engine.cancel(row.key);
        }
    }

    /** Delivers all of the results of some rows. */
    private void deliver(List<Answer> answers) {
        Map<Feed, List<Answer>> byFeed = new IdentityHashMap<>();
        Set<Request> done = Collections.newSetFromMap(new IdentityHashMap<>());
        for (Answer answer : answers) {
            answer.first = done.add(answer.request);
            List<Answer> all = byFeed.computeIfAbsent(answer.request.feed, feed -> new ArrayList<>());
            all.add(answer);
            if (answer.request.alike == null) continue;
            for (Request equal : answer.request.alike) all.add(answer.of(equal));
        }
        byFeed.forEach(Feed::answer);
        startHeld(done);
    }

    private void count() {
        long now = engine.processedPromptTokens();
        processed.addAndGet(now - counted);
        counted = now;
    }
}
