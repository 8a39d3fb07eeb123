"""Rows that are embedded, classified or reranked, against tests/golden/embedding."""

import json
import math
import pathlib
import unittest
import warnings

import batchllm
from support import MODEL, rows, sim

try:
    import numpy
except ImportError:
    numpy = None

GOLDEN = pathlib.Path(__file__).parents[3] / "tests/golden/embedding"
CPU = {"backend": "cpu", "compute_type": "f32", "kv_memory_bytes": 16 << 20}


def golden(name):
    """The model's directory and its rows."""
    return GOLDEN / name, json.loads((GOLDEN / name / "embedding.json").read_text())["rows"]


@unittest.skipIf(numpy is None, "needs NumPy")
class Embed(unittest.TestCase):
    def test_vectors_are_the_references_in_the_order_of_the_rows(self):
        model, wanted = golden("qwen3_last_bf16")
        prompts = [row["prompt"] for row in wanted]
        with batchllm.Engine(model, **CPU) as engine:
            for pooling in ("last", "mean", "first"):
                vectors = engine.embed(prompts, pooling=pooling, normalize=False)
                numpy.testing.assert_allclose(vectors, [row[pooling] for row in wanted], atol=1e-4)
            vectors = engine.embed(prompts, dimensions=16)
        self.assertEqual((vectors.shape, vectors.dtype), ((len(prompts), 16), numpy.float32))
        numpy.testing.assert_allclose(numpy.linalg.norm(vectors, axis=1), 1, atol=1e-6)

    def test_the_array_is_the_results_memory(self):
        with sim() as engine:
            vectors = engine.embed(rows(5), dimensions=8)
        self.assertFalse(vectors.flags.owndata or vectors.flags.writeable)
        self.assertEqual(vectors.shape, (5, 8))

    def test_a_row_that_fails_raises_or_is_nan(self):
        with sim() as engine:
            with self.assertRaises(batchllm.RowError):
                engine.embed([[1, 2], [], [3]])
            with self.assertWarnsRegex(UserWarning, "1 of 3 rows failed, so their values are NaN; row 1: ROW_EMPTY"):
                vectors = engine.embed([[1, 2], [], [3]], on_error="return", dimensions=8)
            with self.assertRaisesRegex(ValueError, "pooling"):
                engine.embed([[1]], pooling="max")
        self.assertEqual(numpy.isnan(vectors).all(axis=1).tolist(), [False, True, False])

    def test_no_rows_are_an_empty_array(self):
        with sim() as engine:
            self.assertEqual(engine.embed([]).shape, (0, engine.info().hidden))
            self.assertEqual(engine.embed([], dimensions=8).shape, (0, 8))
            self.assertEqual(engine.embed([None], dimensions=8, on_error="return").shape, (1, 8))


class Classify(unittest.TestCase):
    def test_labels_are_the_references(self):
        model, wanted = golden("qwen3_labels_bf16")
        with batchllm.Engine(model, **CPU) as engine:
            self.assertEqual(engine.labels, ["refuted", "open", "supported"])
            results = engine.classify([row["prompt"] for row in wanted])
        for result, row in zip(results, wanted):
            self.assertEqual(result.finish_reason, "classified")
            for got, probability in zip(result.label_probabilities, row["probabilities"]):
                self.assertAlmostEqual(got, probability, delta=1e-4)
            for got, logit in zip(result.label_logits, row["logits"]):
                self.assertAlmostEqual(got, logit, delta=1e-3)

    def test_a_model_without_a_head_for_labels_fails_the_call(self):
        with sim() as engine:
            self.assertEqual(engine.labels, [])
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "no classification head"):
                engine.classify([[1, 2]])


class Rerank(unittest.TestCase):
    def test_it_is_the_share_of_the_first_continuation(self):
        with batchllm.Engine(MODEL) as engine:
            prompts = ["Is water wet?", "Is fire cold?"]
            ranks = engine.rerank(prompts, "y", "n")
            scores = [result.scores.tolist() for result in engine.score(prompts, ["y", "n"])]
        for rank, (yes, no) in zip(ranks, scores):
            self.assertAlmostEqual(rank, math.exp(yes) / (math.exp(yes) + math.exp(no)), places=6)

    def test_words_that_the_model_does_not_expect_are_told(self):
        with batchllm.Engine(MODEL) as engine:
            with self.assertWarnsRegex(UserWarning, "expects neither 'yy' nor 'nn' .* such as ' yy' and ' nn'"):
                engine.rerank(["Is water wet?"], "yy", "nn")
            for words in ((" yy", " nn"), ("  yy ", " nn")):
                with self.assertWarnsRegex(UserWarning, "It may need no space before them, such as 'yy' and 'nn'"):
                    engine.rerank(["Is water wet?"], *words)
            with self.assertWarnsRegex(UserWarning, "It may need a space before them, such as ' yy' and ' nn'"):
                engine.rerank(["Is water wet?"], "yy", " nn")

    def test_the_rank_of_a_row_that_failed_is_nan_with_a_reason(self):
        with batchllm.Engine(MODEL) as engine:
            with self.assertWarnsRegex(UserWarning, "1 of 2 rows failed, so their values are NaN; row 1: ROW_NULL"):
                ranks = engine.rerank(["Is water wet?", None], "y", "n", on_error="return")
        self.assertEqual([math.isnan(rank) for rank in ranks], [False, True])

    def test_words_of_unlike_lengths_are_told(self):
        with batchllm.Engine(MODEL) as engine:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "rerank: positive")
                engine.rerank(["Is water wet?"], "yy", "nn")
            with self.assertWarnsRegex(UserWarning, "positive is 3 token.* and negative 2"):
                engine.rerank(["Is water wet?"], "yes", "no")


if __name__ == "__main__":
    unittest.main()
