package org.batchllm;

import java.io.Serializable;
import java.nio.file.Path;
import java.util.Objects;

/**
 * An adapter (LoRA): a small change to the model for the rows that have it. Set it with {@link
 * SamplingParams.Builder#adapter}. An adapter is immutable and does not belong to an engine: each engine loads it once,
 * with the first row that has an equal one. Its directory must stay as it is until the rows that have it have finished.
 *
 * <p>If its files are damaged or do not fit the model, {@link Engine#prepare(Adapter)} and the call that adds the rows
 * throw a {@link BatchLlmException} whose message names the file and the key or tensor, and the call adds no row.
 */
public final class Adapter implements Serializable {
    private static final long serialVersionUID = 1;

    private final String name;
    private final String path;

    private Adapter(String name, String path) {
        this.name = Objects.requireNonNull(name, "name is null");
        this.path = path;
    }

    /**
     * An adapter in a directory as PEFT writes it, with adapter_config.json and adapter_model.safetensors.
     *
     * @param name how errors and reports call it; not empty
     * @param directory of the adapter
     * @return an adapter
     */
    public static Adapter of(String name, Path directory) {
        return new Adapter(name, Objects.requireNonNull(directory, "directory is null").toString());
    }

    batchllm_adapter load(batchllm_engine engine) {
        return Native.batchllm_adapter_open(engine, name, path);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Adapter && ((Adapter) other).name.equals(name) && ((Adapter) other).path.equals(path);
    }

    @Override
    public int hashCode() {
        return Objects.hash(name, path);
    }

    @Override
    public String toString() {
        return "Adapter " + name + " (" + path + ")";
    }
}
