"""Parameters by the names that other engines give them, and mistakes of a whole job."""

import dataclasses
import importlib.util
import inspect
import math
import pathlib
import pickle
import tempfile
import unittest

import batchllm
from batchllm import SamplingParams
from support import MODEL, chat_model, rows, sim


class Words(unittest.TestCase):
    def test_an_argument_that_does_not_exist_comes_with_the_one_that_may_be_meant(self):
        with sim() as engine:
            for call, named, hint in (
                (engine.generate, {"sampling_params": SamplingParams()}, r"'sampling_params'; did you mean params\?"),
                (engine.generate, {"use_tqdm": True}, r"did you mean progress\?"),
                (engine.generate, {"max_tokens": 3}, r"a field of SamplingParams: params=SamplingParams\(max_tokens=..\)"),
                (engine.stream, {"temperature": 1.0}, r"SamplingParams\(temperature=..\)"),
                (engine.astream, {"on_eror": "raise"}, r"did you mean on_error\?"),
                (engine.embed, {"dimension": 3}, r"did you mean dimensions\?"),
                (engine.score, {"continuations": [[1]], "plan": None}, r"there are rows, continuations"),
            ):
                with self.subTest(call=call), self.assertRaisesRegex(TypeError, hint):
                    call(rows(1), **named)
        with self.assertRaisesRegex(TypeError, r"'max_model_len'; did you mean max_request_tokens\?"):
            batchllm.Engine(MODEL, max_model_len=100)
        with self.assertRaisesRegex(TypeError, r"did you mean backend_options=\{'tensor_parallel': N\}\?"):
            batchllm.Engine(MODEL, tensor_parallel_size=100)
        self.assertEqual(list(inspect.signature(batchllm.Engine.run).parameters), ["self", "progress"])
        for named, hint in (
            ({"temprature": 1.0}, r"SamplingParams\(\) has no argument 'temprature'; did you mean temperature\?"),
            ({"max_new_tokens": 3}, r"did you mean max_tokens\?"),
            ({"guided_json": {}}, r"did you mean json_schema\?"),
        ):
            with self.subTest(named=named), self.assertRaisesRegex(TypeError, hint):
                SamplingParams(**named)
        self.assertEqual(next(iter(inspect.signature(SamplingParams).parameters)), "max_tokens")
        for named, hint in (
            ({"max_tokens": 3}, r"run_files\(\) has no argument 'max_tokens'; it is a field of SamplingParams: params="),
            ({"sampling_params": SamplingParams()}, r"did you mean params\?"),
            ({"backend": "sim"}, r"it is an option of the engine: engine_options=\{\"backend\": \.\.\}"),
            ({"use_tqdm": True}, r"did you mean progress\?"),
            ({"prompt": "text"}, r"did you mean prompt_column\?"),
            ({"model": MODEL}, r"'model'; did you mean engine\?"),
        ):
            with self.subTest(named=named), self.assertRaisesRegex(TypeError, hint):
                batchllm.run_files(MODEL, "in.parquet", "out.parquet", **named)

    def test_chat_takes_conversations_or_one(self):
        one = [{"role": "user", "content": "a"}]
        with tempfile.TemporaryDirectory() as folder:
            with batchllm.Engine(chat_model(folder, "{% for m in messages %}[{{ m.content }}]{% endfor %}")) as engine:
                params = SamplingParams(max_tokens=2)
                whole = engine.generate([one, one], params)
                self.assertEqual(engine.chat([one, one], params).texts, whole.texts)
                for single in (one, {"messages": one}):
                    self.assertEqual(engine.chat(single, params).texts, whole.texts[:1])
                with self.assertRaisesRegex(TypeError, "texts are prompts, which generate takes"):
                    engine.chat(["a"], params)

    def test_chat_has_what_conversations_may_have_for_all_of_them(self):
        template = ("{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}{{ tools[0].name if tools }}{{ documents | length if documents }}"
                    "{{ '>' if add_generation_prompt }}")
        one = [{"role": "user", "content": "a"}]
        tool = {"type": "function", "name": "f"}
        with tempfile.TemporaryDirectory() as folder:
            with batchllm.Engine(chat_model(folder, template)) as engine:
                params = SamplingParams(max_tokens=4)
                for keys in ({"chat_template_kwargs": {"mood": "!"}}, {"tools": [tool]}, {"documents": [{"text": "x"}]},
                             {"add_generation_prompt": False}, {"chat_template_kwargs": {"mood": "?"}, "tools": [tool]}):
                    want = engine.generate([{"messages": one, **keys}], params)[0]
                    own = {"messages": one, "chat_template_kwargs": {}, "tools": [], "documents": [], "add_generation_prompt": True}
                    for given in ([one, one], [one, {"messages": one}, None], ({"messages": one},), one, {"messages": one}):
                        found = engine.chat(given, params, **keys)
                        self.assertEqual(found[0].tokens.tolist(), want.tokens.tolist())
                        self.assertEqual([result.prompt_tokens for result in found if result.ok], [want.prompt_tokens] * (len(found) - len(found.failed)))
                    self.assertEqual(engine.chat([own], params, **keys).texts, engine.chat([one], params).texts)
                half = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
                self.assertEqual(engine.chat(half, params, continue_final_message=True, add_generation_prompt=False)[0].prompt_tokens,
                                 engine.generate(["ab"], SamplingParams(max_tokens=4, add_special=False))[0].prompt_tokens)
                with self.assertRaisesRegex(TypeError, "tools: needs a list of conversations"):
                    engine.chat(batchllm.Texts(b"", [0]), tools=[tool])
                for named, hint in (
                    ({"chat_template": "{{ a }}"}, "the model's own chat template is used"),
                    ({"enable_thinking": False}, r"chat\(.., chat_template_kwargs=\{'enable_thinking': ..\}\)"),
                    ({"mm_processor_kwargs": {}}, "there is none: pictures are prepared"),
                ):
                    with self.assertRaisesRegex(TypeError, hint):
                        engine.chat(one, **named)
                with self.assertRaisesRegex(TypeError, "'tools'; chat has it for all conversations, and a row may have its own: {'messages': .., 'tools': ..}"):
                    engine.generate([one], tools=[tool])

    def test_what_is_not_there_comes_with_what_does_the_same(self):
        for named, hint in (
            ("structured_outputs", "; SamplingParams.json_schema=.."), ("guided_decoding", "json_schema=.."), ("response_format", "json_schema=.."),
            ("allowed_token_ids", "; logit_bias="), ("spaces_between_special_tokens", "; there is none"), ("do_sample", "; temperature=0 is greedy"),
            ("max_completion_tokens", "did you mean max_tokens?"), ("stop_strings", "did you mean stop?"), ("min_new_tokens", "did you mean min_tokens?"),
            ("include_stop_str_in_output", "; there is none"), ("truncate_prompt_tokens", "; there is none"), ("num_return_sequences", "did you mean n?"),
            ("top_logprobs", "; logprobs=N"), ("pad_token_id", "; there is none"), ("best_of", "; there is none"),
        ):
            with self.subTest(named), self.assertRaises(TypeError) as caught:
                SamplingParams(**{named: 1})
            self.assertIn(hint.replace("SamplingParams.", "SamplingParams("), str(caught.exception))
            self.assertNotIn("stop_token_ids", str(caught.exception))
        with sim() as engine, self.assertRaisesRegex(TypeError, "'messages'; generate takes conversations as rows"):
            engine.generate(messages=[])
        with self.assertRaisesRegex(TypeError, "json_schema=.."):
            batchllm.run_files(MODEL, "in.parquet", "out.parquet", response_format={})
        with self.assertRaisesRegex(TypeError, "there is none: no code"):
            batchllm.Engine(MODEL, trust_remote_code=True)

    def test_biases_leave_only_the_tokens_that_are_allowed(self):
        with batchllm.Engine(MODEL) as engine:
            ids = [70, 71, 72]
            results = engine.generate(["a"], SamplingParams(max_tokens=200, temperature=1.0, n=4, logit_bias={one: 1000.0 for one in ids}))
        self.assertEqual(set().union(*(result.tokens for result in results)), set(ids))
        self.assertEqual([len(result.tokens) for result in results], [200] * 4)

    def test_spark_is_there_without_an_import_of_its_own(self):
        self.assertTrue(callable(batchllm.spark.transform))
        with self.assertRaisesRegex(AttributeError, "no attribute 'sparks'"):
            batchllm.sparks

    def test_two_names_are_one_parameter(self):
        self.assertEqual(SamplingParams(n=3), SamplingParams(samples=3))
        self.assertEqual(SamplingParams(samples=3).n, 3)
        self.assertEqual(SamplingParams(stop_token_ids=[1]).stop_tokens, [1])
        self.assertEqual(SamplingParams(stop_tokens=[1]).stop_token_ids, [1])
        self.assertEqual(SamplingParams(n=2, samples=2).samples, 2)
        for wrong in ({"n": 3, "samples": 2}, {"stop_tokens": [1], "stop_token_ids": [2]}):
            with self.assertRaisesRegex(ValueError, "the same parameter, give one"):
                SamplingParams(**wrong)

    def test_what_means_none_elsewhere_means_none_here(self):
        with batchllm.Engine(MODEL) as engine:
            plain = engine.generate(["a"], SamplingParams(max_tokens=8, temperature=1.0))[0]
            same = SamplingParams(max_tokens=8, temperature=1.0, top_k=-1, seed=None, logprobs=None, stop=None, stop_token_ids=None,
                                  logit_bias=None, min_tokens=0, bad_words=None, prompt_logprobs=None)
            self.assertEqual(engine.generate(["a"], same)[0].tokens.tolist(), plain.tokens.tolist())
            mixed = engine.generate(["a", "a"], [same, SamplingParams(max_tokens=8, temperature=1.0, top_k=1)])
            self.assertTrue(all(one.ok for one in mixed))
            cut = plain.text[2]
            for stop in (cut, [cut], (cut,)):
                result = engine.generate(["a"], SamplingParams(max_tokens=8, temperature=1.0, stop=stop))[0]
                self.assertEqual(result.text, plain.text[: plain.text.index(cut)])
                self.assertEqual(result.finish_reason, "stop")
            token = plain.tokens[3]
            result = engine.generate(["a"], SamplingParams(max_tokens=8, temperature=1.0, stop_token_ids=[token]))[0]
            self.assertEqual(result.tokens.tolist(), plain.tokens.tolist()[: plain.tokens.tolist().index(token) + 1])

    def test_true_asks_for_the_log_probabilities_of_the_tokens_alone(self):
        for name in ("logprobs", "prompt_logprobs"):
            self.assertEqual([getattr(SamplingParams(**{name: value}), name) for value in (True, False, 0, 1, 5)], [0, -1, 0, 1, 5])
        with batchllm.Engine(MODEL) as engine:
            for name, top in (("logprobs", "top_logprobs"), ("prompt_logprobs", "prompt_top_logprobs")):
                given = [engine.generate(["abc"], SamplingParams(max_tokens=2, **{name: value}))[0] for value in (True, False, 1)]
                self.assertEqual([len(getattr(one, name)) > 0 for one in given], [True, False, True])
                self.assertEqual([name in one for one in given], [True, False, True])
                self.assertEqual([top in one for one in given], [False, False, True])

    def test_nothing_ends_a_row_before_min_tokens(self):
        with batchllm.Engine(MODEL) as engine:
            free = engine.generate(["a"], SamplingParams(max_tokens=8))[0].tokens.tolist()
            stops = [free[0], free[2]]
            short = engine.generate(["a"], SamplingParams(max_tokens=8, stop_token_ids=stops))[0]
            self.assertEqual(short.tokens.tolist(), free[:1])
            long = engine.generate(["a"], SamplingParams(max_tokens=8, stop_token_ids=stops, min_tokens=4))[0]
            self.assertGreater(len(long.tokens), 4)
            self.assertFalse(set(stops) & set(long.tokens.tolist()[:4]))
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "min_tokens is 9: it must be at most max_tokens, 8"):
                engine.generate(["a"], SamplingParams(max_tokens=8, min_tokens=9))

    def test_bad_words_are_not_generated(self):
        tokenizer = batchllm.Tokenizer(MODEL)
        with batchllm.Engine(MODEL) as engine:
            found = 0
            for prompt in "abcdefghij":
                free = engine.generate([prompt], SamplingParams(max_tokens=8))[0].tokens.tolist()
                word = tokenizer.decode_one(free[2:4])
                if "\0" in word or word.startswith(" ") or tokenizer.encode_one(word, add_special=False) != free[2:4]:
                    continue
                found += 1
                for words in ([word], ["unsaid", word]):
                    tokens = engine.generate([prompt], SamplingParams(max_tokens=8, bad_words=words))[0].tokens.tolist()
                    pairs = list(zip(free, free[1:]))
                    first = pairs.index((free[2], free[3]))
                    self.assertEqual(tokens[: first + 1], free[: first + 1])  # up to the word's last token
                    self.assertNotIn((free[2], free[3]), zip(tokens, tokens[1:]))
            self.assertGreater(found, 0)
            one, several = (engine.generate(["a"], SamplingParams(bad_words=words))[0] for words in ("word", ["word"]))
            self.assertEqual(one.tokens.tolist(), several.tokens.tolist())  # not its letters
        with sim() as engine, self.assertRaisesRegex(batchllm.InvalidArgumentError, "bad_words need a tokenizer"):
            engine.generate(rows(3), SamplingParams(bad_words=["a"]))

    def test_prompt_logprobs_are_those_of_scoring(self):
        ids = batchllm.Tokenizer(MODEL).encode_one("The capital of")
        with batchllm.Engine(MODEL) as engine:
            scored = engine.score([ids[:1]], [[ids[1:]]])[0].score_logprobs[0]
            params = SamplingParams(max_tokens=2, prompt_logprobs=2, n=2)
            results = engine.generate([ids, ids[:5]], params)
        for one, other in zip(results[0].prompt_logprobs, scored, strict=True):
            self.assertTrue(math.isclose(one, other, abs_tol=1e-4))
        self.assertEqual([len(top) for top in results[0].prompt_top_logprobs], [2] * (len(ids) - 1))
        self.assertEqual([len(result.prompt_logprobs) for result in results], [len(ids) - 1, 0, 4, 0])
        self.assertEqual(results[2].to_dict()["prompt_top_logprobs"][0][0].keys(), {"token", "logprob"})
        if any(importlib.util.find_spec(package) is None for package in ("pandas", "pyarrow")):
            self.skipTest("the rest needs pandas and pyarrow")
        table = results.to_arrow()
        self.assertEqual(table.column("prompt_logprobs").to_pylist()[0], list(results[0].prompt_logprobs))
        self.assertEqual(len(table.column("prompt_top_logprobs").to_pylist()[2]), 4)
        frame = results.to_pandas(samples="lists")
        self.assertEqual([len(one[0]) for one in frame["prompt_logprobs"]], [len(ids) - 1, 4])

    def test_prompt_logprobs_of_a_prompt_of_one_token_are_an_empty_list(self):
        params = SamplingParams(max_tokens=2, prompt_logprobs=2)
        with batchllm.Engine(MODEL) as engine:
            first, second = engine.generate([[70], [71]], params), engine.generate([[70], [71, 72]], [params, params])
            streamed = next(iter(engine.stream([[70]], params)))
            plain = engine.generate([[70]], SamplingParams(max_tokens=2))
        for result in (first[0], first[1], second[0], streamed):
            self.assertEqual((result["prompt_logprobs"], result["prompt_top_logprobs"]), ([], []))
            self.assertNotIn("logprobs", result)
        self.assertEqual([len(result["prompt_top_logprobs"]) for result in second], [0, 1])
        self.assertNotIn("prompt_logprobs", plain[0])
        if any(importlib.util.find_spec(package) is None for package in ("pandas", "polars", "pyarrow")):
            self.skipTest("the rest needs pandas, Polars and pyarrow")
        for name in ("prompt_logprobs", "prompt_top_logprobs"):
            self.assertEqual(first.to_arrow().column(name).to_pylist(), [[], []])
            self.assertEqual(first.to_arrow(samples="lists").column(name).to_pylist(), [[[]], [[]]])
            self.assertEqual(first.to_polars()[name].to_list(), [[], []])
            self.assertEqual([len(one) for one in first.to_pandas()[name]], [0, 0])

    def test_the_signature_says_what_the_fields_say(self):
        signature = inspect.signature(SamplingParams).parameters
        names = [field.name for field in dataclasses.fields(SamplingParams)]
        self.assertEqual(list(signature)[: len(names)], names)
        made = SamplingParams()
        for field in dataclasses.fields(SamplingParams):
            default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
            self.assertEqual(getattr(made, field.name), default, field.name)
        params = SamplingParams(n=2, stop="x", seed=None)
        self.assertEqual(dataclasses.replace(params, samples=3).n, 3)
        self.assertEqual(pickle.loads(pickle.dumps(params)), params)
        with self.assertRaises(dataclasses.FrozenInstanceError):
            params.samples = 4

    def test_help_tells_every_parameter_s_meaning(self):
        for kind in (SamplingParams, batchllm.Progress, batchllm.EngineInfo, batchllm.EngineStats, batchllm.PlanStats):
            for field in dataclasses.fields(kind):
                self.assertRegex(inspect.getdoc(kind), rf"(?m)^(?:\w+, )*{field.name}(?:, \w+)*: ", f"{kind.__name__}: {field.name}")
        for call in (batchllm.Engine, batchllm.Engine.generate, batchllm.Engine.generate_table, batchllm.Engine.score,
                     batchllm.Engine.embed, batchllm.Engine.stream, batchllm.Plan.build, batchllm.Table,
                     batchllm.run_files):
            text = inspect.getdoc(call)
            names = [name for name in inspect.signature(call).parameters if name != "self"]
            for name in names:
                self.assertRegex(text, rf"\b{name}\b", f"{call.__qualname__}: {name}")


