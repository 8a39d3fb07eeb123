"""Windows, plans, statistics, progress, tokenize, usage and exit codes."""

import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "helpers"))
from text_model import make as make_text_model
from program import PROGRAM, SIM, TESTS, ProgramTest, by_id, lines, parse, text_model, token_rows

TOKENIZERS = sorted(TESTS.glob("text/*/tokenizer.json"))
MODELS = sorted(path.parent for path in TESTS.glob("golden/*/golden.json"))


class Windows(ProgramTest):
    def test_many_windows_give_the_same_rows_as_one(self):
        rows = token_rows(500)
        for i in range(0, 500, 50):
            rows[i] = b"bad"
        for row in rows[201:220]:
            row["temperature"] = 1.0
            row["n"] = 2
        for row in rows[301:310]:
            row["score"] = [[1], [2, 3]]
        stats = self.directory / "stats.json"
        one = self.run_rows(rows, "--stats", stats, expect=3)
        self.assertEqual(json.loads(stats.read_text())["windows"], 1)
        for options in (["--window-tokens", "1500"], ["--window-rows", "7"],
                        ["--window-tokens", "1"]):
            many = self.run_rows(rows, *options, "--stats", stats, "--force", expect=3)
            self.assertGreater(json.loads(stats.read_text())["windows"], 10)
            self.assertEqual(len(many), len(rows))
            self.assertEqual(self.comparable(many), self.comparable(one))

    @staticmethod
    def comparable(rows):
        found = {}
        for row in rows:
            row["usage"]["shared_tokens"] = 0
            found[row.get("error", {}).get("line", row["id"])] = row
        return found

    def test_a_greedy_answer_comes_from_the_prompt_alone(self):
        rows = [{"id": i, "tokens": [7, 8, 9 + i % 3]} for i in range(30)]
        answers = set()
        for options in ([], ["--window-rows", "1"], ["--seed", "5", "--no-sharing"]):
            for row in self.run_rows(rows, *options, "--force"):
                answers.add((row["id"] % 3, tuple(row["tokens"])))
        self.assertEqual(len(answers), 3)

    def test_steps_stay_full_across_windows(self):
        """The next window is added before the previous one has drained."""
        timeline = self.directory / "timeline.csv"
        rows = token_rows(2000, prefix=20, own=20, sharing=2)
        self.run_rows(rows, "--window-rows", "200", "--step-tokens", "256", "--timeline", timeline)
        with open(timeline, newline="") as file:
            steps = list(csv.DictReader(file))
        columns = [name for name in steps[0] if name.endswith("tokens") or
                   name in ("decode", "own", "prefix")]
        tokens = [sum(int(step[name]) for name in columns) for step in steps]
        body = tokens[2:-40]
        self.assertGreater(sum(body) / len(body), 0.8 * 256, (columns, tokens))


