package org.batchllm.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.function.Consumer;
import java.util.function.LongFunction;
import java.util.stream.Collectors;
import org.batchllm.Adapter;
import org.batchllm.BatchLlmException;
import org.batchllm.Constraint;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.FinishReason;
import org.batchllm.Plan;
import org.batchllm.Pooling;
import org.batchllm.Progress;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;
import org.batchllm.Sharing;
import org.batchllm.TextColumn;
import org.batchllm.TokenColumn;

/** Requests -> columns -> the library's engine -> answers. Used by one thread. */
final class NativeEngine implements AutoCloseable {
    private final Engine engine;
    private final List<String> labels; // of a model with a classification head
    private Plan plan; // the last one used
    private long planId; // the id of its broadcast
    private long polled; // rows
    private final Set<Feed> checked = Collections.newSetFromMap(new WeakHashMap<>()); // feeds whose options are right
    private boolean ready; // whether there is something to poll

    /** warnings: may be called on any thread. */
    NativeEngine(BatchLlmOptions options, String devices, Consumer<String> warnings) {
        if (options.model != null) requireDirectory(Path.of(options.model));
        engine = Engine.create(engineOptions(options, devices, new EngineLog(System.getLogger("org.batchllm"), warnings)));
        labels = engine.labels();
    }

    /** An absolute path needs no explanation: the engine says what is missing. */
    private static void requireDirectory(Path model) {
        if (model.isAbsolute() || Files.isDirectory(model)) return;
        throw new IllegalArgumentException("model: there is no directory " + model.toAbsolutePath() + " (" + model
                + " is relative to the executor's working directory)");
    }

    /** Equal for options that the same engine can serve; independent of sampling and device. */
    static String key(BatchLlmOptions options) {
        return String.join("\n", String.valueOf(options.model), String.valueOf(options.backend),
                String.valueOf(options.computeType), String.valueOf(options.backendOptions),
                String.valueOf(options.enlarge), Integer.toString(options.threads),
                Integer.toString(options.levels), Integer.toString(options.minPrefixTokens),
                Long.toString(options.kvMemoryBytes), Double.toString(options.kvMemoryFraction),
                Long.toString(options.stepTokens), Long.toString(options.maxRequestTokens),
                Long.toString(options.maxRequests), Long.toString(options.adapterMemoryBytes),
                Boolean.toString(options.reproducible), String.valueOf(options.imageFolders));
    }

    static EngineOptions engineOptions(BatchLlmOptions options, String devices, System.Logger log) {
        EngineOptions.Builder builder = options.model == null ? EngineOptions.builder()
                                                              : EngineOptions.builder(Path.of(options.model));
        builder.backend(options.backend)
                .computeType(options.computeType)
                .backendOptions(options.backendOptions)
                .logger(log);
        if (!devices.isEmpty()) builder.devices(devices);
        if (options.enlarge != null)
            builder.sharing(Sharing.valueOf(options.enlarge.toUpperCase(Locale.ROOT)));
        builder.threads(options.threads).levels(options.levels).minPrefixTokens(options.minPrefixTokens);
        builder.kvMemoryBytes(options.kvMemoryBytes).kvMemoryFraction(options.kvMemoryFraction);
        builder.stepTokens(options.stepTokens)
                .maxRequestTokens(options.maxRequestTokens)
                .maxRequests(options.maxRequests)
                .adapterMemoryBytes(options.adapterMemoryBytes)
                .reproducible(options.reproducible)
                .imageFolders(options.imageFolders.stream().map(Path::of).toArray(Path[]::new));
        return builder.build();
    }

    /**
     * Adds rows whose keys differ from each other and from those of all rows in the engine. If it throws, none were
     * added. Returns answers for rows that were not added because their own constraints are invalid or cannot be
     * enforced.
     */
    List<Answer> add(Feed feed, List<Request> all) {
        check(feed);
        List<Answer> refused = refuse(all, feed);
        if (refused.size() == all.size()) return refused;
        List<Request> requests = all;
        if (!refused.isEmpty()) {
            Set<Request> out = refused.stream().map(answer -> answer.request).collect(Collectors.toSet());
            requests = all.stream().filter(request -> !out.contains(request)).toList();
        }
        long[] keys = new long[requests.size()];
        List<byte[]> prompts = new ArrayList<>(keys.length);
        for (int i = 0; i < keys.length; ++i) {
            keys[i] = requests.get(i).key;
            prompts.add(requests.get(i).prompt);
        }
        Rows rows = feed.scored ? scores(feed, requests, prompts)
                : feed.tokens   ? Rows.ofTokens(tokens(prompts))
                : feed.options.messagesColumn != null ? Rows.ofChat(text(prompts))
                                                      : Rows.ofText(text(prompts));
        if (feed.options.imageColumn != null) {
            List<List<?>> pictures = new ArrayList<>(keys.length);
            for (Request request : requests) pictures.add(request.pictures == null ? null : List.of(request.pictures));
            rows = rows.withPictures(pictures);
        }
        engine.add(rows.withTags(keys).withParams(params(feed.options, requests)));
        return refused;
    }

