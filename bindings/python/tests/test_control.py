"""Interruptions: Ctrl-C, other threads, close, fork, callbacks; and what they leave behind."""

import asyncio
import copy
import gc
import pickle
import sys
import threading
import time
import unittest
from array import array

import batchllm
from batchllm import SamplingParams
from support import MODEL, columns, rows, run_script, sim, slow_sim

try:
    import _xxsubinterpreters  # Python 3.8 to 3.12
except ImportError:
    _xxsubinterpreters = None

LONG = SamplingParams(max_tokens=10_000_000, ignore_eos=True)


class Interruption(unittest.TestCase):
    def test_ctrl_c_stops_between_steps_and_keeps_what_has_finished(self):
        done = run_script(
            """
            import os, signal, sys, threading, time
            sys.path.insert(0, os.environ["TESTS"])
            import batchllm
            from support import rows, slow_sim
            with slow_sim() as engine:
                params = [batchllm.SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 2, 5_000_000)]
                threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
                start = time.monotonic()
                try:
                    engine.generate(rows(3), params)
                except KeyboardInterrupt:
                    waited = time.monotonic() - start
                    finished = engine.poll()
                    print(sorted(finished.tags), [len(result.tokens) for result in finished], waited < 5)
                    engine.cancel(2)
                    engine.run()
                    print(engine.poll()[0].finish_reason)
                    print(len(engine.generate(rows(4), batchllm.SamplingParams(max_tokens=2))))
            """
        )
        self.assertEqual(done.stdout.splitlines(), ["[0, 1] [1, 2] True", "cancelled", "4"], done.stderr)

    def test_a_call_after_an_interrupted_one_says_that_it_runs_the_rows_left(self):
        short = SamplingParams(max_tokens=2)
        with slow_sim() as engine:
            threading.Timer(0.2, engine.interrupt).start()
            with self.assertRaises(batchllm.StoppedError):
                engine.generate(rows(3), LONG)
            with self.assertLogs("batchllm", "WARNING") as log:
                engine.generate(rows(1), short)
            self.assertEqual(len(log.output), 1)
            self.assertIn("also runs 3 rows left by an interrupted call", log.output[0])
            with self.assertNoLogs("batchllm", "WARNING"):
                engine.generate(rows(1), short)
            engine.cancel_all()
            self.assertTrue(engine.run().idle)
            with self.assertNoLogs("batchllm", "WARNING"):
                self.assertEqual(len(engine.generate(rows(4), short)), 4)

    def test_rows_left_that_were_cancelled_are_not_said_to_run(self):
        for cancel in (lambda engine: engine.cancel_all(), lambda engine: engine.cancel(0, 1, 2)):
            with slow_sim() as engine:
                threading.Timer(0.2, engine.interrupt).start()
                with self.assertRaises(batchllm.StoppedError):
                    engine.generate(rows(3), LONG)
                cancel(engine)
                with self.assertNoLogs("batchllm", "WARNING"):
                    self.assertEqual(len(engine.generate(rows(1), SamplingParams(max_tokens=2))), 1)

    def test_interrupt_from_a_thread_stops_the_run_and_the_engine_goes_on(self):
        with slow_sim() as engine:
            threading.Timer(0.2, engine.interrupt).start()
            with self.assertRaises(batchllm.StoppedError):
                engine.generate(rows(2), LONG)
            engine.interrupt()
            with self.assertRaises(batchllm.StoppedError):
                engine.run()
            engine.cancel(0, 1)
            self.assertTrue(engine.run().idle)
            self.assertEqual([result.finish_reason for result in engine.poll()], ["cancelled"] * 2)

    def test_cancel_all_ends_every_row_and_no_later_one(self):
        with sim() as engine:
            engine.add(rows(40), batchllm.SamplingParams(max_tokens=400, ignore_eos=True))
            engine.step()
            engine.cancel_all()
            engine.add(rows(1), batchllm.SamplingParams(max_tokens=4, ignore_eos=True))
            engine.run()
            self.assertEqual(sorted(result.finish_reason for result in engine.poll()), ["cancelled"] * 40 + ["length"])

    def test_what_a_progress_function_raises_stops_the_run_and_comes_through(self):
        calls = []

        def progress(now):
            calls.append(now)
            if len(calls) == 2:
                raise LookupError("enough")

        with slow_sim() as engine:
            with self.assertRaisesRegex(LookupError, "enough"):
                engine.generate(rows(2), LONG, progress=progress)
            self.assertEqual(len(calls), 2)
            self.assertEqual(calls[0].rows_running, 2)
            engine.cancel(0, 1)
            engine.run()
            # A progress function may use the engine, but not close it.
            with self.assertRaises(batchllm.StateError):
                engine.generate(rows(1), progress=lambda now: engine.close())
            engine.generate(rows(1), SamplingParams(max_tokens=3), progress=lambda now: engine.stats())

    def test_progress_bar_counts_rows(self):
        with sim() as engine:
            self.assertEqual(len(engine.generate(rows(3), progress=True)), 3)


