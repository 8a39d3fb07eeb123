import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import javax.management.ObjectName;
import javax.management.ReflectionException;
import org.batchllm.BatchLlm;
import org.batchllm.DecodedColumn;
import org.batchllm.EncodedColumn;
import org.batchllm.Engine;
import org.batchllm.Plan;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.TextColumn;
import org.batchllm.TokenColumn;
import org.batchllm.Tokenizer;

/** What is closed when, and that nothing crashes or leaks however objects are closed, or if they are not. */
final class LifetimeTest {
    private static final TokenColumn ROWS = Jobs.column(Jobs.rows(50));

    public static void use_after_close_throws_whatever_the_call() throws Exception {
        Engine engine = Jobs.simEngine();
        Results results = engine.generate(Jobs.simRows(5, 2));
        Plan plan = Plan.create(ROWS);
        Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL);
        EncodedColumn encoded = tokenizer.encode(TextColumn.of("a"), true, true);
        DecodedColumn decoded = tokenizer.decode(encoded.column(), true);
        Path file = Files.createTempFile("batchllm", ".plan");
        Map<String, Check.Body> calls = new LinkedHashMap<>();
        calls.put("add", () -> engine.add(Jobs.simRows(1, 1)));
        calls.put("buildGroups", engine::buildGroups);
        calls.put("step", engine::step);
        calls.put("run", engine::run);
        calls.put("interrupt", engine::interrupt);
        calls.put("cancel", () -> engine.cancel(0));
        calls.put("cancel range", () -> engine.cancel(0, 5));
        calls.put("poll", engine::poll);
        calls.put("generate", () -> engine.generate(Jobs.simRows(1, 1)));
        calls.put("stream", () -> engine.stream(Jobs.simRows(1, 1)));
        calls.put("engine.stats", engine::stats);
        calls.put("plan", engine::plan);
        try (Plan open = Plan.create(ROWS);
                Engine other = Jobs.simEngine()) {
            calls.put("usePlan, closed engine", () -> engine.usePlan(open));
            calls.put("usePlan, closed plan", () -> other.usePlan(plan));
            calls.put("previous", () -> Plan.create(ROWS, org.batchllm.PlanOptions.builder().build(), null, plan));
            calls.put("save", () -> plan.save(file));
            calls.put("plan.stats", plan::stats);
            calls.put("groups", plan::groups);
            calls.put("encode", () -> tokenizer.encode("a"));
            calls.put("decode", () -> tokenizer.decode(1));
            calls.put("chat", () -> tokenizer.applyChatTemplate(TextColumn.of("[]"), true));
            calls.put("fingerprint", tokenizer::fingerprint);
            calls.put("vocabulary", tokenizer::vocabulary);
            calls.put("get", () -> results.get(0));
            calls.put("text(i)", () -> results.text(0));
            calls.put("texts", results::texts);
            calls.put("tokens(i)", () -> results.tokens(0));
            calls.put("tokens", results::tokens);
            calls.put("tags", results::tags);
            calls.put("iterator", () -> results.iterator().next());
            calls.put("encoded.tokens(i)", () -> encoded.tokens(0));
            calls.put("encoded.tokens", encoded::tokens);
            calls.put("encoded.status", () -> encoded.status(0));
            calls.put("encoded.error", () -> encoded.error(0));
            calls.put("encoded.offsets", encoded::offsets);
            calls.put("decoded.text(i)", () -> decoded.text(0));
            calls.put("decoded.text", decoded::text);
            for (AutoCloseable closed : new AutoCloseable[] {engine, results, plan, tokenizer, encoded, decoded}) {
                closed.close();
                closed.close();
            }
            for (Map.Entry<String, Check.Body> call : calls.entrySet()) {
                try {
                    Check.throwing(IllegalStateException.class, "is closed", call.getValue());
                } catch (AssertionError failed) {
                    throw new AssertionError(call.getKey(), failed);
                }
            }
        }
        Check.equal(5, results.size());
        Check.equal(0L, Files.size(file));
        Files.delete(file);
    }

    public static void closing_while_in_use_throws_and_harms_nothing() {
        try (Engine engine = Jobs.simEngine()) {
            engine.add(Jobs.simRows(50, 5));
            boolean[] told = {false};
            engine.run(progress -> {
                Check.throwing(IllegalStateException.class, "in use", engine::close);
                told[0] = true;
                return true;
            });
            Check.that(told[0], "the listener was not called");
            Check.equal(50L, engine.stats().rowsDone());
        }
    }

    public static void buffers_stay_readable_when_their_results_are_closed() throws Exception {
        List<IntBuffer> kept = new ArrayList<>();
        List<int[]> expected = new ArrayList<>();
        try (Engine engine = Jobs.simEngine()) {
            for (int i = 0; i < 50; i++) {
                Results results = engine.generate(Jobs.simRows(300, 20));
                int[] row = results.tokens(7);
                LongBuffer offsets = results.tokenOffsets();
                IntBuffer view = results.tokens();
                view.position((int) offsets.get(7)).limit((int) offsets.get(8));
                // A view of a view: nothing else refers to the memory.
                kept.add(view.slice().duplicate().asReadOnlyBuffer());
                expected.add(row);
                if (i % 2 == 0) results.close(); // else it is abandoned
                System.gc();
            }
        }
        // Reuses memory that would have been freed by now.
        List<byte[]> filler = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            System.gc();
            Thread.sleep(5);
            filler.add(new byte[1 << 20]);
            try (Engine engine = Jobs.simEngine()) {
                engine.generate(Jobs.simRows(300, 20)).close();
            }
        }
        for (int i = 0; i < kept.size(); i++) {
            int[] found = new int[expected.get(i).length];
            kept.get(i).get(found);
            Check.equal(expected.get(i), found);
        }
        ByteBuffer text;
        String expectedText;
        try (Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL);
                DecodedColumn column = tokenizer.decode(TokenColumn.of(List.of("kept".chars().toArray())), true)) {
            text = column.text();
            expectedText = column.text(0);
        }
        System.gc();
        Check.equal(expectedText, java.nio.charset.StandardCharsets.UTF_8.decode(text).toString());
    }

    /** KiB that are resident, without what malloc keeps of freed blocks where the JVM can return it (JDK 17.0.9 and later). */
    private static long resident() {
        try {
            var server = ManagementFactory.getPlatformMBeanServer();
            try {
                server.invoke(new ObjectName("com.sun.management:type=DiagnosticCommand"), "systemTrimNativeHeap", null, null);
            } catch (ReflectionException unknown) {
                // Then a busy machine can need more.
            }
            return Check.memory("VmRSS");
        } catch (Exception thrown) {
            throw new AssertionError(thrown);
        }
    }

    private static long asked;

    /** Native calls, not counting those made here. */
    private static long calls() {
        return BatchLlm.nativeCalls() - ++asked;
    }

    /** Waits until nothing more is freed of what other tests have left. */
    private static void settle() throws Exception {
        long before = -1;
        for (int quiet = 0; quiet < 4; quiet++) {
            long now = calls();
            if (now != before) quiet = 0;
            before = now;
            System.gc();
            Thread.sleep(50);
        }
    }

    /** Counts destructors, which are the only native calls meanwhile. */
    private static void frees(int objects, Check.Body body) throws Exception {
        long before = calls();
        body.run();
        Check.eventually(objects + " are freed", () -> calls() - before >= objects);
        Check.equal((long) objects, calls() - before);
    }

    public static void memory_goes_back_with_close_or_else_with_the_last_buffer() throws Exception {
        try (Engine engine = Jobs.simEngine()) {
            Results taken = engine.generate(Jobs.simRows(20, 3));
            Results copied = engine.generate(Jobs.simRows(20, 3));
            Check.equal(3, copied.get(5).tokens().length);
            List<IntBuffer> kept = new ArrayList<>(List.of(taken.tokens().slice(), taken.statuses(), taken.tokens()));
            settle();
            long before = calls();
            copied.close();
            Check.equal(1L, calls() - before);
            taken.close();
            settle();
            Check.equal(1L, calls() - before);
            kept.subList(1, 3).clear();
            settle();
            Check.equal(1L, calls() - before);
            Check.equal(0, kept.get(0).position());
            frees(1, kept::clear);
        }
    }

    private static void abandon(Engine engine) {
        Check.equal(20, engine.generate(Jobs.simRows(20, 3)).size());
        Check.that(Plan.create(ROWS).stats().rows() == 50, "a plan");
        Check.that(Jobs.simEngine().stats().rows() == 0, "an engine");
    }

    public static void what_nobody_can_reach_is_freed_once() throws Exception {
        try (Engine engine = Jobs.simEngine()) {
            settle();
            abandon(engine);
            frees(3, LifetimeTest::settle);
        }
    }

    private static void cycle(boolean close, int i) {
        Engine engine = Jobs.simEngine();
        engine.add(Rows.ofTokens(ROWS).withParams(Jobs.tokens(3)));
        if (i % 2 == 0) engine.step();
        Results results = engine.poll();
        IntBuffer taken = i % 3 == 0 ? results.tokens() : null;
        Plan plan = Plan.create(ROWS);
        Check.that(plan.stats().rows() == 50 && (taken == null || taken.remaining() >= 0), "a cycle");
        if (close) {
            plan.close();
            results.close();
            engine.close();
        }
    }

    public static void ten_thousand_open_and_close_cycles_leak_nothing() throws Exception {
        for (int i = 0; i < 500; i++) cycle(true, i);
        System.gc();
        long before = resident();
        for (int i = 0; i < 10000; i++) cycle(true, i);
        Check.eventually("10,000 cycles leave less than 24 MiB", () -> resident() - before < 24 << 10);
    }

    public static void abandoned_handles_leak_nothing() throws Exception {
        for (int i = 0; i < 300; i++) cycle(false, i);
        System.gc();
        Thread.sleep(200);
        long before = resident();
        for (int i = 0; i < 3000; i++) {
            cycle(false, i);
            if (i % 100 != 0) continue;
            // On a busy machine the thread that frees them falls behind.
            System.gc();
            Check.eventually("abandoned engines are freed", () -> resident() - before < 32 << 10);
        }
        Check.eventually("3,000 abandoned engines leave less than 32 MiB", () -> resident() - before < 32 << 10);
    }

    public static void tokenizers_opened_and_closed_leak_nothing() throws Exception {
        for (int i = 0; i < 20; i++) Tokenizer.load(Jobs.MODEL).close();
        long before = resident();
        for (int i = 0; i < 500; i++) {
            try (Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL)) {
                Check.equal(2, tokenizer.encode("a").length);
            }
        }
        Check.eventually("500 tokenizers leave less than 8 MiB", () -> resident() - before < 8 << 10);
    }

    public static void what_failed_leaves_nothing() throws Exception {
        Check.Body fail = () -> {
            try (Engine engine = Jobs.simEngine()) {
                for (int i = 0; i < 1000; i++) {
                    Check.throwing(org.batchllm.BatchLlmException.class, "offset",
                            () -> engine.add(Rows.ofTokens(TokenColumn.of(new int[1000], new long[] {0, 2000}))
                                    .withParams(Jobs.tokens(2))));
                    Check.throwing(org.batchllm.BatchLlmException.class, "/nowhere", () -> Tokenizer.load(Path.of("/nowhere")));
                }
            }
        };
        fail.run();
        System.gc();
        long before = resident();
        for (int i = 0; i < 5; i++) fail.run();
        Check.eventually("10,000 failures leave less than 12 MiB", () -> resident() - before < 12 << 10);
    }

    public static void main(String[] args) throws Exception {
        Check.run(LifetimeTest.class);
    }
}
