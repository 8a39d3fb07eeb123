"""Whole jobs: generate, score, stream; parameters; plans in use; chat."""

import asyncio
import importlib.util
import inspect
import json
import logging
import os
import pathlib
import tempfile
import threading
import unittest
from array import array

import batchllm
from batchllm import SamplingParams
from support import MODEL, chat_model, columns, rows, sim, slow_sim

PROMPTS = ["The capital of France is", "Hi Pérù", "Once upon a time", "x"]


class Generate(unittest.TestCase):
    def test_rows_that_ran_without_their_prefix_shared_nothing(self):
        # The prefix leaves nearly all of its last page empty. With one page less, a row fits only by itself.
        params = SamplingParams(max_tokens=8, ignore_eos=True)
        rows = [[5] * 193 + [20 + i, 7] for i in range(6)]
        with batchllm.Engine(MODEL) as engine:
            page = engine.stats().kv_page_bytes
        for pages, shared in ((14, 193), (13, 0)):
            with batchllm.Engine(MODEL, kv_memory_bytes=pages * page) as engine:
                results = engine.generate(rows, params)
                self.assertEqual(results.shared_tokens.tolist(), [shared] * 6)
                self.assertEqual(engine.stats().processed_prompt_tokens, 6 * 195 - 5 * shared)

    def test_results_come_in_the_order_of_the_rows_though_they_end_out_of_order(self):
        lengths = [9, 1, 30, 4, 17]
        params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths]
        with sim() as engine:
            results = engine.generate(rows(5), params)
            self.assertEqual([len(result.tokens) for result in results], lengths)
            self.assertEqual(results.tags.tolist(), [0, 1, 2, 3, 4])
            # What a stream returns when it ends is the same, row by row.
            streamed = list(engine.stream(rows(5), params, interval=0))
        self.assertEqual([result.tag for result in streamed], [1, 3, 0, 4, 2])
        for result in streamed:
            self.assertEqual(result.tokens.tolist(), results[result.tag].tokens.tolist())

    def test_the_same_call_twice_gives_the_same_sampled_tokens(self):
        params = SamplingParams(max_tokens=8, temperature=1.0, seed=2**63 + 5)
        with batchllm.Engine(MODEL) as engine:
            first = engine.generate(PROMPTS, params)
            second = engine.generate(PROMPTS, params)
            other = engine.generate(PROMPTS, SamplingParams(max_tokens=8, temperature=1.0, seed=6))
            tail = engine.generate(PROMPTS[2:], params, first_row=2)
        self.assertEqual(first.tokens.tolist(), second.tokens.tolist())
        self.assertNotEqual(first.tokens.tolist(), other.tokens.tolist())
        self.assertEqual(tail[0].tokens.tolist(), first[2].tokens.tolist())

    def test_every_parameter_arrives(self):
        with batchllm.Engine(MODEL) as engine:
            plain = engine.generate(PROMPTS, SamplingParams(max_tokens=12))
            token = plain[0].tokens[3]
            cut = plain[0].text[2:3]
            stopped, without_stop, biased, sampled, logprobs, bad = engine.generate(
                [PROMPTS[0]] * 6,
                [
                    SamplingParams(max_tokens=12, stop_tokens=[token]),
                    SamplingParams(max_tokens=12, stop=["no such text", cut]),
                    SamplingParams(max_tokens=12, logit_bias={65: 1000.0}),
                    SamplingParams(max_tokens=12, temperature=1.5, top_k=40, top_p=0.9, min_p=0.01,
                                   repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5),
                    SamplingParams(max_tokens=3, logprobs=2),
                    SamplingParams(max_tokens=-1),
                ],
            )
            samples = engine.generate(["a", "b"], SamplingParams(max_tokens=2, samples=3, temperature=1.0))
        self.assertEqual(stopped.tokens.tolist(), plain[0].tokens.tolist()[: plain[0].tokens.tolist().index(token) + 1])
        self.assertEqual(stopped.finish_reason, "stop")
        self.assertEqual(without_stop.text, plain[0].text[: plain[0].text.index(cut)])
        self.assertEqual(biased.text, "A" * 12)
        self.assertNotEqual(sampled.tokens.tolist(), plain[0].tokens.tolist())
        self.assertEqual([len(top) for top in logprobs.top_logprobs], [2, 2, 2])
        self.assertEqual([top[0][1] for top in logprobs.top_logprobs], logprobs.logprobs.tolist())
        self.assertIn("ROW_INVALID_PARAMETER", bad.error)
        self.assertEqual(samples.tags.tolist(), [0, 0, 0, 1, 1, 1])
        self.assertEqual(samples.samples.tolist(), [0, 1, 2] * 2)

    def test_a_bad_row_is_data_unless_told_to_raise(self):
        texts = ["good", "lone \ud800 surrogate", "good"]
        with batchllm.Engine(MODEL) as engine:
            results = engine.generate(texts, SamplingParams(max_tokens=2))
            self.assertEqual(results.failed, [1])
            self.assertIn("ROW_INVALID_UTF8", results.errors[1])
            self.assertEqual((results[1].finish_reason, results[1].text), ("error", None))
            with self.assertRaisesRegex(TypeError, r"results\['text'\]: a number or a slice is expected"):
                results["text"]
            with self.assertRaises(batchllm.RowError) as caught:
                engine.generate(texts, SamplingParams(max_tokens=2), on_error="raise")
            self.assertEqual(caught.exception.row, 1)
            self.assertEqual(len(caught.exception.results), 3)
            with self.assertRaises(batchllm.RowError):
                list(engine.stream(texts, SamplingParams(max_tokens=2), on_error="raise"))
            with self.assertRaises(ValueError):
                engine.generate(texts, on_error="rise")

    def test_no_rows_are_no_results(self):
        with sim() as engine:
            self.assertEqual(len(engine.generate([])), 0)
            self.assertEqual(list(engine.stream([])), [])
            self.assertEqual(engine.generate([]).to_pylist(), [])

    def test_a_row_whose_biases_leave_no_token_says_so(self):
        with batchllm.Engine(MODEL) as engine:
            none = {token: -float("inf") for token in range(engine.info().vocabulary)}
            [result] = engine.generate(["a"], SamplingParams(logit_bias=none, max_tokens=2))
        self.assertRegex(str(result.error), "not finite, or min_tokens, bad_words, logit_bias and what else")

    def test_params_must_be_as_many_as_rows(self):
        with sim() as engine:
            for count in (1, 3):
                with self.assertRaisesRegex(ValueError, f"{count} params for 2 rows"):
                    engine.generate(rows(2), [SamplingParams()] * count)
                with self.assertRaisesRegex(ValueError, f"{count} params for 2 rows"):
                    engine.generate([*rows(1), None], [SamplingParams()] * count)
                if importlib.util.find_spec("pyarrow") is not None:
                    import pyarrow

                    chunks = pyarrow.chunked_array([rows(1), rows(1)])
                    with self.assertRaisesRegex(ValueError, f"{count} params for 2 rows"):
                        engine.generate(chunks, [SamplingParams()] * count)
            for params, text in (({"max_tokens": 1}, "one dict"), ([None] * 2, "params 0 is None"), (iter([]), "iterator")):
                with self.assertRaisesRegex(TypeError, text):
                    engine.generate(rows(2), params)
            for first_row in (-1, 2**40):
                with self.assertRaisesRegex(ValueError, "first_row"):
                    engine.generate(rows(2), first_row=first_row)
            for count in (1, 3):
                with self.assertRaisesRegex(ValueError, f"{count} tags for 2 rows"):
                    engine.add(rows(2), tags=range(900, 900 + count))
            # Nothing of it is left behind.
            self.assertEqual(len(engine.generate(rows(3))), 3)
            self.assertEqual(len(engine.poll()), 0)

    def test_a_parameter_of_another_type_or_size_is_named(self):
        with sim() as engine:
            for wrong, text in (
                ({"max_tokens": None}, "max_tokens is None: must be at least 1; 1 << 30 lets a row go on to the engine's max_request_tokens"),
                ({"temperature": None}, "temperature is None: must be 0 or a positive number$"),
                ({"max_tokens": 3.0}, "max_tokens: .*float"), ({"max_tokens": 2**63}, "max_tokens is "), ({"seed": -1}, "seed is -1"),
                ({"temperature": "hot"}, "temperature: .*str"), ({"stop": [5]}, "stop: "),
                ({"stop_tokens": 5}, "stop_tokens: "), ({"stop_tokens": ["x"]}, "stop_tokens: "),
                ({"logit_bias": {"x": 1}}, "logit_bias: "), ({"logit_bias": [5]}, "logit_bias: "),
            ):
                for params in (SamplingParams(**wrong), [SamplingParams(), SamplingParams(**wrong)]):
                    with self.subTest(wrong=wrong), self.assertRaisesRegex((TypeError, batchllm.InvalidArgumentError), f"^{text}"):
                        engine.generate(rows(2), params)
            self.assertEqual(engine.stats().rows, 0)

    def test_a_stream_that_is_left_takes_its_rows_with_it(self):
        with sim() as engine:
            for _ in engine.stream(rows(50), SamplingParams(max_tokens=500, ignore_eos=True), interval=0):
                break
            self.assertEqual(len(engine.generate(rows(3), SamplingParams(max_tokens=2, ignore_eos=True))), 3)
            self.assertEqual(len(engine.poll()), 0)

    def test_calls_within_a_stream_get_their_own_results(self):
        with sim() as engine:
            seen = []
            params = [SamplingParams(max_tokens=n + 1, ignore_eos=True) for n in range(20)]
            for result in engine.stream(rows(20), params, interval=0):
                seen.append(result.tag)
                if len(seen) % 5 == 0:
                    inner = engine.generate(rows(4, own=9), SamplingParams(max_tokens=3, ignore_eos=True))
                    self.assertEqual([len(one.tokens) for one in inner], [3] * 4)
            self.assertEqual(sorted(seen), list(range(20)))

    def test_saved_plan_is_used(self):
        with batchllm.Engine(MODEL) as engine, tempfile.TemporaryDirectory() as folder:
            texts = ["A long document that all rows share. " + str(i) for i in range(20)]
            engine.generate(texts, SamplingParams(max_tokens=1))
            engine.get_plan().save(f"{folder}/rows.plan")
            engine.generate(texts + ["new"], SamplingParams(max_tokens=1), plan=batchllm.Plan.load(f"{folder}/rows.plan"))
            self.assertEqual(engine.get_plan().stats().reused_rows, 20)
            self.assertGreater(engine.stats().saving_ratio, 0.5)

    def test_add_run_poll_is_what_c_has(self):
        with sim() as engine:
            self.assertEqual(engine.add(rows(3), SamplingParams(max_tokens=2, ignore_eos=True)), range(0, 3))
            engine.add(rows(2, own=8), tags=[70, 71])
            engine.build_groups()
            self.assertEqual(engine.step().rows_done, 0)
            self.assertTrue(engine.run().idle)
            first = engine.poll(2)
            self.assertEqual(len(first), 2)
            rest = engine.poll()
            self.assertEqual(sorted(first.tags.tolist() + rest.tags.tolist()), [0, 1, 2, 70, 71])
            self.assertEqual(engine.stats().rows_done, 5)

    def test_astream_leaves_the_loop_free(self):
        async def job():
            beats = 0

            async def beat():
                nonlocal beats
                while True:
                    beats += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(beat())
            with sim() as engine:
                found = [result.tag async for result in engine.astream(columns(200))]
            task.cancel()
            return found, beats

        found, beats = asyncio.run(job())
        self.assertEqual(sorted(found), list(range(200)))
        self.assertGreater(beats, 1)

    def test_astream_takes_what_stream_takes(self):
        async def collected(stream):
            return [result async for result in stream]

        def told(results):
            return sorted((result.tag, result.tokens.tolist()) for result in results)

        def parameters(function):
            return {name: (one.kind, one.default) for name, one in inspect.signature(function).parameters.items()}

        self.assertEqual(parameters(batchllm.Engine.astream), parameters(batchllm.Engine.stream))
        sampled = SamplingParams(max_tokens=6, temperature=1.5, ignore_eos=True)
        texts = ["good", "lone \ud800 surrogate", "good"]
        with batchllm.Engine(MODEL) as engine:
            expected = told(engine.stream(["a"] * 3, sampled, first_row=40))
            self.assertNotEqual(told(engine.stream(["a"] * 3, sampled)), expected)
            self.assertEqual(told(asyncio.run(collected(engine.astream(["a"] * 3, sampled, first_row=40)))), expected)
            for wrong in ({"first_row": -1}, {"on_error": "rise"}):
                with self.assertRaisesRegex(ValueError, next(iter(wrong))):
                    asyncio.run(collected(engine.astream(texts, **wrong)))
                with self.assertRaisesRegex(ValueError, next(iter(wrong))):
                    list(engine.stream(texts, **wrong))
            self.assertEqual(len(asyncio.run(collected(engine.astream(texts, SamplingParams(max_tokens=2))))), 3)
            with self.assertRaises(batchllm.RowError) as caught:
                asyncio.run(collected(engine.astream(texts, SamplingParams(max_tokens=2), on_error="raise")))
            self.assertEqual((caught.exception.row, caught.exception.results.failed != []), (1, True))

    def test_a_row_error_ends_a_stream_and_an_astream_alike(self):
        long = SamplingParams(max_tokens=10_000_000, ignore_eos=True)

        async def awaited(engine):
            async for _ in engine.astream([[1, 2], [5000]], long, on_error="raise", interval=0):
                pass

        def waited(engine):
            for _ in engine.stream([[1, 2], [5000]], long, on_error="raise", interval=0):
                pass

        for call in (waited, lambda engine: asyncio.run(awaited(engine))):
            with slow_sim() as engine:
                with self.assertRaisesRegex(batchllm.RowError, "row 1: ROW_UNKNOWN_TOKEN"):
                    call(engine)
                # The row that continues is cancelled, and none of them is left for poll.
                engine.run()
                self.assertEqual((len(engine.poll()), engine._calls.active, engine._calls.ended), (0, [], []))

    def test_progress_of_an_astream_comes_in_the_loops_thread_and_may_end_it(self):
        long = SamplingParams(max_tokens=10_000_000, ignore_eos=True)
        calls = []

        def progress(now):
            calls.append((threading.current_thread(), asyncio.get_running_loop()))
            self.assertGreater(engine.stats().steps, 0)
            if now.rows_done:
                raise LookupError("enough")

        async def job():
            params = [SamplingParams(max_tokens=5, ignore_eos=True), long]
            with self.assertRaisesRegex(LookupError, "enough"):
                async for _ in engine.astream(rows(2), params, progress=progress, interval=0):
                    self.fail("a result came before its step was reported")
            return asyncio.get_running_loop()

        with slow_sim() as engine:
            loop = asyncio.run(job())
            self.assertGreater(len(calls), 1)
            self.assertEqual(set(calls), {(threading.main_thread(), loop)})
            # As after a stream, the rows stay and none is lost.
            engine.cancel(1)
            engine.run()
            self.assertEqual(sorted(engine.poll().tags), [0, 1])

    def test_an_astream_without_rows_reports_nothing(self):
        async def job():
            return [result async for result in engine.astream([], progress=calls.append)]

        calls = []
        with sim() as engine:
            self.assertEqual((asyncio.run(job()), calls), ([], []))


