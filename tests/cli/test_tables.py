"""Rows as columns: --template, --fields, and the program's advice. The text model is in BATCHLLM_TEXT_MODEL."""

import json
import os
import re
import shlex
import unittest

from program import TESTS, ProgramTest, lines

MODEL = os.environ.get("BATCHLLM_TEXT_MODEL", "build/tests/text_model")
RUN = ["--backend", "cpu", "--model", MODEL, "--kv-memory", "64MiB", "--max-tokens", "2"]


def table(count):
    """Rows with their own text first, then a text that a few rows have, then one that all rows have."""
    return [{"id": f"r{i}", "own": f"number {i} of {count}", "kind": f"kind {i % 4} of a thing with a long name",
             "all": "what every row of this table says in so many words", "note": None, "weight": i / 2}
            for i in range(count)]


class Tables(ProgramTest):
    template = "Tell.\n{own}\nKind: {kind}\n{all}\nAnswer:"

    def prompts(self, rows, *options, expect=0):
        """Prompt tokens by id, from a plan of the rows that contains the tokens."""
        found = self.run_rows(rows, *options, "--force", backend=RUN, expect=expect)
        return {row["id"]: row for row in found}

    def test_keys_are_columns_and_none_is_a_parameter(self):
        rows = [{"id": "a", "prompt": "x", "max_tokens": "many", "list": [1, {"b": True}], "n": 1.5}]
        made = self.prompts(rows, "--template", "{prompt} {max_tokens} {list} {n} {id}")
        same = self.prompts([{"id": "a", "prompt": 'x many [1,{"b":true}] 1.5 a'}])
        self.assertEqual(made["a"]["usage"], same["a"]["usage"])
        self.assertEqual(made["a"]["tokens"], same["a"]["tokens"])

    def test_columns_that_are_named_pass_through(self):
        made = self.prompts(table(3), "--template", self.template, "--columns", "kind,note,weight")
        for row in table(3):
            found = made[row["id"]]
            self.assertEqual({key: found[key] for key in ("kind", "note", "weight")}, {key: row[key] for key in ("kind", "note", "weight")})
            self.assertNotIn("own", found)

    def test_a_null_or_missing_value_is_the_row_s_error(self):
        rows = table(3)
        rows[1]["own"] = None
        del rows[2]["own"]
        made = self.prompts(rows, "--template", self.template, expect=3)
        self.assertEqual(made["r0"]["finish_reason"], "length")
        for row in ("r1", "r2"):
            self.assertEqual(made[row]["error"]["code"], "ROW_NULL")
            self.assertIn('"own" is null', made[row]["error"]["message"])

    def test_what_is_wrong_for_all_rows_ends_the_run(self):
        self.input.write_bytes(lines(table(3)))
        (self.directory / "empty").touch()
        for arguments, words in ((["--template", "{titel}"], 'no column "titel"; the columns are "all", "id"'),
                                 (["--template", "{own"], "{ without its }"),
                                 (["--template", "{own} {all}", "--fields", "reorder"], "in one line"),
                                 (["--fields", "reorder"], "need a --template"),
                                 (["--template-file", self.directory / "empty"], "it has no field"),
                                 (["--template-file", self.directory / "none"], "none")):
            done = self.run_program("run", *RUN, "-i", self.input, "-o", self.output, "--force", *arguments)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn(words, done.stderr.decode())

    def test_a_wrong_template_leaves_no_output(self):
        self.input.write_bytes(lines(table(3)))
        for template, words in (("{titel}", 'no column "titel"'), ("{own", "{ without its }")):
            done = self.run_program("run", *RUN, "-i", self.input, "-o", self.output, "--template", template)
            self.assertEqual(done.returncode, 1)
            self.assertIn(words, done.stderr.decode())
            self.assertNotIn("--resume", done.stderr.decode())
            self.assertEqual([path.name for path in self.directory.iterdir()], [self.input.name])

    def test_keys_of_a_line_s_own_cost_no_column(self):
        # One column for each key would take 20,000 x 400,000 offsets.
        rows = [{"id": f"r{i}", "own": f"number {i}", **{f"key {i} {k}": k for k in range(20)}} for i in range(20000)]
        rows[5]["own\0other"] = "would be the column own a second time"
        self.input.write_bytes(lines(rows))
        done = self.run_program("plan", "-i", self.input, "-o", self.directory / "rows.plan", "--model", MODEL,
                                "--template", "Tell: {own}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr.decode(), r"rows +20,?000")

    def test_reordering_shares_more_and_answers_every_row(self):
        stats = self.directory / "stats.json"
        saved = {}
        (self.directory / "template").write_text(self.template)
        for fields in ("given", "reorder"):
            made = self.prompts(table(100), "--template-file", self.directory / "template", "--fields", fields,
                                "--stats", stats)
            self.assertEqual(set(made), {f"r{i}" for i in range(100)})
            saved[fields] = json.loads(stats.read_text())["saving_ratio"]
        self.assertLess(saved["given"], 0.2)
        self.assertGreater(saved["reorder"], 0.5)

    def test_plan_and_run_put_fields_in_the_same_order(self):
        stats = self.directory / "stats.json"
        self.input.write_bytes(lines(table(200)))
        common = ["--template", self.template, "--fields", "reorder"]
        plans = []
        for threads in ("1", "2"):
            plan = self.directory / f"rows{threads}.plan"
            done = self.run_program("plan", "-i", self.input, "-o", plan, "--model", MODEL, "--threads", threads, *common)
            self.assertEqual(done.returncode, 0, done.stderr)
            plans.append(plan.read_bytes())
        self.assertEqual(plans[0], plans[1])
        grouped = json.loads(self.run_program("inspect", "--json", plan).stdout)["grouped_rows"]
        # Windows of a few rows: the order of fields is still found over the same rows.
        answers = []
        for windows, least in (([], grouped), (["--threads", "1"], grouped), (["--window-rows", "64"], 190)):
            done = self.run_program("run", *RUN, "-i", self.input, "-o", self.output, "--force", "--plan", plan,
                                    "--stats", stats, *common, *windows)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertGreaterEqual(json.loads(stats.read_text())["rows_planned_before"], least)
            self.assertNotIn("nothing of this plan", done.stderr.decode())
            answers.append({row["id"]: (row["tokens"], row["usage"]["prompt_tokens"]) for row in self.read_output()})
        self.assertEqual(len(answers[0]), 200)
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(answers[0], answers[2])

    def test_a_plan_of_another_order_of_fields_is_told(self):
        plan = self.directory / "rows.plan"
        self.input.write_bytes(lines(table(200)))
        done = self.run_program("plan", "-i", self.input, "-o", plan, "--model", MODEL, "--template", self.template,
                                "--fields", "reorder")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.run_program("run", *RUN, "-i", self.input, "-o", self.output, "--plan", plan, "--template", self.template, "--progress", "none")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rows.plan: nothing of this plan fits the first rows", done.stderr.decode())

    def test_a_job_that_goes_on_makes_the_same_prompts(self):
        common = ["--template", self.template, "--fields", "reorder"]
        whole = self.prompts(table(120), *common)
        # Cut short after the first 50 lines.
        kept = self.output.read_bytes().splitlines(keepends=True)[:50]
        self.output.write_bytes(b"".join(kept))
        self.input.write_bytes(lines(table(120)))
        done = self.run_program("run", *RUN, "-i", self.input, "-o", self.output, "--resume", *common)
        self.assertEqual(done.returncode, 0, done.stderr)
        resumed = {row["id"]: row for row in self.read_output()}
        self.assertEqual(set(resumed), set(whole))
        for row, value in resumed.items():
            self.assertEqual(value["usage"]["prompt_tokens"], whole[row]["usage"]["prompt_tokens"])
            self.assertEqual(value["tokens"], whole[row]["tokens"])
        other = self.run_program("run", *RUN, "-i", self.input, "-o", self.output, "--resume", "--template",
                                 self.template, "--fields", "given")
        self.assertEqual(other.returncode, 1)
        self.assertIn("fields", other.stderr.decode())


class Guide(ProgramTest):
    def test_the_commands_of_the_page_run_as_printed(self):
        page = (TESTS.parent / "docs" / "tables.md").read_text()
        commands = re.findall(r"^    (batchllm run .*)$", page, re.M)
        self.assertEqual(len(commands), 2)
        template = re.search(r'^template = """(.*?)"""$', page, re.M | re.S).group(1)
        (self.directory / "prompt.txt").write_text(template)
        (self.directory / "reviews.jsonl").write_bytes(lines(
            {"title": f"Film {i % 5}", "year": 1980 + i % 5, "text": f"Review {i}."} for i in range(20)))
        (self.directory / "model").symlink_to(os.path.abspath(MODEL))
        for command in commands:
            done = self.run_program(*shlex.split(command)[1:], cwd=self.directory)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(self.read_output()), 20)