class Statistics(ProgramTest):
    def test_stats_tell_what_sharing_saved(self):
        stats = self.directory / "stats.json"
        rows = token_rows(100, prefix=40, own=10, sharing=5)
        self.run_rows([*rows, b"bad"], "--stats", stats, expect=3)
        found = json.loads(stats.read_text())
        self.assertEqual((found["rows"], found["rows_done"], found["rows_failed"]), (101, 101, 1))
        self.assertEqual(found["logical_prompt_tokens"], 5000)
        self.assertGreaterEqual(found["saving_ratio"], 0.6)
        self.assertEqual(found["processed_prompt_tokens"] + found["shared_prompt_tokens"], 5000)
        for key in ("completion_tokens", "steps", "preemptions", "tokens_per_second"):
            self.assertIn(key, found)
        self.assertEqual((found["backend"], found["compute_type"]), ("sim", "none"))
        for phase in ("load", "tokenize", "plan", "schedule", "backend", "total"):
            self.assertGreaterEqual(found["seconds"][phase], 0)
        self.assertGreater(found["kv"]["peak_bytes"], 0)
        self.run_rows(rows, "--stats", stats, "--force", "--no-sharing")
        self.assertEqual(json.loads(stats.read_text())["saving_ratio"], 0)

    def test_stats_tell_how_many_proposed_tokens_were_right(self):
        stats = self.directory / "stats.json"
        rows = [{"id": i, "tokens": [i % 6, i // 6], "max_tokens": 80} for i in range(12)]
        few = ["--backend", "sim", "--backend-options", "vocabulary=6,eos_token=-1,min_length=80,max_length=80"]
        without = self.run_rows(rows, "--stats", stats, backend=few)
        self.assertNotIn("drafts", json.loads(stats.read_text()))
        report = self.directory / "report.html"
        found = self.run_rows(rows, "--stats", stats, "--force", "--drafts", "always", "--report", report, backend=few)
        drafts = json.loads(stats.read_text())["drafts"]
        self.assertGreater(drafts["proposed"], drafts["accepted"])
        self.assertGreater(drafts["accepted"], 0)
        self.assertIn("draft_tokens_accepted", report.read_text())
        self.assertEqual({row["id"]: row["tokens"] for row in found}, {row["id"]: row["tokens"] for row in without})
        self.run_rows(rows, "--force", "--drafts", "auto", backend=few)
        self.assertIn("there will be no drafts: what a step takes is not known", self.stderr)

    def test_progress_in_json_counts_up_to_all_rows(self):
        self.input.write_bytes(lines(token_rows(300)))
        done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output,
                                "--progress", "json")
        self.assertEqual(done.returncode, 0)
        last = [parse(line) for line in done.stderr.decode().splitlines()][-1]
        self.assertEqual((last["rows_done"], last["rows_known"], last["rows_failed"]),
                         (300, 300, 0))
        self.assertTrue(last["input_ended"])
        self.assertEqual(last["seconds_left"], 0)

    def test_progress_without_a_terminal_is_plain_lines(self):
        self.input.write_bytes(lines(token_rows(10)))
        done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output)
        text = done.stderr.decode()
        self.assertIn("10/10 rows", text)
        self.assertNotIn("\r", text)
        self.assertNotIn("\x1b", text)

    def test_the_bar_is_drawn_on_a_terminal(self):
        self.input.write_bytes(lines(token_rows(10)))
        ours, theirs = os.openpty()
        done = subprocess.run([PROGRAM, "run", *SIM, "-i", str(self.input), "-o",
                               str(self.output)], stderr=theirs)
        os.close(theirs)
        text = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how a pty reports the end
                break
            if not part:
                break
            text += part
        os.close(ours)
        self.assertEqual(done.returncode, 0)
        self.assertIn(b"[########################] 100%", text)


class Devices(ProgramTest):
    def test_two_devices_give_the_rows_of_one_and_both_are_used(self):
        rows = token_rows(300, prefix=40, own=10, sharing=5)
        stats, timeline = self.directory / "stats.json", self.directory / "timeline.csv"
        one = self.run_rows(rows, "--step-tokens", "128")
        two = self.run_rows(rows, "--force", "--step-tokens", "128", "--devices", "3,1", "--stats", stats,
                            "--timeline", timeline)
        tokens = lambda found: {row["id"]: row["tokens"] for row in found}
        self.assertEqual(tokens(one), tokens(two))
        with open(timeline, newline="") as file:
            steps = list(csv.DictReader(file))
        self.assertEqual({step["device"] for step in steps}, {"1", "3"})
        self.assertEqual(len(steps), json.loads(stats.read_text())["steps"])
        work = {device: sum(float(step["milliseconds"]) for step in steps if step["device"] == device)
                for device in "13"}
        self.assertLess(max(work.values()), 1.1 * min(work.values()))
        self.assertAlmostEqual(json.loads(stats.read_text())["seconds"]["backend"], max(work.values()) / 1e3, 3)

    def test_devices_that_are_none_are_refused(self):
        result = self.run_program("run", "--backend", "sim", "--devices", "0,0", "--input", "-", "--output", "-",
                                  stdin=b"")
        self.assertEqual(result.returncode, 1)
        self.assertIn(b'"0,0"', result.stderr)


class Plans(ProgramTest):
    def setUp(self):
        super().setUp()
        self.plan = self.directory / "rows.plan"
        self.input.write_bytes(lines(token_rows(200)))

    def make_plan(self, *arguments, expect=0):
        done = self.run_program("plan", "-i", self.input, "-o", self.plan, *arguments)
        self.assertEqual(done.returncode, expect, done.stderr.decode())
        return done.stderr.decode()

    def inspect(self, *arguments):
        done = self.run_program("inspect", self.plan, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode()

    def test_a_plan_is_told_to_be_of_other_rows_only_if_it_has_none_of_them(self):
        alone = {"id": 200, "tokens": list(range(500, 540))}
        self.input.write_bytes(lines([*token_rows(200), alone]))
        self.make_plan()
        beside = {"id": 201, "tokens": [*range(500, 539), 7]}  # so that the row has a group that the plan does not have
        for rows, told in (([alone, beside], False), ([beside], True)):
            self.input.write_bytes(lines(rows))
            done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--force", "--plan", self.plan)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(b"nothing of this plan fits the first rows" in done.stderr, told, done.stderr)

    def test_a_plan_says_which_rows_are_computed_whole(self):
        prefix = list(range(1, 40))
        rows = [{"id": i, "tokens": prefix + [40 + i % 4], "pooling": "mean", "dimensions": 8 * (i // 6)} for i in range(8)]
        rows.append({"id": 8, "tokens": prefix + [90], "pooling": "last"})
        self.input.write_bytes(lines(rows))
        stats = self.directory / "stats.json"
        done = self.run_program("plan", "-i", self.input, "-o", self.plan, "--stats", stats)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(stats.read_text())
        self.assertEqual((found["whole_rows"], found["whole_prompt_tokens"], found["whole_rows_equal"]), (8, 320, 2))
        self.assertIn(b"computed whole  8 rows of 320 tokens (pooling mean): only equal ones share, 2 of them", done.stderr)

    def test_a_plan_is_made_without_a_model_and_inspected(self):
        stats = self.directory / "stats.json"
        self.assertIn("saved", self.make_plan("--stats", stats))
        found = json.loads(self.inspect("--json"))
        self.assertEqual((found["rows"], found["groups"], found["grouped_rows"]), (200, 40, 200))
        self.assertEqual(found["largest_groups"][0]["rows"], 5)
        self.assertEqual(found["saving_ratio"], json.loads(stats.read_text())["saving_ratio"])
        text = self.inspect("--groups", "3")
        self.assertIn("200", text)
        self.assertEqual(len(re.findall(r"^ +\d+ +5 +\d+ +\d+$", text, re.M)), 3)

    def test_a_plan_of_bad_rows_tells_them_and_plans_the_rest(self):
        self.input.write_bytes(lines([*token_rows(10), b"bad"]))
        self.assertIn("input line 11: ROW_JSON", self.make_plan(expect=3))
        self.assertEqual(json.loads(self.inspect("--json"))["rows"], 10)

    def test_a_run_takes_its_groups_from_a_plan(self):
        self.make_plan()
        stats = self.directory / "stats.json"
        with_plan = self.run_rows(token_rows(200), "--plan", self.plan, "--stats", stats)
        self.assertEqual(json.loads(stats.read_text())["rows_planned_before"], 200)
        without = self.run_rows(token_rows(200), "--force")
        self.assertEqual({i: r["tokens"] for i, r in by_id(with_plan).items()},
                         {i: r["tokens"] for i, r in by_id(without).items()})
        # Changed and new rows are planned again, and windows find their part of the plan.
        rows = token_rows(210)
        rows[3]["tokens"][0] = 55
        self.run_rows(rows, "--plan", self.plan, "--stats", stats, "--force", "--window-rows", "50")
        self.assertEqual(json.loads(stats.read_text())["rows_planned_before"], 199)

    def test_heads_are_shared_by_what_they_cost_with_the_model(self):
        rows = [{"id": i, "tokens": [7] * 300 + [i // 10] * 40 + [i % 900, i // 900, 5], "max_tokens": 2} for i in range(200)]
        stats = self.directory / "stats.json"

        def computed(*options, cost=None):
            more = [] if cost is None else [f"{SIM[-1]},common_prefix_cost={cost}"]
            self.run_rows(rows, "--stats", stats, "--force", *options, backend=[*SIM[:-1], *(more or SIM[-1:])])
            return json.loads(stats.read_text())["processed_prompt_tokens"]
        one, many = computed("--levels", "1"), computed("--levels", "2")
        self.assertEqual(one - many, 19 * 300)
        self.assertEqual([computed(cost=0.2), computed(cost=20), computed()], [many, one, one])
        # A plan is made for a described device; a model of this size shares no heads on it, and without a model this is
        # not known.
        for options in ([], ["--model", TESTS / "golden/qwen3_bf16", "--device", "h200", "--max-tokens", "2"]):
            self.make_plan(*options)
            self.assertEqual(json.loads(self.inspect("--json"))["levels"], 0)

    def test_a_run_saves_the_plan_of_each_window(self):
        self.run_rows(token_rows(200), "--save-plan", self.plan)
        self.assertEqual(json.loads(self.inspect("--json"))["rows"], 200)
        self.run_rows(token_rows(200), "--save-plan", self.plan, "--window-rows", "120", "--force")
        self.assertEqual(json.loads(self.inspect("--json"))["rows"], 120)
        self.plan = self.directory / "rows.plan.2"
        self.assertEqual(json.loads(self.inspect("--json"))["rows"], 80)
        stats = self.directory / "stats.json"
        self.run_rows(token_rows(200), "--plan", self.directory / "rows.plan", "--stats", stats,
                      "--window-rows", "120", "--force")
        self.assertEqual(json.loads(stats.read_text())["rows_planned_before"], 200)

    def test_without_rows_no_plan_is_saved_and_a_line_says_so(self):
        self.input.write_bytes(b"")
        self.plan.write_bytes(b"of yesterday")
        done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--save-plan", self.plan, "--progress", "none")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"--save-plan: {self.plan}: not written, as there are no rows to plan".encode(), done.stderr)
        self.assertEqual(self.plan.read_bytes(), b"of yesterday")

    def test_previous_keeps_the_groups_of_unchanged_rows(self):
        self.make_plan()
        previous = self.plan.rename(self.directory / "old.plan")
        self.input.write_bytes(lines(token_rows(210)))
        self.assertIn("reused          200 rows", self.make_plan("--previous", previous))

    def test_a_file_that_is_no_plan_is_refused_by_name(self):
        self.plan.write_bytes(b"not a plan at all")
        done = self.run_program("inspect", self.plan)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"rows.plan", done.stderr)
        done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--plan",
                                self.plan, "--progress", "none")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"rows.plan", done.stderr)


class Usage(ProgramTest):
    def test_version_and_help(self):
        self.assertRegex(self.run_program("--version").stdout, rb"^batchllm \d+\.\d+\.\d+\n$")
        for command in ([], ["run"], ["plan"], ["inspect"], ["tokenize"]):
            done = self.run_program(*command, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn(b"Usage: batchllm", done.stdout)

    def test_usage_errors_end_with_1_and_name_the_option(self):
        for arguments, part in ((["run"], b"--input"), (["fly"], b"fly"), ([], b"no command"), (["--foo"], b"unknown option --foo: there are run"), (["run", "-i", "x", "-i", "y"], b"more than once; batchllm run"),
                                (["run", "-i", "x", "-o", "y", "--wrong"], b"--wrong"),
                                (["run", "-i", "x", "-o", "y", "--force", "--resume"], b"--resume excludes --force"),
                                (["run", "-i", "x", "-o", "y", "--no-sharing", "--enlarge", "optimal"], b"--enlarge excludes --no-sharing"),
                                (["run", "-i", "x", "-o", "y", "--normalize", "--no-normalize"], b"--normalize excludes --no-normalize"),
                                (["plan", "-i", "x", "-o", "y", "--enlarge", "z"], b"--enlarge")):
            done = self.run_program(*arguments)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertIn(part, done.stderr)
            self.assertRegex(done.stderr, rb"^batchllm: [^\n]+(there are run, plan|--help lists the options)[^\n]*\n$")

    def test_an_output_that_cannot_be_made_is_an_error_and_no_endless_loop(self):
        self.input.write_bytes(lines(token_rows(3)))
        gone = self.directory / "gone"
        gone.mkdir()
        enter = f"cd {gone} && rmdir {gone} && exec {PROGRAM} run --backend sim -i {self.input} -o "
        for command, part in ((enter + "x.jsonl", b"x.jsonl: cannot create"),
                              (enter + "/proc/x.jsonl", b"/proc/x.jsonl: cannot create"),
                              (enter + "''", b"--output: no file is named")):
            gone.mkdir(exist_ok=True)
            done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=20)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(part, done.stderr)

    def test_a_file_of_another_kind_is_refused_before_anything_is_written(self):
        for name, begin, part in (("in.parquet", b"PAR1\x15\x04", b"is a Parquet file: `python -m batchllm run`"),
                                  ("in.arrow", b"ARROW1\0\0", b"is an Arrow file"),
                                  ("in.jsonl.gz", b"\x1f\x8b\x08\0", b"compressed by gzip: unpack it"),
                                  ("in.json", b'[{"prompt": "x"}]', b"is a JSON array: a line is one object"),
                                  ("in.json", b' \r\n[\n  {"prompt": "x"}\n]', b"is a JSON array"),
                                  ("in.csv", b"id,prompt\n1,x\n", b"is a CSV file")):
            file = self.directory / name
            file.write_bytes(begin)
            done = self.run_program("run", *SIM, "-i", file, "-o", self.output)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(name.encode() + b": " + part if part.startswith(b"is") else part, done.stderr)
            self.assertFalse(self.output.exists())
            piped = self.run_program("run", *SIM, "-i", "-", "-o", self.output, stdin=begin)
            if not name.endswith(".csv"):  # which a name tells
                self.assertEqual(piped.returncode, 1, piped.stderr)
                self.assertIn(b"stdin: " + part if part.startswith(b"is") else part, piped.stderr)
            self.output.unlink(missing_ok=True)
        rows = self.directory / "rows.csv"  # whatever it is called
        rows.write_bytes(lines(token_rows(2)))
        self.assertEqual(self.run_program("run", *SIM, "-i", rows, "-o", self.output).returncode, 0)

    def test_a_file_of_which_no_line_is_json_ends_the_job(self):
        file = self.directory / "rows.txt"
        file.write_bytes(b"id,prompt\n" + b"1,x\n" * 7)
        done = self.run_program("run", *SIM, "-i", file, "-o", self.output)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(b"no row can run: no line is JSON", done.stderr)
        self.assertIn(b"python -m batchllm run", done.stderr)
        self.assertFalse(self.output.exists())
        # If any row can run, or if there are few rows, each has its own error.
        for content, rows in ((b"x\n" * 9 + lines(token_rows(1)), 10), (b"x\n" * 7, 7)):
            file.write_bytes(content)
            done = self.run_program("run", *SIM, "-i", file, "-o", self.output, "--force")
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertEqual(len(self.output.read_bytes().splitlines()), rows)

    def test_a_misspelt_option_is_named_before_one_that_is_missing(self):
        for arguments, named in ((["run", *SIM, "-i", "x", "--outptu", "y"], b"--outptu (did you mean --output?)"),
                                 (["run", "--modle=m", "-i", "x", "-o", "y"], b"--modle (did you mean --model?)"),
                                 (["run", *SIM, "--flelds", "reorder"], b"--flelds (did you mean --fields?)"),
                                 (["run", *SIM, "--temp", "1"], b"--temp (did you mean --template or --template-file or --temperature?)"),
                                 (["plan", "--frobnicate", "3"], b"--frobnicate;")):
            done = self.run_program(*arguments)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertTrue(done.stderr.startswith(b"batchllm: unknown option " + named), done.stderr)

    def test_a_null_beside_conversations_says_nothing_about_the_model(self):
        model = text_model(self.directory / "model")
        self.input.write_bytes(lines([{"messages": None}, {"messages": [{"role": "user", "content": "x"}]}, {"prompt": None}]))
        done = self.run_program("run", *SIM, "-m", model, "-i", self.input, "-o", self.output)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(b"no row can run: ", done.stderr)
        self.assertFalse(self.output.exists())

    def test_a_name_of_the_hub_is_no_directory(self):
        rows = self.directory / "rows.jsonl"
        rows.write_bytes(lines(token_rows(2)))
        for command in ("run", "plan"):
            done = self.run_program(command, "-m", "someone/Some-Model-7B", "-i", rows, "-o", self.output)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(b"someone/Some-Model-7B: there is no such directory", done.stderr)
            self.assertIn(b"hf download someone/Some-Model-7B --local-dir DIR", done.stderr)
        done = self.run_program("run", "-i", rows, "-o", self.output)
        self.assertIn(b"--model is missing", done.stderr)
        self.assertFalse(self.output.exists())

    def test_a_model_is_neither_an_address_nor_a_file(self):
        rows = self.directory / "rows.jsonl"
        rows.write_bytes(lines(token_rows(2)))
        config = self.directory / "config.json"
        config.write_bytes(b"{}")
        for command in ("run", "plan"):
            for model, what in (("https://example.com/a/b", b"is an address: nothing is downloaded"), (config, b"is a file: --model names the directory")):
                done = self.run_program(command, "-m", model, "-i", rows, "-o", self.output)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(what, done.stderr)
        self.assertFalse(self.output.exists())

    def test_a_pointer_of_git_lfs_is_named_as_such(self):
        rows = self.directory / "rows.jsonl"
        rows.write_bytes(lines(token_rows(2)))
        for name in ("model.safetensors", "tokenizer.json", "config.json"):
            model = text_model(self.directory / name.partition(".")[0])
            (model / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123456\n")
            done = self.run_program("run", "-m", model, "-i", rows, "-o", self.output)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(f"{model / name}: a pointer of Git LFS".encode(), done.stderr)

    def test_an_option_given_twice_and_a_seed_out_of_range_are_refused(self):
        for arguments, what in ((["--seed", "1", "--seed", "2"], b"--seed is given more than once"),
                                (["--seed", "18446744073709551616"], b'"18446744073709551616" is not a whole number'),
                                (["--seed", "-1"], b'"-1" is not a whole number'), (["--seed", "1.5"], b'"1.5" is not')):
            done = self.run_program("run", *SIM, "-i", "x", "-o", self.output, *arguments)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(what, done.stderr)

    def test_examples_of_the_help_name_options_that_there_are(self):
        found = 0
        for command in ([], ["run"], ["plan"], ["inspect"], ["tokenize"]):
            text = self.run_program(*command, "--help").stdout.decode()
            examples = text.partition("\nExamples:\n")[2].splitlines()
            self.assertTrue(examples, command)
            for line in examples:
                call = re.search(r"batchllm (\w+) (.*)", line)
                if call is None or "python -m" in line:
                    continue
                known = self.run_program(call[1], "--help").stdout.decode()
                for option in re.findall(r"--[\w-]+", call[2]):
                    self.assertRegex(known, rf"(?m)^ *(-\w,)?{option}\b", line)
                    found += 1
        self.assertGreater(found, 20)

    def test_numbers_out_of_range_are_told_the_range(self):
        for option, value, part in (("--top-p", "7", b"must be above 0 and at most 1"),
                                    ("--min-p", "2", b"must be at least 0 and below 1"),
                                    ("--temperature", "-3", b"must be 0 or a positive number"),
                                    ("--n", "100000000", b"must be from 1 to 65536"),
                                    ("--step-tokens", "0", b"must be at least 1"),
                                    ("--window-rows", "x", b"is not a size")):
            done = self.run_program("run", "-i", "x", "-o", "y", option, value)
            self.assertEqual(done.returncode, 1, option)
            self.assertIn(part, done.stderr)
            self.assertIn(option.encode(), done.stderr)

    def test_a_missing_input_leaves_no_output_behind(self):
        done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"in.jsonl: cannot open", done.stderr)
        self.assertEqual(list(self.directory.iterdir()), [])

    def test_outputs_that_cannot_be_are_refused_before_anything_is_touched(self):
        rows = lines(token_rows(3))
        self.input.write_bytes(rows)
        here, nowhere = self.directory / "f", self.directory / "none" / "f"
        (self.directory / "link").symlink_to(self.directory)
        for options, what in ((["--stats", self.output], b"is the file of --output too"),
                              (["--stats", self.directory / "link" / "out.jsonl"],
                               b"is the file of --output too"),
                              (["--stats", here, "--save-plan", here], b"of --stats too"),
                              (["--timeline", self.input], b"--timeline: "),
                              (["--save-plan", self.input], b"is the input"),
                              (["--stats", nowhere], b"--stats: "),
                              *([[option, self.directory], option.encode() + b": %s: is a directory" % bytes(self.directory)]
                                for option in ("--stats", "--report", "--save-plan", "--timeline")),
                              (["--save-plan", nowhere], b"none/f: cannot create")):
            done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, *options)
            self.assertEqual(done.returncode, 1)
            self.assertIn(what, done.stderr)
            self.assertFalse(self.output.exists() or here.exists())
        for one, other in (("new", "./new"), (here, "f"), ("new", "./new.state")):  # files that do not exist yet
            done = self.run_program("run", *SIM, "-i", self.input, "-o", one, "--stats", other, cwd=self.directory)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, b"is the file of --output too|is where --output keeps its state")
        self.assertEqual(sorted(path.name for path in self.directory.iterdir()), ["in.jsonl", "link"])
        for options in (["-o", self.input], ["-o", nowhere], ["-o", here, "--stats", here]):
            done = self.run_program("plan", "-i", self.input, *options)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertFalse(here.exists())
        self.assertEqual(self.input.read_bytes(), rows)

    def test_files_that_the_job_reads_or_keeps_are_no_outputs(self):
        self.input.write_bytes(lines(token_rows(3)))
        model = text_model(self.directory / "model")
        schema = self.directory / "schema.json"
        schema.write_text('{"type": "boolean"}')
        (self.directory / "linked.json").symlink_to(model / "tokenizer.json")
        config = (model / "config.json").read_text()
        state = pathlib.Path(str(self.output) + ".state")
        for options, what in ((["--stats", state], b"is where --output keeps its state"),
                              (["--report", schema], b"is the file of --json-schema too"),
                              (["--stats", model / "config.json"], b"is a file of the model"),
                              (["--timeline", self.directory / "linked.json"], b"is a file of the model")):
            done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--model", model,
                                    "--json-schema", schema, *options)
            self.assertEqual(done.returncode, 1)
            self.assertIn(what, done.stderr)
        done = self.run_program("run", *SIM, "-i", self.input, "-o", model / "config.json", "--model", model, "--force")
        self.assertIn(b"--output: ", done.stderr)
        template = self.directory / "template.txt"
        template.write_text("{id}")
        done = self.run_program("plan", "-i", self.input, "--model", model, "--template-file", template, "-o", template)
        self.assertIn(b"is the file of --template-file too", done.stderr)
        self.assertFalse(self.output.exists() or state.exists())
        self.assertEqual((model / "config.json").read_text(), config)
        # Other files in the same folder are not touched; /dev/null cannot have a state, and needs none.
        self.run_rows(token_rows(3), "--model", model, "--stats", model / "stats.json", backend=SIM)
        self.run_rows(token_rows(3), "--model", model, "--stats", model / "stats.json", "--force", backend=SIM)
        done = self.run_program("run", *SIM, "-i", self.input, "-o", "/dev/null", "--stats", self.directory / "s.json")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_template_and_a_schema_may_come_from_a_pipe(self):
        self.input.write_bytes(b'{"id": 1, "word": "cat"}\n')
        model = text_model(self.directory / "model")
        command = (f'{PROGRAM} run {" ".join(SIM)} -i {self.input} -o {self.output} --model {model} --progress none '
                   "--template-file <(printf 'Say {word}.') --json-schema <(echo '{\"type\": \"boolean\"}')")
        done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(self.read_output()[0]["text"], ("true", "false"))

    def test_what_no_row_can_be_run_with_fails_the_job_and_touches_no_output(self):
        def refused(*options, model=None, backend=SIM):
            self.output.write_bytes(b"precious")
            named = [] if model is None else ["--model", model]
            done = self.run_program("run", *backend, "-i", self.input, "-o", self.output, "--force", *named, *options)
            self.assertEqual((done.returncode, self.output.read_bytes()), (1, b"precious"), done.stderr)
            self.assertFalse(pathlib.Path(str(self.output) + ".state").exists())
            return done.stderr.decode()

        self.input.write_bytes(lines(token_rows(3)))
        self.assertIn("no row can run with these options: stop_tokens[0] is 999999", refused("--stop-token", "999999"))
        self.assertIn("no classification head", refused("--task", "classify"))
        self.assertIn("min_tokens is 9: it must be at most max_tokens, 8", refused("--min-tokens", "9", "--max-tokens", "8"))
        self.assertIn("bad_words need a tokenizer", refused("--bad-word", "x"))
        self.input.write_bytes(lines({"id": i, "prompt": f"text {i}"} for i in range(5)))
        self.assertIn('"prompt" is text, and no model with a tokenizer.json is given', refused())
        model = text_model(self.directory / "model")
        self.input.write_bytes(lines({"id": i, "messages": [{"role": "user", "content": f"{i}"}]} for i in range(5)))
        self.assertIn("no row can run: the model has no chat template", refused(model=model))
        (model / "tokenizer.json").unlink()
        self.assertIn(f'"messages" is text, and there is no tokenizer.json in {model}', refused(model=model))
        done = self.run_program("plan", "-i", self.input, "-o", self.directory / "f.plan")
        self.assertEqual((done.returncode, done.stderr.count(b"\n")), (1, 1), done.stderr)
        # If any row can run, the others have their own errors.
        rows = [{"id": 0, "prompt": "text"}, {"id": 1, "tokens": [1, 2]}]
        found = by_id(self.run_rows(rows, "--force", expect=3))
        self.assertEqual(found[0]["error"]["code"], "ROW_INVALID_PARAMETER")
        self.assertEqual(found[1]["finish_reason"] in ("stop", "length"), True)

    def test_a_plan_tells_equal_errors_once(self):
        self.input.write_bytes(lines([{"id": 0, "tokens": [1, 2]}, *({"id": i, "prompt": "x"} for i in range(1, 2001)), "bad"]))
        done = self.run_program("plan", "-i", self.input, "-o", self.directory / "f.plan")
        self.assertEqual(done.returncode, 3)
        text = done.stderr.decode()
        self.assertIn("input line 2 and 1,999 more: ROW_INVALID_PARAMETER: ", text)
        self.assertIn("input line 2002: ROW_JSON: ", text)
        self.assertLess(text.index("input line 2 "), text.index("input line 2002"))
        self.assertEqual(text.count("input line"), 2)

    def test_both_of_two_files_that_cannot_be_written_are_named(self):
        gone = self.directory / "gone"
        gone.mkdir()
        self.input.write_bytes(lines({"id": i, "tokens": [i, 1, 2], "max_tokens": 3000} for i in range(400)))
        # The folder is removed while the job runs.
        command = [PROGRAM, "run", *SIM, "-i", self.input, "-o", self.output, "--progress", "none", "--ignore-eos",
                   "--max-tokens", "3000", "--stats", gone / "s.json", "--report", gone / "r.html"]
        with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE) as running:
            while not self.output.exists() and running.poll() is None:
                time.sleep(0.001)
            shutil.rmtree(gone)
            said = running.stderr.read()
        self.assertEqual(running.returncode, 1)
        self.assertIn(b"s.json", said)
        self.assertIn(b"r.html", said)
        self.assertIn(b"the output is complete", said)

    def test_statistics_go_to_a_pipe_that_stays_one(self):
        self.input.write_bytes(lines(token_rows(3)))
        pipe = self.directory / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--stats", pipe)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(pipe.is_fifo())
        self.assertEqual(json.loads(os.read(reader, 65536))["rows_done"], 3)

    def test_a_missing_model_is_an_error_that_names_it(self):
        self.input.write_bytes(lines(token_rows(1)))
        done = self.run_program("run", "--backend", "cpu", "--model", self.directory / "none", "-i",
                                self.input, "-o", self.output)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"none", done.stderr)
        self.assertFalse(self.output.exists())


