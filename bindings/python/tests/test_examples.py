"""The examples and the guide's code blocks run and print what they should; all of them and the package pass mypy
--strict."""

import contextlib
import csv
import importlib.util
import io
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import unittest

import batchllm
from support import MODEL, chat_model

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "python"
PACKAGE = pathlib.Path(batchllm.__file__).parent  # as it is built: some of it is generated


def run(name, *arguments):
    return subprocess.run([sys.executable, EXAMPLES / name, *arguments], check=True, capture_output=True, text=True,
                          timeout=120).stdout


class Examples(unittest.TestCase):
    def test_hello(self):
        self.assertRegex(run("hello.py", MODEL), r"(?s)^0: .+^1: ".replace("^1", "\n1"))

    def test_shared_prefix_keeps_its_plan(self):
        with tempfile.TemporaryDirectory() as folder:
            first, second = (run("shared_prefix.py", MODEL, f"{folder}/p.plan") for _ in range(2))
        self.assertIn("6 rows in 2 groups, 0 kept", first)
        self.assertIn("6 rows in 2 groups, 6 kept", second)
        self.assertRegex(second, r": [56]\d % saved")

    def test_event_loop_cancels_a_row(self):
        out = run("event_loop.py", MODEL)
        self.assertEqual(len(re.findall(r"^row [013] done after 24 tokens$", out, re.M)), 3)
        self.assertRegex(out, r"(?m)^row 2 cancelled after (2[4-9]|3\d) tokens$")
        self.assertRegex(out, r"went round \d+ times")

    def test_structured_answers_have_the_fields_of_the_class(self):
        out = run("structured.py", MODEL)
        found = re.findall(r"Animal\(kind='(?:cat|dog|fish)', legs=[024], tame=(?:True|False)\)$", out, re.M)
        self.assertEqual(len(found), 3, out)

    def test_pages_become_a_table(self):
        with tempfile.TemporaryDirectory() as folder:
            drawn = runpy.run_path(str(ROOT / "examples" / "pages" / "draw.py"))["write"](pathlib.Path(folder), "pages.py", 20)
            pathlib.Path(folder, "bad.jpg").write_bytes(b"no picture")
            rows = list(csv.DictReader(io.StringIO(run("pages.py", ROOT / "examples" / "pages" / "model", folder))))
        self.assertEqual([row["page"] for row in rows], ["bad.jpg", *drawn])
        self.assertIn("not a JPEG, PNG or WebP file", rows[0]["error"])
        right = sum(row[name] == str(value) for row in rows[1:] for name, value in drawn[row["page"]].items())
        self.assertGreaterEqual(right, 76)  # of 80 fields
        self.assertEqual([row["error"] for row in rows[1:]], [""] * 20)

    @unittest.skipIf(importlib.util.find_spec("numpy") is None, "needs NumPy")
    def test_embed(self):
        near = [float(one) for one in re.findall(r"^(-?[01]\.\d{3}) [PW]", run("embed.py", MODEL), re.M)]
        self.assertEqual(len(near), 2)
        self.assertTrue(all(-1 <= one <= 1 for one in near), near)

    def test_rank(self):
        self.assertEqual(len(re.findall(r"^-> ", run("rank.py", MODEL), re.M)), 2)


    @unittest.skipIf(importlib.util.find_spec("pyarrow") is None, "needs pyarrow")
    def test_files(self):
        import pyarrow
        import pyarrow.parquet

        with tempfile.TemporaryDirectory() as folder:
            source, target = f"{folder}/in.parquet", f"{folder}/out.parquet"
            pyarrow.parquet.write_table(pyarrow.table({"id": [7, 8], "text": ["It broke.", "I like it."]}), source)
            self.assertRegex(run("files.py", MODEL, source, target), r"^2 rows in \d+s \(0 errors\)")
            self.assertEqual(run("files.py", MODEL, source, target), "2 rows were done before\n")
            found = pyarrow.parquet.read_table(target).to_pydict()
            self.assertEqual(found["id"], [7, 8])
            self.assertLessEqual({answer["kind"] for answer in found["parsed"]}, {"praise", "complaint"})
            self.assertTrue(os.path.exists(target + ".html"))


