"""scripts/make_shape.py: checkpoints of published shapes, small, load and run."""

import json
import pathlib
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
import make_shape
from program import TESTS, ProgramTest, by_id

SCRIPT = TESTS.parent / "scripts" / "make_shape.py"
CPU = ["--backend", "cpu", "--compute-type", "f32"]


class Shapes(ProgramTest):
    def make(self, name, *arguments):
        directory = self.directory / "-".join([name, *arguments])
        subprocess.run([sys.executable, SCRIPT, name, directory, "--small", *arguments], check=True,
                       stdout=subprocess.DEVNULL)
        return directory

    def rows(self, *arguments):
        rows = [{"id": i, "tokens": [*range(40 + i // 4, 80), i], "max_tokens": 8} for i in range(12)]
        rows += [{"id": "text", "prompt": "Once upon a time", "max_tokens": 8}]
        rows += [{"id": "choice", "prompt": "Once upon a time", "choices": ["yes", "no"]}]
        return by_id(self.run_rows(rows, *arguments, "--force", backend=CPU))

    def test_every_shape_runs_and_shares_prefixes(self):
        for name in make_shape.SHAPES:
            with self.subTest(name):
                model = self.make(name)
                self.assertGreater(len(list(model.glob("*.safetensors"))), 1)
                stats = self.directory / "stats.json"
                shared = self.rows("--model", model, "--stats", stats)
                self.assertGreater(json.loads(stats.read_text())["seconds"]["load"], 0)
                alone = self.rows("--model", model, "--no-sharing")
                self.assertEqual(len(shared), 14)
                self.assertIn(shared["choice"]["text"], ("yes", "no"))
                tokens = {key: row["tokens"] for key, row in shared.items()}
                self.assertEqual(tokens, {key: row["tokens"] for key, row in alone.items()})
                self.assertGreater(len({tuple(row) for row in tokens.values()}), 6)
                self.assertGreater(sum(row["usage"]["shared_tokens"] for row in shared.values()), 0)

    def test_weights_are_a_function_of_the_seed(self):
        files = [self.make("gpt-oss-20b", "--seed", seed) for seed in ("1", "2")]
        again = self.directory / "again"
        make_shape.write("gpt-oss-20b", True, again, None, 1, 1)
        for path in files[0].iterdir():
            self.assertEqual(path.read_bytes(), (again / path.name).read_bytes(), path.name)
        first = "model-00001-of-00004.safetensors"
        self.assertNotEqual((files[0] / first).read_bytes(), (files[1] / first).read_bytes())

    def test_no_two_experts_are_equal(self):
        model = self.make("qwen3-30b-a3b")
        places = json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]
        seen = set()
        for name, file in places.items():
            if "experts" not in name:
                continue
            data = (model / file).read_bytes()
            length, = struct.unpack("<Q", data[:8])
            begin, end = json.loads(data[8:8 + length])[name]["data_offsets"]
            seen.add(data[8 + length + begin:8 + length + end])
        self.assertEqual(len(seen), 2 * 8 * 3)

    def test_full_sizes_are_the_published_ones(self):
        """The total_size of the published indexes, for models without a vision tower."""
        published = {"qwen3-30b-a3b": 61_064_245_248, "gpt-oss-20b": 13_761_264_768}
        for name, size in published.items():
            shape = make_shape.SHAPES[name]
            self.assertEqual(sum(map(make_shape.bytes_of, shape.tensors(shape.full))), size, name)

    def test_a_directory_with_a_model_is_left_alone(self):
        model = self.make("qwen3.5-9b")
        before = {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
        done = subprocess.run([sys.executable, SCRIPT, "gpt-oss-20b", model, "--small"],
                              stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"there is a config.json", done.stderr)
        self.assertEqual(before, {path.name: path.stat().st_mtime_ns for path in model.iterdir()})


if __name__ == "__main__":
    unittest.main()