class Threads(unittest.TestCase):
    def test_threads_that_share_an_engine_get_what_one_alone_gets(self):
        params = SamplingParams(max_tokens=20)
        with batchllm.Engine(MODEL) as engine:
            expected = {i: engine.generate([f"thread {i} row {j}" for j in range(5)], params).texts for i in range(4)}
            found, errors = {}, []

            def work(i):
                try:
                    for _ in range(5):
                        found[i] = engine.generate([f"thread {i} row {j}" for j in range(5)], params).texts
                        self.assertEqual(found[i], expected[i])
                except BaseException as error:
                    errors.append(error)

            threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(found, expected)

    def test_streams_beside_each_other_lose_no_result(self):
        # Each call's steps may finish the rows of the others.
        params = SamplingParams(max_tokens=8)
        with batchllm.Engine(MODEL) as engine:
            streams = [engine.stream([f"stream {i} row {j}" for j in range(5)], params, interval=1) for i in range(4)]
            firsts = [next(stream) for stream in streams]
            self.assertEqual([len(list(stream)) for stream in streams], [4] * 4)
            self.assertEqual(len(firsts), 4)

            async def count(i):
                return sorted([result.tag async for result in engine.astream([f"task {i} {j}" for j in range(5)], params)])

            async def together():
                return await asyncio.gather(*map(count, range(4)))

            self.assertEqual(asyncio.run(together()), [[0, 1, 2, 3, 4]] * 4)

    def test_the_loop_goes_on_while_streams_wait_for_each_other(self):
        async def main(engine):
            async def work(i):
                async for _ in engine.astream(rows(1 + i), LONG, interval=0.5):
                    pass

            longest = 0.0

            async def beat():
                nonlocal longest
                while True:
                    start = time.monotonic()
                    await asyncio.sleep(0.001)
                    longest = max(longest, time.monotonic() - start)

            heart, tasks = asyncio.create_task(beat()), []
            for i in range(3):  # each begins and is cancelled within half a second of another call
                tasks.append(asyncio.create_task(work(i)))
                await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
                await asyncio.sleep(0.1)
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self.assertEqual([type(one) for one in ended], [asyncio.CancelledError] * 3)
            heart.cancel()
            return longest

        with slow_sim() as engine:
            self.assertLess(asyncio.run(main(engine)), 0.45)  # a call that held it would hold it for half a second
            self.assertTrue(engine.run().idle)
            self.assertEqual((len(engine.poll()), engine._calls.active, engine._calls.ended, engine._calls._mail), (0, [], [], {}))

    def test_other_python_threads_run_while_the_library_works(self):
        many = batchllm.Tokens(array("i", range(1000)) * 30_000, array("q", range(0, 30_000_001, 1000)))
        stop, ticks = threading.Event(), []

        def count():
            while not stop.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.001)

        with sim() as engine:
            params = SamplingParams(max_tokens=1)
            for name, call in (
                ("build", lambda: batchllm.Plan.build(many)), ("add", lambda: engine.add(many, params)),
                ("build_groups", engine.build_groups), ("close", engine.close),
            ):
                ticks.clear()
                stop.clear()
                thread = threading.Thread(target=count)
                thread.start()
                while not ticks:
                    time.sleep(0.001)
                start = time.monotonic()
                call()
                end = time.monotonic()
                stop.set()
                thread.join()
                within = [start, *(tick for tick in ticks if start < tick < end), end]
                longest = max(after - before for before, after in zip(within, within[1:]))
                # If the lock were held through the call, there would be a single gap; short calls do not tell.
                if end - start > 0.03:
                    self.assertLess(longest, 0.7 * (end - start), f"{name}: {longest:.3f} of {end - start:.3f} s")

    def test_closing_while_another_thread_is_inside_is_safe(self):
        for _ in range(20):
            engine, ended = slow_sim(), []

            def work(engine=engine, ended=ended):
                try:
                    engine.generate(rows(2), LONG)
                except batchllm.Error as error:
                    ended.append(type(error))

            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            time.sleep(0.01)
            engine.close()
            for thread in threads:
                thread.join(timeout=30)
            self.assertEqual(ended, [batchllm.ClosedError] * 2)


    def test_tags_of_a_running_call_are_refused_and_poll_gives_everything_between_calls(self):
        with sim() as engine:
            engine.add(rows(2), SamplingParams(max_tokens=2, ignore_eos=True), tags=[7, 8])
            engine.generate(rows(1), SamplingParams(max_tokens=60, ignore_eos=True))
            engine.add(rows(3), SamplingParams(max_tokens=2, ignore_eos=True, samples=2), tags=[9, 10, 11])
            engine.generate(rows(1), SamplingParams(max_tokens=60, ignore_eos=True))
            # In the parts in which they were collected, but as one sequence: a row's samples stay together.
            self.assertEqual([engine.poll(1).tags.tolist(), engine.poll(3).tags.tolist()], [[7], [8, 9, 9]])
            self.assertEqual([engine.poll().tags.tolist(), len(engine.poll())], [[10, 10, 11, 11], 0])
            with self.assertRaises(ValueError):
                engine.poll(-1)
        with slow_sim() as engine:
            def progress(now):
                with self.assertRaisesRegex(batchllm.StateError, "tags: 1 is a row"):
                    engine.add(rows(2), tags=[2, 1])
                engine.add(rows(1), SamplingParams(max_tokens=1), tags=[2])
                raise LookupError

            with self.assertRaises(LookupError):
                engine.generate(rows(2), LONG, progress=progress)
            engine.cancel(0, 1)
            engine.run()
            self.assertEqual(sorted(engine.poll().tags), [0, 1, 2])
            engine.add(rows(1), SamplingParams(max_tokens=1), tags=[1])
            engine.run()
            self.assertEqual(engine.poll().tags.tolist(), [1])

    def test_a_stream_that_the_garbage_collector_ends_while_results_are_sorted_is_forgotten(self):
        with sim() as engine:
            stream = engine.stream(rows(2), [SamplingParams(max_tokens=1), LONG], interval=0)
            next(stream)

            class Ending(list):
                """The list that receives the rows of a step; it ends the stream, as a garbage collection at that point
                would."""

                def __iter__(self):
                    stream.close()
                    return super().__iter__()

            engine._calls.polled = Ending()
            engine._collect()
            self.assertEqual((len(engine._calls.active), len(engine._calls.ended)), (0, 1))
            engine.run()
            self.assertEqual((len(engine.poll()), engine._calls.ended, engine._calls._mail), (0, [], {}))