class Score(unittest.TestCase):
    def test_scores_are_the_log_probabilities_of_what_would_be_generated(self):
        with batchllm.Engine(MODEL) as engine:
            prompts = batchllm.Tokenizer(MODEL).encode(PROMPTS)
            generated = engine.generate(prompts, SamplingParams(max_tokens=3, logprobs=0))
            continuations = [[result.tokens.tolist(), [5]] for result in generated]
            scored = engine.score(prompts, continuations)
            for one, other in zip(generated, scored):
                self.assertEqual(other.finish_reason, "scored")
                self.assertAlmostEqual(sum(one.logprobs), other.scores[0], places=3)
                self.assertEqual([len(part) for part in other.score_logprobs], [3, 1])
            shared = engine.score(PROMPTS, [" yes", " no"])
            self.assertEqual([len(result.scores) for result in shared], [2] * 4)
            self.assertEqual(engine.score(PROMPTS, [[" yes", " no"]] * 4).scores.tolist(), shared.scores.tolist())
            ids = [array("i", [5]), array("i", [6])]
            self.assertEqual(engine.score([[1, 2]], ids).scores.tolist(), engine.score([[1, 2]], [[5], [6]]).scores.tolist())
            for wrong, kind in (("yes", TypeError), ([], ValueError), ([[" a"]] * 3, ValueError), ([[" a"]] * 5, ValueError)):
                with self.assertRaises(kind):
                    engine.score(PROMPTS, wrong)


