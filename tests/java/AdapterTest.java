import java.nio.file.Path;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import org.batchllm.Adapter;
import org.batchllm.BatchLlmException;
import org.batchllm.Engine;
import org.batchllm.EngineOptions;
import org.batchllm.Plan;
import org.batchllm.PlanOptions;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;
import org.batchllm.TokenColumn;

/** Rows with adapters. That they are computed as they should be, the library's own tests show. */
final class AdapterTest {
    private static final Path GOLDEN = Path.of(System.getProperty("test.golden"));

    private static Adapter adapter(String name) {
        return Adapter.of(name, GOLDEN.resolve("adapters").resolve(name));
    }

    private static Engine engine() {
        return engine(1);
    }

    private static Engine engine(int ranks) {
        return Engine.create(EngineOptions.builder(GOLDEN.resolve("llama_bias_f32"))
                .backend("cpu")
                .backendOptions("tensor_parallel=" + ranks)
                .computeType("f32")
                .adapterMemoryBytes(1 << 20)
                .build());
    }

    private static Rows rows(SamplingParams... params) {
        int[] prompt = {5, 6, 7, 8, 9, 10};
        return Rows.ofTokens(Collections.nCopies(params.length, prompt)).withParams(List.of(params));
    }

    private static SamplingParams with(Adapter adapter) {
        return SamplingParams.builder().maxTokens(8).adapter(adapter).build();
    }

    public static void rows_have_adapters() {
        try (Engine engine = engine()) {
            SamplingParams one = with(adapter("llama_qv_r4"));
            SamplingParams two = with(adapter("llama_one_layer"));
            try (Results results = engine.generate(rows(one, two, with(null), one.toBuilder().build()))) {
                Check.that(Arrays.equals(results.get(0).tokens(), results.get(3).tokens()), "equal rows");
                Check.that(!Arrays.equals(results.get(0).tokens(), results.get(1).tokens()), "other adapters");
                Check.that(!Arrays.equals(results.get(0).tokens(), results.get(2).tokens()), "no adapter");
            }
            Check.equal(1L, engine.stats().rowsDeduplicated());
        }
    }

    public static void devices_that_work_as_one_say_what_one_says() {
        Rows rows = rows(with(adapter("llama_qv_r4")), with(null));
        try (Engine one = engine(); Engine two = engine(2)) {
            Check.that(two.info().device().contains("2 ranks"), two.info().device());
            try (Results alone = one.generate(rows); Results both = two.generate(rows)) {
                for (int i = 0; i < 2; ++i) {
                    Check.that(Arrays.equals(alone.get(i).tokens(), both.get(i).tokens()), "row " + i);
                }
            }
        }
    }

    public static void rows_are_planned_with_their_adapters() {
        int[] prompt = new int[64];
        Arrays.fill(prompt, 5);
        TokenColumn rows = TokenColumn.of(Collections.nCopies(4, prompt));
        Adapter one = adapter("llama_qv_r4");
        List<Adapter> adapters = Arrays.asList(one, one, adapter("llama_one_layer"), null);
        try (Plan plan = Plan.create(rows, PlanOptions.builder().build(), null, null, adapters)) {
            Check.equal(1L, plan.stats().groups());
            Check.equal(2L, plan.stats().groupedRows());
        }
        try (Plan plan = Plan.create(rows)) {
            Check.equal(4L, plan.stats().groupedRows());
        }
        Check.throwing(BatchLlmException.InvalidArgument.class, "1 adapters for 4 rows",
                () -> Plan.create(rows, PlanOptions.builder().build(), null, null, List.of(one)));
    }

    public static void a_bad_adapter_is_found_before_rows_are_added() {
        try (Engine engine = engine()) {
            engine.prepare(adapter("llama_qv_r4"));
            Check.throwing(BatchLlmException.AdapterFormat.class, "no such module", () -> engine.prepare(adapter("phi3_fused")));
            Check.throwing(BatchLlmException.Io.class, "adapter_config.json", () -> engine.add(rows(with(adapter("none")))));
            Check.equal(0L, engine.stats().rows());
        }
    }

    public static void of_several_adapters_the_first_bad_one_in_order_is_thrown() {
        Adapter good = adapter("llama_qv_r4"), other = adapter("llama_one_layer"), foreign = adapter("phi3_fused"), none = adapter("none");
        try (Engine engine = engine()) {
            Check.throwing(BatchLlmException.AdapterFormat.class, "no such module",
                    () -> engine.prepare(List.of(good, foreign, good, none, other)));
            Check.throwing(BatchLlmException.Io.class, "none",
                    () -> engine.add(rows(with(good), with(none), with(foreign), with(other))));
            Check.equal(0L, engine.stats().rows());
            engine.prepare(List.of(good, other, good));
            try (Results results = engine.generate(rows(with(good), with(other), with(good)))) {
                Check.that(Arrays.equals(results.get(0).tokens(), results.get(2).tokens()), "equal rows");
            }
            Check.equal(1L, engine.stats().rowsDeduplicated());
        }
    }

    public static void main(String[] arguments) throws Exception {
        Check.run(AdapterTest.class);
    }
}