class Guide(unittest.TestCase):
    """Each python block of docs/python.md, docs/tables.md, docs/files.md and docs/coming-from-vllm.md runs after the
    previous ones, in a folder with a model in path/to/model."""

    def test_blocks_run_as_printed(self):
        self.run_blocks("python.md", 5)

    def test_blocks_of_tables_run_as_printed(self):
        self.run_blocks("tables.md", 1)

    def test_blocks_of_files_run_as_printed(self):
        self.run_blocks("files.md", 1)

    @unittest.skipIf(importlib.util.find_spec("numpy") is None, "needs NumPy")
    def test_blocks_for_those_who_come_from_vllm_run_as_printed(self):
        def schema_rows_end(block, values):
            if "json_schema=" in block:
                self.assertEqual([result.finish_reason for result in values["results"]], ["stop"])

        self.run_blocks("coming-from-vllm.md", 4, after=schema_rows_end)

    def test_chat_blocks_run_with_the_model_that_the_pages_name(self):
        for page in ("python.md", "files.md", "coming-from-vllm.md"):
            self.assertIn("`examples/pages/model`", (ROOT / "docs" / page).read_text())
            self.run_blocks(page, 1, model=ROOT / "examples" / "pages" / "model")

    def test_blocks_of_resuming_run_as_printed(self):
        self.run_blocks("resuming.md", 1)

    def test_blocks_of_reports_run_as_printed(self):
        self.run_blocks("report.md", 0)

    def test_blocks_of_predictions_run_as_printed(self):
        self.run_blocks("predictions.md", 0)

    def run_blocks(self, page, least, after=lambda block, values: None, model=None):
        text = (ROOT / "docs" / page).read_text()
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
        self.assertGreater(len(blocks), least)
        names = {"np": "numpy", "pd": "pandas", "pa": "pyarrow", "pl": "polars", "to_pandas": "pandas", "to_polars": "polars",
                 "to_arrow": "pyarrow", "run_files": "pyarrow"}
        missing = [short for short, name in names.items() if importlib.util.find_spec(name) is None]
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            if model is None:
                chat_model(pathlib.Path(folder) / "path" / "to" / "model", "{% for m in messages %}{{ m.content }}{% endfor %}")
            else:
                shutil.copytree(model, pathlib.Path(folder) / "path" / "to" / "model")
            os.chdir(folder)
            values = {"__name__": "guide"}
            for block in blocks:
                if not any(re.search(rf"\b{short}\b", block) for short in missing):
                    exec(compile(block, f"docs/{page}", "exec"), values)
                    after(block, values)
            os.chdir(ROOT)


@unittest.skipIf(importlib.util.find_spec("mypy") is None, "needs mypy")
class Types(unittest.TestCase):
    def mypy(self, *arguments):
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, *arguments],
                                  capture_output=True, text=True, cwd=ROOT,
                                  env={**os.environ, "MYPYPATH": str(PACKAGE.parent)})
        return done

    def test_the_package_and_the_examples_pass_mypy_strict(self):
        done = self.mypy("--scripts-are-modules", str(PACKAGE),
                         *map(str, sorted(EXAMPLES.glob("*.py"))))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_types_say_something(self):
        with tempfile.TemporaryDirectory() as folder:
            wrong = pathlib.Path(folder) / "wrong.py"
            wrong.write_text("import batchllm\n"
                             "with batchllm.Engine('m') as engine:\n"
                             "    x: int = engine.generate(['a'])[0].text\n"
                             "    engine.generate(['a'], max_tokens=3)\n"
                             "    batchllm.SamplingParams(temperature='hot')\n"
                             "    engine.generate(3)\n"
                             "    engine.generate_table(3, '{a}')\n"
                             "    batchllm.Plan.build([[1]], enlarge='first')\n"
                             "    batchllm.run_files(engine, 'a', 'b', task='sum')\n"
                             "    engine.generate(['a', None], on_error='stop')\n"
                             "    batchllm.spark.transform(3)\n")
            done = self.mypy(str(wrong))
        self.assertEqual(re.findall(r"wrong.py:(\d+): error", done.stdout), [str(line) for line in range(3, 12)], done.stdout)

    def test_the_stub_knows_the_generated_layer_and_nothing_else(self):
        from batchllm import native

        stub = (ROOT / "bindings/python/batchllm/native.pyi").read_text()
        named = set(re.findall(r"^(?:def|class) (batchllm_\w+)", stub, re.M)) | set(re.findall(r"^(BATCHLLM_\w+)", stub, re.M))
        self.assertEqual({name for name in named if not hasattr(native, name)}, set())


if __name__ == "__main__":
    unittest.main()
