import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicReference;
import org.batchllm.Engine;
import org.batchllm.FinishReason;
import org.batchllm.Result;
import org.batchllm.Results;
import org.batchllm.Rows;
import org.batchllm.SamplingParams;
import org.batchllm.Tokenizer;

/** What other threads may do to an engine, what they may not, and what they may share. */
final class ThreadsTest {
    /** Holds a run in its listener while another thread does something. */
    private static void during(Engine engine, Check.Body body) throws Exception {
        CountDownLatch entered = new CountDownLatch(1);
        CountDownLatch done = new CountDownLatch(1);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Thread other = new Thread(() -> {
            try {
                entered.await();
                body.run();
            } catch (Throwable thrown) {
                failure.set(thrown);
            } finally {
                done.countDown();
            }
        });
        other.start();
        engine.run(progress -> {
            entered.countDown();
            try {
                done.await();
            } catch (InterruptedException thrown) {
                throw new AssertionError(thrown);
            }
            return true;
        }, Duration.ZERO);
        other.join();
        if (failure.get() != null) throw new AssertionError(failure.get());
    }

    public static void another_threads_use_and_close_throw_while_an_engine_runs() throws Exception {
        try (Engine engine = Jobs.simEngine()) {
            engine.add(Jobs.simRows(100, 10));
            during(engine, () -> {
                Check.throwing(IllegalStateException.class, "in use by thread", engine::poll);
                Check.throwing(IllegalStateException.class, "in use by thread", engine::step);
                Check.throwing(IllegalStateException.class, "in use by thread", engine::stats);
                Check.throwing(IllegalStateException.class, "in use by thread", () -> engine.add(Jobs.simRows(1, 1)));
                Check.throwing(IllegalStateException.class, "cannot be closed", engine::close);
            });
            Check.equal(100L, engine.stats().rowsDone());
        }
    }

    public static void another_thread_may_cancel_and_interrupt() throws Exception {
        try (Engine engine = Jobs.simEngine()) {
            engine.add(Jobs.simRows(100, 1000));
            during(engine, () -> {
                engine.cancel(0, 50);
                engine.interrupt();
            });
            Check.that(engine.stats().rowsDone() < 100, "the run was not interrupted");
            engine.cancel(50, 49);
            Check.equal(true, engine.run());
            int cancelled = 0;
            try (Results results = engine.poll()) {
                for (Result result : results) {
                    if (result.finishReason() == FinishReason.CANCELLED) cancelled++;
                }
            }
            Check.equal(99, cancelled);
        }
    }

    public static void an_interrupt_before_the_run_stops_it() {
        try (Engine engine = Jobs.simEngine()) {
            engine.add(Jobs.simRows(100, 100));
            engine.interrupt();
            Check.equal(false, engine.run());
            Check.equal(true, engine.run());
        }
    }

    public static void interrupting_the_thread_stops_the_run_and_keeps_the_flag() {
        try (Engine engine = Jobs.simEngine()) {
            engine.add(Jobs.simRows(100, 100));
            Thread.currentThread().interrupt();
            Check.equal(false, engine.run());
            Check.that(Thread.interrupted(), "the flag is gone");
            Check.equal(true, engine.run());
        }
    }

    public static void engines_in_several_threads_give_what_one_thread_gives() throws Exception {
        SamplingParams params = SamplingParams.builder().maxTokens(20).temperature(1).seed(3).build();
        Rows job = Jobs.simRows(400, 1).withParams(params);
        List<int[]> expected = job(job);
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<List<int[]>>> found = new ArrayList<>();
        for (int i = 0; i < 16; i++) found.add(pool.submit(() -> job(job)));
        for (Future<List<int[]>> tokens : found) Check.equal(expected.toArray(), tokens.get().toArray());
        pool.shutdown();
    }

    private static List<int[]> job(Rows rows) {
        try (Engine engine = Jobs.simEngine();
                Results results = engine.generate(rows)) {
            List<int[]> tokens = new ArrayList<>();
            for (Result result : results) tokens.add(result.tokens());
            return tokens;
        }
    }

    public static void threads_share_a_tokenizer_and_results() throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(4);
        List<Future<?>> done = new ArrayList<>();
        try (Tokenizer tokenizer = Tokenizer.load(Jobs.MODEL);
                Engine engine = Jobs.simEngine();
                Results results = engine.generate(Jobs.simRows(200, 10))) {
            int[][] expected = new int[200][];
            for (int i = 0; i < 200; i++) expected[i] = results.tokens(i);
            for (int i = 0; i < 8; i++) {
                String text = "thread " + i + " 😀";
                done.add(pool.submit(() -> {
                    for (int j = 0; j < 200; j++) {
                        Check.equal(text, tokenizer.decode(tokenizer.encode(text)));
                        Check.equal(expected[j], results.get(j).tokens());
                        Check.equal((long) j, results.tags().get(j));
                    }
                }));
            }
            for (Future<?> one : done) one.get();
        }
        pool.shutdown();
    }

    public static void closing_against_use_from_many_threads_never_crashes() throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(4);
        for (int round = 0; round < 100; round++) {
            Engine engine = Jobs.simEngine();
            engine.add(Jobs.simRows(20, 10));
            engine.run();
            Results results = engine.poll();
            List<Future<?>> done = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                int which = i;
                done.add(pool.submit(() -> {
                    for (int j = 0; j < 50; j++) {
                        try {
                            if (which == 0) engine.cancel(j);
                            if (which == 1) engine.interrupt();
                            if (which == 2) results.get(j % 20);
                            if (which == 3) results.tokens().get(j % 20);
                        } catch (IllegalStateException closed) {
                            return;
                        }
                    }
                }));
            }
            for (int tries = 0; tries < 1000000; tries++) {
                try {
                    engine.close();
                    results.close();
                    break;
                } catch (IllegalStateException inUse) {
                    Check.that(inUse.getMessage().contains("in use"), inUse.getMessage());
                }
            }
            for (Future<?> one : done) one.get();
        }
        pool.shutdown();
    }

    public static void main(String[] args) throws Exception {
        Check.run(ThreadsTest.class);
    }
}
