"""Jobs that are cut short: killed, interrupted, out of disk, and then resumed."""

import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import time
import unittest

from program import PROGRAM, SIM, ProgramTest, by_id, lines, text_model, token_rows

# A shell that runs this in the background ignores the signal, and programs would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Small steps and memory, so that rows finish one after the other over a second or so; four windows.
SLOW = [*SIM, "--step-tokens", "64", "--kv-memory", "64MiB", "--window-rows", "1500"]


def comparable(rows):
    """Rows by id, without what may differ between runs: how much of a prompt happened to be shared."""
    found = by_id(rows)
    for row in found.values():
        del row["usage"]["shared_tokens"]
    return found


def wait_for_handler(child):
    """Until the program catches SIGINT: before that, the signal would simply end it."""
    for _ in range(20000):
        status = pathlib.Path(f"/proc/{child.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        if int(caught.split()[1], 16) >> (signal.SIGINT - 1) & 1:
            return
        time.sleep(0.001)
    raise AssertionError("the program never caught SIGINT")


class Interrupted(ProgramTest):
    def setUp(self):
        super().setUp()
        rows = token_rows(6000)
        rows[17] = b"broken"
        rows[4000] = {"id": 4000, "tokens": [5000]}
        rows[100]["n"] = 3
        rows[100]["temperature"] = 1.0
        for row in rows[200:300]:
            row["temperature"] = 0.8
        self.rows = rows
        self.input.write_bytes(lines(rows))

    def start(self, *arguments, output=None, **options):
        return subprocess.Popen(
            [PROGRAM, "run", *SLOW, "-i", str(self.input), "-o", str(output or self.output),
             "--progress", "none", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            **options)

    @unittest.skipUnless(os.environ.get("BATCHLLM_EARLY_SIGNAL"), "needs the library that the build makes")
    def test_an_interrupt_before_the_programs_libraries_are_initialised_ends_with_130(self):
        child = self.start(env={**os.environ, "LD_PRELOAD": os.environ["BATCHLLM_EARLY_SIGNAL"]})
        self.assertIn(b"interrupted before any row was run", child.communicate(timeout=60)[1])
        self.assertEqual(child.returncode, 130)

    def test_an_output_that_is_removed_or_renamed_meanwhile_ends_the_run(self):
        for change in (lambda: self.output.unlink(), lambda: self.output.rename(self.directory / "elsewhere.jsonl")):
            child = self.start("--force")
            self.assertTrue(self.wait_for_output(child, 0))
            change()
            error = child.communicate(timeout=60)[1]
            self.assertEqual(child.returncode, 1, error)
            self.assertIn(f"{self.output}: was removed, renamed or replaced while the job ran".encode(), error)

    def undisturbed(self):
        whole = self.directory / "whole.jsonl"
        child = self.start(output=whole)
        _, errors = child.communicate(timeout=120)
        self.assertEqual(child.returncode, 3, errors)
        return comparable(self.read_output(whole))

    def wait_for_output(self, child, more_than):
        while child.poll() is None:
            if self.output.exists() and self.output.stat().st_size > more_than:
                return True
            time.sleep(0.001)
        return False

    def finish(self, *arguments):
        child = self.start("--resume", *arguments)
        _, errors = child.communicate(timeout=120)
        self.assertEqual(child.returncode, 3, errors)

    def test_kill_at_random_points_and_resume_give_what_an_undisturbed_run_gives(self):
        expected = self.undisturbed()
        seed = int(os.environ.get("BATCHLLM_TEST_SEED", random.randrange(1 << 30)))
        print("seed", seed)
        randomness = random.Random(seed)
        end = time.monotonic() + float(os.environ.get("TEST_SECONDS", "6"))
        killed = 0
        mode = ["--force"]
        while time.monotonic() < end or (killed < 3 and time.monotonic() < end + 60):
            child = self.start(*mode)
            size = self.output.stat().st_size if self.output.exists() else 0
            if randomness.random() < 0.7:
                self.wait_for_output(child, size)
            time.sleep(randomness.expovariate(20))
            child.kill()
            child.communicate()
            killed += child.returncode == -signal.SIGKILL
            if mode == ["--force"] and not self.output.with_suffix(".jsonl.state").exists():
                continue
            mode = ["--resume"]
            if child.returncode == 3:  # it finished before the kill
                self.assertEqual(comparable(self.read_output()), expected)
                mode = ["--force"]
            elif randomness.random() < 0.3:
                self.tear()
        self.assertGreater(killed, 2)
        self.finish()
        self.assertEqual(comparable(self.read_output()), expected)
        self.finish()  # nothing is left to do: the file and the exit code are the same
        self.assertEqual(comparable(self.read_output()), expected)

    def tear(self):
        """A machine that crashes may leave half of the last line."""
        size = self.output.stat().st_size
        if size > 10:
            os.truncate(self.output, size - random.randrange(1, 10))

    def test_interrupt_writes_what_has_finished_and_can_be_resumed(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            for _ in range(10):  # on a busy machine the run may finish before the signal
                self.output.unlink(missing_ok=True)
                child = self.start()
                self.wait_for_output(child, 0)
                child.send_signal(number)
                _, errors = child.communicate(timeout=60)
                if child.returncode != 3:
                    break
            self.assertEqual(child.returncode, 130, errors)
            self.assertIn(b"--resume", errors)
            rows = self.read_output()
            self.assertTrue(0 < len(rows) < len(self.rows))
        self.finish()
        self.assertEqual(comparable(self.read_output()), self.undisturbed())

    def test_an_interrupt_that_the_parent_ignores_is_ignored(self):
        for _ in range(10):  # on a busy machine the run may finish before the signal
            child = self.start("--force", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
            self.wait_for_output(child, 0)
            child.send_signal(signal.SIGINT)
            time.sleep(0.01)
            reached = child.poll() is None
            _, errors = child.communicate(timeout=60)
            self.assertEqual(child.returncode, 3, errors)  # of its bad rows: it has run to its end
            if reached:
                break
        self.assertTrue(reached)

    def test_the_share_that_is_done_counts_what_is_read_but_in_no_window_yet(self):
        self.input.write_bytes(lines(token_rows(6000)))
        done = subprocess.run([PROGRAM, "run", *SIM, "--window-rows", "100", "-i", str(self.input), "-o", str(self.output), "--progress", "json"],
                              stderr=subprocess.PIPE, timeout=120)
        shown = [json.loads(line) for line in done.stderr.splitlines()]
        first, last = shown[0], shown[-1]
        self.assertEqual((first["rows_known"], last["rows_done"]), (100, 6000))
        self.assertLess(first["share_done"], 3 * first["tokens_done"] / last["tokens_done"])

    def test_an_interrupted_job_saves_no_more_than_a_whole_one(self):
        stats, counts = self.directory / "stats.json", []
        prefix = list(range(300))
        self.input.write_bytes(lines([{"id": i, "tokens": [i // 8, *prefix, i % 8, 1, 2, 3], "max_tokens": 20} for i in range(2000)]))
        for window in ("1500", "2000"):
            whole = window == "2000"
            for _ in range(10):  # on a busy machine the run may finish before the signal
                child = self.start("--force", "--stats", str(stats), *(["--max-requests", "64"] if not whole else []))
                if not whole:
                    self.wait_for_output(child, 0)
                    child.send_signal(signal.SIGINT)
                _, errors = child.communicate(timeout=60)
                if whole or child.returncode == 130:
                    break
            self.assertEqual(child.returncode, 0 if whole else 130, errors)
            counts.append(json.loads(stats.read_text()))
        saved = [one["saving_ratio"] for one in counts]
        self.assertLess(counts[0]["rows_done"], 1500)
        self.assertTrue(0 <= saved[0] <= saved[1] + 0.02, saved)

    def test_an_interrupted_jobs_summary_counts_the_rows_that_have_ended(self):
        stats = self.directory / "stats.json"
        self.input.write_bytes(lines([{"id": i, "prompt": f"row {i}"} for i in range(6000)]))
        for _ in range(10):  # on a busy machine the run may finish before the signal
            self.output.unlink(missing_ok=True)
            child = subprocess.Popen([PROGRAM, "run", "--backend", "sim", "--model", os.environ["BATCHLLM_TEXT_MODEL"],
                                      "--max-requests", "32", "--choices", "a long text that three tokens cannot hold", "--max-tokens", "3", "-i", str(self.input),
                                      "-o", str(self.output), "--progress", "lines", "--stats", str(stats)], stderr=subprocess.PIPE)
            self.wait_for_output(child, 0)
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=60)
            if child.returncode != 0:
                break
        self.assertEqual(child.returncode, 130, errors)
        rows = self.read_output()
        self.assertTrue(0 < len(rows) < 6000)
        self.assertEqual({row["finish_reason"] for row in rows}, {"length"})
        counts = json.loads(stats.read_text())
        self.assertEqual([counts[name] for name in ("rows_done", "constrained_results", "cut_off_results")], [len(rows)] * 3)
        self.assertIn(f"Cut off: {len(rows):,} of {len(rows):,} results with a constraint.".encode(), errors)

    def test_a_resumed_job_leaves_the_plan_of_its_first_run(self):
        plan = self.directory / "job.plan"
        for _ in range(10):  # on a busy machine the run may finish before the signal
            child = self.start("--force", "--save-plan", plan)
            self.wait_for_output(child, 0)
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=60)
            if child.returncode != 3:
                break
        self.assertEqual(child.returncode, 130)
        whole = plan.read_bytes()
        done = self.run_program("run", *SLOW, "-i", self.input, "-o", self.output, "--resume", "--save-plan", plan)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(plan.read_bytes(), whole)
        self.assertRegex(done.stderr, rb"--save-plan: .*job.plan: not written, as [\d,]+ rows of the job are done")
        # There is nothing to resume: the plan belongs to the job.
        self.output.unlink()
        plan.unlink()
        child = self.start("--resume", "--save-plan", plan)
        errors = child.communicate(timeout=120)[1]
        self.assertEqual(child.returncode, 3, errors)
        self.assertEqual(plan.read_bytes(), whole)

    def test_two_runs_do_not_write_to_one_output(self):
        child = self.start()
        try:
            self.wait_for_output(child, 0)
            child.send_signal(signal.SIGSTOP)  # it must not finish before the others have tried
            self.assertIsNone(child.poll())
            for mode in (["--resume"], ["--force"]):
                second = self.start(*mode)
                _, errors = second.communicate(timeout=60)
                self.assertEqual(second.returncode, 1)
                self.assertIn(b"another run", errors)
        finally:
            child.kill()
            child.communicate()

    def test_a_file_size_limit_loses_nothing_that_was_reported(self):
        whole = self.undisturbed()
        size = (self.directory / "whole.jsonl").stat().st_size

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2))

        child = self.start(preexec_fn=limit)
        _, errors = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 1, errors)
        self.assertIn(b"out.jsonl: cannot write", errors)
        reported = int(errors.split(b"stopped after ")[1].split(b" rows")[0].replace(b",", b""))
        self.assertEqual(len(self.read_output()), reported)
        self.assertGreater(reported, 0)
        before = self.output.read_bytes()
        self.finish()
        self.assertTrue(self.output.read_bytes().startswith(before))
        self.assertEqual(comparable(self.read_output()), whole)

    @unittest.skipUnless(os.geteuid() == 0, "mounting a small disk needs root")
    def test_a_full_disk_loses_nothing_that_was_reported(self):
        disk = self.directory / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk],
                                 stderr=subprocess.PIPE)
        if mounted.returncode != 0:
            self.skipTest("cannot mount: " + mounted.stderr.decode())
        try:
            self.output = disk / "out.jsonl"
            child = self.start()
            _, errors = child.communicate(timeout=60)
            self.assertEqual(child.returncode, 1, errors)
            self.assertIn(b"No space left", errors)
            self.assertIn(b"--resume", errors)
            reported = int(errors.split(b"stopped after ")[1].split(b" rows")[0].replace(b",", b""))
            self.assertEqual(len(self.read_output()), reported)
            self.assertGreater(reported, 0)
            subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
            self.finish()
            rows = comparable(self.read_output())
        finally:
            subprocess.run(["umount", disk], check=True)
        self.assertEqual(rows, self.undisturbed())


class DevicesThatFail(ProgramTest):
    def setUp(self):
        super().setUp()
        self.rows = token_rows(400)
        self.rows[7]["n"] = 3
        self.rows[7]["temperature"] = 1.0
        self.input.write_bytes(lines(self.rows))

    def start(self, failing, *arguments):
        done = self.run_program(
            "run", "--backend", "sim", "--backend-options",
            "vocabulary=1000,eos_token=999,min_length=1,max_length=12,pages=4096" + failing,
            "--step-tokens", "64", "-i", self.input, "-o", self.output, "--progress", "none", *arguments)
        return done.returncode, done.stderr.decode()

    def undisturbed(self):
        code, errors = self.start("", "--force")
        self.assertEqual(code, 0, errors)
        return comparable(self.read_output())

    def test_where_it_is_the_only_one_what_has_finished_is_written_and_the_run_goes_on_with_resume(self):
        expected = self.undisturbed()
        self.output.unlink()
        self.output.with_name("out.jsonl.state").unlink()
        lines_before, mode = 0, ()
        for attempt in range(50):
            code, errors = self.start(",fails_after=30", *mode)
            rows = self.read_output()
            self.assertGreater(len(rows), lines_before)
            if code == 0:
                break
            self.assertEqual(code, 1, errors)
            self.assertIn("sim: the device fails after 30 batches", errors)
            self.assertIn("stopped after %d rows; run again with --resume to go on" % len(rows), errors)
            lines_before, mode = len(rows), ("--resume",)
        self.assertGreater(attempt, 1)
        self.assertEqual(code, 0, errors)
        self.assertEqual(comparable(self.read_output()), expected)

    def test_where_there_are_others_the_run_ends_well_with_a_warning(self):
        expected = self.undisturbed()
        code, errors = self.start(",fails_after=5,failing_device=1", "--devices", "0,1", "--force")
        self.assertEqual(code, 0, errors)
        self.assertIn("warning: device 1: sim: the device fails after 5 batches", errors)
        self.assertIn("computed again", errors)
        self.assertEqual(comparable(self.read_output()), expected)


class Structured(ProgramTest):
    """A job with JSON output: its schema is on the command line, and some rows have their own."""

    SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["book", "toy"]}, "price": {"type": "integer", "minimum": 0, "maximum": 99},
                                               "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 4}},
              "required": ["kind", "price", "tags"], "additionalProperties": False}  # fmt: skip

    def setUp(self):
        super().setUp()
        self.schema = self.directory / "schema.json"
        self.schema.write_text(json.dumps(self.SCHEMA))
        rows = [{"id": i, "prompt": f"Describe item {i % 50} in the words of buyer {i}.", "max_tokens": 60} for i in range(3000)]
        for i in range(0, len(rows), 3):
            rows[i].update(temperature=1.0, seed=i)
        for i in range(0, len(rows), 10):
            rows[i]["json_schema"] = {"const": {"row": i % 40}}
        for i in range(5, len(rows), 50):
            rows[i]["regex"] = f"[{i % 9}]{{1,9}}"
        self.input.write_bytes(lines(rows))
        self.run_options = ["run", "--backend", "sim", "--backend-options", "eos_token=7,max_length=60,pages=4096", "--step-tokens", "64",
                            "--window-rows", "700", "--model", text_model(self.directory / "model"), "-i", self.input,
                            "--progress", "none", "--json-schema", self.schema]  # fmt: skip

    def check(self, rows):
        self.assertEqual(set(rows), set(range(3000)))
        for i, row in rows.items():
            self.assertNotIn("error", row)
            self.assertEqual(row["finish_reason"], "stop")
            if i % 10 == 0:
                self.assertEqual(row["text"], '{"row":%d}' % (i % 40))
            elif i % 50 == 5:
                self.assertRegex(row["text"], f"^[{i % 9}]{{1,9}}$")
            else:
                value = json.loads(row["text"])
                self.assertEqual(list(value), ["kind", "price", "tags"])
                self.assertIn(value["kind"], ("book", "toy"))
        return rows

    def test_a_killed_job_is_resumed_to_the_same_rows(self):
        whole = self.directory / "whole.jsonl"
        done = self.run_program(*self.run_options, "-o", whole)
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = self.check(comparable(self.read_output(whole)))
        killed = 0
        for attempt in range(12):
            child = subprocess.Popen([PROGRAM, *map(str, self.run_options), "-o", str(self.output), "--resume"], stderr=subprocess.PIPE)
            size = self.output.stat().st_size if self.output.exists() else 0
            while child.poll() is None and not (self.output.exists() and self.output.stat().st_size > size + 20000):
                time.sleep(0.001)
            child.kill()
            child.communicate()
            if child.returncode != -signal.SIGKILL:
                break
            killed += 1
        self.assertGreater(killed, 1)
        done = self.run_program(*self.run_options, "-o", self.output, "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.check(comparable(self.read_output())), expected)

    def test_another_constraint_is_refused_by_name(self):
        self.input.write_bytes(lines([{"id": i, "prompt": f"row {i}"} for i in range(9)]))

        def run(*arguments):
            done = self.run_program(*self.run_options, "-o", self.output, *arguments)
            return done.returncode, done.stderr.decode()

        self.assertEqual(run(), (0, ""))
        before = self.output.read_bytes()
        self.assertEqual(run("--resume"), (0, ""))
        longer = json.dumps({**self.SCHEMA, "properties": {**self.SCHEMA["properties"], "price": {"type": "integer", "maximum": 98}}})
        changes = [["--flexible-whitespace"], ["--any-member-order"], ["--any-numbers"], ["--loose-schema"], ["--start-after", "x"]]
        for change in [longer, None, *changes]:
            if change is not None and not isinstance(change, list):
                self.schema.write_text(change)
            elif change is None:
                self.schema.write_text('{"type": "boolean"}')
            else:
                self.schema.write_text(json.dumps(self.SCHEMA))
            code, errors = run("--resume", *(change if isinstance(change, list) else []))
            self.assertEqual(code, 1, (change, errors))
            self.assertIn("option constraint (was ", errors)
            self.assertLess(len(errors), 1500)  # does not include the schemas, which may be long
            self.assertEqual(self.output.read_bytes(), before)

    def test_how_json_is_written_counts_for_rows_with_schemas_of_their_own(self):
        plain = self.run_options[: self.run_options.index("--json-schema")]
        self.input.write_bytes(lines([{"id": i, "prompt": f"row {i}", "json_schema": self.SCHEMA} for i in range(9)]))
        self.assertEqual(self.run_program(*plain, "-o", self.output).returncode, 0)
        done = self.run_program(*plain, "-o", self.output, "--resume", "--flexible-whitespace")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"option constraint (was unset, now ", done.stderr)
        self.assertEqual(self.run_program(*plain, "-o", self.output, "--resume").returncode, 0)