class Tokenize(ProgramTest):
    TEXTS = ["Hello, world!", "\u00e9\u4e2d\u6587 \U0001f600", "  two  spaces\nand a line", ""]

    def tokenize(self, rows, *arguments, expect=0, model=TOKENIZERS[0]):
        done = self.run_program("tokenize", "--model", model, *arguments,
                                stdin=rows if isinstance(rows, bytes) else lines(rows))
        self.assertEqual(done.returncode, expect, done.stderr)
        return [parse(line) for line in done.stdout.decode().splitlines()]

    def test_text_to_tokens_and_back(self):
        for model in TOKENIZERS:
            with self.subTest(model=model):
                rows = [{"id": i, "text": t} for i, t in enumerate(self.TEXTS)]
                tokens = self.tokenize(rows, model=model)
                self.assertEqual([row["id"] for row in tokens], list(range(len(self.TEXTS))))
                back = self.tokenize(tokens, "--decode", model=model)
                if model.parent.name in ("llama3", "qwen2"):  # tokenizers that lose nothing
                    self.assertEqual([row["text"] for row in back], self.TEXTS)
                plain = self.tokenize(rows, "--no-special", model=model)
                self.assertEqual(plain[3]["tokens"], [])

    def test_a_bad_line_has_an_error_in_its_place(self):
        rows = [{"text": "a"}, b"bad", {"text": 5}, b'{"text": "\xff"}', {"text": "a"},
                b'{"id": 1, "id": 2, "text": "a"}', b'{"id": 3, "text": 1e999}', b'{"id": 4, "text": 01}']
        found = self.tokenize(rows, expect=3)
        self.assertEqual([row.get("error", {}).get("code") for row in found],
                         [None, "ROW_JSON", "ROW_FORMAT", "ROW_INVALID_UTF8", None,
                          "ROW_FORMAT", "ROW_FORMAT", "ROW_JSON"])
        self.assertEqual([row["id"] for row in found[6:]], [3, 4])
        self.assertEqual(found[0], found[4])
        found = self.tokenize([{"tokens": [1 << 40]}, {"tokens": [-1]}], "--decode", expect=3)
        self.assertEqual([row["error"]["code"] for row in found], ["ROW_UNKNOWN_TOKEN"] * 2)
        found = self.tokenize([{"tokens": [1, 2, 99999999]}], "--decode", expect=3)
        self.assertEqual(found[0]["error"]["message"], "token 2: no token has the id 99999999")

    def test_it_can_be_driven_through_two_pipes(self):
        with subprocess.Popen([PROGRAM, "tokenize", "--model", str(TOKENIZERS[0])],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            for text in self.TEXTS:
                child.stdin.write(lines([{"text": text}]))
                child.stdin.flush()
                self.assertIn("tokens", parse(child.stdout.readline().decode()))
            child.stdin.close()
            self.assertEqual(child.wait(20), 0)


class TextRows(ProgramTest):
    """Rows of text: a simulated model with a real tokenizer."""

    def setUp(self):
        super().setUp()
        self.model = text_model(self.directory / "model")
        (self.model / "tokenizer_config.json").write_text(json.dumps({
            "bos_token": "<|begin_of_text|>",
            "chat_template": "{{ bos_token }}{% for m in messages %}"
                             "{% if m.role == 'critic' %}{{ raise_exception('No critics') }}{% endif %}"
                             "<{{ m.role }}>{{ m.content }}{% endfor %}"
                             "{% if tools %}{{ tools | tojson }}{% endif %}"
                             "{% if add_generation_prompt %}<assistant>{% endif %}"}))
        self.sim = ["--backend", "sim", "--backend-options", "eos_token=7,max_length=12,pages=4096", "--model", self.model]

    def run_text(self, rows, *arguments, expect=0):
        return by_id(self.run_rows(rows, *arguments, expect=expect, backend=self.sim))

    def tokens_of(self, texts, *arguments):
        done = self.run_program("tokenize", "--model", self.model, *arguments,
                                stdin=lines([{"text": text} for text in texts]))
        return [parse(line)["tokens"] for line in done.stdout.decode().splitlines()]

    def test_text_is_tokenized_as_the_tokenizer_alone_does_it(self):
        texts = ["Hello", "caf\u00e9 \u4e2d\u6587", "two\nlines", "x" * 300]
        texts += ["shared words, then row %d" % i for i in range(200)]
        found = self.run_text([{"id": i, "prompt": t} for i, t in enumerate(texts)],
                              "--window-rows", "30")
        counts = [len(tokens) for tokens in self.tokens_of(texts)]
        self.assertEqual([found[i]["usage"]["prompt_tokens"] for i in range(len(texts))], counts)
        by_token = self.run_text([{"id": i, "tokens": t}
                                  for i, t in enumerate(self.tokens_of(texts))], "--force")
        self.assertEqual({i: r["tokens"] for i, r in found.items()},
                         {i: r["tokens"] for i, r in by_token.items()})

    def test_the_text_of_a_result_is_that_of_its_tokens(self):
        found = self.run_text([{"id": i, "prompt": "row %d" % i, "max_tokens": 6}
                               for i in range(50)])
        ended = 0
        for row in found.values():
            tokens = row["tokens"]
            if row["finish_reason"] == "stop":
                ended += 1
                tokens = tokens[:-1]  # the EOS is not part of the text
            done = self.run_program("tokenize", "--model", self.model, "--decode",
                                    stdin=lines([{"tokens": tokens}]))
            self.assertEqual(row["text"], parse(done.stdout.decode())["text"])
        self.assertTrue(0 < ended < 50)

    def test_special_tokens_are_as_the_row_wants_them(self):
        added = json.loads((self.model / "tokenizer.json").read_text())["added_tokens"]
        special = next(token["content"] for token in added if token["special"])
        rows = [{"id": 1, "prompt": "a" + special},
                {"id": 2, "prompt": "a" + special, "parse_special": False},
                {"id": 3, "prompt": "a" + special, "add_special": False},
                {"id": 4, "prompt": "", "add_special": False}]
        found = self.run_text(rows, expect=3)
        expected = [len(self.tokens_of(["a" + special], *options)[0])
                    for options in ([], ["--no-parse-special"], ["--no-special"])]
        self.assertEqual([found[i]["usage"]["prompt_tokens"] for i in (1, 2, 3)], expected)
        self.assertEqual(len(set(expected)), 3)
        self.assertEqual(found[4]["error"]["code"], "ROW_EMPTY")

    def test_messages_go_through_the_models_template(self):
        said = [{"role": "user", "content": "caf\u00e9 \u4e2d"}]
        tools = [{"type": "function", "n": 1.5}]
        texts = ["<|begin_of_text|><user>caf\u00e9 \u4e2d<assistant>",
                 "<|begin_of_text|><user>caf\u00e9 \u4e2d",
                 '<|begin_of_text|><user>caf\u00e9 \u4e2d[{"type": "function", "n": 1.5}]<assistant>']
        rows = [{"messages": said}, {"messages": said, "add_generation_prompt": False},
                {"messages": said, "tools": tools}]
        wanted = self.tokens_of(texts, "--no-special")
        done = self.run_program("tokenize", "--model", self.model, stdin=lines(rows))
        self.assertEqual([parse(line)["tokens"] for line in done.stdout.decode().splitlines()], wanted)
        found = self.run_text([{"id": i, **row} for i, row in enumerate(rows)])
        by_token = self.run_text([{"id": i, "tokens": t} for i, t in enumerate(wanted)], "--force")
        self.assertEqual({i: (r["tokens"], r["usage"]["prompt_tokens"]) for i, r in found.items()},
                         {i: (r["tokens"], r["usage"]["prompt_tokens"]) for i, r in by_token.items()})
        # The plan has the same tokens.
        self.input.write_bytes(lines(rows))
        plan, stats = self.directory / "rows.plan", self.directory / "plan.json"
        done = self.run_program("plan", "--input", self.input, "--model", self.model, "--output", plan, "--stats", stats)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(stats.read_text())["logical_prompt_tokens"], sum(map(len, wanted)))

    def test_bad_conversations_are_row_errors(self):
        rows = [{"id": 0, "messages": [{"role": "critic", "content": "x"}]},
                {"id": 1, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
                {"id": 2, "messages": [{"role": "user", "content": "<|begin_of_text|>"}], "parse_special": False},
                {"id": 3, "messages": [{"role": "user", "content": "<|begin_of_text|>"}]},
                {"id": 4, "tokens": [1], "tools": []},
                {"id": 5, "messages": [{"role": "user", "content": "a", "content": "b"}]}]
        found = self.run_text([*rows[:5], '{"id": 5, "messages": [{"role": "user", "role": "user"}]}'], expect=3)
        errors = {i: row["error"] for i, row in found.items() if "error" in row}
        self.assertEqual(set(errors), {0, 1, 2, 4, 5})
        self.assertIn("line 1: the template refuses: No critics", errors[0]["message"])
        self.assertIn("parts of this type are not supported", errors[1]["message"])
        self.assertIn("special token", errors[2]["message"])
        self.assertIn("given twice", errors[5]["message"])
        self.assertEqual({i: e["code"] for i, e in errors.items()},
                         {0: "ROW_TEMPLATE", 1: "ROW_TEMPLATE", 2: "ROW_TEMPLATE", 4: "ROW_FORMAT", 5: "ROW_FORMAT"})

    def test_a_row_with_an_image_is_an_error_of_its_own(self):
        said = [{"type": "text", "text": "hi"}]
        images = [{"type": "image", "url": "cat.png"}, {"type": "image_url", "image_url": {"url": "cat.png"}},
                  {"image": "cat.png"}]
        contents = ["hi", said, *[[part, *said] for part in images], "hi there"]
        rows = [{"id": i, "messages": [{"role": "user", "content": content}], "max_tokens": 2,
                 "ignore_eos": True} for i, content in enumerate(contents)]
        models = [path for path in MODELS if "vision_config" in json.loads((path / "config.json").read_text())]
        self.assertGreaterEqual(len(models), 5)
        for model in models:
            with self.subTest(model=model.name):
                directory = self.directory / model.name
                make_text_model(model, directory)
                found = by_id(self.run_rows(rows, "--force", expect=3, backend=[
                    "--backend", "cpu", "--kv-memory", "4MiB", "--model", directory]))
                self.assertEqual({i for i, row in found.items() if "error" in row}, {2, 3, 4})
                for i in (2, 3, 4):
                    self.assertEqual(found[i]["error"]["code"], "ROW_TEMPLATE")
                    self.assertIn("not supported", found[i]["error"]["message"])
                self.assertEqual([len(found[i]["tokens"]) for i in (0, 1, 5)], [2, 2, 2])
                self.assertEqual(found[0]["tokens"], found[1]["tokens"])

    def test_chat_completions_are_answered_in_kind(self):
        def request(name, **body):
            return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions",
                    "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}}
        rows = [request("a", max_completion_tokens=2, ignore_eos=True, user="u"),
                request("b", n=2, temperature=1, logprobs=True, top_logprobs=2, tool_choice="none", tools=[{"x": 1}]),
                request("c", max_tokens=1, max_completion_tokens=1), request("d", top_logprobs=2),
                request("e", response_format={"type": "xml"}), request("f", tool_choice="required")]
        found = {row["custom_id"]: row for row in self.run_rows(rows, expect=3, backend=self.sim)}
        body = found["a"]["response"]["body"]
        self.assertEqual((body["object"], body["id"], body["usage"]["completion_tokens"]), ("chat.completion", "chatcmpl-1", 2))
        choice = body["choices"][0]
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertIsInstance(choice["message"]["content"], str)
        self.assertIsNone(choice["logprobs"])
        second = found["b"]["response"]["body"]
        self.assertEqual(second["usage"]["prompt_tokens"], body["usage"]["prompt_tokens"])  # no tools in the prompt
        self.assertEqual([c["index"] for c in second["choices"]], [0, 1])
        tokens = second["choices"][0]["logprobs"]["content"]
        self.assertGreater(len(tokens), 0)
        self.assertEqual(len(tokens[0]["top_logprobs"]), 2)
        for name in "cdef":
            self.assertEqual(found[name]["response"]["status_code"], 400, name)

    def test_reasoning_effort_is_a_variable_of_the_template(self):
        settings = json.loads((self.model / "tokenizer_config.json").read_text())
        settings["chat_template"] = "{{ reasoning_effort }}{{ x }}|{{ messages[0].content }}"
        (self.model / "tokenizer_config.json").write_text(json.dumps(settings))
        bodies = [{"reasoning_effort": "high"}, {"reasoning_effort": None}, {"reasoning_effort": "low", "chat_template_kwargs": {"x": 1}},
                  {"chat_template_kwargs": None, "reasoning_effort": "low"}, {"chat_template_kwargs": {}, "reasoning_effort": "low"},
                  {"chat_template_kwargs": {"reasoning_effort": "low", "x": 2}}, {"reasoning_effort": "low", "chat_template_kwargs": [1]},
                  {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"}}, {"reasoning_effort": 3}]
        rows = [{"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": {
            "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "ignore_eos": True, **body}} for i, body in enumerate(bodies)]
        found = {row["custom_id"]: row["response"] for row in self.run_rows(rows, expect=3, backend=self.sim)}
        texts = ["high|hi", "|hi", "low1|hi", "low|hi", "low|hi", "low2|hi"]
        self.assertEqual([found[str(i)]["body"]["usage"]["prompt_tokens"] for i in range(6)],
                         [len(tokens) for tokens in self.tokens_of(texts, "--no-special")])
        for i, words in ((6, "object"), (7, '"reasoning_effort" is in "chat_template_kwargs" too'), (8, "string")):
            self.assertIn(words, found[str(i)]["body"]["error"]["message"])

    def test_rows_keep_to_what_they_ask_of_their_output(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 5, "maximum": 7}},
                  "required": ["n"], "additionalProperties": False}
        rows = [{"id": 0, "prompt": "a", "choices": ["yes", "no"]}, {"id": 1, "prompt": "a", "regex": "[0-9]{3}"},
                {"id": 2, "prompt": "a", "json_schema": schema}, {"id": 3, "prompt": "a", "grammar": 'root ::= "x" "y"'},
                {"id": 4, "prompt": "a", "grammar": {"lark": 'start: "z"'}}, {"id": 5, "prompt": "a", "regex": "(a"},
                {"custom_id": "6", "method": "POST", "url": "/v1/chat/completions", "body": {
                    "model": "m", "messages": [{"role": "user", "content": "hi"}],
                    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}}]
        found = {row.get("custom_id", row["id"]): row for row in self.run_rows(rows, expect=3, backend=self.sim)}
        self.assertIn(found[0]["text"], ("yes", "no"))
        self.assertRegex(found[1]["text"], "^[0-9]{3}$")
        self.assertIn(json.loads(found[2]["text"])["n"], (5, 6, 7))
        self.assertEqual([found[i]["text"] for i in (3, 4)], ["xy", "z"])
        self.assertEqual(found[5]["error"]["code"], "ROW_CONSTRAINT")
        answer = found["6"]["response"]["body"]["choices"][0]["message"]["content"]
        self.assertIn(json.loads(answer)["n"], (5, 6, 7))

    def test_rows_and_options_say_how_json_is_written(self):
        """The simulated model prefers low token ids: spaces, "b" over "n", "." over "}"."""
        number = {"type": "integer", "minimum": 1, "maximum": 9}
        two = {"type": "object", "properties": {"n": number, "b": {"enum": ["x"]}}, "required": ["b", "n"], "additionalProperties": False}
        one = {"type": "object", "properties": {"n": number}, "required": ["n"], "additionalProperties": False}

        def texts(schema, own, *arguments):
            rows = [{"id": i, "prompt": f"row {i}", "json_schema": schema, "max_tokens": 200, **own} for i in range(40)]
            found = [row["text"] for row in self.run_text(rows, "--force", *arguments).values()]
            for value in map(json.loads, found):
                self.assertEqual(set(value), set(schema["required"]))
                self.assertIn(value["n"], range(1, 10))
            return found

        self.sim[self.sim.index("--backend-options") + 1] = "eos_token=7,max_length=200,pages=4096"
        plain = r'^\{"n":[1-9](,"b":"x")?\}$'
        written = {"flexible_whitespace": (two, r"[\n ]"), "any_member_order": (two, r'^\{"b"'), "any_numbers": (one, r"\.0|[eE]")}
        for key, (schema, pattern) in written.items():
            option = "--" + key.replace("_", "-")
            for found in (texts(schema, {}), texts(schema, {key: False}, option)):
                for text in found:
                    self.assertRegex(text, plain)
            for found in (texts(schema, {key: True}), texts(schema, {}, option)):
                self.assertTrue(any(re.search(pattern, text) for text in found), (key, found[:5]))

    def test_rows_whose_own_stop_cuts_them_off_are_warned_of_and_counted(self):
        stats = self.directory / "stats.json"
        cut = {"choices": ["yes, sure", "no, sorry"], "stop": [","]}
        kept = {"choices": ["yes", "no"], "stop": [","]}
        stopped = {"choices": ["a.b"], "stop": ["b"]}  # the text may end where the other would not: "a." is no choice
        rows = [{"id": i, "prompt": f"row {i}", "max_tokens": 20, **(cut, kept, stopped)[i % 3]} for i in range(30)]
        self.input.write_bytes(lines(rows))
        done = self.run_program("run", *self.sim, "-i", self.input, "-o", self.output, "--progress", "lines", "--stats", stats)
        texts = by_id(self.read_output())
        self.assertEqual({row["finish_reason"] for row in texts.values()}, {"stop"}, done.stderr)
        self.assertEqual({row["text"] for i, row in texts.items() if i % 3 != 1}, {"yes", "no", "a."})
        self.assertIn(b"20 of 30 rows with a constraint were ended by their own stop strings or stop tokens", done.stderr)
        self.assertIn(b"Cut off: 20 of 30 results with a constraint.", done.stderr)
        self.assertEqual(json.loads(stats.read_text())["cut_off_results"], 20)
        # A text that is valid where the stop string was is not cut off.
        self.input.write_bytes(lines([{"id": 0, "prompt": "a", "max_tokens": 20, "regex": "ab(,c)", "stop": [",c"]},
                                      {"id": 1, "prompt": "a", "max_tokens": 20, "regex": "ab(,c)?d?", "stop": [","]}]))
        self.run_program("run", *self.sim, "-i", self.input, "-o", self.output, "--force", "--stats", stats)
        self.assertEqual(json.loads(stats.read_text())["cut_off_results"], 1)

    def test_a_text_without_its_special_tokens_may_be_valid_where_a_stop_ended_it(self):
        stats, cut = self.directory / "stats.json", []
        for skip in (True, False):
            self.input.write_bytes(lines([{"id": i, "prompt": f"row {i}", "regex": "ab(,c)?d?", "stop": [",c"], "start_after": "<s>", "max_tokens": 2000,
                                           "skip_special_tokens": skip} for i in range(200)]))
            done = self.run_program("run", "--backend", "sim", "--model", os.environ["BATCHLLM_TEXT_MODEL"], "-i", self.input, "-o", self.output, "--force", "--stats", stats)
            self.assertEqual(done.returncode, 0, done.stderr)
            stopped = [row["text"] for row in self.read_output() if row["finish_reason"] == "stop"]
            whole = sum(text.endswith(("ab", "abd")) for text in stopped)
            self.assertGreater(whole, 100)
            self.assertEqual(json.loads(stats.read_text())["cut_off_results"], 200 - whole)

    def test_rows_that_max_tokens_cuts_off_are_warned_of_and_counted(self):
        schema = {"type": "object", "properties": {"n": {"enum": [12, 345]}}, "required": ["n"], "additionalProperties": False}
        rows = [{"id": i, "prompt": f"row {i}", "json_schema": schema, "max_tokens": 2} for i in range(20)] + [{"id": 20, "prompt": "a", "max_tokens": 2}]
        stats = self.directory / "stats.json"
        self.input.write_bytes(lines(rows))
        done = self.run_program("run", *self.sim, "-i", self.input, "-o", self.output, "--progress", "lines", "--stats", stats)
        self.assertEqual({row["finish_reason"] for row in self.read_output() if row["id"] < 20}, {"length"}, done.stderr)
        for text in (b"20 of 20 rows with a constraint were cut off by max_tokens", b"has 8 bytes",  # {"n":12}
                     b"Cut off: 20 of 20 results with a constraint."):
            self.assertIn(text, done.stderr)
        counts = json.loads(stats.read_text())
        self.assertEqual((counts["constrained_results"], counts["cut_off_results"]), (20, 20))

    def test_rows_that_never_write_start_after_are_warned_of_as_such(self):
        self.input.write_bytes(lines([{"id": i, "prompt": f"row {i}", "choices": ["a", "b"], "start_after": "</think>"} for i in range(20)]))
        done = self.run_program("run", *self.sim, "-i", self.input, "-o", self.output, "--progress", "lines", "--max-tokens", "3")
        self.assertIn(b'20 of 20 rows with a constraint never wrote "</think>", after which it starts', done.stderr)
        self.assertNotIn(b"shortest text", done.stderr)

    def test_a_loose_schema_is_taken_with_a_warning(self):
        schema = {"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 1, "maximum": 9}, "maxItems": 2}
        file = self.directory / "schema.json"
        file.write_text(json.dumps(schema))

        def chat(name, **strict):
            return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": {
                "model": "m", "messages": [{"role": "user", "content": "hi"}],
                "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, **strict}}}}

        rows = [{"id": 0, "prompt": "a", "json_schema": schema}, {"id": 1, "prompt": "a", "json_schema": schema, "loose_schema": True},
                {"id": 2, "prompt": "b", "json_schema": schema, "loose_schema": True}]
        found = self.run_text(rows, expect=3)
        self.assertEqual(found[0]["error"]["code"], "ROW_CONSTRAINT")
        self.assertIn("#/uniqueItems", found[0]["error"]["message"])
        self.assertLessEqual(len(json.loads(found[1]["text"])), 2)
        self.assertEqual(self.stderr.count("#/uniqueItems:"), 1)  # once, not once per row
        rows = [chat("exact", strict=True), chat("loose", strict=False), chat("unsaid"), chat("null", strict=None), chat("bad", strict=1)]
        for options, loose in (((), {"loose"}), (("--loose-schema",), {"loose", "unsaid", "null"})):
            found = {row["custom_id"]: row for row in self.run_rows(rows, "--force", *options, expect=3, backend=self.sim)}
            good = {name for name, row in found.items() if row["response"]["status_code"] == 200}
            self.assertEqual(good, loose)
            self.assertIn("strict", found["bad"]["error"]["message"])
        def either_order(name, first, **strict):  # the request's "strict" applies, wherever loose_schema is set
            row = chat(name, **strict)
            row["body"] = {**first, **row["body"]} if name.endswith("before") else {**row["body"], **first}
            return row

        rows = [either_order(f"{loose} {strict} {place}", {"loose_schema": loose}, strict=strict)
                for loose in (True, False) for strict in (True, False) for place in ("before", "behind")]
        found = {row["custom_id"]: row["response"]["status_code"] == 200
                 for row in self.run_rows(rows, "--force", expect=3, backend=self.sim)}
        self.assertEqual(found, {row["custom_id"]: row["custom_id"].split()[1] == "False" for row in rows})
        row = [{"id": 0, "prompt": "a"}]
        self.input.write_bytes(lines(row))
        run = ["run", *self.sim, "-i", self.input, "-o", self.output, "--force", "--progress", "none", "--json-schema", file]
        done = self.run_program(*run)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"--json-schema: {file}: json_schema: #/uniqueItems".encode(), done.stderr)
        done = self.run_program(*run, "--loose-schema")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count(b"#/uniqueItems:"), 1)

    def test_a_model_without_a_template_says_so(self):
        (self.model / "tokenizer_config.json").unlink()
        found = self.run_text([{"id": 0, "messages": [{"role": "user", "content": "x"}]}, {"id": 1, "prompt": "x"}], expect=3)
        self.assertIn("tokenizer_config.json", found[0]["error"]["message"])
        self.assertEqual(found[0]["error"]["code"], "ROW_TEMPLATE")
        self.assertNotIn("error", found[1])

    def test_text_is_scored_like_its_tokens(self):
        yes, no = self.tokens_of([" yes", " no way"], "--no-special")
        rows = [{"id": "text", "prompt": "Is it?", "score": [" yes", " no way"]},
                {"id": "tokens", "tokens": self.tokens_of(["Is it?"])[0], "score": [yes, no]}]
        found = self.run_text(rows)
        self.assertEqual(found["text"]["scores"], found["tokens"]["scores"])
        self.assertEqual([len(x) for x in found["text"]["score_logprobs"]], [len(yes), len(no)])

    def test_stop_strings_cut_the_text(self):
        rows = [{"id": 1, "prompt": "abc", "max_tokens": 12, "ignore_eos": True}]
        text = self.run_text(rows)[1]["text"]
        stop = text[3:5]
        for given in (stop, ["\u4e2d", stop]):
            row = self.run_text([dict(rows[0], stop=given)], "--force")[1]
            self.assertEqual(row["text"], text[:text.index(stop)])
            self.assertEqual(row["finish_reason"], "stop")
        row = self.run_text(rows, "--force", "--stop", "\u4e2d", "--stop", stop)[1]
        self.assertEqual(row["text"], text[:text.index(stop)])

    def test_a_plan_of_text_is_taken_by_a_run_of_the_same_tokenizer_alone(self):
        plan = self.directory / "rows.plan"
        rows = [{"id": i, "prompt": "the same long beginning of rows " * 3 + str(i)}
                for i in range(30)]
        self.input.write_bytes(lines(rows))
        done = self.run_program("plan", "-i", self.input, "-o", plan, "--model", self.model)
        self.assertEqual(done.returncode, 0, done.stderr)
        stats = self.directory / "stats.json"
        self.run_text(rows, "--plan", plan, "--stats", stats)
        self.assertEqual(json.loads(stats.read_text())["rows_planned_before"], 30)
        (self.model / "tokenizer.json").write_bytes(
            (TESTS / "text/qwen2/tokenizer.json").read_bytes())
        before = self.output.read_bytes()
        done = self.run_program("run", *self.sim, "-i", self.input, "-o", self.output, "--force",
                                "--plan", plan, "--progress", "none")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"rows.plan: made with another tokenizer", done.stderr)
        self.assertEqual(self.output.read_bytes(), before)
        done = self.run_program("run", *self.sim, "-i", self.input, "-o", self.output, "--resume")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"model tokenizer.json (was ", done.stderr)


class Surroundings(ProgramTest):
    """Things that a shell, a cache or a daemon may leave for the program."""

    def model_with(self, name, make):
        """A copy of a model in which one file is replaced by something else."""
        model = self.directory / "model"
        shutil.rmtree(model, ignore_errors=True)
        model.mkdir()
        for path in next(path for path in MODELS if path.name == "qwen3_bf16").iterdir():
            (model / path.name).symlink_to(path)
        (model / name).unlink(missing_ok=True)
        make(model / name)
        return model

    def test_a_link_to_a_file_that_was_pruned_is_an_error_that_names_it(self):
        for name in ("generation_config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"):
            model = self.model_with(name, lambda path: path.symlink_to("../blobs/pruned"))
            for command in (["run", "--backend", "cpu", "-o", self.output], ["plan", "-o", self.directory / "plan"]):
                if command[0] == "plan" and name != "tokenizer.json":
                    continue  # not used by it
                self.input.write_bytes(lines(token_rows(2)))
                done = self.run_program(*command, "--model", model, "-i", self.input)
                self.assertEqual(done.returncode, 1, name)
                self.assertIn(name.encode(), done.stderr)
                self.assertFalse(self.output.exists())

    def test_a_fifo_among_the_models_files_is_an_error_at_once(self):
        self.input.write_bytes(lines(token_rows(2)))
        for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                     "special_tokens_map.json", "chat_template.jinja", "model.safetensors", "other.safetensors"):
            model = self.model_with(name, os.mkfifo)
            done = subprocess.run([PROGRAM, "run", "--backend", "cpu", "--model", model, "-i", self.input, "-o", self.output],
                                  stderr=subprocess.PIPE, timeout=20)
            self.assertEqual(done.returncode, 1, name)
            self.assertIn(f"{name}: not a regular file".encode(), done.stderr)

    def test_a_directory_among_the_models_files_is_an_error(self):
        self.input.write_bytes(lines(token_rows(2)))
        for name in ("generation_config.json", "other.safetensors"):
            model = self.model_with(name, pathlib.Path.mkdir)
            done = self.run_program("run", "--backend", "cpu", "--model", model, "-i", self.input, "-o", self.output)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"{name}: not a regular file".encode(), done.stderr)

    def test_closed_standard_descriptors_do_no_harm(self):
        self.input.write_bytes(lines(token_rows(300)))
        expected = None
        for closed in ([], [0], [1], [2], [0, 1], [1, 2], [0, 2], [0, 1, 2]):
            child = subprocess.Popen([PROGRAM, "run", *SIM, "-i", self.input, "-o", self.output, "--force", "--progress", "json"],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                     preexec_fn=lambda: [os.close(fd) for fd in closed])
            self.assertEqual(child.wait(60), 0, closed)
            rows = by_id(self.read_output())
            expected = expected or rows
            self.assertEqual(rows, expected, closed)
            done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--resume")
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_results_do_not_go_to_a_closed_stdout_in_silence(self):
        self.input.write_bytes(lines(token_rows(3)))
        child = subprocess.Popen([PROGRAM, "run", *SIM, "-i", self.input, "-o", "-"], stderr=subprocess.PIPE,
                                 preexec_fn=lambda: os.close(1))
        errors = child.communicate(timeout=60)[1]
        self.assertEqual(child.returncode, 1)
        self.assertIn(b"stdout: cannot write", errors)


