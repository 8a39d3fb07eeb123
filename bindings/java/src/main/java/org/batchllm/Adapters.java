package org.batchllm;

import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** The adapters of one engine: {@link Adapter} -> native object, each loaded once. Used by one thread at a time. */
final class Adapters {
    private final Map<Adapter, batchllm_adapter> loaded = new ConcurrentHashMap<>();

    void prepare(batchllm_engine engine, Collection<Adapter> adapters) {
        load(engine, adapters);
        adapters.forEach(adapter -> get(engine, adapter));
    }

    /** Puts the adapters of parameters into their column, with one native call for each distinct adapter. */
    void set(batchllm_engine engine, batchllm_params_column column, List<SamplingParams> params) {
        Map<Adapter, long[]> named = SamplingParams.rowsOf(params, SamplingParams::adapter);
        load(engine, named.keySet());
        named.forEach((adapter, rows) -> Native.batchllm_params_set_adapter(column, rows, get(engine, adapter)));
    }

    /** Loads several at a time. One that fails is left to {@link #get}, which throws. */
    private void load(batchllm_engine engine, Collection<Adapter> wanted) {
        wanted.parallelStream().distinct().filter(adapter -> !loaded.containsKey(adapter)).forEach(adapter -> {
            try {
                loaded.put(adapter, adapter.load(engine));
            } catch (BatchLlmException failed) {
                // Its turn comes in the order of the rows.
            }
        });
    }

    private batchllm_adapter get(batchllm_engine engine, Adapter adapter) {
        batchllm_adapter found = loaded.get(adapter);
        if (found == null) {
            found = adapter.load(engine);
            loaded.put(adapter, found);
        }
        return found;
    }

    void clear() {
        loaded.values().forEach(batchllm_adapter::delete);
        loaded.clear();
    }
}
