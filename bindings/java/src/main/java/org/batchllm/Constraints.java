package org.batchllm;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
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
        Map<Constraint, List<Integer>> rows = new LinkedHashMap<>();
        Constraint last = null;
        List<Integer> of = null;
        for (int i = 0; i < params.size(); i++) {
            Constraint constraint = params.get(i).constraint();
            if (constraint == null) continue;
            if (constraint != last) of = rows.computeIfAbsent(constraint, key -> new ArrayList<>());
            last = constraint;
            of.add(i);
        }
        if (rows.isEmpty()) return;
        if (made.size() + rows.size() > MOST) clear();
        rows.forEach((constraint, places) -> Native.batchllm_params_set_constraint(
                column, places.stream().mapToLong(Integer::longValue).toArray(), get(engine, constraint)));
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
