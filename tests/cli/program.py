"""Drives the batchllm program for the tests. Standard library only.

The program's path is in BATCHLLM_PROGRAM (tests/meson.build sets it).
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

PROGRAM = os.environ.get("BATCHLLM_PROGRAM", "build/src/cli/batchllm")
TESTS = pathlib.Path(__file__).resolve().parent.parent

# A simulated model of 1,000 tokens whose rows end by themselves after 1 to 12 tokens.
SIM = ["--backend", "sim", "--backend-options",
       "vocabulary=1000,eos_token=999,min_length=1,max_length=12,pages=4096"]


def lines(rows):
    """Rows (dicts, or raw strings or bytes) as the bytes of a JSONL file."""
    out = bytearray()
    for row in rows:
        if isinstance(row, dict):
            row = json.dumps(row)
        if isinstance(row, str):
            row = row.encode()
        out += row + b"\n"
    return bytes(out)


def token_rows(count, prefix=40, own=10, sharing=5):
    """Rows in groups of `sharing`, each group with its own prefix. No two are equal."""
    rows = []
    for i in range(count):
        group = i // sharing
        tokens = [(group * 7 + j * 3) % 998 for j in range(prefix)]
        tokens += [i % 998, i // 998, *((i * 13 + j) % 998 for j in range(own - 2))]
        rows.append({"id": i, "tokens": tokens})
    return rows


def text_model(folder):
    """A folder for a simulated model: a real tokenizer, and a configuration with its vocabulary."""
    folder.mkdir()
    config = json.loads((TESTS / "golden/qwen3_bf16/config.json").read_text())
    text = (TESTS / "text/llama3/tokenizer.json").read_text()
    tokenizer = json.loads(text)
    ids = [token["id"] for token in tokenizer["added_tokens"]]
    config["vocab_size"] = max(*ids, *tokenizer["model"]["vocab"].values()) + 1
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(text)
    return folder


class ProgramTest(unittest.TestCase):
    maxDiff = 4000

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="batchllm-test-"))
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.input = self.directory / "in.jsonl"
        self.output = self.directory / "out.jsonl"

    def run_program(self, *arguments, stdin=b"", **options):
        return subprocess.run([PROGRAM, *map(str, arguments)], input=stdin,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120,
                              **options)

    def run_rows(self, rows, *arguments, expect=0, backend=SIM):
        """Writes the rows, runs them, and returns the output's rows."""
        self.input.write_bytes(rows if isinstance(rows, bytes) else lines(rows))
        done = self.run_program("run", *backend, "-i", self.input, "-o", self.output,
                                "--progress", "none", *arguments)
        self.assertEqual(done.returncode, expect, done.stderr.decode())
        self.stderr = done.stderr.decode()
        return self.read_output()

    def read_output(self, path=None):
        """Every line is whole, is UTF-8 and is JSON in the strict sense."""
        data = (path or self.output).read_bytes()
        self.assertTrue(data == b"" or data.endswith(b"\n"))
        return [parse(line.decode("utf-8")) for line in data.splitlines()]


def parse(text):
    def refuse(constant):
        raise ValueError("not JSON: " + constant)
    return json.loads(text, parse_constant=refuse)


def by_id(rows):
    found = {}
    for row in rows:
        if row["id"] in found:
            raise AssertionError("two results for %r" % row["id"])
        found[row["id"]] = row
    return found