    /** If the constraint of rows without their own fails, the feed fails. */
    private List<Answer> refuse(List<Request> requests, Feed feed) {
        Constraint common = feed.constraint;
        Map<Constraint, String> errors = new HashMap<>();
        Map<String, String> adapterErrors = new HashMap<>();
        prepareAdapters(requests, feed.options);
        List<Answer> refused = new ArrayList<>();
        for (Request request : requests) {
            String adapter = request.params.adapter();
            String failure = adapter == null
                    ? ""
                    : adapterErrors.computeIfAbsent(adapter, name -> adapterError(feed.options, name));
            if (!failure.isEmpty()) {
                refused.add(Answer.error(request, "ROW_ADAPTER: " + failure));
                continue;
            }
            Constraint own = request.params.constraint();
            if (own == null || own.equals(common)) continue;
            String error = errors.computeIfAbsent(own, this::error);
            if (!error.isEmpty()) refused.add(Answer.error(request, "ROW_CONSTRAINT: " + error));
        }
        return refused;
    }

    /** Loads the requests' adapters, several at a time. */
    private void prepareAdapters(List<Request> requests, BatchLlmOptions options) {
        try {
            engine.prepare(requests.stream()
                    .map(request -> request.params.adapter())
                    .filter(name -> name != null && options.adapters.containsKey(name))
                    .distinct()
                    .map(name -> adapter(options, name))
                    .collect(Collectors.toList()));
        } catch (BatchLlmException e) {
            // Each request's own is found in its turn.
        }
    }

    /** Why rows cannot have the adapter of this name; "" if they can. */
    private String adapterError(BatchLlmOptions options, String name) {
        if (!options.adapters.containsKey(name)) return "there is no adapter \"" + name + "\"";
        try {
            engine.prepare(adapter(options, name));
            return "";
        } catch (BatchLlmException.AdapterFormat | BatchLlmException.Unsupported | BatchLlmException.InvalidState
                | BatchLlmException.OutOfMemory e) {
            // No memory, rather than an adapter that is too large: not the row's fault.
            if (e.getMessage().equals("out of memory")) throw e;
            return e.getMessage();
        }
    }

    private static Adapter adapter(BatchLlmOptions options, String name) {
        return name == null ? null : Adapter.of(name, Path.of(options.adapters.get(name)));
    }

    /** Why rows cannot have this constraint; "" if they can. */
    private String error(Constraint constraint) {
        try {
            engine.prepare(constraint);
            return "";
        } catch (BatchLlmException.InvalidArgument | BatchLlmException.Unsupported | BatchLlmException.InvalidState
                | IllegalArgumentException e) {
            return e.getMessage();
        }
    }

    private static Rows scores(Feed feed, List<Request> requests, List<byte[]> prompts) {
        List<byte[]> continuations = new ArrayList<>();
        long[] rows = new long[requests.size() + 1];
        for (int i = 0; i < requests.size(); ++i) {
            continuations.addAll(List.of(requests.get(i).continuations));
            rows[i + 1] = continuations.size();
        }
        LongBuffer ends = LongBuffer.wrap(rows);
        if (feed.tokens) return Rows.ofScores(tokens(prompts), tokens(continuations), ends);
        return feed.options.messagesColumn != null ? Rows.ofChatScores(text(prompts), text(continuations), ends)
                           : Rows.ofScores(text(prompts), text(continuations), ends);
    }

    private static TextColumn text(List<byte[]> texts) {
        long[] offsets = offsets(texts, 1);
        byte[] bytes = new byte[Math.toIntExact(offsets[texts.size()])];
        for (int i = 0; i < texts.size(); ++i)
            System.arraycopy(texts.get(i), 0, bytes, (int) offsets[i], texts.get(i).length);
        return TextColumn.of(bytes, offsets);
    }

    private static TokenColumn tokens(List<byte[]> rows) {
        long[] offsets = offsets(rows, Prompts.TOKEN_BYTES);
        int[] tokens = new int[Math.toIntExact(offsets[rows.size()])];
        for (int i = 0; i < rows.size(); ++i) Prompts.tokens(rows.get(i), tokens, (int) offsets[i]);
        return TokenColumn.of(tokens, offsets);
    }

    private static long[] offsets(List<byte[]> items, int unit) {
        long[] offsets = new long[items.size() + 1];
        for (int i = 0; i < items.size(); ++i) offsets[i + 1] = offsets[i] + items.get(i).length / unit;
        return offsets;
    }

