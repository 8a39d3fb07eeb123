"""Jobs of `run_files` that published versions left on a disk (scripts/freeze) are gone on with."""

import csv
import os
import pathlib
import shutil
import tempfile
import unittest

import batchllm

VERSIONS = sorted(path for path in (pathlib.Path(__file__).resolve().parents[3] / "tests/frozen").iterdir() if path.is_dir())
try:
    import pyarrow as arrow
except ImportError:
    arrow = None


def read(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Frozen(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="batchllm-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    @unittest.skipIf(arrow is None, "needs pyarrow")
    def test_a_job_is_gone_on_with(self):
        self.assertTrue(VERSIONS)
        for version in VERSIONS:
            folder = pathlib.Path(self.folder, version.name)
            shutil.copytree(version, folder)
            rows = read(folder / "table.csv")
            before = (folder / "results.csv.state").read_bytes()
            kept = (len(before) - before.index(b"\n") - 1) // 16
            self.assertTrue(0 < kept < len(rows))

            def run(temperature, folder=folder):
                with batchllm.Engine(str(folder / "model"), backend="sim", seed=7) as engine:
                    return batchllm.run_files(engine, folder / "table.csv", folder / "results.csv", template=(folder / "template.txt").read_text(), chunk_rows=8,
                                              params=batchllm.SamplingParams(max_tokens=4, temperature=temperature), resume=True)

            with self.assertRaisesRegex(batchllm.JournalMismatchError, r"temperature \(was 0.5, now 0.25\)"):
                run(0.25)
            report = run(0.5)
            self.assertEqual((report.rows, report.resumed, report.failed), (len(rows), kept, 0))
            found = read(folder / "results.csv")
            self.assertEqual([[row[name] for name in rows[0]] for row in found], [list(row.values()) for row in rows])
            self.assertFalse(os.path.exists(folder / "results.csv.blocks"))


if __name__ == "__main__":
    unittest.main()
