package org.batchllm;

import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The adapters of one engine: {@link Adapter} -> native object, each loaded once. Used by one thread at a time. */
final class Adapters {
    private final Map<Adapter, batchllm_adapter> loaded = new HashMap<>();

    void prepare(batchllm_engine engine, Adapter adapter) {
        get(engine, adapter);
    }

    /** Puts the adapters of parameters into their column, with one native call for each distinct adapter. */
    void set(batchllm_engine engine, batchllm_params_column column, List<SamplingParams> params) {
        SamplingParams.rowsOf(params, SamplingParams::adapter)
                .forEach((adapter, rows) -> Native.batchllm_params_set_adapter(column, rows, get(engine, adapter)));
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