class Closing(unittest.TestCase):
    def test_use_after_close_raises_and_closing_twice_does_not(self):
        engine, tokenizer, plan = sim(), batchllm.Tokenizer(MODEL), batchllm.Plan.build(rows(3))
        results = engine.generate(rows(2))
        stream = engine.stream(rows(2))
        for handle in (engine, tokenizer, plan):
            handle.close()
            handle.close()
        for use in (
            lambda: engine.generate(rows(1)), lambda: engine.score([[1]], [[2]]), lambda: next(stream), engine.step,
            engine.run, engine.poll, engine.stats, engine.build_groups, engine.get_plan, engine.interrupt,
            lambda: engine.cancel(1), lambda: engine.add(rows(1)), lambda: engine.use_plan(plan), engine.__enter__().stats,
            lambda: tokenizer.encode(["a"]), lambda: tokenizer.decode([[1]]), lambda: tokenizer.fingerprint,
            lambda: tokenizer.vocabulary, lambda: tokenizer.apply_chat_template([]), plan.stats, plan.groups,
            lambda: plan.save("/tmp/never"),
        ):
            with self.assertRaises(batchllm.ClosedError):
                use()
        self.assertTrue(engine.closed)
        self.assertEqual(len(results[0].tokens), len(results.to_pylist()[0]["tokens"]))

    def test_pickling_is_refused_and_plain_values_are_not(self):
        with sim() as engine:
            results = engine.generate(rows(1))
            for handle in (engine, results, results[0], batchllm.Tokenizer(MODEL), batchllm.Plan.build(rows(2))):
                with self.assertRaisesRegex(TypeError, "cannot be pickled"):
                    pickle.dumps(handle)
                with self.assertRaises(TypeError):
                    copy.copy(handle)
        pickle.loads(pickle.dumps([results.to_pylist(), SamplingParams(stop=["x"])]))
        error = pickle.loads(pickle.dumps(batchllm.RowError("text", 61, 7)))
        self.assertEqual((str(error), error.status, error.row), ("text", 61, 7))

    def test_a_forked_child_gets_a_clear_error_and_leaves_the_parent_whole(self):
        done = run_script(
            """
            import os, sys
            sys.path.insert(0, os.environ["TESTS"])
            import batchllm
            from support import MODEL, rows
            engine = batchllm.Engine(MODEL)
            expected = engine.generate(["row"], batchllm.SamplingParams(max_tokens=4)).texts
            stream = engine.stream(["row", "other"], batchllm.SamplingParams(max_tokens=4), interval=0)
            rest = [next(stream)]
            child = os.fork()
            if child == 0:
                del stream
                try:
                    engine.generate(["row"])
                except batchllm.ForkError as error:
                    print(error, flush=True)
                print(len(batchllm.Tokenizer(MODEL).encode_one("abc")), flush=True)
                engine.close()
                fresh = batchllm.Engine(MODEL)
                print(fresh.generate(["row"], batchllm.SamplingParams(max_tokens=4)).texts == expected, flush=True)
                sys.exit(0)
            print("child ended with", os.waitpid(child, 0)[1], len([*rest, *stream]), flush=True)
            print(engine.generate(["row"], batchllm.SamplingParams(max_tokens=4)).texts == expected)
            """
        )
        lines = done.stdout.splitlines()
        self.assertIn("after fork() make one here", lines[0], done.stderr)
        self.assertEqual(lines[1:], ["4", "True", "child ended with 0 2", "True"], done.stderr)
        self.assertEqual(done.stderr, "")

    def test_an_interpreter_that_ends_with_everything_open_ends_well(self):
        done = run_script(
            """
            import logging, os, sys, threading
            sys.path.insert(0, os.environ["TESTS"])
            logging.basicConfig(level=logging.DEBUG)
            import batchllm
            from support import MODEL, rows, slow_sim
            engine = slow_sim()
            params = batchllm.SamplingParams(max_tokens=10_000_000, ignore_eos=True)
            threading.Thread(target=lambda: engine.generate(rows(2), params), daemon=True).start()
            stream = batchllm.Engine(MODEL).stream(["a", "b"])
            next(stream)
            print("end")
            """
        )
        self.assertEqual((done.returncode, done.stdout), (0, "end\n"), done.stderr)

    def test_an_interpreter_that_ends_while_threads_write_log_lines_ends_well(self):
        for _ in range(4):
            done = run_script(
                """
                import logging, os, sys, threading, time
                sys.path.insert(0, os.environ["TESTS"])
                logging.basicConfig(level=logging.DEBUG, stream=open(os.devnull, "w"))
                from support import rows, sim
                def work():
                    while True:
                        sim().generate(rows(5))
                for _ in range(4):
                    threading.Thread(target=work, daemon=True).start()
                time.sleep(0.2)
                print("end")
                """
            )
            self.assertEqual((done.returncode, done.stdout), (0, "end\n"), done.stderr)

    @unittest.skipIf(_xxsubinterpreters is None, "needs subinterpreters")
    def test_a_subinterpreter_is_refused(self):
        interpreter = _xxsubinterpreters.create()
        try:
            with self.assertRaisesRegex(Exception, "ImportError"):
                _xxsubinterpreters.run_string(interpreter, f"import sys; sys.path[:0] = {sys.path!r}; import batchllm")
        finally:
            _xxsubinterpreters.destroy(interpreter)


