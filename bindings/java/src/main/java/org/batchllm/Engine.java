package org.batchllm;

import java.lang.System.Logger;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.NoSuchElementException;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.LongStream;

/**
 * A model that runs over many rows at once: add every row, then run, then poll the results.
 *
 * <pre>{@code
 * try (Engine engine = Engine.create(EngineOptions.builder(model).build());
 *         Results results = engine.generate(Rows.ofText("The capital of France is"))) {
 *     System.out.println(results.text(0));
 * }
 * }</pre>
 *
 * <p>Only one thread may use an engine at a time; a second one gets an {@link IllegalStateException}.
 * {@link #cancel} and {@link #interrupt} may be called by any thread at any time. Closing an engine that
 * is in use throws, and so does using a closed one. An engine that is no longer reachable is freed
 * eventually, but its memory is large, so close it.
 */
public final class Engine implements AutoCloseable {
    private static final double SLICE_SECONDS = 0.1;
    /** Of two answers of a reranker together; below it they are probably not what the model answers with. */
    private static final double LEAST_PROBABILITY = 0.05;

    private final batchllm_engine engine;
    private final Handle handle;
    private final AtomicBoolean stop = new AtomicBoolean();
    private final Constraints constraints;
    private final Adapters adapters;
    private final batchllm_pictures pictures; // what reads files below imageFolders; null: none
    // Used by the thread that uses the engine.
    private boolean running;
    private boolean polled = true; // poll has returned a result for every row

    private final Logger logger;

    private Engine(
            batchllm_engine engine,
            Constraints constraints,
            Adapters adapters,
            batchllm_pictures pictures,
            Logger logger,
            Runnable free) {
        this.engine = engine;
        this.logger = logger;
        this.constraints = constraints;
        this.adapters = adapters;
        this.pictures = pictures;
        handle = new Handle("engine", free);
    }

    /**
     * Loads the model and allocates the KV memory.
     *
     * @param options of the engine
     * @return an engine, which must be closed
     */
    public static Engine create(EngineOptions options) {
        NativeLog.refuseCallsWhileLogging();
        long logNumber = NativeLog.add(options.logger());
        batchllm_engine engine = null;
        batchllm_engine_options made = null;
        batchllm_pictures pictures = null;
        try {
            pictures = options.makePictures();
            made = options.make(logNumber);
            Native.batchllm_options_set_pictures(made, pictures);
            engine = Native.batchllm_engine_create_from(made);
        } finally {
            if (made != null) made.delete();
            if (engine == null) {
                if (pictures != null) pictures.delete();
                NativeLog.remove(logNumber);
            }
        }
        Constraints constraints = new Constraints();
        Adapters adapters = new Adapters();
        Runnable free = freeing(engine, constraints, adapters, pictures, logNumber);
        return new Engine(engine, constraints, adapters, pictures, options.logger(), free);
    }

    /** Static, because what a cleaner runs must not refer to the Engine. */
    private static Runnable freeing(
            batchllm_engine engine,
            Constraints constraints,
            Adapters adapters,
            batchllm_pictures pictures,
            long logNumber) {
        return () -> {
            constraints.clear();
            adapters.clear();
            engine.delete();
            if (pictures != null) pictures.delete();
            NativeLog.remove(logNumber);
        };
    }

    /**
     * Adds rows. The columns are copied in one native call. Every row gets a result, even an invalid one.
     *
     * @param rows add many at a time, since they are planned together
     * @throws BatchLlmException.InvalidArgument if no row can run with the parameters that all of them have; in a list
     *     with parameters for each row, wrong ones only fail their row ({@link Status#ROW_INVALID_PARAMETER})
     */
    public void add(Rows rows) {
        try (Handle.Use use = handle.use()) {
            rows.addTo(engine, constraints, adapters, stats().rows()); // an exception: none, but for lack of memory
            polled = false;
        }
    }

    /**
     * Compiles a constraint now instead of with the first row that has an equal one, so that an invalid one is found
     * early.
     *
     * @param constraint for rows of this engine
     * @return what a loose schema does not enforce, by keyword and place; empty if it enforces everything
     */
    public List<String> prepare(Constraint constraint) {
        try (Handle.Use use = handle.use()) {
            String warnings = constraints.prepare(engine, constraint);
            return warnings.isEmpty() ? List.of() : List.of(warnings.split("\n"));
        }
    }