class Demo(ProgramTest):
    def test_the_job_that_is_installed_with_the_program_runs_anywhere(self):
        environment = {**os.environ, "TMPDIR": str(self.directory)}
        done = subprocess.run([PROGRAM, "demo", "--backend", "cpu"], capture_output=True, text=True, cwd="/", env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        right, rows = re.search(r"^(\d+) of (\d+) answers are right\.$", done.stdout, re.MULTILINE).groups()
        self.assertGreater(int(right), 280)
        self.assertEqual(rows, "300")
        right, rows = re.search(r"^(\d+) of (\d+) answers about pages are right\.$", done.stdout, re.MULTILINE).groups()
        self.assertGreater(int(right), 55)
        self.assertEqual(rows, "60")
        self.assertIn('page-001.png\n    The page\'s fields as JSON:  ->  {"number":"', done.stdout)
        self.assertEqual(list(self.directory.iterdir()), [])

    def test_what_cannot_be_written_is_said(self):
        done = subprocess.run([PROGRAM, "demo"], capture_output=True, text=True, env={**os.environ, "TMPDIR": str(self.directory / "none")})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "none/batchllm-demo-.*: No such file or directory")
        with open("/dev/full", "wb") as full:
            done = subprocess.run([PROGRAM, "demo", "--backend", "cpu"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("stdout: cannot write", done.stderr)


class GoldenModel(ProgramTest):
    """A real, tiny model on the CPU: the program's output equals the reference."""

    ROUNDING = 1e-3  # margins below it may fall either way in float32

    def test_greedy_tokens_and_scores_equal_the_reference(self):
        model = next(path for path in MODELS if path.name == "qwen3_bf16")
        golden = json.loads((model / "golden.json").read_text())
        rows = [{"id": i, "tokens": row["prompt"], "max_tokens": golden["new_tokens"],
                 "logprobs": 0} for i, row in enumerate(golden["rows"])]
        rows += [{"id": "score %d" % i, "tokens": golden["rows"][score["prompt"]]["prompt"],
                  "score": score["continuations"]} for i, score in enumerate(golden["scores"])]
        for options in ([], ["--no-sharing"], ["--step-tokens", "64", "--kv-memory", "2MiB"],
                        ["--window-rows", "5"]):
            with self.subTest(options=options):
                found = by_id(self.run_rows(rows, "--model", model, "--compute-type", "f32",
                                            "--threads", "1", "--force", *options,
                                            backend=["--backend", "cpu"]))
                compared = sum(self.compare(found[i], row)
                               for i, row in enumerate(golden["rows"]))
                self.assertGreater(compared, 0.9 * sum(len(r["tokens"]) for r in golden["rows"]))
                for i, score in enumerate(golden["scores"]):
                    for ours, theirs in zip(found["score %d" % i]["score_logprobs"],
                                            score["logprobs"], strict=True):
                        for a, b in zip(ours, theirs, strict=True):
                            self.assertAlmostEqual(a, b, delta=2e-3)

    def test_a_backend_that_cannot_quantise_says_so(self):
        model = next(path for path in MODELS if path.name == "qwen3_bf16")
        rows = [{"id": 0, "tokens": [1, 2, 3]}]
        for kind, text in (("fp8", b"quantize: the cpu backend"), ("int4", b"--quantize")):
            with self.subTest(kind=kind):
                self.input.write_text(json.dumps(rows[0]) + "\n")
                done = self.run_program("run", "--model", model, "--backend", "cpu", "--quantize", kind, "-i", self.input,
                                        "-o", self.output)
                self.assertEqual(done.returncode, 1)
                self.assertIn(text, done.stderr)

    def test_the_type_of_keys_and_values_is_the_backends_to_take(self):
        model = next(path for path in MODELS if path.name == "qwen3_bf16")
        self.input.write_text(json.dumps({"id": 0, "tokens": [1, 2, 3]}) + "\n")
        for backend, kind, text in (("cpu", "fp8", b"kv_type=fp8: the cpu backend"), ("cpu", "int8", b"--kv-type"),
                                    ("sim", "fp8", None), ("cpu", "auto", None)):
            with self.subTest(backend=backend, kind=kind):
                done = self.run_program("run", "--model", model, "--backend", backend, "--kv-type", kind, "-i", self.input,
                                        "-o", self.output, "--max-tokens", "2", "--force")
                self.assertEqual(done.returncode, 0 if text is None else 1)
                self.assertIn(text or b"", done.stderr)

    def compare(self, found, row):
        """Returns how many tokens were compared: up to the first one that rounding may change."""
        for i, (token, margin) in enumerate(zip(row["tokens"], row["margins"], strict=True)):
            if margin < self.ROUNDING and found["tokens"][i:i + 1] != [token]:
                return i
            self.assertEqual(found["tokens"][i:i + 1], [token])
            self.assertAlmostEqual(found["logprobs"][i], row["logprobs"][i], delta=2e-3)
        self.assertEqual(len(found["tokens"]), len(row["tokens"]))
        return len(row["tokens"])


if __name__ == "__main__":
    unittest.main()
