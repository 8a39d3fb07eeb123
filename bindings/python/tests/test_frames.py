"""Results as tables of pyarrow, pandas and Polars: everything that was requested, with samples as rows or as lists."""

import importlib.util
import json
import unittest

import batchllm
from batchllm import SamplingParams
from support import MODEL, run_script, sim

try:
    import numpy
    import pandas
    import pyarrow
except ImportError:
    numpy = None

TEXTS = ["The capital of", "Pérù 中", "x"]
ALWAYS = ["tag", "sample", "text", "tokens", "finish_reason", "status", "error", "prompt_tokens", "shared_tokens"]
MOST = SamplingParams(max_tokens=4, logprobs=3, samples=2, temperature=1.0)


def plain(value):
    """A cell as plain Python, from any of the packages."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [plain(one) for one in value] if isinstance(value, list) else value


def rows_of(frame):
    """The rows of any of the three as dicts of plain Python."""
    if hasattr(frame, "to_pylist"):
        rows = frame.to_pylist()
    else:
        rows = frame.to_dicts() if hasattr(frame, "to_dicts") else frame.to_dict("records")
    return [{name: plain(value) for name, value in row.items()} for row in rows]


def none_for_missing(rows):
    """Turns pandas' NaN in text columns into None."""
    return [{name: None if isinstance(value, float) and value != value else value for name, value in row.items()} for row in rows]


def jobs():
    """Results of every kind, with a row that fails in each."""
    with batchllm.Engine(MODEL) as engine:
        yield "text", engine.generate([*TEXTS, None], SamplingParams(max_tokens=4))
        yield "logprobs", engine.generate([*TEXTS, None], SamplingParams(max_tokens=4, logprobs=0))
        yield "top", engine.generate([*TEXTS, None], MOST)
        yield "scores", engine.score([*TEXTS, None], [" a", " bc def"])
        yield "none", engine.generate([])
        yield "nulls", engine.generate([None, None])


