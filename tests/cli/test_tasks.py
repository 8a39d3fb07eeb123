"""Rows that are embedded or classified: the program's own form and that of /v1/embeddings."""

import base64
import json
import math
import struct
import unittest

from program import TESTS, ProgramTest

GOLDEN = TESTS / "golden/embedding"


def cpu(model):
    return ["--backend", "cpu", "--compute-type", "f32", "--kv-memory", "16MiB", "--model", GOLDEN / model]


def golden(model):
    return json.loads((GOLDEN / model / "embedding.json").read_text())["rows"]


def embeddings_row(custom_id, **body):
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body}


class Embedded(ProgramTest):
    def assert_close(self, got, wanted):
        self.assertEqual(len(got), len(wanted))
        for a, b in zip(got, wanted):
            self.assertAlmostEqual(a, b, delta=1e-4)

    def test_a_jobs_vectors_are_the_references(self):
        wanted = golden("qwen3_last_bf16")
        rows = [{"id": i, "tokens": row["prompt"]} for i, row in enumerate(wanted)]
        options = ["--task", "embed", "--pooling", "mean", "--no-normalize"]
        found = self.run_rows(rows, *options, backend=cpu("qwen3_last_bf16"))
        self.assertEqual(len(found), len(rows))
        for row in found:
            self.assertEqual(row["finish_reason"], "embedded")
            self.assert_close(row["embedding"], wanted[row["id"]]["mean"])

    def test_a_row_says_its_own_task(self):
        rows = [{"id": 0, "tokens": [1, 2, 3], "task": "embed", "dimensions": 4, "normalize": True},
                {"id": 1, "tokens": [1, 2, 3], "max_tokens": 2, "ignore_eos": True},
                {"id": 2, "tokens": [1, 2, 3], "score": [[5]]}]
        found = {row["id"]: row for row in self.run_rows(rows)}
        self.assertEqual(len(found[0]["embedding"]), 4)
        self.assertAlmostEqual(math.hypot(*found[0]["embedding"]), 1, places=5)
        self.assertEqual(len(found[1]["tokens"]), 2)
        self.assertNotIn("embedding", found[1])
        self.assertEqual(found[2]["finish_reason"], "scored")

    def test_the_openai_form_is_answered_in_kind(self):
        rows = [embeddings_row("a", model="m", input=[5, 6, 7], dimensions=3, encoding_format="float"),
                embeddings_row("b", input=[[5, 6, 7]], user="u")]
        found = {row["custom_id"]: row for row in self.run_rows(rows)}
        body = found["a"]["response"]["body"]
        self.assertEqual((body["object"], body["model"]), ("list", "m"))
        self.assertEqual(body["usage"], {"prompt_tokens": 3, "total_tokens": 3})
        self.assertEqual([(item["object"], item["index"]) for item in body["data"]], [("embedding", 0)])
        self.assertEqual(len(body["data"][0]["embedding"]), 3)
        self.assertEqual(found["b"]["response"]["status_code"], 200)
        rows = [embeddings_row("a", input=[5, 6, 7], dimensions=width, encoding_format=form) for width in (3, 4, 5) for form in ("float", "base64")]
        rows = [dict(row, custom_id=str(i)) for i, row in enumerate(rows)]
        found = {row["custom_id"]: row["response"]["body"]["data"][0]["embedding"] for row in self.run_rows(rows, "--force")}
        for i in (0, 2, 4):
            packed = base64.b64decode(found[str(i + 1)], validate=True)
            self.assertEqual(list(struct.unpack(f"<{3 + i // 2}f", packed)), [struct.unpack("f", struct.pack("f", x))[0] for x in found[str(i)]])
        # Whatever the default for rows is.
        completion = {"custom_id": "c", "url": "/v1/completions", "body": {"prompt": [5, 6], "max_tokens": 2}}
        found = self.run_rows([completion], "--task", "embed", "--force")
        self.assertEqual(found[0]["response"]["body"]["object"], "text_completion")

    def test_what_is_not_understood_is_the_rows_error(self):
        cases = [(embeddings_row("a", input=[1], encoding_format="hex"), "encoding_format"),
                 (embeddings_row("a", input=[[1], [2]]), "several"),
                 (embeddings_row("a"), '"input" is missing'),
                 (embeddings_row("a", input=[1], task="generate"), "unknown key"),
                 (embeddings_row("a", input=[1], dimensions=0.5), "dimensions"),
                 (embeddings_row("a", input=[1], dimensions=100000), "dimensions is 100000"),
                 ({"tokens": [1], "task": "rank"}, '"generate", "embed" or "classify"'),
                 ({"tokens": [1], "task": "embed", "pooling": "max"}, '"last", "mean" or "first"'),
                 ({"tokens": [1], "task": "classify"}, "no classification head"),
                 ({"custom_id": "a", "url": "/v1/completions", "body": {"prompt": [1], "task": "embed"}}, "task")]
        for row, text in cases:
            with self.subTest(row=row):
                found = self.run_rows([row], "--force", expect=3)[0]
                self.assertIn(text, found["error"]["message"])


class Classified(ProgramTest):
    def test_labels_have_names_logits_and_probabilities(self):
        wanted = golden("llama_several_f32")
        rows = [{"id": i, "tokens": row["prompt"]} for i, row in enumerate(wanted)]
        for row in self.run_rows(rows, "--task", "classify", backend=cpu("llama_several_f32")):
            self.assertEqual([label["label"] for label in row["labels"]], ["a", "b", "c", "d"])
            for label, logit, share in zip(row["labels"], wanted[row["id"]]["logits"],
                                           wanted[row["id"]]["probabilities"]):
                self.assertAlmostEqual(label["logit"], logit, delta=1e-3)
                self.assertAlmostEqual(label["probability"], share, delta=1e-4)


if __name__ == "__main__":
    unittest.main()