def resident():
    """Resident memory of this process, in bytes."""
    gc.collect()
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024


class Leaks(unittest.TestCase):
    def grows(self, action, times):
        """Bytes that a call leaves behind, in the best of four quarters: a leak shows in each of them, a one-time
        allocation does not."""
        most = []
        for _ in range(4):
            before = resident()
            for _ in range(times // 4):
                action()
            most.append((resident() - before) / (times // 4))
        return min(most)

    def test_ten_thousand_engines_closed_or_forgotten_leave_nothing(self):
        def closed():
            sim().close()

        def used_and_closed():
            with sim() as engine:
                engine.generate(rows(2), SamplingParams(max_tokens=2, stop_tokens=[1]))

        def forgotten():
            engine = sim()
            engine.add(rows(1))
            stream = engine.stream(rows(1))
            next(stream)

        for action, times in ((closed, 6000), (used_and_closed, 2000), (forgotten, 2000)):
            self.assertLess(self.grows(action, times), 50, action.__name__)

    def test_results_plans_tokenizers_and_failures_leave_nothing(self):
        engine, tokenizer = sim(), batchllm.Tokenizer(MODEL)
        many = columns(50)

        def turn():
            results = engine.generate(many, SamplingParams(max_tokens=4, logprobs=1))
            results.tokens.tolist()
            results.__arrow_c_array__()
            plan = batchllm.Plan.build(many)
            plan.groups().rows.tolist()
            tokenizer.decode(tokenizer.encode(["abc", "déf"])).to_pylist()
            for wrong in (lambda: engine.generate("x"), lambda: batchllm.Tokenizer("/nope"), lambda: engine.add(["x"])):
                try:
                    wrong()
                except (TypeError, batchllm.Error):
                    pass

        self.assertLess(self.grows(turn, 2000), 50)


if __name__ == "__main__":
    unittest.main()
