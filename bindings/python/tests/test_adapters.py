"""Rows with adapters, against PEFT: tests/golden/adapters."""

import json
import pathlib
import unittest

import batchllm
from batchllm import SamplingParams

GOLDEN = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"
BASE = "llama_bias_f32"
NAMES = ("llama_qv_r4", "llama_one_layer")


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
