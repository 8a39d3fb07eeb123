"""Model directories as transformers saves them (tests/golden/saved), read as they are, and the scripts that try such directories."""

import json
import shutil
import subprocess
import sys
import unittest

from program import PROGRAM, TESTS, ProgramTest

SAVED = TESTS / "golden/saved"
NAMES = sorted(path.name for path in SAVED.iterdir())
SCRIPTS = TESTS.parent / "scripts"


def golden(name):
    return json.loads((SAVED / name / "saved.json").read_text())


def script(name, *arguments):
    return subprocess.run([sys.executable, SCRIPTS / name, PROGRAM, *arguments], capture_output=True, text=True)


class Saved(ProgramTest):
    def test_conversations_are_rendered_and_answered_as_the_reference_does(self):
        self.assertEqual(len(NAMES), 3)
        for name in NAMES:
            wanted = golden(name)
            rows = [{"id": i, "messages": row["messages"], "max_tokens": wanted["new_tokens"]}
                    for i, row in enumerate(wanted["rows"])]
            found = {row["id"]: row for row in self.run_rows(rows, backend=[
                "--backend", "cpu", "--compute-type", "f32", "--kv-memory", "16MiB", "--model", SAVED / name, "--force"])}
            for i, row in enumerate(wanted["rows"]):
                with self.subTest(name=name, row=i):
                    self.assertEqual(found[i]["usage"]["prompt_tokens"], len(row["prompt"]))
                    self.assertEqual(found[i]["tokens"], row["tokens"])
                    self.assertEqual(found[i]["text"], row["answer"])

    def test_a_conversations_tokens_are_the_references(self):
        for name in NAMES:
            for row in golden(name)["rows"]:
                self.assertEqual(self.tokens(name, row["messages"]), row["prompt"])

    def test_a_content_of_parts_is_what_it_is_as_one_text(self):
        messages = golden("gemma3_vl_5")["rows"][1]["messages"]
        parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]
        self.assertEqual(self.tokens("gemma3_vl_5", parts), golden("gemma3_vl_5")["rows"][1]["prompt"])

    def tokens(self, name, messages):
        done = subprocess.run([PROGRAM, "tokenize", "--model", SAVED / name], input=json.dumps({"messages": messages}) + "\n",
                              capture_output=True, text=True, check=True)
        return json.loads(done.stdout).get("tokens")


class Scripts(ProgramTest):
    def test_a_checkpoint_that_works_has_nothing_in_the_way(self):
        for name in NAMES:
            done = script("try_checkpoint.py", SAVED / name, "--run")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertTrue(done.stdout.endswith("In the way\n    nothing\n"), done.stdout)
            self.assertIn("saved.json: not read", done.stdout)
            self.assertIn("BF16: ", done.stdout)
            self.assertIn("temperature", done.stdout)

    def test_what_stands_in_the_way_is_named(self):
        model = self.directory / "model"
        model.mkdir()
        for name in ("config.json", "generation_config.json"):
            shutil.copy(SAVED / "llama_5" / name, model)
        config = json.loads((model / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "bitsandbytes"}
        (model / "config.json").write_text(json.dumps(config))
        (model / "tokenizer.json").write_text('{"model": {"unk_id": 2, "vocab": [["<pad>", 0.0]]}}')
        (model / "pytorch_model.bin").write_text("")
        (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
        done = script("try_checkpoint.py", model)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for words in ("pytorch_model.bin: weights as Python pickles", '"quantization_config.quant_method" is "bitsandbytes"',
                      "1 of 1 files of weights are missing: model-1.safetensors", "this is a model of kind Unigram"):
            self.assertIn(words, done.stdout)

    def test_a_corpus_is_compared_with_what_is_expected(self):
        corpus = self.directory / "corpus"
        for name in NAMES:
            shutil.copytree(SAVED / name, corpus / name)
            (corpus / name / "model.safetensors").unlink()
            (corpus / name / "expected-chat.json").write_text(json.dumps(
                [{"messages": row["messages"], "add_generation_prompt": True, "text": row["text"]} for row in golden(name)["rows"]]))
        done = script("try_published.py", corpus)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("3 folders. Configurations: 3 load, 0 refused. Tokenizers: 3 load, 0 refused. Conversations: 9 equal, "
                      "0 refused by both, 0 differ.", done.stdout)
        expected = json.loads((corpus / "llama_5" / "expected-chat.json").read_text())
        expected[0]["text"] += "x"
        expected[1]["text"] = {"error": "TemplateError: no"}
        (corpus / "llama_5" / "expected-chat.json").write_text(json.dumps(expected))
        (corpus / "qwen3_4" / "config.json").write_text('{"model_type": "t5"}')
        done = script("try_published.py", corpus)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn('qwen3_4: config.json: "model_type" is "t5": not a supported one', done.stdout)
        self.assertIn("7 equal, 0 refused by both, 2 differ.", done.stdout)


if __name__ == "__main__":
    unittest.main()
