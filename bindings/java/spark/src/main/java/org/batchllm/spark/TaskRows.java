package org.batchllm.spark;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskKilledException;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.resource.ResourceInformation;
import org.apache.spark.sql.Row;

/**
 * One partition's rows, sorted by prompt -> result rows, as they finish. At most one and a half windows of rows are in
 * the engine: the next window is added while half of the last one is still running, so that the engine does not run out
 * of rows.
 */
final class TaskRows implements Iterator<Row> {
    private static final long WAIT_MS = 200;

    private final Columns columns;
    private final BatchLlmOptions options;
    private final BatchLlmMetrics metrics;
    private final TaskContext context = TaskContext.get();
    private final Windows<Request> windows;
    private final Feed feed;
    private final String devices;
    private SharedEngine engine; // acquired with the first row
    private Iterator<Answer> ready = List.<Answer>of().iterator();
    private int left; // rows in the engine
    private int window; // rows of the last window that was added

    TaskRows(Iterator<Row> rows, Columns columns, BatchLlmOptions options, Broadcast<byte[]> plan,
            BatchLlmMetrics metrics) {
        this.columns = columns;
        this.options = options;
        this.metrics = metrics;
        windows = new Windows<>(requests(rows), options.windowRows, options.windowBytes);
        feed = new Feed(options, columns.tokens(), columns.scored(), columns.constraint(), plan);
        devices = options.devices != null ? options.devices
                : "cpu".equals(options.backend) ? "" // does not use the GPUs that Spark assigned to the task
                                                : devices(context);
    }

    private Iterator<Request> requests(Iterator<Row> rows) {
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                return rows.hasNext();
            }

            @Override
            public Request next() {
                return columns.request(rows.next());
            }
        };
    }

    /** The GPUs that Spark assigned to the task: "0", "2,3"; "" if none. */
    static String devices(TaskContext context) {
        ResourceInformation gpus = context.resourcesJMap().get("gpu");
        return gpus == null ? "" : String.join(",", gpus.addresses());
    }

    @Override
    public boolean hasNext() {
        while (!ready.hasNext()) {
            List<Answer> answers = fill();
            if (answers.isEmpty()) {
                if (left == 0 && !windows.hasNext()) return false;
                if (left > 0) answers = take();
            }
            ready = answers.iterator();
        }
        return true;
    }

    @Override
    public Row next() {
        if (!hasNext()) throw new NoSuchElementException();
        Answer answer = ready.next();
        metrics.rows.add(1);
        if (answer.error != null) metrics.errors.add(1);
        metrics.promptTokens.add(answer.promptTokens);
        metrics.completionTokens.add(answer.tokens == null ? 0 : answer.tokens.length);
        if (answer.request.params.constraint() != null && "length".equals(answer.finishReason)) metrics.cutOffResults.add(1);
        return columns.row(answer);
    }

    /**
     * Adds windows while the engine has few rows, until one contains rows that need no engine. Returns the answers of
     * those.
     */
    private List<Answer> fill() {
        List<Answer> answers = new ArrayList<>();
        while (answers.isEmpty() && left * 2 <= window && windows.hasNext()) {
            List<Request> rows = windows.next();
            for (Request row : rows) {
                String error = columns.error(row);
                if (error != null) answers.add(Answer.error(row, error));
            }
            rows.removeIf(row -> columns.error(row) != null);
            if (rows.isEmpty()) continue;
            if (engine == null) acquire();
            window = rows.size();
            left += window;
            engine.submit(feed, rows);
        }
        return answers;
    }

    private void acquire() {
        engine = Engines.acquire(options, devices);
        // Also called if the task fails, is killed, or does not need all of its rows.
        context.addTaskCompletionListener((TaskContext done) -> {
            metrics.processedPromptTokens.add(engine.takeProcessed());
            engine.takeWarnings().forEach(metrics.warnings::add);
            engine.abandon(feed);
            Engines.release(engine, devices);
        });
    }

    private List<Answer> take() {
        if (context.isInterrupted()) throw new TaskKilledException("killed while its rows were computed");
        try {
            List<Answer> answers = feed.take(WAIT_MS);
            for (Answer answer : answers) left -= answer.first ? 1 : 0;
            return answers;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new TaskKilledException("interrupted while its rows were computed");
        }
    }
}
