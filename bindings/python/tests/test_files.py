"""Files of rows in and out: formats, columns, errors, and jobs that are killed, stopped and resumed."""

import contextlib
import csv
import errno
import importlib.util
import json
import os
import pathlib
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
from array import array

import batchllm
from batchllm import SamplingParams, run_files
from batchllm.__main__ import _memory
from batchllm.parsed import Parser
from batchllm.file_formats import FORMATS, open_reader
from batchllm.file_rows import Prompts
from support import MODEL, SIM, chat_model, run_script, sim

try:
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet
except ImportError:
    pyarrow = None

RESULTS = ["text", "finish_reason", "error", "prompt_tokens", "shared_tokens", "completion_tokens"]
FEW = SamplingParams(max_tokens=3)
GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"
SIM_OPTIONS = ["--backend", "sim", "--backend-options", "vocabulary=1000,eos_token=999,pages=4096"]


def write(path, table, **how):
    if path.endswith(".csv"):
        pyarrow.csv.write_csv(table, path)
    elif path.endswith(".arrow"):
        with pyarrow.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    elif path.endswith(".arrows"):
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    else:
        pyarrow.parquet.write_table(table, path, **how)
    return path


def read(path):
    if path.endswith(".csv"):
        return pyarrow.csv.read_csv(path, parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True))
    if path.endswith(".arrow"):
        return pyarrow.ipc.open_file(path).read_all()
    return pyarrow.parquet.read_table(path)


