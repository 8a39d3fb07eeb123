package org.batchllm.spark;

import java.io.IOException;
import java.io.ObjectOutputStream;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.logging.Logger;
import org.apache.spark.SparkContext;
import org.apache.spark.util.AccumulatorV2;

/**
 * Warnings of the executors' engines, sent to the driver with each task that ends, and logged there. Of texts that
 * differ only in their numbers, the first is kept, since the engines of a job warn of the same thing with different
 * figures.
 */
final class Warnings extends AccumulatorV2<String, List<String>> {
    private static final long serialVersionUID = 1;
    private static final Logger LOG = Logger.getLogger(BatchLlm.class.getName());
    private static final int MOST = 20;

    private final LinkedHashMap<String, String> texts = new LinkedHashMap<>();
    // True only for the driver's original, and not if executors log to the driver's own log.
    private final transient boolean logs;

    Warnings(SparkContext context) {
        logs = !context.isLocal();
        context.register(this);
    }

    private Warnings(Map<String, String> texts) {
        this.texts.putAll(texts);
        logs = false;
    }

    @Override
    public synchronized void add(String text) {
        if (texts.size() >= MOST || texts.putIfAbsent(text.replaceAll("[0-9]+", "#"), text) != null) return;
        if (logs) LOG.warning("on an executor: " + text);
    }

    @Override
    public void merge(AccumulatorV2<String, List<String>> other) {
        other.value().forEach(this::add);
    }

    @Override
    public synchronized List<String> value() {
        return List.copyOf(texts.values());
    }

    @Override
    public synchronized boolean isZero() {
        return texts.isEmpty();
    }

    @Override
    public synchronized void reset() {
        texts.clear();
    }

    @Override
    public synchronized AccumulatorV2<String, List<String>> copy() {
        return new Warnings(texts);
    }

    // Heartbeats serialize it while tasks add to it.
    private synchronized void writeObject(ObjectOutputStream out) throws IOException {
        out.defaultWriteObject();
    }
}