    /**
     * Loads an adapter now instead of with the first row that has an equal one, so that a bad one is found early.
     *
     * @param adapter for rows of this engine
     */
    public void prepare(Adapter adapter) {
        prepare(List.of(Objects.requireNonNull(adapter, "adapter is null")));
    }

    /**
     * Loads adapters as {@link #prepare(Adapter)} does, several at a time. If some are bad, the others are loaded, and
     * the first bad one's exception is thrown.
     *
     * @param adapters for rows of this engine
     */
    public void prepare(Collection<Adapter> adapters) {
        try (Handle.Use use = handle.use()) {
            this.adapters.prepare(engine, adapters);
        }
    }

    /**
     * Checks whether rows with these parameters can run at all, whatever their prompts. {@link #add} does this for rows
     * that all have the same parameters.
     *
     * @param params of rows of this engine
     * @throws BatchLlmException.InvalidArgument if none can; the message says why
     */
    public void check(SamplingParams params) {
        Objects.requireNonNull(params, "params is null");
        try (Handle.Use use = handle.use()) {
            batchllm_params_column column = SamplingParams.column(List.of(params));
            try {
                constraints.set(engine, column, List.of(params));
                adapters.set(engine, column, List.of(params));
                Native.batchllm_check_params(engine, column);
            } finally {
                column.delete();
            }
        }
    }

    /**
     * Makes the engine record in this report what it plans, computes and returns. An engine has one report at a time.
     *
     * @param report must not be in use by another engine; null: stops recording
     */
    public void setReport(Report report) {
        try (Handle.Use use = handle.use()) {
            if (report == null) {
                Native.batchllm_engine_set_report(engine, null);
                return;
            }
            try (Handle.Use other = report.handle.use()) {
                Native.batchllm_engine_set_report(engine, report.report);
            }
        }
    }

    /** Plans all added rows that have not started. {@link #step} does this automatically. */
    public void buildGroups() {
        try (Handle.Use use = handle.use()) {
            Native.batchllm_build_groups(engine);
        }
    }

    /**
     * Runs one step.
     *
     * @return the engine's progress
     */
    public Progress step() {
        try (Handle.Use use = handle.use()) {
            refuseInsideRun();
            batchllm_progress progress = new batchllm_progress();
            try {
                Native.batchllm_step(engine, progress);
                return new Progress(progress);
            } finally {
                progress.delete();
            }
        }
    }

    /**
     * Steps until every row has its result.
     *
     * @return true; false if {@link #interrupt} or an interruption of this thread (whose flag stays set)
     *     stopped it: call again to continue
     */
    public boolean run() {
        return run(progress -> true);
    }

    /**
     * The same, and reports progress about ten times a second.
     *
     * @param listener can stop the run
     * @return false if it was stopped
     */
    public boolean run(ProgressListener listener) {
        return run(listener, Duration.ofNanos((long) (SLICE_SECONDS * 1e9)));
    }

    /**
     * The same, and reports progress at an interval, but never within a step.
     *
     * @param listener can stop the run
     * @param interval minimum time between two calls; zero: after each step
     * @return false if it was stopped
     */
    public boolean run(ProgressListener listener, Duration interval) {
        Objects.requireNonNull(listener, "listener is null");
        // An interruption of the thread is noticed soon even if the interval is long.
        double slice = Math.min(SLICE_SECONDS, interval.toNanos() * 1e-9);
        try (Handle.Use use = handle.use()) {
            refuseInsideRun();
            running = true;
            batchllm_progress progress = new batchllm_progress();
            try {
                long told = System.nanoTime();
                while (true) {
                    Native.batchllm_advance(engine, slice, progress);
                    boolean stopped = stop.getAndSet(false) | Thread.currentThread().isInterrupted();
                    boolean done = progress.getRows_waiting() + progress.getRows_running() == 0;
                    long now = System.nanoTime();
                    if (done || stopped || now - told >= interval.toNanos()) {
                        told = now;
                        stopped |= !listener.onProgress(new Progress(progress));
                    }
                    if (stopped) return false;
                    // A listener may have added rows.
                    if (done && complete()) return true;
                }
            } finally {
                progress.delete();
                running = false;
            }
        }
    }

    /** Whether every added row has a result. */
    private boolean complete() {
        EngineStats stats = stats();
        return stats.rowsDone() == stats.rows();
    }

    private void refuseInsideRun() {
        if (running) throw new IllegalStateException("a progress listener cannot step or run the engine");
    }