class Chat(unittest.TestCase):
    TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"

    def test_conversations_go_through_the_models_template(self):
        chats = [[{"role": "user", "content": "Hällo"}], [{"role": "system", "content": "Be"}, {"role": "user", "content": "x"}]]
        with tempfile.TemporaryDirectory() as folder:
            chat_model(folder, self.TEMPLATE)
            tokenizer = batchllm.Tokenizer(folder)
            texts = tokenizer.apply_chat_template(chats)
            self.assertEqual(texts.to_pylist(), ["[user]Hällo[assistant]", "[system]Be[user]x[assistant]"])
            bare = tokenizer.apply_chat_template(chats, add_generation_prompt=False)
            self.assertEqual(bare.to_pylist()[0], "[user]Hällo")
            with batchllm.Engine(folder) as engine:
                by_chat = engine.generate(chats + [[{"role": 3}]], SamplingParams(max_tokens=4))
                by_text = engine.generate(texts, SamplingParams(max_tokens=4, add_special=False))
        self.assertEqual([by_chat[i].tokens.tolist() for i in (0, 1)], [one.tokens.tolist() for one in by_text])
        self.assertIn("ROW_TEMPLATE", by_chat[2].error)

    def test_a_model_without_a_template_fails_the_row_and_one_conversation_is_no_list_of_them(self):
        message = {"role": "user", "content": "Hello"}
        with tempfile.TemporaryDirectory() as folder, batchllm.Engine(chat_model(folder, None)) as engine:
            engine.add([[message]])
            engine.run()
            self.assertIn("ROW_TEMPLATE", engine.poll()[0].error)
            with self.assertRaisesRegex(TypeError, "one conversation"):
                engine.generate([message])