def token_rows(count, length=6):
    """Distinct rows of token ids, each with a number."""
    prompts = [[i % 900, i // 900, *range(length)] for i in range(count)]
    return pyarrow.table({"number": range(count), "prompt": pyarrow.array(prompts, pyarrow.list_(pyarrow.int32()))})


def program(*arguments, **how):
    command = [sys.executable, "-m", "batchllm", "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **how)


class Answers:
    """Results with these texts, for a Parser."""

    def __init__(self, texts):
        self.texts = texts
        self.finish_reasons = [1] * len(texts)

    def __len__(self):
        return len(self.texts)

    def text_of(self, index):
        return self.texts[index]


def parsed(schema, texts):
    return Parser(schema).array(Answers(texts)).to_pylist()


@unittest.skipIf(pyarrow is None, "needs pyarrow")
class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)


class Formats(Files):
    def test_every_format_to_every_format(self):
        texts = ["plain", None, 'a "quote", a comma', "two\nlines", "Pérù", "", "x" * 5000]
        numbers = ["007", "1e3", "", None, "5", "6", "7"]
        table = pyarrow.table({"number": numbers, "question": texts})
        with batchllm.Engine(MODEL) as engine:
            expected = engine.generate(texts, FEW)
            for one in ("parquet", "csv", "arrow", "arrows"):
                source = write(self.path(f"in.{one}"), table)
                for other in ("parquet", "csv", "arrow"):
                    with self.subTest(source=one, output=other):
                        target = self.path(f"from_{one}.{other}")
                        report = run_files(engine, source, target, prompt_column="question", params=FEW, chunk_rows=3)
                        self.assertEqual(report, batchllm.FilesReport(7, len(expected.failed), 0))
                        found = read(target)
                        self.assertEqual(found.column_names, ["number", "question", *RESULTS])
                        if other != "csv":  # its reader guesses types, and may take empty texts as nulls
                            self.assertEqual(found.column("number").to_pylist(), numbers)
                            self.assertEqual(found.column("question").to_pylist(), texts)
                            self.assertEqual(found.column("text").to_pylist(), expected.texts)
                            self.assertEqual(found.column("error").to_pylist(), expected.errors)
                        self.assertEqual(found.column("prompt_tokens").to_pylist(), expected.prompt_tokens.tolist())
                        self.assertEqual(found.column("completion_tokens").to_pylist(), [len(one.tokens) for one in expected])
                        self.assertEqual(found.num_rows, 7)
                        self.assertFalse(os.path.exists(target + ".blocks"))
        # Going through CSV twice changes nothing.
        with sim() as engine:
            again = self.path("again.csv")
            with self.assertRaisesRegex(batchllm.StateError, "no tokenizer"):
                run_files(engine, self.path("in.csv"), again, prompt_column="question")
        self.assertFalse(os.path.exists(again))

    def test_row_groups_and_columns_of_other_types_pass_through(self):
        count = 1000
        table = token_rows(count).append_column("kind", pyarrow.array(["a", "b"] * (count // 2)).dictionary_encode())
        table = table.append_column("view", pyarrow.array([f"row number {i}" for i in range(count)], pyarrow.string_view()))
        table = table.append_column("day", pyarrow.array(range(count), pyarrow.date32()))
        source = write(self.path("in.arrow"), table)
        with sim() as engine:
            plain = engine.generate(table.column("prompt"), FEW)
            run_files(engine, source, self.path("out.parquet"), params=FEW, chunk_rows=300, columns=["day", "kind", "view", "number"])
        found = pyarrow.parquet.ParquetFile(self.path("out.parquet"))
        self.assertEqual([found.metadata.row_group(i).num_rows for i in range(found.num_row_groups)], [300, 300, 300, 100])
        found = found.read()
        self.assertEqual(found.column_names, ["day", "kind", "view", "number", *RESULTS])
        self.assertEqual(found.column("number").to_pylist(), list(range(count)))
        self.assertEqual(found.column("kind").to_pylist(), ["a", "b"] * (count // 2))
        self.assertEqual(found.column("view")[999].as_py(), "row number 999")
        self.assertEqual(found.column("day").type, pyarrow.date32())
        self.assertEqual(found.column("completion_tokens").to_pylist(), [len(one.tokens) for one in plain])
        state = pathlib.Path(self.path("out.parquet.state")).read_bytes()
        self.assertEqual(state[-16:-8], b"\xff" * 8)  # complete

    def test_samples_and_log_probabilities(self):
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": ["a", None, "c"]}))
        params = SamplingParams(max_tokens=4, n=2, temperature=1.0, logprobs=2)
        with batchllm.Engine(MODEL) as engine:
            expected = engine.generate(["a", None, "c"], params)
            self.assertEqual(run_files(engine, source, self.path("rows.parquet"), params=params).failed, 1)
            rows = read(self.path("rows.parquet")).to_pylist()
            self.assertEqual([row["prompt"] for row in rows], ["a", "a", None, None, "c", "c"])
            self.assertEqual([row["sample"] for row in rows], [0, 1] * 3)
            for row, one in zip(rows, expected):
                for name in ("text", "error", "finish_reason", "logprobs", "top_logprobs"):
                    self.assertEqual(row[name], one[name], name)
            run_files(engine, source, self.path("lists.arrow"), params=params, samples="lists", result_prefix="answer_")
            rows = read(self.path("lists.arrow")).to_pylist()
            self.assertEqual(list(rows[0]), ["prompt", *(f"answer_{name}" for name in (*RESULTS, "logprobs", "top_logprobs"))])
            self.assertEqual([row["answer_text"] for row in rows], [expected.texts[i : i + 2] for i in (0, 2, 4)])
            self.assertEqual([row["answer_top_logprobs"] for row in rows],
                             [[expected[i]["top_logprobs"], expected[i + 1]["top_logprobs"]] for i in (0, 2, 4)])
            # If all rows fail, there are no log-probabilities.
            source = write(self.path("nulls.parquet"), pyarrow.table({"prompt": pyarrow.array([None, None], pyarrow.string())}))
            for samples in ("rows", "lists"):
                self.assertEqual(run_files(engine, source, self.path(f"{samples}_n.parquet"), params=params, samples=samples).failed, 2)
            run_files(engine, source, self.path("out.csv"), params=params)
            written = read(self.path("out.csv"))
            self.assertEqual([json.loads(one) for one in written["logprobs"].to_pylist()], [[], [], [], []])

    def test_rows_are_embedded(self):
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": ["one", None, "three"]}))
        with batchllm.Engine(MODEL) as engine:
            expected = engine.embed(["one", "three"], pooling="mean", normalize=True, dimensions=8)
            report = run_files(engine, source, self.path("out.parquet"), task="embed", pooling="mean", normalize=True, dimensions=8)
            self.assertEqual((report.rows, report.failed), (3, 1))
            found = read(self.path("out.parquet"))
            self.assertEqual(found.column_names, ["prompt", "embedding", *RESULTS[1:-1]])
            rows = found.to_pylist()
            self.assertEqual([rows[0]["embedding"], rows[2]["embedding"]], expected.tolist())
            self.assertIsNone(rows[1]["embedding"])
            self.assertIn("ROW_NULL", rows[1]["error"])
            for wrong, words in (({"task": "embed", "continuations": ["a"]}, "are scored"), ({"task": "rank"}, "task is 'rank'"),
                                 ({"pooling": "mean"}, "are for task='embed'"), ({"task": "embed", "samples": "lists"}, "continued")):
                with self.assertRaisesRegex(ValueError, words):
                    run_files(engine, source, self.path("none.parquet"), **wrong)
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "no classification head"):
                run_files(engine, source, self.path("none.parquet"), task="classify")
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, r"task \(was embed, now generate\)"):
                run_files(engine, source, self.path("out.parquet"), resume=True)

    def test_rows_of_every_task_have_the_adapter_of_their_parameters(self):
        golden = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"
        prompts = [[3, 4, 5, 6], [7, 8, 9]]
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": prompts}))
        one = SamplingParams(max_tokens=6, ignore_eos=True, adapter="one")
        cpu = {"backend": "cpu", "kv_memory_bytes": 64 << 20}
        with batchllm.Engine(golden / "llama_bias_f32", adapters={"one": golden / "adapters" / "llama_qv_r4"}, **cpu) as engine:
            wanted = {"tokens": [list(row.tokens) for row in engine.generate(prompts, one)],
                      "embedding": engine.embed(prompts, pooling="mean", adapter="one").tolist(),
                      "scores": [list(row.scores) for row in engine.score(prompts, [[5], [6, 7]], adapter="one")]}  # fmt: skip
            for task in ({}, {"task": "embed", "pooling": "mean"}, {"continuations": [[5], [6, 7]]}):
                name = "embedding" if "task" in task else "scores" if task else "tokens"
                report = run_files(engine, source, self.path(f"{name}.parquet"), params=one, **task)
                self.assertEqual((report.rows, report.failed), (2, 0))
                found = read(self.path(f"{name}.parquet"))
                if name in found.column_names:
                    self.assertEqual(found.column(name).to_pylist(), wanted[name])
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "no adapter 'two'"):
                run_files(engine, source, self.path("none.parquet"), params=SamplingParams(adapter="two"))
        with batchllm.Engine(golden / "llama_bias_f32", adapters={"one": golden / "adapters" / "llama_one_layer"}, **cpu) as engine:
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "content of the adapter .was .*, now "):
                run_files(engine, source, self.path("scores.parquet"), params=one, continuations=[[5], [6, 7]], resume=True)

    def test_whole_numbers_beyond_64_bits_are_null(self):
        schema = {"type": "object", "properties": {"a": {"enum": [2**63, 2**64]}}, "required": ["a"], "additionalProperties": False}
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": ["one"]}))
        run_files(MODEL, source, self.path("out.parquet"), params=SamplingParams(max_tokens=60, json_schema=schema), parsed=True)
        (row,) = read(self.path("out.parquet")).to_pylist()
        self.assertGreaterEqual(json.loads(row["text"])["a"], 2**63)
        self.assertEqual(row["parsed"], {"a": None})

    def test_parsed_values_are_those_of_spark(self):
        # LocalTest.java has the same.
        cases = json.loads((GOLDEN.parent / "spark" / "parsed_values.json").read_text(encoding="utf-8"))
        numbers = cases["numbers"]
        for length in (5_000, 1_000_000):
            nines = "9" * length
            numbers += [[nines, None, "Infinity"], ["-0." + nines, None, "-1"], ["5" + "0" * length + f"e-{length}", 5, "5"], ["1e" + "0" * length + "2", 100, "100"]]
        texts = [f"[7,{one}]" for one, _, _ in numbers]
        began = time.monotonic()
        whole, number = (parsed({"type": "array", "items": {"type": kind}}, texts) for kind in ("integer", "number"))
        self.assertEqual(parsed({}, texts), texts)
        self.assertLess(time.monotonic() - began, 20)
        for i, (text, integer, expected) in enumerate(numbers):
            self.assertEqual(whole[i], [7, integer], text[:40])
            self.assertEqual(repr(number[i]), repr([7.0, float(expected)]), text[:40])
        texts, expected = zip(*cases["texts"])
        self.assertEqual(parsed({}, texts), list(expected))
        counts = {"type": "object", "additionalProperties": {"type": "integer"}}
        self.assertEqual(parsed(counts, ['{"zebra":1,"apple":2,"mango":3,"\\ud800":4,"zebra":5}']),
                         [[("zebra", 5), ("apple", 2), ("mango", 3), ("?", 4)]])  # fmt: skip

    def test_a_number_that_python_cannot_read_is_none_alone(self):
        texts = ['{"n":' + "9" * 5_000 + ',"s":"a"}', "[1e400,-0.0,12]", "NaN", "[" * 100_000]
        self.assertEqual(Parser({}).values(Answers(texts)), [{"n": None, "s": "a"}, [float("inf"), 0.0, 12], None, None])
        for depth in (400, *range(900, 1000, 5), 100_000):
            deep = "[" * depth + "]" * depth
            self.assertIn(parsed({}, [deep, "1"]), [[deep, "1"]] + [[None, "1"]] * (depth > 400))

    def test_a_value_that_does_not_fit_is_null_alone(self):
        # As in Spark: LocalTest.java has the same.
        properties = {"n": {"type": "integer"}, "l": {"type": "array", "items": {"type": "integer"}}, "any": {}, "day": {"type": "boolean"}}

        found = parsed({"type": "object", "properties": properties},
                       ['{"n":3.0,"l":[1,9223372036854775808,2e1,2.5,null,"4",true],"any":{"b":[1.5,"é"]},"day":1}', '{"n":true,"l":3}',
                        "{} {}"])  # fmt: skip
        self.assertEqual(found, [{"n": 3, "l": [1, None, 20, None, None, None, None], "any": '{"b":[1.5,"é"]}', "day": None},
                                 {"n": None, "l": None, "any": None, "day": None}, None])  # fmt: skip

    def test_answers_of_a_schema_are_a_column_and_failed_rows_have_no_text(self):
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "day": {"type": "boolean"}}, "required": ["a", "day"],
                  "additionalProperties": False}
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": ["one", None, "three"]}))
        params = SamplingParams(max_tokens=60, json_schema=schema)
        run_files(MODEL, source, self.path("out.parquet"), params=params, parsed=True)
        found = read(self.path("out.parquet"))
        self.assertEqual(found.column_names, ["prompt", *RESULTS, "parsed"])
        self.assertEqual(found.schema.field("parsed").type, pyarrow.struct([("a", pyarrow.int64()), ("day", pyarrow.bool_())]))
        rows = found.to_pylist()
        self.assertEqual([row["parsed"] for row in rows], [json.loads(rows[0]["text"]), None, json.loads(rows[2]["text"])])
        self.assertIsNone(rows[1]["text"])
        run_files(MODEL, source, self.path("cut.parquet"), params=SamplingParams(max_tokens=2, json_schema=schema), parsed=True)
        self.assertEqual(read(self.path("cut.parquet")).column("parsed").null_count, 3)
        with self.assertRaisesRegex(ValueError, "parsed: it needs rows that are continued with a json_schema"):
            run_files(MODEL, source, self.path("none.parquet"), parsed=True)

    def test_a_template_writes_dates(self):
        source = write(self.path("in.parquet"), pyarrow.table({"day": pyarrow.array([19000], pyarrow.date32())}))
        run_files(MODEL, source, self.path("out.parquet"), template="On {day}", params=FEW)
        with batchllm.Engine(MODEL) as engine:
            self.assertEqual(read(self.path("out.parquet")).column("text").to_pylist(), engine.generate(["On 2022-01-08"], FEW).texts)

    def test_rows_are_classified(self):
        model = pathlib.Path(__file__).parents[3] / "tests/golden/embedding/qwen3_labels_bf16"
        wanted = json.loads((model / "embedding.json").read_text())["rows"]
        prompts = pyarrow.array([row["prompt"] for row in wanted], pyarrow.list_(pyarrow.int32()))
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": prompts}))
        with batchllm.Engine(model, backend="cpu", compute_type="f32") as engine:
            run_files(engine, source, self.path("out.arrow"), task="classify")
            labels = engine.labels
        for row, one in zip(read(self.path("out.arrow")).to_pylist(), wanted, strict=True):
            best = max(range(len(labels)), key=one["probabilities"].__getitem__)
            self.assertEqual(row["label"], labels[best])
            self.assertAlmostEqual(row["score"], one["probabilities"][best], delta=1e-4)
            self.assertEqual(len(row["probabilities"]), len(labels))

    def test_lists_of_results_are_json_in_csv(self):
        model = pathlib.Path(__file__).parents[3] / "tests/golden/embedding/qwen3_labels_bf16"
        source = write(self.path("in.parquet"), pyarrow.table({"id": [7, 8], "prompt": pyarrow.array([[5, 6], None], pyarrow.list_(pyarrow.int32()))}))
        with batchllm.Engine(model, backend="cpu", compute_type="f32") as engine:
            run_files(engine, source, self.path("out.csv"), task="classify", columns=["id"])
            run_files(engine, source, self.path("out.parquet"), task="classify", columns=["id"])
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "'prompt' has lists .* write Parquet or Arrow, or name the columns to pass through"):
                run_files(engine, source, self.path("none.csv"), task="classify")
        with open(self.path("out.csv"), newline="", encoding="utf-8") as file:
            good, bad = csv.DictReader(file)
        expected = read(self.path("out.parquet")).to_pylist()[0]
        self.assertEqual((good["label"], json.loads(good["probabilities"])), (expected["label"], expected["probabilities"]))
        self.assertEqual((bad["probabilities"], bad["label"]), ("", ""))
        self.assertIn("ROW_NULL", bad["error"])
        source = write(self.path("toys.csv"), pyarrow.table({"prompt": ["one", "two"]}))
        schema = {"type": "object", "properties": {"n": {"enum": [12, 345]}}, "required": ["n"], "additionalProperties": False}
        params = SamplingParams(max_tokens=40, json_schema=schema, n=2, temperature=1.0, logprobs=0)
        with batchllm.Engine(MODEL) as engine:
            run_files(engine, source, self.path("toys.out.csv"), params=params, parsed=True)
            run_files(engine, source, self.path("lists.csv"), params=params, samples="lists")
        for row in read(self.path("toys.out.csv")).to_pylist():
            self.assertEqual(json.loads(row["parsed"]), json.loads(row["text"]))
            self.assertGreater(len(json.loads(row["logprobs"])), 2)
        self.assertEqual([len(json.loads(row["text"])) for row in read(self.path("lists.csv")).to_pylist()], [2, 2])

    RETRIED = """
        import os, sys
        import batchllm, batchllm.file_retry, batchllm.journal
        source, output, pages, end, retry = sys.argv[1:]
        calls = 0

        def counted(function):
            def call(*arguments, **how):
                global calls
                calls += 1
                if calls == int(end):
                    os._exit(9)
                return function(*arguments, **how)

            return call

        os.replace = counted(os.replace)
        for name in ("append_block", "sync", "finish", "__init__"):
            setattr(batchllm.Journal, name, counted(getattr(batchllm.Journal, name)))
        options = {"vocabulary": 1000, "eos_token": 999}
        params = batchllm.SamplingParams(max_tokens=4, n=2, temperature=1.0)
        with batchllm.Engine(backend="sim", backend_options=options, kv_memory_bytes=int(pages)) as engine:
            report = batchllm.run_files(engine, source, output, params=params, chunk_rows=9, resume=True, retry_failed=bool(int(retry)))
        print(report.rows, report.failed, report.resumed)
        """

    def test_rows_that_failed_run_again_though_the_job_is_killed_at_any_step(self):
        table = token_rows(17).to_pydict()
        for at in (2, 3, 5, 16):
            table["prompt"][at] = [at] * 3000  # too large for the smaller memory
        table["prompt"][9] = None
        source, small, large = self.path("in.parquet"), 64 << 20, 1 << 30
        prompts = pyarrow.array(table["prompt"], pyarrow.list_(pyarrow.int32()))
        write(source, pyarrow.table({"number": table["number"], "prompt": prompts}))

        def run(output, memory, end, retry):
            done = run_script(self.RETRIED, source, self.path(output), memory, end, retry)
            self.assertIn(done.returncode, (0, 9), done.stderr)
            return done.stdout.split()

        def found(output):
            return read(self.path(output)).drop_columns(["shared_tokens"]).to_pylist()

        for kind in ("parquet", "arrow"):
            self.assertEqual(run(f"whole.{kind}", large, 0, 0), ["17", "1", "0"])
            self.assertEqual(run(f"out.{kind}", small, 0, 0), ["17", "5", "0"])
            first = found(f"out.{kind}")
            self.assertEqual(run(f"out.{kind}", large, 0, 0), ["17", "5", "17"])
            names = [f"out.{kind}", f"out.{kind}.state"]
            kept = {name: pathlib.Path(self.path(name)).read_bytes() for name in names}
            ends = [(3, 1), (4, 0), (6, 1), (7, 1), (7, 0), (8, 0), (9, 1)]  # within `begin_again`, and behind it
            for end, plain in ends if kind == "parquet" else [(0, 0)]:
                for name in self.left():
                    os.unlink(self.path(name))
                for name in names:
                    pathlib.Path(self.path(name)).write_bytes(kept[name])
                said = run(f"out.{kind}", large, end, 1)
                if not said:
                    self.assertIn(found(f"out.{kind}"), (first, found(f"whole.{kind}")))
                    if plain:
                        self.assertEqual(run(f"out.{kind}", large, 0, 0)[1], "1" if end > 7 else "5")
                        self.assertEqual(self.left(), names)
                    said = run(f"out.{kind}", large, 0, 1)
                self.assertEqual(said[:2], ["17", "1"])
                self.assertGreaterEqual(int(said[2]), 12)
                self.assertEqual(found(f"out.{kind}"), found(f"whole.{kind}"), end)
                self.assertEqual(self.left(), names)
        with self.assertRaisesRegex(ValueError, "give resume=True too"):
            run_files(MODEL, source, self.path("out.parquet"), retry_failed=True)
        for output in ("out.csv", "memory://out.parquet"):
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "retry_failed: .*needs an output"):
                run_files(MODEL, source, output if "//" in output else self.path(output), resume=True, retry_failed=True)

    def failing(self, output="out.parquet", source="in.parquet", **how):
        """A job of which a row fails."""
        table = token_rows(20).to_pydict()
        table["prompt"][4] = None
        source = self.path(source)
        if not os.path.exists(source):
            prompts = pyarrow.array(table["prompt"], pyarrow.list_(pyarrow.int32()))
            pyarrow.parquet.write_table(pyarrow.table({"number": table["number"], "prompt": prompts}), source)
        with sim() as engine:
            return run_files(engine, source, self.path(output), params=FEW, chunk_rows=7, input_format="parquet", **how)

    def contents(self):
        return {name: pathlib.Path(self.path(name)).read_bytes() for name in os.listdir(self.folder)}

    def test_failed_rows_run_again_only_if_the_output_is_as_the_job_wrote_it(self):
        self.assertEqual(self.failing(), batchllm.FilesReport(20, 1, 0))
        whole, table = self.contents(), read(self.path("out.parquet"))
        changes = [table.sort_by([("number", "descending")]), table.filter(table.column("error").is_null()), table.append_column("more", table["number"])]
        for changed in changes:
            write(self.path("out.parquet"), changed)
            kept = self.contents()
            with self.assertRaisesRegex(batchllm.JournalFormatError, "out.parquet: is not what the job wrote, .*; force starts over"):
                self.failing(resume=True, retry_failed=True)
            self.assertEqual(self.failing(resume=True).failed, 1)
            self.assertEqual(self.contents(), kept)
        pathlib.Path(self.path("out.parquet")).write_bytes(whole["out.parquet"])
        pathlib.Path(self.path("out.parquet.state")).write_bytes(whole["out.parquet.state"][:-8] + bytes(8))
        with self.assertRaisesRegex(batchllm.JournalFormatError, "out.parquet.state: an earlier version"):
            self.failing(resume=True, retry_failed=True)
        pathlib.Path(self.path("out.parquet.state")).write_bytes(whole["out.parquet.state"])
        self.assertEqual(self.failing(resume=True, retry_failed=True), batchllm.FilesReport(20, 1, 19))
        self.assertEqual(read(self.path("out.parquet")).drop_columns(["shared_tokens"]), table.drop_columns(["shared_tokens"]))
        self.assertEqual(self.left(), ["out.parquet", "out.parquet.state"])

    def test_no_other_run_takes_the_output_while_results_are_taken_from_it(self):
        self.failing()
        whole = self.contents()
        run, refused = batchllm.file_retry._by_chunk, []

        def meanwhile(*arguments):
            for how in ({"force": True}, {"resume": True}, {"resume": True, "retry_failed": True}):
                with self.assertRaisesRegex(batchllm.StateError, "another run is writing to it"):
                    self.failing(**how)
                refused.append(how)
            yield from run(*arguments)

        with unittest.mock.patch("batchllm.file_retry._by_chunk", meanwhile):
            self.assertEqual(self.failing(resume=True, retry_failed=True).resumed, 19)
        self.assertEqual(len(refused), 3)

        def full(*_):
            raise OSError(28, "No space left on device")
            yield

        kept = self.contents()
        with unittest.mock.patch("batchllm.file_retry._by_chunk", full), self.assertRaises(OSError):
            self.failing(resume=True, retry_failed=True)
        self.assertEqual(self.contents(), kept)
        self.assertEqual(kept.keys(), whole.keys())

    def test_a_retry_touches_no_file_that_is_not_its_own(self):
        self.failing()
        # A job of another kind, interrupted, with the name under which results are kept meanwhile.
        for held in (True, False):
            with batchllm.Journal(self.path("out.parquet.retry"), kind="blocks", resume=True) as journal:
                if held:
                    journal.append_block([0], b"theirs")
                    kept = self.contents()
                    with self.assertRaisesRegex(batchllm.StateError, "out.parquet.retry.blocks: another run is writing to it"):
                        self.failing(resume=True, retry_failed=True)
            if not held:
                with self.assertRaisesRegex(batchllm.JournalExistsError, "out.parquet.retry.state .*of another job: move them away"):
                    self.failing(resume=True, retry_failed=True)
            self.assertEqual(self.failing(resume=True).failed, 1)
            self.assertEqual(self.contents(), kept)
        # The input.
        for number, ending in enumerate((".retry.blocks", ".retry.state", ".new")):
            output, source = f"out{number}.parquet", f"out{number}.parquet{ending}"
            if ending == ".new":
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, f"{source}: is the input"):
                    self.failing(output, source)
                continue
            self.failing(output, source)
            kept = self.contents()
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, f"{source}: is the input"):
                self.failing(output, source, resume=True, retry_failed=True)
            self.assertEqual(self.contents(), kept)

    def test_rows_are_scored_by_the_same_or_by_their_own_continuations(self):
        table = pyarrow.table({"prompt": ["one", "two", None, "four"], "ends": [["a", "bc"], ["d"], ["e"], None]})
        source = write(self.path("in.parquet"), table)
        with batchllm.Engine(MODEL) as engine:
            same = [result.scores.tolist() for result in engine.score(["one", "two", "four"], ["a", "bc"])]
            run_files(engine, source, self.path("same.parquet"), continuations=["a", "bc"])
            rows = read(self.path("same.parquet")).to_pylist()
            self.assertEqual([row["scores"] for row in rows], [same[0], same[1], None, same[2]])
            own = [result.scores.tolist() for result in engine.score(["one", "two"], [["a", "bc"], ["d"]])]
            report = run_files(engine, source, self.path("own.parquet"), continuations_column="ends", columns=["prompt"])
            rows = read(self.path("own.parquet")).to_pylist()
            self.assertEqual(report.failed, 2)
            self.assertEqual([row["scores"] for row in rows], [*own, None, None])
            self.assertIn("ROW_NULL", rows[2]["error"])
            self.assertIn("ROW_EMPTY", rows[3]["error"])
            run_files(engine, source, self.path("table.parquet"), template="{prompt}", continuations=["a", "bc"], resume=True)
            self.assertEqual(read(self.path("table.parquet")).column("scores").to_pylist(), [same[0], same[1], None, same[2]])
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "continuations_column: .* no column 'other'"):
                run_files(engine, source, self.path("none.parquet"), continuations_column="other")
        done = program("--model", MODEL, "--input", source, "--output", self.path("cli.parquet"), "--continuation", "a", "--continuation", "bc")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(read(self.path("cli.parquet")).column("scores").to_pylist(), [same[0], same[1], None, same[2]])

    def test_templates_and_chat(self):
        table = pyarrow.table({"id": ["1", "2", "3"], "q": ["one", None, "three"], "kind": ["big and long"] * 3})
        source = write(self.path("in.csv"), table)
        with tempfile.TemporaryDirectory() as folder:
            chat_model(folder, "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}")
            with batchllm.Engine(folder) as engine:
                for name, how in (("given", {}), ("reorder", {"fields": "reorder"}), ("chat", {"chat": True, "system": "S"})):
                    expected = engine.generate_table(table, "Kind?\n{q}\n{kind}\nA:", FEW, **how)
                    run_files(engine, source, self.path(f"{name}.parquet"), template="Kind?\n{q}\n{kind}\nA:", params=FEW, **how)
                    found = read(self.path(f"{name}.parquet"))
                    self.assertEqual(found.column("text").to_pylist(), expected.texts)
                    self.assertEqual(found.column("error").to_pylist(), expected.errors)
                    self.assertEqual(found.column_names, ["id", "q", "kind", *RESULTS])
                run_files(engine, source, self.path("user.parquet"), prompt_column="q", chat=True, params=FEW)
                expected = engine.generate([[{"role": "user", "content": "one"}]], FEW)
                self.assertEqual(read(self.path("user.parquet")).column("text")[0].as_py(), expected.texts[0])
                chats = [[{"role": "user", "content": "one"}], [{"role": "user", "content": "two", "name": "x"}]]
                source = write(self.path("chats.parquet"), pyarrow.table({"messages": chats}))
                run_files(engine, source, self.path("chats_out.parquet"), prompt_column="messages", params=FEW)
                self.assertEqual(read(self.path("chats_out.parquet")).column("text").to_pylist(), engine.generate(chats, FEW).texts)

    def test_a_resumed_chunk_that_is_reordered_has_the_bytes_of_the_whole(self):
        # "\xff" is not UTF-8: it is an error of its row and is not replaced, even if only a part of the chunk is added.
        offsets = pyarrow.py_buffer(array("i", [0, 1, 2, 3]).tobytes())
        bad = pyarrow.Array.from_buffers(pyarrow.utf8(), 3, [None, offsets, pyarrow.py_buffer(b"a\xffa")])
        chunk = pyarrow.table({"own": bad, "all": ["the same"] * 3})
        prompts = Prompts("own", "{own}\n{all}", "reorder", False, None)
        statuses = []
        for wanted in (None, [1, 2]):
            with batchllm.Engine(MODEL, backend="sim", backend_options={"pages": 4096}) as engine:
                engine.add(prompts.rows(chunk, wanted), FEW)
                engine.run()
                results = engine.poll()
                statuses.append({tag: status for tag, status in zip(results.tags, results.statuses)})
        self.assertEqual([statuses[0][1], statuses[0][2]], [statuses[1][0], statuses[1][1]])
        self.assertNotEqual(statuses[1][0], 0)

    def test_what_is_wrong_is_said_before_anything_runs(self):
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": ["a"], "text": ["b"]}))
        write(self.path("empty.parquet"), pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}))
        pathlib.Path(self.path("not.parquet")).write_text("prompt,text\na,b\n")
        pathlib.Path(self.path("not.arrow")).write_text("prompt,text\na,b\n")
        pathlib.Path(self.path("zero.csv")).write_text("")
        os.mkdir(self.path("folder.parquet"))
        write(self.path("bytes.parquet"), pyarrow.table({"prompt": ["a"], "raw": [b"\xff"]}))
        runs = pyarrow.RunEndEncodedArray.from_arrays([1], ["a"])
        write(self.path("ends.arrow"), pyarrow.table({"prompt": ["a"], "runs": runs}))
        write(self.path("cut.arrows"), pyarrow.table({"prompt": ["a long text"] * 99}))
        cut = pathlib.Path(self.path("cut.arrows")).read_bytes()
        pathlib.Path(self.path("cut.arrow")).write_bytes(cut[: len(cut) // 2])
        pathlib.Path(self.path("between.arrow")).write_bytes(cut[:-8])  # after a message, before the end of the stream
        with batchllm.Engine(MODEL) as engine:
            def run(name=source, output="out.parquet", **how):
                run_files(engine, os.path.join(self.folder, name), self.path(output), **how)

            for how, words in (
                ({}, "column 'text', and so have the results: give a result_prefix"),
                ({"prompt_column": "promt"}, "has no column 'promt'; it has 'prompt', 'text'"),
                ({"columns": ["x"]}, "has no column 'x'"),
                ({"chunk_rows": 0}, "chunk_rows"),
                ({"output": "out.txt"}, "which format"),
                ({"output": "none/out.parquet", "columns": ["prompt"]}, "there is no directory '.*none'"),
                ({"name": "rows.jsonl"}, "batchllm run --input"),
                ({"input_format": "xls"}, "'parquet', 'csv' or 'arrow'"),
                ({"name": "not.parquet"}, "not a Parquet file.*begins with b'prompt,text"),
                ({"name": "not.arrow"}, "not an Arrow file"),
                ({"name": "zero.csv"}, "not a CSV file"),
                ({"output": "in.parquet", "force": True}, "is the input"),
                ({"output": "folder.parquet", "force": True, "columns": ["prompt"]}, "is a directory"),
                ({"name": "bytes.parquet", "output": "out.csv"}, "'raw' has bytes"),
                ({"name": "ends.arrow"}, "'runs' .*cannot be written as parquet"),
                ({"name": "cut.arrow", "output": "cut.parquet"}, "cut.arrow: after row"),
                ({"name": "between.arrow", "output": "between.parquet"}, "between.arrow: after row 99: the stream has no end"),
                ({"params": SamplingParams(temperature=-1.0), "columns": ["prompt"]}, "no row can run: temperature is -1"),
            ):
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, words):
                    run(**how)
            with self.assertRaises(FileNotFoundError):
                run("missing.parquet")
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "titel"):
                run(template="{titel}", columns=[])
            self.assertFalse(os.path.exists(self.path("none")))
            with self.assertRaisesRegex(ValueError, "prompt_column and template both"):
                run(template="{prompt}", prompt_column="prompt", columns=[])
            with self.assertRaisesRegex(ValueError, "samples is 'list'"):
                run(samples="list")
            engine.add(["x"], FEW)
            with self.assertRaisesRegex(batchllm.StateError, "rows of other calls"):
                run(result_prefix="r_", force=True)
            engine.run()
            with self.assertRaisesRegex(batchllm.StateError, "1 results of other calls"):
                run(result_prefix="r_", force=True)
            self.assertEqual(len(engine.poll()), 1)
            self.assertFalse(os.path.exists(self.path("out.parquet")))
            lines = "".join(f"{i},b\n" for i in range(3_000_000))  # more than the reader looks at first
            pathlib.Path(self.path("torn.csv")).write_text("prompt,text\n" + lines + "1,2,3\n")
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "torn.csv: CSV parse error: Row #3000002: Expected 2 columns, got 3"):
                with contextlib.closing(open_reader(self.path("torn.csv"), "csv", None)) as reader:
                    for _ in reader.pieces(lambda *_: True):
                        pass
            # An empty job completes.
            self.assertEqual(run_files(engine, self.path("empty.parquet"), self.path("none.parquet")).rows, 0)
            self.assertEqual(read(self.path("none.parquet")).column_names, ["prompt", *RESULTS])

    def test_an_output_that_has_no_name_of_its_own_is_refused(self):
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": ["a"]}))
        output = self.path("out.parquet")
        with batchllm.Engine(MODEL) as engine, open(self.path("redirected"), "wb") as file:
            for name in ("/dev/null", "/dev/stdout", f"/dev/fd/{file.fileno()}", f"/proc/self/fd/{file.fileno()}"):
                os.symlink(name, output)
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, "out.parquet: not a regular file"):
                    run_files(engine, source, output, force=True)
                self.assertTrue(os.path.islink(output))
                os.unlink(output)
        self.assertEqual(self.left(), [])

    def left(self):
        """The files that runs have left beside the input."""
        return sorted(name for name in os.listdir(self.folder) if name.startswith("out"))

    def test_columns_of_the_wrong_type_are_named_and_nothing_is_left(self):
        columns = {
            "numbers": [1, 2], "floats": [0.5, 1.5], "words": [["a"], ["b"]], "nested": [[[1]], [[2]]], "struct": [{"a": 1}] * 2,
            "days": pyarrow.array([1, 2], pyarrow.date32()), "zoned": pyarrow.array([1, 2], pyarrow.timestamp("us", "Europe/Paris")), "spans": pyarrow.array([1, 2], pyarrow.duration("s")), "text": ["a", "b"], "ids": [[1, 2], [3]],
        }  # fmt: skip
        source = write(self.path("in.parquet"), pyarrow.table(columns))
        engine = batchllm.Engine(MODEL)
        self.addCleanup(engine.close)
        both = {"prompt_column": "text", "columns": []}
        for how, words in (
            ({"prompt_column": "numbers"}, r"prompt_column: .*in.parquet: column 'numbers' is int64: .*template=\"\{numbers\}\""),
            ({"prompt_column": "floats"}, "'floats' is double"),
            ({"prompt_column": "days"}, r"'days' is date32\[day\]: prompts are texts.*template=\"\{days\}\""),
            ({"prompt_column": "spans"}, r"'spans' is duration\[s\]: prompts are texts, lists of token ids or lists of chat messages$"),
            ({"prompt_column": "words"}, r"'words' is list<"),
            ({"prompt_column": "nested"}, r"'nested' is list<"),
            ({"prompt_column": "struct"}, r"'struct' is struct<"),
            ({"template": "{ids}"}, "template: .*in.parquet: column 'ids' is list<.*cast it to text first"),
            ({"template": "{text} {spans}"}, "'spans' is duration"),
            ({"template": "{zoned}"}, r"'zoned' is timestamp\[us, tz=Europe/Paris\]: convert it to 'UTC', or cast it to text first"),
            ({"prompt_column": "spans", "chat": True}, "'spans' is duration"),
            ({**both, "continuations_column": "text"}, "continuations_column: .*'text' is large_string: each row has a list"),
            ({**both, "continuations_column": "ids"}, "continuations_column: .*'ids' is list<"),
            ({"prompt_column": "text", "columns": ["ids", "ids"]}, "'ids' is named twice"),
            ({**both, "params": SamplingParams(temperature=-1.0)}, "no row can run"),
        ):
            with self.subTest(**how):
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, words):
                    run_files(engine, source, self.path("out.parquet"), **how)
                self.assertEqual(self.left(), [])
        run_files(engine, source, self.path("out.parquet"), template="{numbers}", columns=[], params=FEW)
        given = {"prompt_column": "text", "columns": [], "force": True}
        run_files(engine, source, self.path("out.parquet"), continuations_column="words", **given)

    def test_a_failure_keeps_the_results_that_there_are(self):
        table = pyarrow.table({"prompt": [f"row {i} of a few " * 30 for i in range(40)]})
        source = write(self.path("in.parquet"), table, row_group_size=10, compression="zstd", use_dictionary=False)
        given = {"prompt_column": "prompt", "params": FEW, "chunk_rows": 10}
        whole = pathlib.Path(source).read_bytes()
        column = pyarrow.parquet.ParquetFile(source).metadata.row_group(2).column(0)
        begin, size = column.data_page_offset, column.total_compressed_size
        pathlib.Path(source).write_bytes(whole[:begin] + bytes(size) + whole[begin + size :])
        with batchllm.Engine(MODEL) as engine:
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "in.parquet: after row 20: "):
                run_files(engine, source, self.path("out.parquet"), **given)
        self.assertEqual(self.left(), ["out.parquet.blocks", "out.parquet.state"])
        kept = os.path.getsize(self.path("out.parquet.blocks"))
        self.assertGreater(kept, 0)
        pathlib.Path(source).write_bytes(whole[: len(whole) // 2])
        with batchllm.Engine(MODEL) as engine:
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "in.parquet: its end is missing or damaged"):
                run_files(engine, source, self.path("out.parquet"), resume=True, **given)
        self.assertEqual(self.left(), ["out.parquet.blocks", "out.parquet.state"])
        pathlib.Path(source).write_bytes(whole)
        self.assertEqual(os.path.getsize(self.path("out.parquet.blocks")), kept)

    def test_to_continue_and_to_start_over_exclude_each_other(self):
        source, out = write(self.path("in.csv"), pyarrow.table({"prompt": ["a", "b"]})), self.path("out.csv")
        run_files(MODEL, source, out, params=FEW)
        kept = pathlib.Path(out).read_bytes(), sorted(os.listdir(self.folder))
        for target in (out, "memory://out.csv"):
            with self.assertRaisesRegex(ValueError, "resume and force exclude each other"):
                run_files(MODEL, source, target, params=FEW, resume=True, force=True)
        self.assertEqual((pathlib.Path(out).read_bytes(), sorted(os.listdir(self.folder))), kept)

    def test_a_csv_file_is_not_checked_where_its_job_is_done(self):
        source, out = write(self.path("in.csv"), pyarrow.table({"prompt": ["a", "b"]})), self.path("out.csv")
        with batchllm.Engine(MODEL) as engine:
            run_files(engine, source, out, params=FEW)
            with unittest.mock.patch.object(batchllm.file_formats._Csv, "check", side_effect=AssertionError("checked")):
                self.assertEqual(run_files(engine, source, out, params=FEW, resume=True).resumed, 2)
                with self.assertRaisesRegex(AssertionError, "checked"):
                    run_files(engine, source, out, params=FEW, force=True)
                os.unlink(out)
                with self.assertRaisesRegex(AssertionError, "checked"):
                    run_files(engine, source, out, params=FEW, resume=True)

    def test_a_csv_file_is_checked_to_its_end_before_a_row_runs(self):
        good = "prompt,x\nhello,1\n"
        engine = batchllm.Engine(MODEL)
        self.addCleanup(engine.close)
        for text, words in (
            (good + '"never closed,2\nmore,3\n', r"CSV parse error: Row #3: Expected 2 columns, got 1: .*\n.*a quote that is never closed\?"),
            (good + 'abc,"never closed\nmore,3\n', "row 2, the last one, has a quote that is never closed, before 'never closed"),
            (good + 'abc,"never', "row 2, the last one"),
            (good + 'abc,"', "row 2, the last one"),
            (good + 'abc,"a ""word"" of\r\n\r\n', "row 2, the last one"),
            ('prompt\nhello\n"never closed\nmore', "row 2, the last one"),
            ("\ufeff" + good + "b\n", "CSV parse error: Row #3: Expected 2 columns, got 1: b"),
            (good + "a\udcff,2\n", "column 'prompt': Row #3: .*invalid UTF8"),
        ):
            pathlib.Path(self.path("in.csv")).write_bytes(text.encode("utf-8", "surrogateescape"))
            with self.subTest(text):
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, f"(?s)in.csv: {words}"):
                    run_files(engine, self.path("in.csv"), self.path("out.parquet"))
                self.assertEqual(engine.stats().rows, 0)
                self.assertEqual(self.left(), [])
        for value, read_as in (('"closed\nlater"', "closed\nlater"), ('"a ""word"""', 'a "word"'), ('""', ""), ('5"', '5"'), ("", None)):
            for end in ("", "\n", "\r\n", "\n\n"):
                pathlib.Path(self.path("in.csv")).write_text("\ufeff" + good + "abc," + value + end, newline="")
                with self.subTest(value=value, end=end), contextlib.closing(open_reader(self.path("in.csv"), "csv", None, ["x"])) as reader:
                    reader.check()
                    self.assertEqual(reader.rows, 2)
                    self.assertEqual([row for _, table in reader.pieces(lambda *_: True) for row in table["x"].to_pylist()], ["1", read_as])
        pathlib.Path(self.path("in.csv")).write_bytes(good.encode("utf-16"))
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "UTF-16: save it as UTF-8"):
            open_reader(self.path("in.csv"), "csv", None)
        write(self.path("in.parquet"), pyarrow.table({"prompt": ["a"]}))
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "it is a file of Parquet, not of CSV"):
            open_reader(self.path("in.parquet"), "csv", None)

    def test_the_program_names_the_file_of_a_mistake_without_a_traceback(self):
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": ["a"], "n": [1]}))
        pathlib.Path(self.path("latin")).write_bytes(b"{prompt} \xff")
        pathlib.Path(self.path("schema")).write_text('{"type": "foo"}')
        for arguments, words in (
            (["--template-file", self.path("latin")], "latin: byte 9 is not UTF-8"),
            (["--json-schema", self.path("latin")], "latin: byte 9 is not UTF-8"),
            (["--json-schema", self.path("schema"), "--prompt-column", "prompt"], "--json-schema: .*schema: json_schema: #/type: "),
            (["--output", self.path("out.txt")], "out.txt: which format\\? .*: --output-format says 'parquet', 'csv' or 'arrow'"),
            (["--input", self.path("in.txt")], "in.txt: which format\\? .*: --input-format says"),
            (["--output", "-"], "output is '-': tables are read from and written to files; lines of JSON go through the program"),
            (["--input", "-", "--input-format", "csv"], "input is '-': "),
            (["--input", self.folder], "is a folder, and one file is read: pyarrow.parquet.write_table"),
            (["--resume", "--force"], "--force: not allowed with argument --resume"),
            (["--template-file", self.path("none")], "none: No such file or directory"),
            (["--template", "{promt}"], "template: .*in.parquet has no column 'promt'; it has 'prompt', 'n'"),
            (["--prompt-column", "n"], "in.parquet: column 'n' is int64"),
            (["--storage-options", "{"], "--storage-options: not JSON"),
            (["--storage-options", "[1]"], "--storage-options: a JSON object is expected"),
            (["--input", self.path("none.parquet")], "none.parquet: No such file or directory"),
            (["--input", "foo://host/in.parquet"], "foo://host/in.parquet: |needs fsspec"),
        ):
            done = program("--model", MODEL, "--input", source, "--output", self.path("out.parquet"), *arguments)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertRegex(done.stderr, r"\Abatchllm: .*(" + words + r").*\n\Z")
            self.assertEqual(self.left(), [])

    def test_the_program_names_its_options_in_what_an_existing_output_needs(self):
        source, out = write(self.path("in.parquet"), pyarrow.table({"prompt": ["a"]})), self.path("out.parquet")
        job = ("--model", MODEL, "--input", source, "--output", out, "--max-tokens", "3", "--progress")
        lines = program(*job, "json").stderr.splitlines()
        self.assertEqual(json.loads(lines[-1])["rows_done"], 1)
        self.assertTrue(all({"tokens_left", "rows_running", "seconds"} <= json.loads(line).keys() for line in lines))
        self.assertRegex(program(*job, "none").stderr, "out.parquet: exists; --resume continues it, --force starts over\n")
        self.assertRegex(program(*job, "none", "--resume", "--n", "2").stderr, "; --force starts over\n")
        self.assertEqual(program(*job, "json", "--resume").stderr, "")
        done = subprocess.run([sys.executable, "-m", "batchllm", "--version"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, f"batchllm {batchllm.__version__}\n"), done.stderr)

    def test_the_program_changes_no_path_and_no_value_in_an_error(self):
        folder = self.path("retry_failed resume=True, force starts over")
        os.mkdir(folder)
        name = "input_format; resume continues it"
        source = write(os.path.join(folder, name + ".parquet"), pyarrow.table({"prompt": ["a"], "retry_failed": ["b"]}))
        out, other, csv = (os.path.join(folder, "force starts over" + ending) for ending in (".parquet", ".x", ".csv"))
        same = write(self.path("same.parquet"), pyarrow.table({"prompt": ["a"]}))

        def says(*arguments, output=out, given=source):
            done = program("--model", MODEL, "--input", given, "--output", output, "--max-tokens", "2", "--progress", "none", *arguments)
            return done.returncode, done.stderr

        missing, endings = source.replace(name, "force starts"), ", ".join(FORMATS)
        for arguments, more, words in (
            ((), {"given": missing}, f"{missing}: No such file or directory"),
            (("--template", "{resume=True}"), {}, f"template: {source} has no column 'resume=True'; it has 'prompt', 'retry_failed'"),
            (("--prompt-column", "output_format"), {}, f"prompt_column: {source} has no column 'output_format'; it has 'prompt', 'retry_failed'"),
            ((), {"output": other}, f"{other}: which format? It does not end with {endings}: --output-format says 'parquet', 'csv' or 'arrow'"),
            (("--input-format", "csv"), {}, f"{source}: it is a file of Parquet, not of CSV: say so by --input-format"),
            (("--retry-failed",), {}, "--retry-failed is for a job that continues: give --resume too"),
            (("--retry-failed", "--resume"), {"output": csv}, f"--retry-failed: {csv}: needs an output of Parquet or Arrow: CSV does not keep null and empty texts apart"),
            ((), {"output": source}, f"{source}: is the input"),
        ):
            self.assertEqual(says(*arguments, **more), (1, f"batchllm: {words}\n"))
        self.assertEqual(says(), (0, ""))
        self.assertEqual(says(), (1, f"batchllm: {out}: exists; --resume continues it, --force starts over\n"))
        code, text = says("--resume", "--template", "{prompt} resume=True, retry_failed")
        self.assertRegex(text, r"resume=True, retry_failed.*; --force starts over\n\Z")
        os.chdir(self.folder)
        self.addCleanup(os.chdir, "/")
        self.assertEqual(says(given=same, output="retry_failed"), (1, f"batchllm: retry_failed: which format? It does not end with {endings}: --output-format says 'parquet', 'csv' or 'arrow'\n"))

    def test_no_output_replaces_a_file_that_the_job_reads(self):
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": ["a", "b"]}))
        model, plan, runs = self.path("model"), self.path("rows.plan"), self.path("runs")
        shutil.copytree(MODEL, model)
        batchllm.Plan.build([[1, 2, 3]]).save(plan)
        batchllm.Plan.build([[1, 2, 3]]).save(plan + ".2")
        tensors = GOLDEN / "adapters" / "llama_qv_r4"
        shutil.copytree(tensors, self.path("one"))
        for name in ("a", "run/checkpoint-5"):
            shutil.copytree(tensors, os.path.join(runs, name))
        os.symlink(self.path("elsewhere"), os.path.join(runs, "linked"))
        shutil.copytree(tensors, self.path("elsewhere"))
        os.symlink(os.path.join(model, "config.json"), self.path("link.json"))
        os.link(os.path.join(model, "model.safetensors"), self.path("hard.parquet"))
        os.symlink(os.path.join(model, "config.json"), self.path("state.parquet.state"))
        os.symlink(model, self.path("same"))
        schema = self.path("schema.json")
        pathlib.Path(schema).write_text('{"type": "boolean"}')
        os.chdir(self.folder)
        self.addCleanup(os.chdir, "/")

        def contents():
            files = [path for path in sorted(pathlib.Path(self.folder).rglob("*")) if path.is_file()]
            return {str(path): path.read_bytes() for path in files}

        kept = contents()
        model_file, of_adapter = "is a file of the model", "is in the directory of an adapter"
        for how, what in (
            ({"output": "model/model.safetensors", "output_format": "parquet"}, model_file),
            ({"output": "same/config.json", "output_format": "csv"}, model_file),
            ({"output": f"file://{model}/config.json", "output_format": "csv"}, model_file),
            ({"output": "hard.parquet"}, model_file),
            ({"output": "state.parquet"}, model_file),
            ({"stats": "link.json"}, model_file),
            ({"report": "model/tokenizer.json"}, model_file),
            ({"timeline": "model/config.json"}, model_file),
            ({"output": "one/adapter_model.safetensors", "output_format": "parquet"}, of_adapter),
            ({"output": "one/new.parquet"}, of_adapter),
            ({"stats": "runs/a/adapter_config.json"}, of_adapter),
            ({"stats": "runs/run/checkpoint-5/adapter_config.json"}, of_adapter),
            ({"report": "elsewhere/README.md"}, of_adapter),
            ({"timeline": "runs/linked/log.csv"}, of_adapter),
            ({"stats": "./in.parquet"}, "is the input"),
            ({"report": "rows.plan"}, "is the plan|is the file of --plan"),
            ({"stats": "rows.plan.2"}, "is the plan|is the file of --plan"),
            ({"timeline": "./out.parquet"}, "is the output"),
            ({"stats": "out.parquet.blocks"}, "is what the output keeps meanwhile"),
            ({"stats": "new.json", "report": "./new.json"}, "is the file of (--)?(report|stats)"),
        ):
            given = {"output": "out.parquet", "plan": plan, **how}
            options = [word for name, value in given.items() for word in ("--" + name.replace("_", "-"), value)]
            done = program("--model", model, "--input", source, "--force", "--adapter", "one=one", "--adapters", runs, "--use-adapter", "one", *options)
            self.assertEqual(done.returncode, 1, how)
            self.assertRegex(done.stderr, f"\\Abatchllm: .*({what})\n\\Z")
            for adapters in ({"one": "one"}, runs):
                if what == of_adapter and ("one/" in how.get("output", "")) == (adapters == runs):
                    continue
                run = {name: value for name, value in given.items() if name not in ("output", "timeline")}
                timeline = {"engine_options": {"timeline": how["timeline"]}} if "timeline" in how else {}
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, what):
                    run_files(model, source, given["output"], adapters=adapters, params=SamplingParams(adapter="one"), force=True, **run, **timeline)
            self.assertEqual(contents(), kept, how)
        done = program("--model", model, "--input", source, "--output", "out.parquet", "--json-schema", schema, "--stats", schema)
        self.assertIn("is the file of --json-schema", done.stderr)
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, model_file):
            batchllm.Engine(model, timeline="link.json")
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, model_file):
            batchllm.Journal("link.json", model=model, force=True)
        with batchllm.Engine(model, timeline="steps.csv") as engine:
            for name, what in (("model/config.json", model_file), ("steps.csv", "is the timeline")):
                with self.assertRaisesRegex(batchllm.InvalidArgumentError, what):
                    run_files(engine, source, "out.parquet", stats=name)
        os.unlink("steps.csv")
        self.assertEqual(contents(), kept)
        # Other files there are the user's own.
        for _ in range(2):
            run_files(model, source, "model/out.parquet", params=FEW, stats="model/stats.json", force=True)
        run_files(model, source, "out.parquet", params=FEW, stats="/dev/null", report="/dev/null", engine_options={"timeline": "/dev/null"})

    def test_an_input_that_is_not_one_file_comes_with_what_to_do(self):
        table = pyarrow.table({"prompt": ["a", "b"]})
        parts = [write(self.path(f"part{i}.parquet"), table) for i in range(2)]
        os.mkdir(self.path("parts.parquet"))
        for given, kind, words in (
            (parts, TypeError, r"input is a list, and one file is read: pyarrow.parquet.write_table\(pyarrow.parquet.read_table\(paths\), 'in.parquet'\)"),
            (self.path("parts.parquet"), batchllm.InvalidArgumentError, r"parts.parquet: is a folder, and one file is read: .*read_table\('.*parts.parquet'\)"),
            (self.path("part*.parquet"), batchllm.InvalidArgumentError, r"patterns are not expanded: .*read_table\(sorted\(glob.glob\('.*part\*.parquet'\)\)\)"),
            (table, TypeError, "input is one Table, and a path is expected: Engine.generate_table runs a table in memory"),
            ({"prompt": ["a"]}, TypeError, "input is one dict, and a path"),
            (5, TypeError, "int"),
        ):
            with self.assertRaisesRegex(kind, words):
                run_files(MODEL, given, self.path("out.parquet"))
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(parts), self.path("in[1].parquet"))  # as the error says
        self.assertEqual(run_files(MODEL, self.path("in[1].parquet"), self.path("out.parquet"), params=FEW).rows, 4)

    def test_zeros_of_the_command_line_are_values(self):
        source, target = self.path("in.parquet"), self.path("out.parquet")
        write(source, pyarrow.table({"prompt": ["one", "two"]}))
        same = ("--model", MODEL, "--input", source, "--output", target, "--max-tokens", "3")
        done = program(*same, "--logprobs", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("logprobs", read(target).column_names)
        for option in ("--n", "--top-p"):
            done = program(*same, "--force", option, "0")
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("must be", done.stderr)

    def test_memory_is_given_as_to_the_program_and_unknown_options_are_named(self):
        for text, wanted in (("2GiB", (2 << 30, 0.0)), ("64 M", (64 << 20, 0.0)), ("1.5kB", (1500, 0.0)), ("7", (7, 0.0)), ("40%", (0, 0.4))):
            self.assertEqual(_memory(text), wanted, text)
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": ["one"]}))
        same = ("--model", MODEL, "--input", source, "--output", self.path("out.parquet"), "--max-tokens", "3")
        for options, words in (
            (["--kv-memory", "much"], "argument --kv-memory: 'much' is not a size such as 2GiB, nor a share such as 40%;"),
            (["--kv-memory", "101%"], "is not a size"),
            (["--promt-column", "prompt"], "unknown option --promt-column .did you mean --prompt-column.."),
            (["--bogus"], "unknown option --bogus;"),
        ):
            done = program(*same, *options)
            self.assertEqual((done.returncode, self.left()), (1, []), done.stderr)
            self.assertRegex(done.stderr, r"\Abatchllm: .*" + words + r".*--help lists the options\n\Z")
        done = program(*same, "--backend", "cpu", "--kv-memory", "64MiB")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run([sys.executable, "-m", "batchllm", "demo"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Abatchllm: 'demo': only run is a command here, others are the program's .batchllm --help.; .*\n\Z")

    def test_without_pyarrow_it_is_said_what_to_install(self):
        done = subprocess.run([sys.executable, "-c", "import sys; sys.modules['pyarrow'] = None; import batchllm.__main__ as m;"
                               "sys.exit(m.main(['run', '--model', sys.argv[1], '--input', 'a.parquet', '--output', 'b.csv']))", MODEL],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (1, "batchllm: run_files needs pyarrow: pip install pyarrow\n"))


class Screen:
    """A stderr that is a terminal or is not, and what a bar made of it."""

    def __init__(self, terminal):
        self.terminal, self.text = terminal, ""

    def write(self, text):
        self.text += text

    def flush(self):
        pass

    def isatty(self):
        return self.terminal


class Bar:
    """Stands for tqdm's."""

    made = []

    def __init__(self, total, initial, unit):
        self.total, self.n, self.shown = total, initial, [initial]
        Bar.made.append(self)

    def set_postfix(self, **_):
        pass

    def refresh(self):
        self.shown.append(self.n)

    def close(self):
        pass


@unittest.skipIf(pyarrow is None, "needs pyarrow")
class AsTheProgram(Files):
    """What the program has, files have too."""

    SCHEMA = {"type": "object", "properties": {"n": {"enum": [12, 345]}}, "required": ["n"], "additionalProperties": False}

    def test_types_and_metadata_of_the_input_come_back(self):
        import pandas

        kinds = [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view(), pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary_view()]
        fields = [pyarrow.field(f"c{i}", kind, metadata={"of": str(i)}) for i, kind in enumerate(kinds)]
        fields.append(pyarrow.field("prompt", pyarrow.string(), nullable=False))
        texts = ["a", "a longer text than twelve bytes"]
        columns = [pyarrow.array([None, texts[1]], pyarrow.string()).cast(kind) for kind in kinds] + [pyarrow.array(texts)]
        table = pyarrow.table(columns, schema=pyarrow.schema(fields, {"whose": "mine"}))
        params = SamplingParams(max_tokens=2, n=2, temperature=1.0)
        with batchllm.Engine(MODEL) as engine:
            for one in ("in.arrow", "in.parquet"):
                source = write(self.path(one), table)
                for other in ("out.arrow", "out.parquet"):
                    run_files(engine, source, self.path(other), params=params, force=True)
                    found, given = read(self.path(other)), read(source)
                    for field in given.schema:
                        self.assertEqual(found.schema.field(field.name).type, field.type, (one, other))
                        self.assertEqual(found.column(field.name).to_pylist()[::2], given.column(field.name).to_pylist())
                    self.assertEqual(found.schema.metadata[b"whose"], b"mine")
                    self.assertEqual(found.schema.field("c3").metadata[b"of"], b"3")
                    self.assertFalse(found.schema.field("prompt").nullable)
            frame = pandas.DataFrame({"prompt": ["a", "b", "c"]}, index=pandas.Index(["x", "y", "z"], name="key"))
            for index in (frame.index, pandas.RangeIndex(5, 8), pandas.MultiIndex.from_tuples([(1, "a"), (1, "b"), (2, "a")], names=["i", None])):
                frame.index = index
                frame.to_parquet(self.path("frame.parquet"))
                run_files(engine, self.path("frame.parquet"), self.path("frame_out.parquet"), params=FEW, force=True)
                found = pandas.read_parquet(self.path("frame_out.parquet"))
                self.assertTrue(found.index.equals(index), found.index)
                self.assertEqual(found.columns.tolist(), ["prompt", *RESULTS])

    def test_a_column_whose_offsets_do_not_fit_is_written_in_pieces(self):
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": [f"{i} of many" for i in range(50)]}))
        with batchllm.Engine(MODEL) as engine, unittest.mock.patch.object(batchllm.file_formats, "_MOST_BYTES", 300):
            run_files(engine, source, self.path("out.arrow"), params=FEW)
        found = pyarrow.ipc.open_file(self.path("out.arrow"))
        self.assertGreater(found.num_record_batches, 3)
        self.assertEqual(found.read_all().column("prompt"), read(source).column("prompt"))

    def test_a_bar_begins_at_the_rows_that_are_kept_and_counts_the_jobs_rows_alone(self):
        source = write(self.path("in.parquet"), token_rows(60))

        class Stop(Exception):
            pass

        def stop(now):
            if now.rows_done >= 25:
                raise Stop

        tqdm = unittest.mock.Mock(tqdm=Bar)
        with sim(max_requests=4) as engine, unittest.mock.patch.object(batchllm.files, "_SLICE_SECONDS", 0.0):
            with self.assertRaises(Stop):
                run_files(engine, source, self.path("out.parquet"), params=FEW, chunk_rows=10, progress=stop)
            engine.generate([[i] for i in range(500)], FEW)  # rows of another job
            with unittest.mock.patch.object(batchllm.progress, "import_module", lambda name: tqdm), contextlib.redirect_stderr(Screen(True)):
                report = run_files(engine, source, self.path("out.parquet"), params=FEW, chunk_rows=10, progress=True, resume=True)
        bar = Bar.made.pop()
        self.assertGreaterEqual(report.resumed, 20)
        self.assertEqual((bar.total, bar.shown[0], bar.shown[-1]), (60, report.resumed, 60))
        self.assertLess(bar.shown[1], 40)
        self.assertEqual(bar.shown, sorted(bar.shown))

    def test_redirected_progress_is_a_few_plain_lines_and_a_summary(self):
        source = write(self.path("in.parquet"), token_rows(400))
        for terminal, packages in ((False, {}), (True, {"tqdm": None, "tqdm.auto": None})):
            screen = Screen(terminal)
            with sim() as engine, contextlib.redirect_stderr(screen), unittest.mock.patch.dict(sys.modules, packages):
                with unittest.mock.patch.object(batchllm.files, "_SLICE_SECONDS", 0.0):
                    report = run_files(engine, source, self.path("out.parquet"), params=FEW, progress=True, force=True)
            lines = screen.text.splitlines()
            self.assertLessEqual(len(lines), 4, screen.text)
            self.assertRegex(lines[-2], r"^100%  400/400 rows  0 running  0 tokens left  \d+s$")
            self.assertRegex(lines[-1], r"^400 rows in \d+s \(0 errors\)\. Prompts: 3,200 tokens, [\d,]+ computed, [\d.]+ % saved by sharing\. Generated: [\d,]+ tokens\.$")
            self.assertEqual(lines[-1], report.summary)

    def test_params_of_another_type_are_refused_as_generate_does(self):
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": ["a"]}))
        for wrong in ({"max_tokens": 3}, [FEW], "FEW"):
            with self.assertRaisesRegex(TypeError, f"params is one {type(wrong).__name__}: SamplingParams are expected"):
                run_files(MODEL, source, self.path("out.parquet"), params=wrong)
        self.assertFalse(os.path.exists(self.path("out.parquet.state")))

    def test_rows_that_were_cut_off_are_counted_in_the_report_the_summary_and_the_statistics(self):
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": ["one", None, "three"]}))
        cut, whole = (SamplingParams(max_tokens=n, json_schema=self.SCHEMA) for n in (2, 40))
        report = run_files(MODEL, source, self.path("out.parquet"), params=cut, stats=self.path("stats.json"))
        self.assertEqual((report.rows, report.failed, report.cut_off), (3, 1, 2))
        self.assertIn("Cut off: 2 of 2 results with a constraint.", report.summary)
        stats = json.loads(pathlib.Path(self.path("stats.json")).read_text())
        self.assertEqual((stats["rows"], stats["rows_failed"], stats["constrained_results"], stats["cut_off_results"]), (3, 1, 2, 2))
        self.assertEqual(run_files(MODEL, source, self.path("out.parquet"), params=cut, resume=True).cut_off, None)
        self.assertEqual(run_files(MODEL, source, self.path("out.parquet"), params=whole, force=True).cut_off, 0)
        free = SamplingParams(max_tokens=1)
        self.assertEqual(run_files(MODEL, source, self.path("out.parquet"), params=free, force=True).cut_off, 0)

    def test_statistics_and_reports_tell_this_jobs_part_alone(self):
        source = write(self.path("in.parquet"), token_rows(50))
        stats, page = self.path("stats.json"), self.path("job.html")
        with sim() as engine:
            engine.generate([[1, 2, 3]] * 9, FEW)
            run_files(engine, source, self.path("out.parquet"), params=FEW, chunk_rows=20, stats=stats, report=page)
        found = json.loads(pathlib.Path(stats).read_text())
        self.assertEqual((found["rows"], found["windows"], found["logical_prompt_tokens"], found["backend"]), (50, 3, 400, "sim"))
        text = pathlib.Path(page).read_text()
        for words in ("Job: in.parquet", "out.parquet", "<html"):
            self.assertIn(words, text)
        if os.path.exists("/dev/full"):
            with self.assertRaises(OSError) as full:
                run_files(None, source, self.path("out.parquet"), params=FEW, engine_options=SIM, force=True, stats="/dev/full")
            self.assertEqual(full.exception.filename, "/dev/full")
            self.assertEqual(str(full.exception), "stats: /dev/full: cannot write: No space left on device; the output is complete")
            self.assertEqual(read(self.path("out.parquet")).num_rows, 50)
            done = program(*SIM_OPTIONS, "--input", source, "--output", self.path("out.parquet"), "--force", "--max-tokens", "3",
                           "--progress", "none", "--stats", "/dev/full", "--report", self.path("own.html"))
            self.assertEqual((done.returncode, done.stderr), (1, "batchllm: --stats: /dev/full: cannot write: No space left on device; the output is complete\n"))
            self.assertTrue(os.path.exists(self.path("own.html")))
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "report: .*in.parquet is the input"):
            run_files(MODEL, source, self.path("out.parquet"), report=source)
        with self.assertRaisesRegex(batchllm.InvalidArgumentError, "stats: .*out.parquet is the output"):
            run_files(MODEL, source, self.path("out.parquet"), stats=self.path("out.parquet"))

    def test_categories_of_polars_pass_through_as_their_values(self):
        import polars

        kinds = {"prompt": polars.Categorical, "kind": polars.Categorical, "n": polars.Int64}
        frame = polars.DataFrame({"prompt": ["a b", "c d", None], "kind": ["x", None, "a longer text than twelve bytes"], "n": [1, 2, 3]}, schema=kinds)
        with batchllm.Engine(MODEL) as engine:
            for name in ("in.arrow", "in.parquet"):
                (frame.write_ipc if name == "in.arrow" else frame.write_parquet)(self.path(name))
                report = run_files(engine, self.path(name), self.path("out.parquet"), params=FEW, force=True)
                self.assertEqual((report.rows, report.failed), (3, 1))
                for column in ("prompt", "kind", "n"):
                    self.assertEqual(read(self.path("out.parquet")).column(column).to_pylist(), frame[column].to_list())

    def test_a_model_without_a_chat_template_ends_a_job_though_a_row_is_null(self):
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": ["a", None, "b"]}))
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(batchllm.InvalidArgumentError, "no chat template"):
            run_files(chat_model(folder, None), source, self.path("out.parquet"), chat=True, params=FEW)
        self.assertFalse(os.path.exists(self.path("out.parquet")))

    def test_statistics_and_reports_that_cannot_be_written_end_a_job_before_anything_is(self):
        source, out = write(self.path("in.parquet"), token_rows(5)), self.path("out.parquet")
        with self.assertRaisesRegex(TypeError, "stats is True: the path of a file is expected"):
            run_files(None, source, out, params=FEW, engine_options=SIM, stats=True)
        absent, folder, file = (self.path(name) for name in ("no/file", "folder", "file"))
        os.mkdir(folder)
        pathlib.Path(file).write_text("")
        for path, number in ((absent, errno.ENOENT), (folder, errno.EISDIR), (self.path("new/"), errno.EISDIR),
                             (os.path.join(file, "x"), errno.ENOTDIR), ("s3://bucket/x", errno.ENOENT)):
            words = f"{path}: cannot open: {os.strerror(number)}"
            for name in ("stats", "report", "timeline"):
                how = {"engine_options": {**SIM, "timeline": path}} if name == "timeline" else {"engine_options": SIM, name: path}
                with self.assertRaises(batchllm.FileError) as caught:
                    run_files(None, source, out, params=FEW, **how)
                self.assertEqual(str(caught.exception), f"{name}: {words}")
                for one in (caught.exception, pickle.loads(pickle.dumps(caught.exception))):
                    self.assertEqual((one.errno, one.filename, one.strerror), (number, path, os.strerror(number)))
            done = program(*SIM_OPTIONS, "--input", source, "--output", out, "--stats", path)
            self.assertEqual((done.returncode, done.stderr), (1, f"batchllm: --stats: {words}\n"))
            self.assertEqual(sorted(os.listdir(self.folder)), ["file", "folder", "in.parquet"])
        with self.assertRaises(FileNotFoundError):
            sim(timeline=absent)
        os.symlink(self.path("target"), self.path("link"))
        run_files(None, source, out, params=FEW, engine_options=SIM, stats=self.path("link"))
        self.assertTrue(os.path.exists(self.path("target")))

    def test_statistics_of_an_interrupted_run_know_all_rows_of_the_input(self):
        stats = self.path("stats.json")
        for ending, known in ((".parquet", 100), (".csv", 100), (".arrow", None)):
            table = token_rows(100) if ending != ".csv" else pyarrow.table({"prompt": [f"row {i}" for i in range(100)]})
            source, out = write(self.path("in" + ending), table), self.path("out" + ending)
            model, options = (MODEL, {}) if ending == ".csv" else (None, SIM)
            how = {"params": FEW, "chunk_rows": 20, "stats": stats, "engine_options": options}

            def stop(progress):
                if progress.rows_done >= 20:
                    raise KeyboardInterrupt

            if ending != ".csv":
                how["columns"] = ["number"]
            with self.assertRaises(KeyboardInterrupt):
                run_files(model, source, out, progress=stop, **how)
            found = json.loads(pathlib.Path(stats).read_text())
            self.assertEqual(found["rows"], known)
            self.assertTrue(20 <= found["rows_done"] < 100, found["rows_done"])
            run_files(model, source, out, resume=True, **how)
            again = json.loads(pathlib.Path(stats).read_text())
            self.assertEqual((again["rows"], again["rows_done"], again["rows_resumed"]), (100, 100, found["rows_done"]))

    def test_a_plan_and_options_of_the_engine_are_used(self):
        table = pyarrow.table({"prompt": pyarrow.array([[1] * 40 + [i] for i in range(40)], pyarrow.list_(pyarrow.int32()))})
        source, stats = write(self.path("in.parquet"), table), self.path("stats.json")

        def computed(**how):
            run_files(None if "engine" not in how else how.pop("engine"), source, self.path("out.parquet"), params=FEW, force=True, stats=stats, **how)
            return json.loads(pathlib.Path(stats).read_text())["processed_prompt_tokens"]

        options = {"backend": "sim", "backend_options": "vocabulary=1000,eos_token=999,pages=4096"}
        self.assertLess(computed(engine_options=options), 41 * 40 // 2)
        self.assertEqual(computed(engine_options={**options, "enlarge": "none"}), 41 * 40)
        plan, other = batchllm.Plan.build(table.column("prompt").to_pylist()), batchllm.Plan.build([[7] * 40])
        plan.save(self.path("f.plan.2"))  # of the second chunk
        other.save(self.path("f.plan"))
        for given, chunk, reused in ((None, 40, 0), (plan, 40, 40), (plan, 10, 10), (self.path("f.plan"), 40, 0), (self.path("f.plan"), 20, 20)):
            with sim() as engine:
                computed(engine=engine, plan=given, chunk_rows=chunk)
                self.assertEqual(engine.get_plan().stats().reused_rows, reused)
        with sim() as engine:
            with self.assertRaisesRegex(ValueError, "engine_options: the engine has its options already"):
                computed(engine=engine, engine_options=options)
        with self.assertRaises(OSError):
            computed(engine_options=options, plan=self.path("none.plan"))

    def test_the_command_line_has_the_programs_options(self):
        source = write(self.path("in.parquet"), pyarrow.table({"prompt": ["one", "two"]}))
        pathlib.Path(self.path("g.gbnf")).write_text('root ::= "yes" | "no"')
        pathlib.Path(self.path("g.lark")).write_text('start: "maybe"')
        pathlib.Path(self.path("loose.json")).write_text('{"type": "array", "uniqueItems": true, "items": {"type": "integer", "minimum": 1, "maximum": 9}, "maxItems": 2}')
        job = ("--model", MODEL, "--input", source, "--output", self.path("out.parquet"), "--force")
        for options, texts in (
            (["--grammar", self.path("g.gbnf")], "yes|no"), (["--grammar", self.path("g.lark")], "maybe"),
            (["--json-schema", self.path("loose.json"), "--loose-schema", "--flexible-whitespace", "--any-numbers", "--any-member-order"], r"\[[^]]*\]"),
            (["--choices", "a", "--no-sharing", "--levels", "1", "--timeline", self.path("steps.csv"),
              "--stats", self.path("stats.json"), "--report", self.path("job.html")], "a"),
        ):
            done = program(*job, *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, r"2 rows in \d+s \(0 errors\)\. Prompts: ")
            for text in read(self.path("out.parquet")).column("text").to_pylist():
                self.assertRegex(text, f"^({texts})$")
        for name in ("steps.csv", "stats.json", "job.html"):
            self.assertGreater(os.path.getsize(self.path(name)), 0)
        done = program(*job, "--choices", "a", "--regex", "b")
        self.assertIn("not allowed with argument", done.stderr)
        self.assertEqual(program(*job, "--choices", "a", "--progress", "none").stderr, "")

    def test_a_small_csv_file_is_read_once(self):
        source = self.path("in.csv")
        pathlib.Path(source).write_text("prompt,n\n" + "".join(f"row {i},{i}\n" for i in range(200)))
        parsed = []
        plain = batchllm.file_formats._Csv._reader

        def counted(self, types):
            parsed.append(types)
            return plain(self, types)

        with batchllm.Engine(MODEL) as engine, unittest.mock.patch.object(batchllm.file_formats._Csv, "_reader", counted):
            for kept, times in ((1 << 20, 1), (0, 3)):
                parsed.clear()
                with unittest.mock.patch.object(batchllm.file_formats, "_KEPT_BYTES", kept):
                    run_files(engine, source, self.path("out.parquet"), params=FEW, chunk_rows=64, columns=["n"], force=True)
                self.assertEqual(sum(types != {} for types in parsed), times)
                self.assertEqual(read(self.path("out.parquet")).column("n").to_pylist(), [str(i) for i in range(200)])

    def test_two_jobs_on_one_output_in_two_threads(self):
        source, out = write(self.path("in.parquet"), token_rows(300)), self.path("out.parquet")
        begin, outcomes = threading.Barrier(4), []

        def work():
            begin.wait()
            try:
                outcomes.append(run_files(None, source, out, params=SamplingParams(max_tokens=30), engine_options=SIM).rows)
            except batchllm.Error as fault:
                outcomes.append(str(fault))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(outcomes.count(300), 1, outcomes)
        for text in outcomes:
            self.assertRegex(str(text), "^300$|another run is writing to it|force starts over")
        self.assertEqual(read(out).num_rows, 300)
        self.assertEqual(sorted(name for name in os.listdir(self.folder) if name.startswith("out")), ["out.parquet", "out.parquet.state"])


@unittest.skipIf(pyarrow is None or importlib.util.find_spec("fsspec") is None, "needs pyarrow and fsspec")
class Addresses(Files):
    def test_a_job_between_addresses_is_resumed_by_chunks(self):
        import fsspec

        memory = fsspec.filesystem("memory")
        self.addCleanup(lambda: memory.rm("/job", recursive=True))
        pyarrow.parquet.write_table(token_rows(50), self.path("in.parquet"))
        memory.put_file(self.path("in.parquet"), "/job/in.parquet")

        class Stop(Exception):
            pass

        def stop(now):
            if now.rows_done > 25:
                raise Stop

        with sim(max_requests=4) as engine:
            run_files(engine, self.path("in.parquet"), self.path("out.parquet"), params=FEW, chunk_rows=10)
            addresses = "memory://job/in.parquet", "memory://job/out.parquet"
        with sim(max_requests=4) as engine:
            with self.assertRaises(Stop):
                run_files(engine, *addresses, params=FEW, chunk_rows=10, progress=stop)
        self.assertFalse(memory.exists("/job/out.parquet"))
        self.assertTrue(memory.exists("/job/out.parquet.parts/00000000.arrow"))
        with sim() as engine:
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "was begun; resume continues it"):
                run_files(engine, *addresses, params=FEW, chunk_rows=10)
            report = run_files(engine, *addresses, params=FEW, chunk_rows=10, resume=True)
        self.assertEqual(report.rows, 50)
        self.assertGreaterEqual(report.resumed, 10)
        self.assertEqual(sorted(name.rsplit("/", 1)[-1] for name in memory.ls("/job", detail=False)),
                         ["in.parquet", "out.parquet", "out.parquet.state"])
        memory.get_file("/job/out.parquet", self.path("got.parquet"))
        columns = ["number", "text", "completion_tokens"]
        self.assertEqual(read(self.path("got.parquet")).select(columns), read(self.path("out.parquet")).select(columns))

    def test_an_address_without_fsspec_is_said(self):
        done = subprocess.run([sys.executable, "-c", "import sys; sys.modules['fsspec'] = None; import batchllm\n"
                               "batchllm.run_files(sys.argv[1], 's3://a/b.parquet', 'c.parquet')", MODEL],
                              capture_output=True, text=True, timeout=60)
        self.assertIn("needs fsspec: pip install fsspec", done.stderr)


@unittest.skipIf(pyarrow is None, "needs pyarrow")
class Interrupted(Files):
    """A job that is ended in any way can be continued, and its output is that of an undisturbed job."""

    ROWS = 600
    # Long rows, so that there is time to kill the job.
    JOB = [*SIM_OPTIONS, "--max-tokens", "200", "--n", "2", "--temperature", "1", "--chunk-rows", "100", "--max-requests", "4"]

    def setUp(self):
        super().setUp()
        self.source = write(self.path("in.parquet"), token_rows(self.ROWS), row_group_size=70)
        self.expected = self.path("expected.parquet")
        done = program("--input", self.source, "--output", self.expected, *self.JOB)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, rf"{self.ROWS:,} rows in \d+s \(0 errors\)")

    def run_job(self, *more, **how):
        return program("--input", self.source, "--output", self.path("out.parquet"), *self.JOB, *more, **how)

    @staticmethod
    def kept(said):
        """How many rows earlier runs have done, by the summary."""
        found = re.search(r"done before: ([\d,]+)|([\d,]+) rows are done since an earlier run", said)
        return int((found[1] or found[2]).replace(",", "")) if found else 0

    def check(self):
        drop = ["shared_tokens"]  # how much is shared depends on what runs at the same time
        self.assertEqual(read(self.path("out.parquet")).drop(drop), read(self.expected).drop(drop))
        self.assertEqual(sorted(os.listdir(self.folder)), ["expected.parquet", "expected.parquet.state", "in.parquet", "out.parquet",
                                                           "out.parquet.state"])

    def test_killed_at_any_moment(self):
        seed = int(os.environ.get("BATCHLLM_TEST_SEED", random.randrange(1 << 30)))
        chance, kills, kept, waited = random.Random(seed), 0, 0, False

        def state_time():
            try:
                return os.stat(self.path("out.parquet.state")).st_mtime_ns
            except FileNotFoundError:
                return 0

        def size(name):
            try:
                return os.path.getsize(name)
            except FileNotFoundError:
                return 0

        def row_bytes():
            return size(self.path("out.parquet.blocks")) // 5000

        for _ in range(8):
            command = [sys.executable, "-m", "batchllm", "run", "--input", self.source, "--output", self.path("out.parquet"), *self.JOB,
                       "--resume"]
            # Half of them at once, and half when there are new rows; each run rewrites the state when it begins.
            deadline, wait_for = time.monotonic() + 60, chance.choice([state_time, row_bytes])
            before = wait_for()
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as job:
                while wait_for() == before and job.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.002)
                time.sleep(chance.random() * 0.03)
                job.send_signal(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                said = job.communicate(timeout=60)[1]
            # SIGINT: how Python ends if an interrupt, even if handled, passed through an exec() of a text.
            ends = (-signal.SIGKILL, 130, 0, -signal.SIGTERM, -signal.SIGINT)
            self.assertIn(job.returncode, ends, f"seed {seed}: {said}")
            if job.returncode == 0:
                kept = self.kept(said)
                break
            kills += 1
            waited |= wait_for is row_bytes
        else:
            done = self.run_job("--resume")
            self.assertEqual(done.returncode, 0, f"seed {seed}: {done.stderr}")
            kept = self.kept(done.stderr)
        self.assertGreater(kills, 0, f"seed {seed}")
        if waited:
            self.assertGreater(kept, 0, f"seed {seed}")
        self.check()
        self.assertEqual(self.run_job("--resume").returncode, 0)  # a finished job stays finished
        self.check()

    def test_rows_of_a_chunk_that_was_not_finished_are_kept(self):
        class Stop(Exception):
            pass

        def stop(now):
            if now.rows_done >= 60:
                raise Stop

        params = SamplingParams(max_tokens=20)
        # One step at a time, so that the results of each are in the file.
        with sim(max_requests=8) as engine, unittest.mock.patch.object(batchllm.files, "_SLICE_SECONDS", 0.0):
            with self.assertRaises(Stop):
                run_files(engine, self.source, self.path("part.parquet"), params=params, progress=stop)
            # The engine is still usable, and has no rows of the job.
            self.assertEqual(len(engine.generate([[1, 2]], FEW)), 1)
            self.assertEqual(len(engine.poll()), 0)
        path = self.path("part.parquet.blocks")
        whole = pathlib.Path(path).read_bytes()
        # A torn end is dropped, but nothing before it.
        kept = []
        for cut in (len(whole), len(whole) - 1, len(whole) // 2, 100, 0):
            pathlib.Path(path).write_bytes(whole[:cut])
            with sim() as engine:
                copy = self.path(f"copy{cut}.parquet")
                for name in (".state", ".blocks"):
                    pathlib.Path(copy + name).write_bytes(pathlib.Path(self.path("part.parquet") + name).read_bytes())
                report = run_files(engine, self.source, copy, params=params, resume=True)
                self.assertEqual(report.rows, self.ROWS)
                kept.append(report.resumed)
                first = read(copy) if cut == len(whole) else first
                self.assertEqual(read(copy).drop(["shared_tokens"]), first.drop(["shared_tokens"]))
        self.assertGreaterEqual(kept[0], 60)
        self.assertTrue(kept[0] > kept[1] > kept[2] > kept[3] == kept[4] == 0, kept)

    def test_a_full_disk_stops_the_run_and_is_gone_on_from(self):
        stops = 0
        for limit in (20_000, 60_000, 120_000, None):
            def limited(limit=limit):
                if limit is not None:
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

            done = self.run_job("--resume", preexec_fn=limited)
            if limit is None:
                self.assertEqual(done.returncode, 0, done.stderr)
            elif done.returncode != 0:
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertRegex(done.stderr, "out.parquet[a-z.]*: (cannot write: )?File too large")
                self.assertFalse(os.path.exists(self.path("out.parquet")))
                stops += 1
            else:
                break
        self.assertGreater(stops, 0)
        self.check()

    def test_another_job_is_refused_and_two_runs_at_once_too(self):
        out = self.path("out.parquet")
        self.assertEqual(self.run_job().returncode, 0)
        self.check()
        done = self.run_job()
        self.assertEqual(done.returncode, 1)
        self.assertIn("--resume continues it, --force starts over", done.stderr)
        done = self.run_job("--resume", "--temperature", "0.5")
        self.assertIn("temperature (was 1.0, now 0.5)", done.stderr)
        with batchllm.Engine(MODEL, backend="cpu") as other:
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, r"backend \(was sim, now cpu\)"):
                run_files(other, self.source, out, resume=True)
        self.assertEqual(self.run_job("--force").returncode, 0)
        self.check()
        write(self.source, token_rows(self.ROWS - 1))
        self.assertIn("input bytes (was ", self.run_job("--resume").stderr)
        os.unlink(out + ".state")
        self.assertIn("out.parquet.state: not found, so it is not known which rows are done", self.run_job("--resume").stderr)
        self.assertTrue(os.path.exists(out))
        with sim() as engine:
            second = []

            def again(now):
                if not second:
                    try:
                        run_files(MODEL, self.source, self.path("two.parquet"))
                    except batchllm.StateError as error:
                        second.append(str(error))

            run_files(engine, self.source, self.path("two.parquet"), params=FEW, progress=again)
        self.assertIn("another run is writing to it", second[0])


@unittest.skipIf(pyarrow is None, "needs pyarrow")
class Memory(Files):
    def test_memory_does_not_grow_with_the_input(self):
        """Compares the peaks of two processes, one with eight times as many rows."""
        peaks = []
        for rows in (20_000, 160_000):
            source = self.path(f"in{rows}.parquet")
            write(source, token_rows(rows, 60), row_group_size=10_000)
            code = ("import sys, batchllm; from batchllm import SamplingParams\n"
                    f"engine = batchllm.Engine(**{SIM!r})\n"
                    "batchllm.run_files(engine, sys.argv[1], sys.argv[2], params=SamplingParams(max_tokens=2), chunk_rows=5000)\n"
                    "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')])\n")
            done = subprocess.run([sys.executable, "-c", code, source, self.path(f"out{rows}.parquet")], capture_output=True, text=True,
                                  timeout=280)
            self.assertEqual(done.returncode, 0, done.stderr)
            peaks.append(int(done.stdout))
        self.assertLess(peaks[1], 1.35 * peaks[0], peaks)


if __name__ == "__main__":
    unittest.main()
