#!/usr/bin/env python3
"""The model in examples/pages on pages that it has not seen: are the fields right, each page computed once, and the answers
the same with every setting of sharing and memory?

BATCHLLM_PROGRAM names the program. Standard library only.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PAGES = Path(__file__).resolve().parent.parent.parent / "examples" / "pages"
sys.path.insert(0, str(PAGES))

from draw import QUESTIONS, write  # noqa: E402

PROGRAM = os.environ["BATCHLLM_PROGRAM"]
COUNT = 100


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.temporary.name)
        cls.drawn = write(cls.folder, "100 pages of the test", COUNT)
        lines = (cls.folder / "expected.jsonl").read_text().splitlines()
        cls.expected = {line["id"]: line["expected"] for line in map(json.loads, lines)}

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def run_rows(self, *options):
        """({id: text}, stats) of a job that must end without row errors."""
        command = [PROGRAM, "run", "--backend", "cpu", "--model", PAGES / "model", "--input", self.folder / "rows.jsonl", "--output",
                   self.folder / "out.jsonl", "--force", "--progress", "none", "--stats", self.folder / "stats.json", *options]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = map(json.loads, (self.folder / "out.jsonl").read_text().splitlines())
        return {row["id"]: row["text"] for row in rows}, json.loads((self.folder / "stats.json").read_text())

    def test_pages_that_it_has_not_seen_are_read(self):
        for options in ([], ["--compute-type", "f32"]):
            answers, stats = self.run_rows(*options)
            fields = questions = 0
            for page, values in self.drawn.items():
                found = json.loads(answers[f"{page} fields"])  # the schema's form
                self.assertEqual(list(found), list(values))
                fields += sum(found[name] == value for name, value in values.items())
                questions += sum(answers[f"{page} {name}"] == self.expected[f"{page} {name}"] for name in QUESTIONS)
            print(f"{options}: {fields} fields and {questions} answers of {4 * COUNT} are right", file=sys.stderr)
            self.assertGreaterEqual(fields, 0.95 * 4 * COUNT)
            self.assertGreaterEqual(questions, 0.95 * 4 * COUNT)
            self.assertEqual((stats["pictures"]["in_rows"], stats["pictures"]["computed"]), (5 * COUNT, COUNT))
            self.assertGreater(stats["saving_ratio"], 0.5)

    def test_answers_in_f32_are_the_same_under_every_setting(self):
        reference, _ = self.run_rows("--compute-type", "f32")
        for options in (["--no-sharing"], ["--step-tokens", "64", "--kv-memory", "1MiB"], ["--window-rows", "7"]):
            answers, _ = self.run_rows("--compute-type", "f32", *options)
            differ = [name for name in reference if answers[name] != reference[name]]
            # Sums in another order round differently, so two about equally likely answers may swap.
            self.assertLessEqual(len(differ), 2, f"{options}: {differ}")

    def test_the_report_shows_rows_with_errors(self):
        folder = self.folder / "few"
        write(folder, "a page that is lost", 2)
        (folder / "page-001.png").unlink()
        command = [PROGRAM, "run", "--backend", "cpu", "--model", PAGES / "model", "--input", folder / "rows.jsonl", "--output",
                   folder / "answers.jsonl", "--progress", "none"]
        self.assertEqual(subprocess.run(command, capture_output=True).returncode, 3)
        told = subprocess.run([sys.executable, PAGES / "report.py", folder], capture_output=True, text=True)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertIn("No such file or directory)", told.stdout)
        self.assertIn("pages: 5 of 10 answers right", told.stdout)


if __name__ == "__main__":
    unittest.main()