class WhatMayBeResumed(ProgramTest):
    def setUp(self):
        super().setUp()
        self.run_rows(token_rows(20))

    def run_again(self, *arguments):
        done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--progress",
                                "none", *arguments)
        return done.returncode, done.stderr.decode()

    def test_an_output_that_exists_is_neither_overwritten_nor_appended_to(self):
        before = self.output.read_bytes()
        code, errors = self.run_again()
        self.assertEqual(code, 1)
        self.assertIn("--resume", errors)
        self.assertEqual(self.output.read_bytes(), before)

    def test_force_starts_over(self):
        before = by_id(self.read_output())
        self.assertEqual(self.run_again("--force"), (0, ""))
        self.assertEqual(by_id(self.read_output()), before)

    def test_resume_of_a_finished_job_does_nothing(self):
        before = self.output.read_bytes()
        self.assertEqual(self.run_again("--resume"), (0, ""))
        self.assertEqual(self.output.read_bytes(), before)

    def test_rows_that_failed_before_are_counted(self):
        self.run_rows([*token_rows(5), b"bad", b"{}"], "--force", expect=3)
        done = self.run_program("run", *SIM, "-i", self.input, "-o", self.output, "--resume")
        self.assertIn(b"(0 errors; done before: 7, 2 with an error)", done.stderr)

    def test_rows_that_failed_run_again_if_it_is_asked_for(self):
        sim = [*SIM[:3], SIM[3].replace(",pages=4096", "")]
        rows = [*token_rows(6), {"id": "long", "tokens": [7] * 3000}, b"bad", *[dict(row, id=row["id"] + 6, seed=5) for row in token_rows(6)]]
        whole = comparable(self.run_rows(rows, "--force", "--kv-memory", "1GiB", backend=sim, expect=3))
        found = self.run_rows(rows, "--force", "--kv-memory", "64MiB", backend=sim, expect=3)
        self.assertEqual({row["error"]["code"] for row in found if "error" in row}, {"ROW_TOO_LARGE", "ROW_JSON"})
        before = self.output.read_bytes()
        link = self.directory / "link.jsonl"
        link.symlink_to(self.output)
        os.link(str(self.output) + ".state", str(link) + ".state")
        self.output.chmod(0o640)

        def again(*arguments, output=self.output):
            return self.run_program("run", *sim, "-i", self.input, "-o", output, "--kv-memory", "1GiB", *arguments)

        self.assertIn(b"done before: 14, 2 with an error", again("--resume").stderr)
        self.assertEqual(self.output.read_bytes(), before)
        self.assertEqual(again("--resume", "--retry-failed", "--seed", "9").returncode, 1)  # another job
        self.assertEqual(self.output.read_bytes(), before)
        with open(self.output, "ab") as file:
            file.write(b'{"id": "torn')  # as a killed run leaves it
        done = again("--resume", "--retry-failed", output=link)
        self.assertEqual(done.returncode, 3)
        self.assertIn(b"2 rows in 0s (1 errors; done before: 12)", done.stderr)
        self.assertTrue(link.is_symlink())
        self.assertEqual(self.output.stat().st_mode & 0o777, 0o640)
        kept = [line for line in before.splitlines() if b'"error"' not in line]
        self.assertEqual(self.output.read_bytes().splitlines()[:12], kept)
        self.assertEqual(comparable(self.read_output()), whole)
        self.assertFalse(pathlib.Path(str(self.output) + ".retry").exists())
        done = again("--resume", output=link)
        self.assertIn(b"done before: 14, 1 with an error", done.stderr)
        self.assertEqual(comparable(self.read_output()), whole)
        done = again("--retry-failed")
        self.assertEqual((done.returncode, b"--retry-failed requires --resume" in done.stderr), (1, True))

    def retry(self, *arguments, output=None, **how):
        command = ["run", *SIM, "-i", self.input, "-o", output or self.output, "--progress", "none", "--resume", "--retry-failed"]
        done = self.run_program(*command, *arguments, **how)
        return done.returncode, done.stderr.decode()

    def test_a_file_in_the_place_of_the_output_without_failed_rows_is_left_alone(self):
        rows = self.run_rows([*token_rows(5), b"bad"], "--force", expect=3)
        target, link = self.directory / "target" / "rows.jsonl", self.directory / "out.jsonl"
        target.parent.mkdir()
        self.output.rename(target)
        link.symlink_to(target)
        theirs = pathlib.Path(str(target) + ".retry")
        theirs.write_text("theirs")
        before = target.read_bytes()
        code, errors = self.retry()
        self.assertEqual(code, 1)
        self.assertIn(f"{theirs}: exists, and is not of this job", errors)
        self.assertEqual((theirs.read_text(), target.read_bytes()), ("theirs", before))
        self.assertEqual(self.run_again("--resume")[0], 3)  # drops nothing, and so needs no place
        self.assertEqual((theirs.read_text(), target.read_bytes()), ("theirs", before))
        theirs.write_bytes(self.input.read_bytes())
        self.input.unlink()
        self.input = theirs
        code, errors = self.retry()
        self.assertEqual((code, errors), (1, f"batchllm: {theirs}: is the input\n"))
        theirs.rename(self.directory / "in.jsonl")
        self.input = self.directory / "in.jsonl"
        self.assertEqual(self.retry()[0], 3)
        self.assertEqual(by_id(self.read_output(target)), by_id(rows))
        self.assertTrue(link.is_symlink())

    def test_a_full_disk_while_lines_are_dropped_leaves_the_output_and_says_so(self):
        self.run_rows([*token_rows(500), b"bad"], "--force", expect=3)
        before = self.output.read_bytes()

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, len(before) // 2))

        code, errors = self.retry(preexec_fn=limit)
        self.assertEqual(code, 1)
        self.assertIn("out.jsonl.retry: cannot write: File too large\nbatchllm: the output is unchanged; run again with "
                      "--resume --retry-failed to go on\n", errors)
        self.assertEqual(self.output.read_bytes(), before)
        self.assertFalse(self.directory.joinpath("out.jsonl.retry").exists())
        self.assertEqual(self.retry()[0], 3)
        self.assertEqual(len(self.read_output()), 501)

    def test_resume_without_an_output_starts_one(self):
        self.output.unlink()
        self.assertEqual(self.run_again("--resume")[0], 0)
        self.assertEqual(len(by_id(self.read_output())), 20)

    def test_resume_without_a_state_file_is_refused(self):
        pathlib.Path(str(self.output) + ".state").unlink()
        code, errors = self.run_again("--resume")
        self.assertEqual(code, 1)
        self.assertIn("out.jsonl.state", errors)

    def test_another_input_is_refused_by_name(self):
        with open(self.input, "ab") as file:
            file.write(lines([{"id": 99, "tokens": [1]}]))
        code, errors = self.run_again("--resume")
        self.assertEqual(code, 1)
        self.assertIn("input bytes (was ", errors)

    def test_an_input_edited_in_place_is_refused(self):
        self.input.write_bytes(self.input.read_bytes().replace(b"21", b"22", 1))
        self.assertIn("input content", self.run_again("--resume")[1])

    def test_other_options_are_refused_by_name(self):
        code, errors = self.run_again("--resume", "--temperature", "0.5", "--seed", "3")
        self.assertEqual(code, 1)
        self.assertIn("option temperature (was 0, now 0.5)", errors)
        self.assertIn("option seed (was 0, now 3)", errors)

    def test_options_that_change_speed_alone_are_not_compared(self):
        self.assertEqual(self.run_again("--resume", "--no-sharing", "--step-tokens", "128",
                                        "--window-tokens", "100", "--threads", "1")[0], 0)

    def test_an_output_that_was_edited_is_refused(self):
        data = bytearray(self.output.read_bytes())
        data[10] ^= 1
        self.output.write_bytes(data)
        code, errors = self.run_again("--resume")
        self.assertEqual(code, 1)
        self.assertIn("line 1", errors)
        self.assertEqual(self.output.read_bytes(), data)

    def test_lines_without_a_record_are_run_again(self):
        state = pathlib.Path(str(self.output) + ".state")
        os.truncate(state, state.stat().st_size - 16 * 3 - 5)
        before = comparable(self.read_output())
        self.assertEqual(self.run_again("--resume")[0], 0)
        self.assertEqual(comparable(self.read_output()), before)

    def test_a_state_file_whose_first_line_does_not_end_is_refused(self):
        state = pathlib.Path(str(self.output) + ".state")
        first = state.read_bytes().split(b"\n")[0]
        for end in (b"", b"\r"):
            state.write_bytes(first + end)
            os.truncate(self.output, 0)
            code, errors = self.run_again("--resume")
            self.assertEqual(code, 1)
            self.assertIn("not a state file", errors)
            self.assertEqual(state.read_bytes(), first + end)

    def test_equal_ids_are_resumed_by_their_lines(self):
        rows = [{"id": "same", "tokens": [i + 1] * (i + 1)} for i in range(20)]
        whole = self.run_rows(rows, "--force")
        with open(self.output, "r+b") as file:
            data = file.read()
            file.truncate(len(data) // 2)
        self.assertEqual(self.run_again("--resume")[0], 0)
        def key(row):
            return row["usage"]["prompt_tokens"]
        self.assertEqual(sorted(self.read_output(), key=key), sorted(whole, key=key))

    def test_ids_that_are_numbers_of_any_kind_are_resumed_to_the_same_output(self):
        ids = [b"88888888888888888888888888888888", b"88888888888888888888888888888889", b"1e400", b"-0", b"0", b"1.0", b"1"]
        rows = [b'{"id": %s, "tokens": %s}' % (i, str([n + 1, *range(k + 1)]).encode()) for n, i in enumerate(ids) for k in range(3)]
        rows += [b'{"id": %s, "tokens": []}' % i for i in ids]
        self.run_rows(rows, "--force", expect=3)
        def comparable_lines():
            return sorted(re.sub(rb'"shared_tokens":[0-9]+', b"", line) for line in self.output.read_bytes().splitlines())
        whole = comparable_lines()
        self.assertEqual(len(whole), len(rows))
        for part in (1, 2, 3, 5):
            with self.subTest(part=part):
                os.truncate(self.output, self.output.stat().st_size * part // 6)
                self.assertEqual(self.run_again("--resume")[0], 3)
                self.assertEqual(comparable_lines(), whole)

    def test_the_input_is_not_taken_as_output(self):
        before = self.input.read_bytes()
        for mode in ("--force", "--resume"):
            done = self.run_program("run", *SIM, "-i", self.input, "-o", self.input, mode)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(self.input.read_bytes(), before)

    def test_the_model_is_compared(self):
        model = self.directory / "model"
        model.mkdir()
        # Not a model: the comparison comes before it is loaded.
        (model / "config.json").write_text("{}")
        code, errors = self.run_again("--resume", "--model", model)
        self.assertEqual(code, 1)
        self.assertIn("model config.json (was none, now ", errors)


class Streams(ProgramTest):
    def test_resume_needs_files(self):
        for arguments in (["-i", "-", "-o", self.output, "--resume"],
                          ["-i", self.input, "-o", "-", "--resume"]):
            self.input.write_bytes(lines(token_rows(1)))
            self.assertEqual(self.run_program("run", *SIM, *arguments).returncode, 1)

    def test_a_device_that_is_full_is_an_error(self):
        self.input.write_bytes(lines(token_rows(5)))
        done = self.run_program("run", *SIM, "-i", self.input, "-o", "/dev/full")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"No space left", done.stderr)
        with open("/dev/full", "wb") as full:
            done = subprocess.run([PROGRAM, "run", *SIM, "-i", str(self.input), "-o", "-"],
                                  stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"stdout", done.stderr)

    def test_a_reader_that_goes_away_is_an_error_and_no_signal(self):
        self.input.write_bytes(lines(token_rows(5000)))
        child = subprocess.Popen([PROGRAM, "run", *SLOW, "-i", str(self.input), "-o", "-"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        child.stdout.readline()
        child.stdout.close()
        errors = child.stderr.read()
        child.stderr.close()
        self.assertEqual(child.wait(60), 1, errors)
        self.assertIn(b"stdout: cannot write", errors)

    def test_an_interrupt_while_waiting_for_a_pipe_ends_the_run(self):
        child = subprocess.Popen([PROGRAM, "run", *SIM, "-i", "-", "-o", "-"],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        wait_for_handler(child)
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.wait(20), 130)
        for pipe in (child.stdin, child.stdout, child.stderr):
            pipe.close()

    def test_an_interrupt_ends_a_wait_for_the_writer_of_a_named_pipe(self):
        pipe = self.directory / "pipe"
        os.mkfifo(pipe)
        for command in (["run", *SIM], ["plan"]):
            with self.subTest(command=command[0]):
                child = subprocess.Popen([PROGRAM, *command, "-i", str(pipe), "-o", str(self.output)],
                                         stderr=subprocess.PIPE)
                wait_for_handler(child)
                time.sleep(0.2)  # lets it open the pipe; the test also works if it has not yet
                child.send_signal(signal.SIGINT)
                _, errors = child.communicate(timeout=20)
                self.assertEqual(child.returncode, 130, errors)
                self.assertIn(b"interrupted", errors)

    def test_the_writer_of_a_named_pipe_may_come_late(self):
        pipe = self.directory / "pipe"
        os.mkfifo(pipe)
        child = subprocess.Popen([PROGRAM, "run", *SIM, "-i", str(pipe), "-o", str(self.output)],
                                 stderr=subprocess.PIPE)
        time.sleep(0.5)
        with open(pipe, "wb") as file:
            file.write(lines(token_rows(20)))
            file.flush()
            time.sleep(0.3)
            file.write(b'{"id": "last", "tokens": [1]}\n')
        _, errors = child.communicate(timeout=20)
        self.assertEqual(child.returncode, 0, errors)
        self.assertEqual(len(self.read_output()), 21)


if __name__ == "__main__":
    unittest.main()
