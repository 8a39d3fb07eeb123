"""What published versions left on a disk (scripts/freeze): plans and interrupted jobs."""

import json
import shutil
import unittest

from program import TESTS, ProgramTest, by_id

VERSIONS = sorted(path for path in (TESTS / "frozen").iterdir() if path.is_dir())


class Frozen(ProgramTest):
    def setUp(self):
        super().setUp()
        self.assertTrue(VERSIONS)

    def copy(self, version):
        """A version's folder to work in, and the arguments of its job."""
        folder = self.directory / version.name
        shutil.copytree(version, folder)
        return folder, json.loads((folder / "job.json").read_text())

    def run_in(self, folder, *arguments, expect=3):  # one row is not JSON
        done = self.run_program(*arguments, cwd=folder)
        self.assertEqual(done.returncode, expect, done.stderr.decode())
        return done

    def test_a_job_is_gone_on_with(self):
        for version in VERSIONS:
            folder, job = self.copy(version)
            answers = folder / "answers.jsonl"
            before = answers.read_bytes()
            kept = before[:before.rindex(b"\n") + 1]
            self.assertLess(len(kept), len(before))
            arguments = ["run", *job, "-i", "rows.jsonl", "-o", "answers.jsonl", "--progress", "none", "--resume"]
            refused = self.run_in(folder, *arguments, "--min-p", "0.25", expect=1)
            self.assertIn(b"option min-p (was 0, now 0.25)", refused.stderr)
            self.assertEqual(answers.read_bytes(), before)
            self.run_in(folder, *arguments)
            self.assertEqual(answers.read_bytes()[:len(kept)], kept)
            rows = [json.loads(line) if line.startswith("{") else {"id": None} for line in (folder / "rows.jsonl").read_text().splitlines()]
            found = by_id(self.read_output(answers))
            self.assertEqual(set(found), {row["id"] for row in rows})
            self.assertEqual([one for one, row in found.items() if "error" in row], [None])

    def test_plans_are_read_and_their_groups_taken(self):
        for version in VERSIONS:
            folder, job = self.copy(version)
            for name in ("rows.plan", "rows-tokens.plan"):
                described = json.loads(self.run_in(folder, "inspect", "--json", name, expect=0).stdout)
                fresh = folder / f"fresh-{name}"
                self.run_in(folder, "plan", "-m", "model", "-i", "rows.jsonl", "-o", fresh, "--previous", name, "--stats", "plan.json")
                planned = json.loads((folder / "plan.json").read_text())
                self.assertEqual(planned["reused_rows"], planned["rows"])
                again = json.loads(self.run_in(folder, "inspect", "--json", fresh, expect=0).stdout)
                for text in (described, again):
                    del text["reused_rows"], text["known_rows"], text["self_contained"]
                self.assertEqual(again, described)
                self.run_in(folder, "run", *job, "-i", "rows.jsonl", "-o", "planned.jsonl", "--plan", name, "--progress", "none", "--stats", "run.json", "--force")
                self.assertEqual(json.loads((folder / "run.json").read_text())["rows_planned_before"], planned["rows"])


if __name__ == "__main__":
    unittest.main()
