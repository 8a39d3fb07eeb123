"""Results as tables of pyarrow, pandas and Polars: everything that was requested, with samples as rows or as lists."""

import importlib.util
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