class Mistakes(unittest.TestCase):
    """Mistakes of a whole job: an immediate error instead of a result for each row."""

    def test_parameters_out_of_range_for_all_rows(self):
        with sim() as engine:
            for wrong, words in (
                ({"temperature": -1.0}, "temperature is -1: must be 0 or a positive number"),
                ({"top_p": 0.0}, "top_p is 0"),
                ({"max_tokens": 0}, "max_tokens is 0"),
                ({"top_k": -2}, "top_k is -2"),
                ({"samples": 0}, "samples .n. is 0"),
                ({"stop_tokens": [5000]}, "stop_tokens.0. is 5000"),
                ({"stop": "x"}, "stop_strings need a tokenizer"),
            ):
                for call in (engine.generate, lambda *given: list(engine.stream(*given))):
                    with self.subTest(wrong=wrong), self.assertRaisesRegex(batchllm.InvalidArgumentError, f"no row can run: .*{words}"):
                        call(rows(20), SamplingParams(**wrong))
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, words):
                    engine.add(rows(2), SamplingParams(**wrong))
            self.assertEqual(engine.stats().rows, 0)  # refused before any row was added
            # Nothing of them is left, and a failure from a row's own parameters or tokens is still that row's.
            self.assertEqual(len(engine.poll()), 0)
            results = engine.generate(rows(2), [SamplingParams(temperature=-1.0), SamplingParams(max_tokens=2)])
            self.assertEqual(results.failed, [0])
            self.assertEqual(engine.generate([[], []]).failed, [0, 1])
            self.assertEqual(engine.generate([[5000], [5000]]).failed, [0, 1])

    def test_a_whole_number_that_does_not_fit_comes_with_the_range(self):
        for wrong, words in (
            ({"seed": -1}, "seed is -1: must be from 0 to 18446744073709551615"),
            ({"seed": 1 << 64}, "seed is 18446744073709551616: must be from 0 to 18446744073709551615"),
            ({"max_tokens": 1 << 40}, "max_tokens is 1099511627776: must be at least 1, of 32 bits"),
            ({"max_tokens": 1 << 70}, "max_tokens is 1180591620717411303424: must be at least 1"),
            ({"min_tokens": -1 << 40}, "min_tokens is -1099511627776: must be at least 0"),
            ({"n": 1 << 40}, "samples is 1099511627776: must be from 1 to 65536"),
            ({"top_k": 1 << 40}, "top_k is 1099511627776: must be 0 or -1"),
            ({"logprobs": 1 << 40}, "logprobs is 1099511627776: must be from -1"),
            ({"prompt_logprobs": 1 << 70}, "prompt_logprobs is 1180591620717411303424: must be from -1"),
            ({"stop_token_ids": [1, 1 << 40]}, "stop_tokens is 1099511627776: must be from 0 to 2147483647"),
            ({"logit_bias": {1 << 40: 1.0}}, "logit_bias is 1099511627776: must be from 0"),
            ({"temperature": 10**400}, "temperature: int too large"),
        ):
            with sim() as engine, self.subTest(wrong=str(wrong)[:60]):
                for params in (SamplingParams(**wrong), [SamplingParams(), SamplingParams(**wrong)]):
                    with self.assertRaisesRegex(batchllm.InvalidArgumentError, f"^{words}"):
                        engine.generate(rows(2), params)
        bits = {"threads": 31, "min_prefix_tokens": 31, "seed": 64}
        for name in ("threads", "kv_memory_bytes", "step_tokens", "max_request_tokens", "max_requests", "min_prefix_tokens", "seed",
                     "adapter_memory_bytes"):
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, f"^{name} is {1 << 70}: it is from 0 to {(1 << bits.get(name, 63)) - 1}$"):
                sim(**{name: 1 << 70})
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, f"{name} is -1: it "):
                sim(**{name: -1})

    def test_chat_without_a_template(self):
        with tempfile.TemporaryDirectory() as folder:
            chat_model(folder, None)
            with batchllm.Engine(folder) as engine:
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, "no row can run: the model has no chat template.*pass the prompts as text"):
                    engine.generate([[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]])
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, "no chat template"):
                    engine.generate_table({"a": ["x", "y"]}, "{a}", chat=True)
                # A row that is null says nothing about the model.
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, "no chat template"):
                    engine.generate([None, [{"role": "user", "content": "a"}]])
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, "no chat template"):
                    engine.generate_table({"a": ["x", None]}, "{a}", chat=True)
                self.assertEqual(engine.generate([None, None]).failed, [0, 1])
                for keys, words in (({"tools": {"a": 1}}, "tools: a list of dicts"), ({"tools": 3}, "tools: a list of dicts"), ({"documents": ["a"]}, "documents: a list of dicts"),
                                    ({"add_generation_prompt": "no"}, "add_generation_prompt: True or False"),
                                    ({"chat_template_kwargs": []}, "chat_template_kwargs: a dict"),
                                    ({"continue_final_message": 1}, "continue_final_message: True, False or a name")):
                    with self.assertRaisesRegex(TypeError, words):
                        engine.chat([[{"role": "user", "content": "a"}]], **keys)
                for rows, continuations, words in (
                        (["a"], [" yes", None], "continuations: None among texts"),
                        (["a"], [" yes", 5], "continuations: one int among texts"),
                        (["a", "b"], [[" yes"], None], "continuations of row 1: None in place of a list"),
                        (["a", "b"], [[" yes"], " no"], "continuations of row 1: one text in place of a list"),
                        (["a", None, "b"], [[" yes"], None, [5]], "continuations of row 2: one int among texts"),
                        (["a", "b"], [["a"], 7], "continuations of row 1: one int in place of a list"),
                        (["a", "b"], [[65], [66]], "continuations of row 0: one int among texts"),
                        ([[1], [2]], [[[3]], ["a"]], "continuations of row 1: one text among lists of token ids"),
                        ([[1], [2]], [3], "continuations: one int among lists of token ids"),
                        ([[1], [2]], [b"a"], "continuations: one text among lists of token ids")):
                    with self.subTest(words), self.assertRaisesRegex(TypeError, words):
                        engine.score(rows, continuations)
        with tempfile.TemporaryDirectory() as folder:
            chat_model(folder, "{{ raise_exception('no') }}")
            with batchllm.Engine(folder) as engine:
                self.assertEqual(engine.generate([[{"role": "user", "content": "a"}]]).failed, [0])

    def test_text_without_a_model(self):
        with sim() as engine, self.assertRaisesRegex(batchllm.StateError, "give it a model, or rows of token ids"):
            engine.generate(["a"])

    def test_a_name_on_the_hub_for_a_directory(self):
        for call in (batchllm.Engine, batchllm.Tokenizer):
            with self.assertRaisesRegex(batchllm.MissingFileError, "(?s)Qwen/Qwen3-0.6B: cannot open.*hf download Qwen/Qwen3-0.6B --local-dir") as caught:
                call("Qwen/Qwen3-0.6B")
            self.assertEqual(caught.exception.filename, "Qwen/Qwen3-0.6B")
            with self.assertRaises(batchllm.MissingFileError) as caught:
                call("./missing/model")
            self.assertNotIn("hf download", str(caught.exception))
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(batchllm.FileError) as caught:
                batchllm.Engine(pathlib.Path(folder) / "a")
            self.assertNotIn("hf download", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