@unittest.skipIf(numpy is None, "needs numpy, pandas and pyarrow")
class Rows(unittest.TestCase):
    def frames(self, results, **how):
        yield "pyarrow", results.to_arrow(**how)
        yield "pandas", results.to_pandas(**how)
        if importlib.util.find_spec("polars") is not None:
            yield "polars", results.to_polars(**how)

    def test_every_table_has_what_was_asked_for(self):
        asked = {"text": [], "logprobs": ["logprobs"], "top": ["logprobs", "top_logprobs"], "scores": ["scores", "score_logprobs"],
                 "none": [], "nulls": []}
        for job, results in jobs():
            expected = results.to_pylist()
            self.assertEqual(results.columns, (*ALWAYS, *asked[job]))
            for library, frame in self.frames(results):
                with self.subTest(job=job, library=library):
                    names = frame.schema.names if library == "pyarrow" else list(frame.columns)
                    self.assertEqual(names, [*ALWAYS, *asked[job]])
                    self.assertEqual(none_for_missing(rows_of(frame)), expected)

    def test_a_frame_of_the_results_themselves_is_right(self):
        for job, results in jobs():
            expected = results.to_pylist()
            with self.subTest(job=job):
                if len(results):
                    frame = pandas.DataFrame(results)
                    self.assertEqual(list(frame.columns), list(results.columns))
                    self.assertEqual(none_for_missing(rows_of(frame)), expected)
                if importlib.util.find_spec("polars") is not None and len(results):
                    import polars

                    self.assertEqual(rows_of(polars.DataFrame(results)), expected)
                self.assertEqual(rows_of(pyarrow.record_batch(results)), expected)
                self.assertEqual(rows_of(pyarrow.table(results)), expected)

    def test_samples_as_lists(self):
        with batchllm.Engine(MODEL) as engine:
            params = [MOST, MOST, SamplingParams(max_tokens=3, logprobs=3), MOST]
            results = engine.generate(["one", "two", "three", None], params)
        groups = [[0, 1], [2, 3], [4], [5, 6]]
        for library, frame in self.frames(results, samples="lists"):
            with self.subTest(library=library):
                rows = none_for_missing(rows_of(frame))
                self.assertEqual(len(rows), 4)
                self.assertNotIn("sample", rows[0])
                self.assertEqual(list(rows[0]), [name for name in results.columns if name != "sample"])
                for row, group in zip(rows, groups):
                    for name, value in row.items():
                        if name in ("tag", "prompt_tokens", "status", "error"):
                            self.assertEqual(value, results[group[0]][name])
                        else:
                            self.assertEqual(value, [plain(results[i][name]) for i in group], name)
                self.assertIn("ROW_NULL", rows[3]["error"])
        with sim() as engine:
            one = engine.generate([[1, 2]], SamplingParams(max_tokens=2))
            empty = engine.generate([])
        for library, frame in self.frames(one, samples="lists"):
            self.assertEqual(rows_of(frame)[0]["tokens"], [one[0].tokens.tolist()], library)
        for library, frame in self.frames(empty, samples="lists"):
            self.assertEqual(rows_of(frame), [], library)
        with self.assertRaisesRegex(ValueError, "'rows' or 'lists'"):
            one.to_arrow(samples="list")

    def test_the_text_of_a_row_that_failed_is_null_in_every_frame(self):
        with batchllm.Engine(MODEL) as engine:
            results = engine.generate(["a", None, ""], SamplingParams(max_tokens=2, add_special=False))
        self.assertEqual([one is None for one in results.texts], [False, True, True])
        self.assertIsNone(results[1].text)
        self.assertEqual([one["error"].split(":")[0] for one in results.to_pylist()[1:]], ["ROW_NULL", "ROW_EMPTY"])
        self.assertEqual(results.to_arrow().column("text").null_count, 2)
        results.to_arrow().validate(full=True)
        for library, frame in self.frames(results):
            rows = none_for_missing(rows_of(frame))
            self.assertEqual([row["text"] for row in rows], results.texts, library)
            self.assertEqual([row["error"] for row in rows], results.errors, library)
        self.assertEqual(len(results.to_pandas().dropna(subset=["text"])), 1)

    def test_the_index_of_a_pandas_input_is_that_of_the_frame(self):
        frame = pandas.DataFrame({"question": ["a", "b", None]}, index=["x", "y", "x"])
        pair = SamplingParams(max_tokens=2, n=2, temperature=1.0)
        with batchllm.Engine(MODEL) as engine:
            params = SamplingParams(max_tokens=2)
            answers = engine.generate(frame["question"], params)
            self.assertEqual(list(answers.to_pandas().index), ["x", "y", "x"])
            self.assertEqual(list(engine.generate(frame, params).to_pandas().index), ["x", "y", "x"])
            self.assertEqual(list(engine.generate_table(frame, "{question}", params).to_pandas().index), ["x", "y", "x"])
            self.assertEqual(list(engine.score(frame["question"], [" a"]).to_pandas().index), ["x", "y", "x"])
            self.assertEqual(list(engine.generate(["a"], params).to_pandas().index), [0])
            samples = engine.generate(frame["question"][:2], pair)
            self.assertEqual(list(samples.to_pandas().index), ["x", "x", "y", "y"])
            self.assertEqual(list(samples.to_pandas(samples="lists").index), ["x", "y"])
        joined = frame[:2].assign(answer=answers.to_pandas()["text"][:2])
        self.assertEqual(joined["answer"].tolist(), answers.texts[:2])

    def test_answers_of_a_schema_are_a_column_of_their_values(self):
        schema = {"type": "object", "properties": {
            "kind": {"enum": ["a", "b"]}, "count": {"type": "integer", "minimum": 1, "maximum": 9},
            "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}, "minItems": 1, "maxItems": 2},
            "either": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}},
            "required": ["kind", "count", "parts", "either"], "additionalProperties": False,
            "$defs": {"part": {"type": "object", "properties": {"x": {"enum": [1.5, 2]}}, "required": ["x"], "additionalProperties": False}}}
        kind = pyarrow.struct([("kind", pyarrow.large_string()), ("count", pyarrow.int64()),
                               ("parts", pyarrow.list_(pyarrow.struct([("x", pyarrow.float64())]))), ("either", pyarrow.bool_())])
        with batchllm.Engine(MODEL) as engine:
            results = engine.generate(["a", None, "b"], SamplingParams(max_tokens=200, json_schema=schema))
            cut = engine.generate(["a"], SamplingParams(max_tokens=3, json_schema=schema))
            plain = engine.generate(["a"], SamplingParams(max_tokens=3))
        expected = [None if text is None else json.loads(text) for text in results.texts]
        self.assertIsNotNone(expected[0])
        self.assertEqual(results.parsed, expected)
        column = results.to_arrow(parsed=True).column("parsed")
        self.assertEqual((column.type, column.to_pylist()), (kind, expected))
        self.assertEqual(results.to_arrow(parsed=schema).column("parsed").to_pylist(), expected)
        self.assertEqual(results.to_pandas(parsed=True)["parsed"].tolist(), expected)
        self.assertEqual(cut.to_arrow(parsed=True).column("parsed").to_pylist(), [None])
        if importlib.util.find_spec("polars") is not None:
            self.assertEqual(results.to_polars(parsed=True)["parsed"].to_list(), expected)
        self.assertNotIn("parsed", results.to_arrow().schema.names)
        with self.assertRaisesRegex(ValueError, "no json_schema in common"):
            plain.to_arrow(parsed=True)

    def test_embeddings_and_numbers_are_no_copies(self):
        with batchllm.Engine(MODEL) as engine:
            results = engine.generate(TEXTS, SamplingParams(max_tokens=4, logprobs=2))
        batch = results.to_arrow()
        batch.validate(full=True)
        tops = batch.column("top_logprobs").values.values
        self.assertEqual(tops.field("token").buffers()[1].address, numpy.asarray(results.top_tokens).ctypes.data)
        frame = results.to_pandas()
        self.assertEqual(frame["tokens"][0].ctypes.data, numpy.asarray(results.tokens).ctypes.data)
        del results
        self.assertEqual([len(one) for one in frame["tokens"]], [4, 4, 4])
        self.assertEqual(batch.column("finish_reason").to_pylist(), ["length"] * 3)

    def test_a_library_that_is_not_there_is_named_with_what_to_do(self):
        done = run_script("""
            import sys
            sys.modules.update(pyarrow=None, polars=None, pandas=None)
            import batchllm
            with batchllm.Engine(backend="sim", backend_options="vocabulary=100,eos_token=99,pages=64") as engine:
                results = engine.generate([[1, 2]])
            for call in (results.to_arrow, results.to_polars, results.to_pandas):
                try:
                    call()
                except ModuleNotFoundError as error:
                    print(error)
        """)
        self.assertEqual(done.stdout.splitlines(), [f"to_{name} needs {package}: pip install {package}" for name, package in
                                                    (("arrow", "pyarrow"), ("polars", "polars"), ("pandas", "pandas"))], done.stderr)


class Mappings(unittest.TestCase):
    def test_a_result_is_a_mapping_of_what_it_has(self):
        with sim() as engine:
            result = engine.generate([[1, 2]], SamplingParams(max_tokens=2, logprobs=0))[0]
        self.assertEqual(dict(result), result.to_dict())
        self.assertEqual(result["tokens"], result.tokens.tolist())
        self.assertIn("logprobs", result)
        with self.assertRaises(KeyError):
            result["scores"]
        self.assertEqual(len({result, result}), 1)


if __name__ == "__main__":
    unittest.main()
