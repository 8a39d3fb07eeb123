package org.batchllm;

import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The constraints of one engine: {@link Constraint} -> native object, each made once. Used by one thread at a time. */
final class Constraints {
    private static final int MOST = 4096; // beyond that all are dropped; rows that were added keep theirs alive

    private final Map<Constraint, batchllm_constraint> made = new HashMap<>();

    /** The requirements of the schema that are not enforced, one per line. */
    String prepare(batchllm_engine engine, Constraint constraint) {
        if (made.size() >= MOST) clear();
        return Native.batchllm_constraint_warnings(get(engine, constraint));
    }

    /** Puts the constraints of parameters into their column, with one native call for each distinct constraint. */
    void set(batchllm_engine engine, batchllm_params_column column, List<SamplingParams> params) {
        Map<Constraint, long[]> asked = SamplingParams.rowsOf(params, SamplingParams::constraint);
        if (asked.isEmpty()) return;
        if (made.size() + asked.size() > MOST) clear();
        asked.forEach((constraint, rows) ->
                Native.batchllm_params_set_constraint(column, rows, get(engine, constraint)));
    }

    private batchllm_constraint get(batchllm_engine engine, Constraint constraint) {
        batchllm_constraint found = made.get(constraint);
        if (found == null) {
            found = constraint.make(engine);
            made.put(constraint, found);
        }
        return found;
    }

    void clear() {
        made.values().forEach(batchllm_constraint::delete);
        made.clear();
    }
}