    /**
     * Makes the run in progress, or else the next one, return false after its current step. May be called from any
     * thread.
     */
    public void interrupt() {
        try (Handle.Use use = handle.share()) {
            stop.set(true);
            Native.batchllm_interrupt(engine);
        }
    }

    /**
     * Cancels every unfinished row with this tag: each ends at the next step with what it has generated. May be called
     * from any thread. Unknown tags are ignored.
     *
     * @param tag of the rows
     */
    public void cancel(long tag) {
        cancel(tag, 1);
    }

    /**
     * The same for consecutive tags, in one native call.
     *
     * @param firstTag the first tag
     * @param count the number of tags
     */
    public void cancel(long firstTag, long count) {
        try (Handle.Use use = handle.share()) {
            Native.batchllm_cancel_rows(engine, firstTag, count);
        }
    }

    /** Cancels every unfinished row, whatever its tag. May be called from any thread. */
    public void cancelAll() {
        try (Handle.Use use = handle.share()) {
            Native.batchllm_cancel_all(engine);
        }
    }

    /**
     * Removes and returns all finished results.
     *
     * @return results in the order in which they finished, which must be closed
     */
    public Results poll() {
        return poll(0);
    }

    /**
     * Removes and returns finished results.
     *
     * @param max the most to return, though a row's samples are never split; 0: all
     * @return results in the order in which they finished, which must be closed
     */
    public Results poll(long max) {
        try (Handle.Use use = handle.use()) {
            Results results = new Results(Native.batchllm_poll_results(engine, max));
            if (max == 0) polled = complete();
            return results;
        }
    }

    /**
     * A whole job: adds the rows, runs them, and returns all results in the order of the rows.
     *
     * @param rows without tags: they become 0, 1, 2, ... All other rows of the engine must have been polled
     * @return results, which must be closed
     * @throws BatchLlmException.Stopped if the run was stopped; the rows stay in the engine
     */
    public Results generate(Rows rows) {
        return generate(rows, progress -> true);
    }

    /**
     * The same, and reports progress.
     *
     * @param rows without tags
     * @param listener as for {@link #run(ProgressListener)}
     * @return results, which must be closed
     */
    public Results generate(Rows rows, ProgressListener listener) {
        try (Handle.Use use = handle.use()) {
            if (rows.tagged()) throw new IllegalArgumentException("generate gives the rows their tags");
            if (!polled) throw new IllegalStateException("the engine has other rows: run and poll them first");
            add(rows.withTags(LongStream.range(0, rows.size()).toArray()));
            if (!run(listener)) {
                throw new BatchLlmException.Stopped(
                        Native.BATCHLLM_ERROR_STOPPED, "the job was stopped; run() continues it");
            }
            return poll().byRow(rows.size());
        }
    }

    /**
     * A whole job of vectors. {@link Results#embeddings} returns them in one buffer, in the order of the rows and
     * without a copy; {@link Results#embeddingArrays} returns them as arrays.
     *
     * @param rows without tags; their parameters may set {@link SamplingParams.Builder#pooling}, {@link
     *     SamplingParams.Builder#normalize} and {@link SamplingParams.Builder#dimensions}
     * @return results, which must be closed
     */
    public Results embed(Rows rows) {
        return generate(rows.withTask(Task.EMBED));
    }

    /**
     * A whole job of labels, for a model with a classification head: {@link Results#labelLogits} and {@link
     * Results#labelProbabilities}, in the order of {@link #labels} and of the rows.
     *
     * @param rows without tags
     * @return results, which must be closed
     */
    public Results classify(Rows rows) {
        return generate(rows.withTask(Task.CLASSIFY));
    }

    /**
     * How likely each prompt is to continue with one text rather than another, for rerankers that answer yes or no.
     *
     * @param prompts each with a query and a document, in the wording that the model was trained on
     * @param positive the answer for a relevant document, for example "yes"
     * @param negative the answer for an irrelevant one
     * @return from 0 to 1, in the order of the prompts; NaN for a prompt that failed, and the log says why. The log also
     *     has a warning if the model expects other words
     */
    public double[] rerank(Collection<String> prompts, String positive, String negative) {
        try (Results results = generate(Rows.ofScores(prompts, List.of(positive, negative)))) {
            double[] ranks = new double[results.size()];
            int failed = 0;
            String reason = null; // of the first row that failed
            double both = 0; // the sum over rows of the probability of either answer
            for (int i = 0; i < ranks.length; i++) {
                Result result = results.get(i);
                double[] scores = result.scores();
                ranks[i] = result.ok() ? 1 / (1 + Math.exp(scores[1] - scores[0])) : Double.NaN;
                if (result.ok()) both += Math.exp(scores[0]) + Math.exp(scores[1]);
                else if (failed++ == 0) reason = "row " + i + ": " + result.error();
            }
            if (failed > 0) {
                logger.log(Logger.Level.WARNING, "rerank: " + failed + " rows failed, so their ranks are NaN; " + reason);
            }
            int good = ranks.length - failed;
            if (good > 0 && both / good < LEAST_PROBABILITY) {
                logger.log(
                        Logger.Level.WARNING,
                        String.format(
                                Locale.ROOT,
                                "rerank: the model expects neither \"%s\" nor \"%s\" after these prompts: together they have a"
                                        + " probability of %.2g. It may need a space before them, or other words",
                                positive,
                                negative,
                                both / good));
            }
            return ranks;
        }
    }