    /** Fails the feed if no row can run with its options. */
    private void check(Feed feed) {
        if (checked.add(feed)) engine.check(paramsOfAll(feed.options));
    }

    /** The parameters of all rows. Those that rows may have instead have valid values. */
    static SamplingParams paramsOfAll(BatchLlmOptions options) {
        SamplingParams.Builder all = builder(options);
        if (options.generates()) {
            all.maxTokens(options.maxTokensColumn == null ? options.maxTokens : Math.max(1, options.minTokens));
            all.temperature(options.temperatureColumn == null ? options.temperature : 0);
        }
        return all.build();
    }

    private static SamplingParams.Builder builder(BatchLlmOptions options) {
        SamplingParams.Builder builder = SamplingParams.builder();
        options.setOn(builder);
        builder.task(options.task()).dimensions(options.dimensions);
        if (options.pooling != null)
            builder.pooling(Pooling.valueOf(options.pooling.toUpperCase(Locale.ROOT)));
        if (options.normalize != null) builder.normalize(options.normalize);
        return builder;
    }

    private static List<SamplingParams> params(BatchLlmOptions options, List<Request> requests) {
        SamplingParams.Builder builder = builder(options);
        Map<RowParams, SamplingParams> made = new HashMap<>();
        List<SamplingParams> params = new ArrayList<>(requests.size());
        for (Request request : requests) {
            params.add(made.computeIfAbsent(request.params,
                    own
                    -> builder.maxTokens(own.maxTokens())
                               .temperature(own.temperature())
                               .seed(own.seed())
                               .constraint(own.constraint())
                               .adapter(adapter(options, own.adapter()))
                               .build()));
        }
        return params;
    }

    /** The rows added last take their groups from the feed's plan, if it has one. */
    void plan(Feed feed) {
        if (feed.plan == null) return;
        if (plan == null || planId != feed.plan.id()) {
            Plan loaded = planOf(feed.plan.value());
            if (plan != null) plan.close();
            plan = loaded;
            planId = feed.plan.id();
        }
        engine.usePlan(plan);
        engine.buildGroups();
    }

    /** The plan of a plan file's bytes, which must be closed. */
    static Plan planOf(byte[] bytes) {
        try {
            Path file = Files.createTempFile("batchllm", ".plan");
            try {
                Files.write(file, bytes);
                return Plan.load(file);
            } finally {
                Files.delete(file);
            }
        } catch (IOException e) {
            throw new UncheckedIOException("a copy of the plan on this machine", e);
        }
    }

    /** Runs one step. False: no row is left. */
    boolean step() {
        Progress progress = engine.step();
        ready = progress.rowsDone() > polled;
        return !progress.done();
    }

    /** The answers that have finished since the last call, always all of a row's. */
    List<Answer> poll(LongFunction<Request> running) {
        if (!ready) return List.of();
        try (Results results = engine.poll()) {
            List<Answer> answers = new ArrayList<>(results.size());
            for (Result result : results) {
                answers.add(answer(result, running.apply(result.tag())));
                if (result.sample() == 0) polled++;
            }
            return answers;
        }
    }

    private Answer answer(Result result, Request request) {
        Answer answer = new Answer(request);
        answer.finishReason = result.finishReason().name().toLowerCase(Locale.ROOT);
        answer.sample = result.sample();
        answer.promptTokens = result.promptTokens();
        answer.sharedTokens = result.sharedTokens();
        if (!result.ok()) {
            answer.error = result.error();
        } else if (result.finishReason() == FinishReason.SCORED) {
            answer.scores = result.scores();
        } else if (result.finishReason() == FinishReason.EMBEDDED) {
            answer.embedding = result.embedding();
        } else if (result.finishReason() == FinishReason.CLASSIFIED) {
            answer.probabilities = result.labelProbabilities();
            int best = likeliest(answer.probabilities);
            answer.label = labels.get(best);
            answer.score = answer.probabilities[best];
        } else {
            answer.text = result.text();
            answer.tokens = result.tokens();
            answer.logprobs = result.logprobs();
            answer.promptLogprobs = result.promptLogprobs();
        }
        return answer;
    }

    private static int likeliest(float[] probabilities) {
        int best = 0;
        for (int i = 1; i < probabilities.length; ++i) best = probabilities[i] > probabilities[best] ? i : best;
        return best;
    }

    /** Prompt tokens computed so far. */
    long processedPromptTokens() {
        return engine.stats().processedPromptTokens();
    }

    /** Ends the row with this tag soon, with what it has. */
    void cancel(long tag) {
        engine.cancel(tag);
    }

    @Override
    public void close() {
        if (plan != null) plan.close();
        engine.close();
    }
}