class Advice(ProgramTest):
    instruction = " ".join(f"Rule {i}: say what is so and leave out what is not." for i in range(8))

    def plan(self, rows):
        self.input.write_bytes(lines(rows))
        plan = self.directory / "rows.plan"
        done = self.run_program("plan", "-i", self.input, "-o", plan, "--model", MODEL)
        self.assertEqual(done.returncode, 0, done.stderr)
        shown = self.run_program("inspect", plan)
        as_json = self.run_program("inspect", "--json", plan)
        return done.stderr.decode(), shown.stdout.decode(), json.loads(as_json.stdout)

    def questions(self, count, first):
        for i in range(count):
            question = f"Question {i * 7919 % 10007} about thing {i}?"
            text = (question, self.instruction) if first else (self.instruction, question)
            yield {"prompt": " ".join(text)}

    def test_the_question_first_is_told(self):
        told, shown, as_json = self.plan(self.questions(2000, True))
        self.assertRegex(told, r"advice +\d+\.\d % of the prompt tokens are saved, and about \d\d % could be")
        self.assertRegex(told, r'What they have in common begins ".*Rule')
        self.assertIn("Put what rows have in common first", shown)
        # The example is named by its line in the input, which also counts rows that failed.
        self.input.write_bytes(b"{\n\n" + self.input.read_bytes())
        done = self.run_program("plan", "-i", self.input, "-o", self.directory / "two.plan", "--model", MODEL)
        row = int(re.search(r"tokens \d+ to \d+ of row (\d+)\)", shown).group(1))
        self.assertIn(f" of input line {row + 3})", done.stderr.decode())
        self.assertIn(f" of input line {row + 1})", told)
        self.assertIn("Put what rows have in common first", as_json["advice"])

    def test_the_instruction_first_is_silent(self):
        told, shown, as_json = self.plan(self.questions(2000, False))
        self.assertNotIn("advice", told + shown)
        self.assertNotIn("advice", as_json)

    def test_a_run_says_it_on_stderr(self):
        for first in (True, False):
            self.run_rows(list(self.questions(100, first)), "--force", backend=RUN)
            self.assertEqual("Put what rows have in common first" in self.stderr, first, self.stderr)


if __name__ == "__main__":
    unittest.main()