    /**
     * The labels of a model with a classification head.
     *
     * @return in the order of {@link Results#labelLogits}; empty for other models
     */
    public List<String> labels() {
        try (Handle.Use use = handle.use()) {
            List<String> labels = new ArrayList<>();
            long count = Native.batchllm_engine_label_count(engine);
            for (long i = 0; i < count; i++) labels.add(Native.batchllm_engine_label(engine, i));
            return labels;
        }
    }

    /**
     * A whole job whose results come as they finish: adds the rows now, and runs when the next result is
     * requested. Between two results the engine can be used, for example to cancel rows.
     *
     * @param rows with tags or without
     * @return each row's result, once
     */
    public Iterator<Result> stream(Rows rows) {
        add(rows);
        return new Iterator<>() {
            private Iterator<Result> ready = batch();

            /** Copies, so that the batch can be closed at once. */
            private Iterator<Result> batch() {
                try (Results results = poll()) {
                    List<Result> copies = new ArrayList<>(results.size());
                    results.forEach(copies::add);
                    return copies.iterator();
                }
            }

            @Override
            public boolean hasNext() {
                while (!ready.hasNext()) {
                    boolean done = step().done();
                    ready = batch();
                    if (done && !ready.hasNext()) return false;
                }
                return true;
            }

            @Override
            public Result next() {
                if (!hasNext()) throw new NoSuchElementException();
                return ready.next();
            }
        };
    }

    /**
     * The effective options, with "auto" and 0 resolved, and the sizes of the model.
     *
     * @param device an index in the options' devices, from 0
     * @return a copy
     */
    public EngineInfo info(int device) {
        try (Handle.Use use = handle.use()) {
            batchllm_info info = new batchllm_info();
            try {
                Native.batchllm_engine_info(engine, device, info);
                return new EngineInfo(info);
            } finally {
                info.delete();
            }
        }
    }

    /**
     * The same for the first device, which usually is the only one.
     *
     * @return a copy
     */
    public EngineInfo info() {
        return info(0);
    }

    /**
     * Statistics so far.
     *
     * @return a copy
     */
    public EngineStats stats() {
        try (Handle.Use use = handle.use()) {
            batchllm_stats stats = new batchllm_stats();
            try {
                Native.batchllm_engine_stats(engine, stats);
                return new EngineStats(stats);
            } finally {
                stats.delete();
            }
        }
    }

    /**
     * Takes the groups of the rows added since the last planning from this plan, which is copied. Rows that
     * are not in it are planned now; so are all rows if the plan was made with a different {@link Sharing} or
     * minimum prefix than the engine's.
     *
     * @param plan made with the same tokenizer
     */
    public void usePlan(Plan plan) {
        try (Handle.Use use = handle.use();
                Handle.Use planUse = plan.handle.use()) {
            Native.batchllm_engine_use_plan(engine, plan.plan);
        }
    }

    /**
     * The plan of the rows that were planned last, for saving.
     *
     * @return a plan, which must be closed
     */
    public Plan plan() {
        try (Handle.Use use = handle.use()) {
            return new Plan(Native.batchllm_engine_take_plan(engine));
        }
    }

    /** Lets a journal list the files that rows name. */
    void listPictures(batchllm_journal journal) {
        try (Handle.Use use = handle.share()) {
            if (pictures == null) throw new IllegalArgumentException("the engine has no imageFolders");
            Native.batchllm_journal_use_pictures(journal, pictures);
        }
    }

    /** Frees the engine. Unfinished rows get no results. Throws if the engine is in use. */
    @Override
    public void close() {
        handle.close();
    }
}