class Options(unittest.TestCase):
    def test_info_says_what_the_options_became(self):
        with sim(step_tokens=300) as engine:
            info = engine.info()
            self.assertEqual((info.backend, info.device_count, info.vocabulary, info.kv_pages), ("sim", 1, 1000, 4096))
            self.assertEqual(info.kv_page_bytes, engine.stats().kv_page_bytes)
            self.assertEqual(info.step_tokens, 300)
            with self.assertRaisesRegex(ValueError, "device is 1"):
                engine.info(1)
        states = pathlib.Path(__file__).parents[3] / "tests/golden/qwen3_5_bf16"
        with batchllm.Engine(states, backend="cpu", kv_memory_bytes=64 << 20, backend_options={"state_slots": 7}) as engine:
            info, stats = engine.info(), engine.stats()
            self.assertEqual((info.state_slots, stats.state_slots_total, stats.state_slots_peak), (7, 7, 0))
            self.assertEqual(info.state_slot_bytes, stats.state_slot_bytes)
        with batchllm.Engine(MODEL, compute_type="f32") as engine:
            info = engine.info()
            self.assertEqual((info.state_slots, info.state_slot_bytes), (0, 0))
            self.assertIn(info.backend, ("cpu", "cuda"))
            self.assertEqual((info.compute_type, info.vocabulary), ("f32", 290))

    def test_devices_that_work_as_one_say_what_one_says(self):
        said = []
        for ranks in (1, 2, "auto"):
            options = {"tensor_parallel": ranks}
            with batchllm.Engine(MODEL, backend="cpu", compute_type="f32", backend_options=options) as engine:
                self.assertEqual(" 2 ranks" in engine.info().device, ranks == 2)
                self.assertEqual(engine.info().device_count, 1)
                said.append([result.tokens.tolist() for result in engine.generate(PROMPTS, SamplingParams(max_tokens=8))])
        self.assertEqual(said[1:], [said[0], said[0]])

    def test_options_arrive_and_wrong_ones_are_named(self):
        for options, text in (
            ({"backend": "gpu"}, "gpu"),
            ({"step_tokens": -1}, "step_tokens"),
            ({"backend": "sim", "backend_options": {"page_tokens": 0}}, "page_tokens"),
            ({"enlarge": "more"}, "'optimal'"),
            ({"levels": 7}, "levels"),
            ({"levels": "many"}, "'auto'"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                batchllm.Engine(MODEL, **options)
        for options, text in (({"threads": "4"}, "threads is '4'"), ({"seed": -1}, "seed is -1"), ({"backend": 5}, "backend is 5"),
                              ({"step_tokens": 1.5}, "step_tokens is 1.5"), ({"backend": "sim\0"}, "null byte"),
                              ({"timeline": "a\0b"}, "null byte")):
            with self.assertRaisesRegex((TypeError, ValueError), text):
                batchllm.Engine(MODEL, **options)
        for path in (os.fsencode(MODEL), pathlib.Path(MODEL)):
            batchllm.Engine(path).close()
        with self.assertRaises(batchllm.FileError) as caught:
            batchllm.Engine("/no/such/model")
        self.assertIsInstance(caught.exception, OSError)
        self.assertEqual(caught.exception.status, 3)
        with self.assertRaises(batchllm.Error):
            batchllm.Engine(MODEL, compute_type="f31")

    def test_timeline_and_log_are_written(self):
        logger = logging.getLogger("batchllm.test")
        with tempfile.TemporaryDirectory() as folder, self.assertLogs(logger, logging.INFO) as logs:
            with sim(timeline=f"{folder}/steps.csv", logger=logger) as engine:
                engine.generate(rows(3))
            with open(f"{folder}/steps.csv") as lines:
                self.assertGreater(len(lines.readlines()), 1)
        self.assertIn("KV pages", logs.output[0])

    def test_what_a_log_handler_raises_comes_out_of_the_call(self):
        class Handler(logging.Handler):
            def emit(self, record):
                raise LookupError(record.getMessage())

        logger = logging.getLogger("batchllm.test_raise")
        logger.propagate = False
        logger.setLevel(logging.DEBUG)
        logger.addHandler(Handler())
        with self.assertRaisesRegex(LookupError, "KV pages"):
            sim(logger=logger)

    def test_json_of_results_holds_plain_values(self):
        with sim() as engine:
            json.dumps(engine.generate(rows(3), SamplingParams(logprobs=0)).to_pylist())


if __name__ == "__main__":
    unittest.main()
