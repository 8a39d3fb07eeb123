"""Rows with adapters, against PEFT: tests/golden/adapters."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import batchllm
from batchllm import SamplingParams

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"
BASE = "llama_bias_f32"
NAMES = ("llama_qv_r4", "llama_one_layer")
open_adapter = batchllm.native.batchllm_adapter_open


class Adapters(unittest.TestCase):
    def setUp(self):
        self.said = {made["name"]: made for made in json.loads((GOLDEN / "adapters" / "adapters.json").read_text())["adapters"]}
        self.rows = json.loads((GOLDEN / BASE / "golden.json").read_text())["rows"]
        self.engine = batchllm.Engine(
            GOLDEN / BASE, backend="cpu", compute_type="f32", kv_memory_bytes=16 << 20,
            adapters={"one": GOLDEN / "adapters" / NAMES[0]}, adapter_memory_bytes=1 << 20)
        self.addCleanup(self.engine.close)
        self.engine.load_adapter("two", GOLDEN / "adapters" / NAMES[1])

    def assert_said(self, wanted, tokens):
        end = next((t for t, margin in enumerate(wanted["margins"]) if margin < 1e-3), len(wanted["margins"]))
        self.assertEqual(list(tokens)[:end], wanted["tokens"][:end])

    def test_rows_name_adapters(self):
        self.assertEqual(sorted(self.engine.adapters), ["one", "two"])
        prompts = [self.rows[i]["prompt"] for i in range(2) for _ in range(3)]
        params = [SamplingParams(max_tokens=24, adapter=name) for _ in range(2) for name in ("one", "two", None)]
        results = self.engine.generate(prompts, params)
        for i in range(2):
            for place, name in enumerate((*NAMES, None)):
                wanted = self.said[name]["rows"][i] if name else self.rows[i]
                self.assert_said(wanted, results[3 * i + place].tokens)
        stats = self.engine.stats()
        self.assertEqual((stats.adapters, stats.adapter_loads), (2, 2))
        self.assertEqual(self.engine.info().adapter_memory_bytes, 1 << 20)

    def test_one_adapter_for_all_rows(self):
        results = self.engine.generate([self.rows[0]["prompt"]], SamplingParams(max_tokens=24, adapter="two"))
        self.assert_said(self.said[NAMES[1]]["rows"][0], results[0].tokens)

    def test_scores(self):
        score = self.said[NAMES[0]]["score"]
        results = self.engine.score([self.rows[score["prompt"]]["prompt"]], score["continuations"], adapter="one")
        for got, logprobs in zip(results[0].scores, score["logprobs"]):
            self.assertAlmostEqual(got, sum(logprobs), delta=2e-3)

    def test_vectors(self):
        prompt = [self.rows[0]["prompt"]]
        plain, other = self.engine.embed(prompt), self.engine.embed(prompt, adapter="one")
        self.assertGreater(abs(plain - other).max(), 1e-3)

    def test_a_call_keeps_an_adapter_that_is_removed_while_it_reads_its_rows(self):
        prompts = [row["prompt"] for row in self.rows[:2]]

        def rows():
            self.engine.remove_adapter("one")
            yield from prompts

        wanted = self.engine.embed(prompts, adapter="one")
        self.assertTrue((self.engine.embed(rows(), adapter="one") == wanted).all())

    @unittest.skipIf(importlib.util.find_spec("pyarrow") is None, "needs pyarrow")
    def test_files_are_run_with_an_adapter_and_not_resumed_with_another(self):
        import pyarrow
        import pyarrow.parquet

        with tempfile.TemporaryDirectory() as folder:
            source, target, stats = (f"{folder}/{name}" for name in ("in.parquet", "out.parquet", "stats.json"))
            prompts = pyarrow.array([row["prompt"] for row in self.rows], pyarrow.list_(pyarrow.int32()))
            pyarrow.parquet.write_table(pyarrow.table({"prompt": prompts}), source)
            given = {"params": SamplingParams(max_tokens=8, logprobs=0, adapter="one"), "stats": stats}
            batchllm.run_files(self.engine, source, target, **given)
            wanted = self.engine.generate(prompts, given["params"])
            for row, result in zip(pyarrow.parquet.read_table(target).to_pylist(), wanted, strict=True):
                self.assertEqual(row["logprobs"], result["logprobs"])
            self.assertEqual(json.loads(pathlib.Path(stats).read_text())["adapters"]["used"], 1)
            self.engine.load_adapter("one", GOLDEN / "adapters" / NAMES[1])
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "content of the adapter"):
                batchllm.run_files(self.engine, source, target, resume=True, **given)

    @unittest.skipIf(importlib.util.find_spec("pyarrow") is None, "needs pyarrow")
    def test_each_row_of_a_file_has_its_own_adapter(self):
        import pyarrow
        import pyarrow.parquet

        prompt = [row["prompt"] for row in self.rows[:2]]
        names = ["one", None, "", "three", "two"]
        table = pyarrow.table({
            "prompt": pyarrow.array([prompt[i % 2] for i in range(10)], pyarrow.list_(pyarrow.int32())),
            "who": [names[i // 2] for i in range(10)],
        })  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            source, target = f"{folder}/in.parquet", f"{folder}/out.parquet"
            pyarrow.parquet.write_table(table, source)
            given = {"params": SamplingParams(max_tokens=24, adapter="two"), "adapter_column": "who", "chunk_rows": 4}
            report = batchllm.run_files(self.engine, source, target, **given)
            self.assertEqual((report.rows, report.failed), (10, 2))
            found = pyarrow.parquet.read_table(target).to_pylist()
            texts = {}
            for params in (None, "one", "two"):
                made = self.engine.generate(prompt, SamplingParams(max_tokens=24, adapter=params))
                texts[params] = [one.text for one in made]
            for i, row in enumerate(found):
                if names[i // 2] == "three":
                    self.assertIn("ROW_ADAPTER: there is no adapter 'three'", row["error"])
                    self.assertEqual((row["text"], row["finish_reason"], row["prompt_tokens"]), (None, "error", 0))
                else:
                    wanted = {"one": "one", None: "two", "": None, "two": "two"}[names[i // 2]]
                    self.assertEqual((row["error"], row["text"]), (None, texts[wanted][i % 2]), i)
            self.engine.load_adapter("one", GOLDEN / "adapters" / NAMES[1])
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "adapter one"):
                batchllm.run_files(self.engine, source, target, resume=True, **given)
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "adapter_column: .* has no column 'whom'"):
                batchllm.run_files(self.engine, source, target, force=True, adapter_column="whom")
            vectors, wanted = f"{folder}/vectors.parquet", self.engine.embed(prompt, adapter="two")
            batchllm.run_files(self.engine, source, vectors, task="embed", adapter_column="who")
            found = pyarrow.parquet.read_table(vectors)["embedding"][8].as_py()
            self.assertLess(max(abs(a - b) for a, b in zip(found, wanted[0], strict=True)), 1e-4)  # in other company

    @unittest.skipIf(importlib.util.find_spec("pyarrow") is None, "needs pyarrow")
    def test_a_directory_of_adapters_is_loaded_as_rows_name_them(self):
        import pyarrow
        import pyarrow.parquet

        with tempfile.TemporaryDirectory() as folder:
            for name, made in (("a", NAMES[0]), ("b", NAMES[1]), ("foreign", "phi3_fused"), ("unused", "phi3_fused")):
                shutil.copytree(GOLDEN / "adapters" / made, f"{folder}/adapters/{name}")
            os.mkdir(f"{folder}/adapters/empty")
            os.mkdir(f"{folder}/adapters/pipe")
            shutil.copy(f"{folder}/adapters/a/adapter_config.json", f"{folder}/adapters/pipe")
            os.mkfifo(f"{folder}/adapters/pipe/adapter_model.safetensors")
            source, target = f"{folder}/in.parquet", f"{folder}/out.parquet"
            prompt = self.rows[0]["prompt"]
            names = ["a", "b", "foreign", "../adapters/a", "empty", None, "pipe"]
            prompts = pyarrow.array([prompt] * len(names), pyarrow.list_(pyarrow.int32()))
            pyarrow.parquet.write_table(pyarrow.table({"prompt": prompts, "adapter": names}), source)
            options = {"backend": "cpu", "compute_type": "f32", "kv_memory_bytes": 16 << 20}
            given = {"adapters": f"{folder}/adapters", "engine_options": options, "adapter_column": "adapter",
                     "params": SamplingParams(max_tokens=24), "stats": f"{folder}/stats.json"}  # fmt: skip
            batchllm.run_files(GOLDEN / BASE, source, target, **given)
            found = pyarrow.parquet.read_table(target).to_pylist()
            for at, name in enumerate(NAMES):
                result = self.engine.generate([prompt], SamplingParams(max_tokens=24, adapter=("one", "two")[at]))[0]
                self.assertEqual(found[at]["text"], result.text)
            self.assertEqual([row["error"] is None for row in found], [True, True, False, False, False, True, False])
            self.assertRegex(found[2]["error"], "^ROW_ADAPTER: .*foreign")
            self.assertRegex(found[3]["error"], "^ROW_ADAPTER: there is no adapter '../adapters/a'")
            self.assertEqual(json.loads(pathlib.Path(given["stats"]).read_text())["adapters"]["used"], 2)
            # One that comes and one whose weights come can have had no result; all others must stay as they are.
            shutil.copytree(GOLDEN / "adapters" / NAMES[1], f"{folder}/adapters/later")
            os.remove(f"{folder}/adapters/pipe/adapter_model.safetensors")
            shutil.copy(f"{folder}/adapters/a/adapter_model.safetensors", f"{folder}/adapters/pipe")
            batchllm.run_files(GOLDEN / BASE, source, target, resume=True, retry_failed=True, **given)
            found = pyarrow.parquet.read_table(target).to_pylist()
            self.assertEqual([row["error"] is None for row in found], [True, True, False, False, False, True, True])
            self.assertEqual(found[6]["text"], found[0]["text"])
            for name in ("unused", "later"):
                weights = pathlib.Path(folder, "adapters", name, "adapter_model.safetensors")
                was = weights.read_bytes()
                weights.write_bytes(was[:-1] + b"!")
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, f"adapter {name} "):
                    batchllm.run_files(GOLDEN / BASE, source, target, resume=True, **given)
                weights.write_bytes(was)

    def test_an_adapter_in_place_of_a_listed_one_is_identified_by_its_content(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(GOLDEN / "adapters" / NAMES[0], pathlib.Path(folder) / "one")
            with batchllm.Engine(GOLDEN / BASE, backend="cpu", compute_type="f32", kv_memory_bytes=16 << 20, adapters=folder) as engine:
                listed = engine._adapters.identities(engine._enter())
                for name in ("one", "other"):
                    engine.load_adapter(name, GOLDEN / "adapters" / NAMES[1])
                loaded = engine._adapters.identities(engine._enter())
        self.assertNotEqual(listed["one"], loaded["one"])
        self.assertEqual(loaded["one"], loaded["other"])

    def test_adapters_are_loaded_where_no_thread_can_be_started(self):
        adapters = {name: GOLDEN / "adapters" / name for name in NAMES}
        with unittest.mock.patch("batchllm.adapters.ThreadPoolExecutor", side_effect=RuntimeError("can't start new thread")):
            with batchllm.Engine(GOLDEN / BASE, backend="cpu", compute_type="f32", kv_memory_bytes=16 << 20, adapters=adapters) as engine:
                self.assertEqual(sorted(engine.adapters), sorted(NAMES))

    def test_an_empty_or_a_missing_name_is_no_adapter(self):
        prompt = [self.rows[0]["prompt"]] * 2
        NAType = type("NAType", (), {"__bool__": lambda self: self.fail("an NA is neither true nor false"), "fail": self.fail})  # as pandas has it
        bare, *others = (self.engine.generate(prompt, [SamplingParams(max_tokens=8, adapter=name), SamplingParams(max_tokens=8, adapter="one")])
                         for name in (None, "", float("nan"), NAType()))  # fmt: skip
        for named in others:
            self.assertEqual([one.tokens.tolist() for one in named], [one.tokens.tolist() for one in bare])
        self.assertNotEqual(bare[0].tokens.tolist(), bare[1].tokens.tolist())
        self.assertEqual(self.engine.embed(prompt, adapter="")[0].tolist(), self.engine.embed(prompt)[0].tolist())

    def test_what_cannot_be_adapters_is_refused(self):
        options = {"backend": "cpu", "compute_type": "f32", "kv_memory_bytes": 16 << 20}
        one = GOLDEN / "adapters" / NAMES[0]
        with self.assertRaisesRegex(ValueError, "is an adapter itself"):
            batchllm.Engine(GOLDEN / BASE, adapters=one, **options)
        with self.assertRaisesRegex(TypeError, "list: a directory of adapters, or a dict"):
            batchllm.Engine(GOLDEN / BASE, adapters=[one], **options)
        for params in (None, SamplingParams()):
            with self.assertRaisesRegex(ValueError, "no row can name one"):
                batchllm.run_files(GOLDEN / BASE, "in.parquet", "out.parquet", adapters={"one": one}, params=params)

    def test_adapters_that_start_from_the_base_model_as_it_is_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            one = shutil.copytree(GOLDEN / "adapters" / NAMES[0], f"{folder}/one")
            config = json.loads(pathlib.Path(one, "adapter_config.json").read_text())
            for start, read in ((True, True), ("gaussian", True), ("eva", True), ("orthogonal", True), ("mica", True), ("pissa", False), ("corda", False)):
                pathlib.Path(one, "adapter_config.json").write_text(json.dumps({**config, "init_lora_weights": start}))
                if read:
                    self.engine.load_adapter("start", one)
                else:
                    with self.assertRaisesRegex(batchllm.UnsupportedError, f'"init_lora_weights" is "{start}"'):
                        self.engine.load_adapter("start", one)

    def test_of_several_adapters_the_first_bad_one_in_order_is_raised(self):
        paths = {name: GOLDEN / "adapters" / made for name, made in
                 (("a", NAMES[0]), ("foreign", "phi3_fused"), ("none", "none"), ("b", NAMES[1]))}  # fmt: skip
        options = {"backend": "cpu", "compute_type": "f32", "kv_memory_bytes": 16 << 20, "adapter_memory_bytes": 1 << 20}
        with self.assertRaises(batchllm.AdapterFormatError):
            batchllm.Engine(GOLDEN / BASE, adapters=paths, **options)
        with tempfile.TemporaryDirectory() as folder:
            for name in ("a", "foreign", "b"):
                shutil.copytree(paths[name], f"{folder}/{name}")
            with batchllm.Engine(GOLDEN / BASE, adapters=folder, **options) as engine:
                def rows(*names):
                    return [[5, 6, 7]] * len(names), [SamplingParams(max_tokens=4, adapter=name) for name in names]

                with self.assertRaisesRegex(batchllm.InvalidArgumentError, "^row 1: there is no adapter 'c' in " + folder):
                    engine.generate(*rows("a", "c", "foreign", "b"))
                with self.assertRaisesRegex(batchllm.AdapterFormatError, "^row 0: .*foreign"):
                    engine.generate(*rows("foreign", "c"))
                os.unlink(f"{folder}/foreign/adapter_config.json")
                with self.assertRaisesRegex(batchllm.MissingFileError, "^row 2: .*foreign/adapter_config.json") as missing:
                    engine.generate(*rows("a", "", "foreign"))
                self.assertEqual(missing.exception.filename, f"{folder}/foreign/adapter_config.json")
                self.assertEqual(len(engine.generate(*rows("a", "b", "a"))), 3)
                self.assertEqual(engine.stats().adapters, 2)

    def test_an_adapter_that_cannot_be_used_raises_with_its_row_before_any_row_is_added(self):
        class Stream:  # of two chunks, the second with the bad row
            def __arrow_c_stream__(self, requested_schema=None):
                import pyarrow

                return pyarrow.chunked_array([[[5, 6]] * 2, [[5, 6]] * 2], pyarrow.list_(pyarrow.int32())).__arrow_c_stream__()

        params = [SamplingParams(max_tokens=2, adapter=name) for name in ("one", "two", "one", "three")]
        given = [[[5, 6]] * 4] + ([Stream()] if importlib.util.find_spec("pyarrow") else [])
        for rows in given:
            for call in (self.engine.generate, self.engine.add, lambda *of: list(self.engine.stream(*of))):
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, r"^row 3: there is no adapter 'three': load it with Engine\(adapters=..\) or load_adapter$"):
                    call(rows, params)
        self.assertEqual(self.engine.stats().rows, 0)

    def test_names_that_are_no_names_are_refused_with_what_to_do(self):
        class Series(list):
            def __bool__(self):
                raise ValueError("The truth value of a Series is ambiguous")

        for given in (["one", "one"], Series(["one", "one"]), 5):
            words = f"adapter is one {type(given).__name__}: the name of one adapter is expected; .* list of SamplingParams, one for each row"
            for call in (
                lambda: self.engine.generate([[5, 6]] * 2, SamplingParams(adapter=given)),
                lambda: self.engine.generate([[5, 6]] * 2, [SamplingParams(), SamplingParams(adapter=given)]),
                lambda: self.engine.embed([[5, 6]] * 2, adapter=given),
                lambda: self.engine.score([[5, 6]] * 2, [[7]], adapter=given),
                lambda: batchllm.run_files(self.engine, "in.parquet", "out.parquet", params=SamplingParams(adapter=given)),
            ):
                with self.assertRaisesRegex(TypeError, words):
                    call()
        self.assertEqual(self.engine.stats().rows, 0)

    @unittest.skipIf(importlib.util.find_spec("pyarrow") is None, "needs pyarrow")
    def test_the_program_names_its_options_for_an_adapter_that_is_not_there(self):
        import pyarrow
        import pyarrow.parquet

        with tempfile.TemporaryDirectory() as folder:
            source, target = f"{folder}/in.parquet", f"{folder}/out.parquet"
            os.makedirs(f"{folder}/adapters/empty")
            names = ["no", "empty", "../no", None]
            prompts = pyarrow.array([[5, 6]] * len(names), pyarrow.list_(pyarrow.int32()))
            pyarrow.parquet.write_table(pyarrow.table({"prompt": prompts, "adapter": names}), source)
            job = [sys.executable, "-m", "batchllm", "run", "--model", GOLDEN / BASE, "--backend", "cpu", "--kv-memory", "16MiB", "--progress", "none",
                   "--input", source, "--output", target, "--max-tokens", "2", "--force"]  # fmt: skip
            one = f"one={GOLDEN / 'adapters' / NAMES[0]}"
            for options, where in (("--adapter", one), ""), (("--adapters", f"{folder}/adapters"), f" in {folder}/adapters"):
                done = subprocess.run([*job, *options, "--use-adapter", "no"], capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stderr), (1, f"batchllm: there is no adapter 'no'{where} (--adapter, --adapters)\n"))
                subprocess.run([*job, *options, "--adapter-column", "adapter"], check=False)
                errors = pyarrow.parquet.read_table(target)["error"].to_pylist()
                self.assertEqual(errors[0], f"ROW_ADAPTER: there is no adapter 'no'{where} (--adapter, --adapters)")
                self.assertEqual(errors[2:], [f"ROW_ADAPTER: there is no adapter '../no'{where} (--adapter, --adapters)", None])
            self.assertEqual(errors[1], f"ROW_ADAPTER: there is no adapter 'empty'{where}: {folder}/adapters/empty has no adapter_config.json")

    def test_an_adapter_takes_the_place_of_another_of_its_name(self):
        prompt, params = [self.rows[0]["prompt"]], SamplingParams(max_tokens=24, adapter="one")
        wanted = [self.engine.generate(prompt, SamplingParams(max_tokens=24, adapter=name))[0].tokens.tolist() for name in ("one", "two")]
        (before,) = self.engine.add(prompt, params)
        self.engine.load_adapter("one", GOLDEN / "adapters" / NAMES[1])
        self.engine.add(prompt, params)
        self.engine.run()
        found = {result.tag: result.tokens.tolist() for result in self.engine.poll()}
        self.assertEqual([found[before], found[before + 1]], wanted)
        self.assertEqual(self.engine.adapters, ["one", "two"])

    @unittest.skipUnless(importlib.util.find_spec("pyarrow"), "needs pyarrow")
    def test_on_ray_a_refused_adapter_is_read_once(self):
        import pyarrow
        from batchllm.file_rows import Prompts
        from batchllm.ray_engine import RowEngine
        from batchllm.ray_rows import RayRows

        rows = RayRows(Prompts("prompt", None, "given", False, None, None), "id", None, {"adapter": "who"}, SamplingParams(max_tokens=2), "generate", "", "tokens")
        options = {"backend": "cpu", "compute_type": "f32", "kv_memory_bytes": 16 << 20,
                   "adapters": {"one": str(GOLDEN / "adapters" / NAMES[0]), "foreign": str(GOLDEN / "adapters/phi3_fused")}}  # fmt: skip
        engine = RowEngine(rows, str(GOLDEN / BASE), options, {"pooling": None, "normalize": None, "dimensions": None}, False, [], (2, 1 << 20), None)
        block = pyarrow.table({"id": list(range(12)), "prompt": [[3, 4, 5, i] for i in range(12)], "who": ["foreign", "one"] * 6})
        opened = []
        with unittest.mock.patch.object(batchllm.adapters.native, "batchllm_adapter_open", lambda *of: (opened.append(of[1]), open_adapter(*of))[1]):
            for _ in range(2):
                errors = [error for table in engine(block) for error in table.column("error").to_pylist()]
                self.assertEqual((len(errors), errors.count(None)), (12, 6))
        self.assertEqual((opened.count("one"), opened.count("foreign")), (1, 2))  # the second is for its error

    def test_no_more_threads_load_adapters_than_the_process_or_the_engine_may_have(self):
        with unittest.mock.patch.object(os, "sched_getaffinity", lambda process: {3}, create=True):
            self.assertEqual(batchllm.adapters.Adapters()._threads, 1)
            self.assertEqual(batchllm.adapters.Adapters(5)._threads, 5)

    def test_plans_know_adapters(self):
        rows = [[*range(5, 70), i] for i in range(4)]
        one, two = (GOLDEN / "adapters" / name for name in NAMES)
        plan = batchllm.Plan.build(rows, adapters=[one, one, two, None], self_contained=True)
        self.assertEqual((plan.stats().groups, plan.stats().grouped_rows), (1, 2))
        self.assertEqual(batchllm.Plan.build(rows).stats().grouped_rows, 4)
        params = [SamplingParams(max_tokens=2, adapter=name) for name in ("one", "one", "two", None)]
        self.engine.generate(rows, params, plan=plan)
        self.assertEqual(self.engine.get_plan().stats().reused_rows, 4)
        found = plan.predict(GOLDEN / BASE, device="h100", max_tokens=4)
        self.assertEqual((found.adapters, found.adapter_loads), (2, 2))
        self.assertTrue(found.adapter_seconds > 0 and found.adapter_load_bytes > 0 and found.weight_bytes > 0)
        alone = batchllm.Plan.build(rows, self_contained=True)
        seconds = [made.predict(GOLDEN / BASE, device="h100", max_tokens=4).seconds for made in (alone, plan)]
        self.assertGreater(seconds[1], seconds[0])
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "1 adapters for 4 rows"):
            batchllm.Plan.build(rows, adapters=[one])
        with self.assertRaises(batchllm.MissingFileError):
            batchllm.Plan.build(rows, adapters=[GOLDEN / "none", None, None, None])

    def test_adapters_that_are_not_there(self):
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "no adapter 'three'"):
            self.engine.generate([[5, 6]], SamplingParams(adapter="three"))
        with self.assertRaises(batchllm.MissingFileError):
            self.engine.load_adapter("three", GOLDEN / "adapters" / "none")
        with self.assertRaises(batchllm.AdapterFormatError):
            self.engine.load_adapter("three", GOLDEN / "adapters" / "phi3_fused")
        self.engine.remove_adapter("two")
        self.assertEqual(self.engine.adapters, ["one"])


if __name__ == "__main__":
    unittest.main()
