"""Two runs on the same new output path, paused between their calls; failures that must not become rows' results."""

import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
from program import SIM, ProgramTest, by_id, lines, token_rows  # noqa: E402

FAULTY = os.environ["BATCHLLM_FAULTY_PROGRAM"]
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"


class OnOneOutput(ProgramTest):
    def setUp(self):
        super().setUp()
        self.input.write_bytes(lines(token_rows(60)))

    def start(self, *arguments, fault=None, inodes=False):
        environment = {**os.environ, **({"BATCHLLM_FAULTS": fault} if fault else {}),
                       **({"BATCHLLM_FAULTS_INODES": "1"} if inodes else {})}
        child = subprocess.Popen([FAULTY, "run", *SIM, "-i", str(self.input), "-o", str(self.output), "--progress", "none",
                                  *arguments], stderr=subprocess.PIPE, env=environment)
        self.addCleanup(child.stderr.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def held(self, name, call, *arguments, inodes=False):
        """A run that waits before a call, and a function that lets it continue."""
        go = self.directory / name
        child = self.start(*arguments, fault=f"{call}:wait={go}", inodes=inodes)
        here = pathlib.Path(str(go) + ".here")
        for _ in range(20000):
            if here.exists() or child.poll() is not None:
                break
            time.sleep(0.001)
        self.assertTrue(here.exists(), child.stderr.read() if child.poll() is not None else b"")

        def end():
            go.touch()
            self.assertIsNotNone(child.wait(60))
            return child.returncode, child.stderr.read().decode()
        return end

    def assert_whole(self):
        self.assertEqual(len(by_id(self.read_output())), 60)

    def test_a_run_that_is_refused_leaves_the_results_of_the_one_that_was_faster(self):
        slow = self.held("slow", "lock:1")  # it has created the file, but not locked it
        fast = self.start()
        self.assertEqual(fast.wait(60), 0)
        self.assert_whole()
        code, text = slow()
        self.assertEqual(code, 1)
        self.assertIn("exists", text)
        self.assert_whole()

    def test_a_run_does_not_write_to_a_file_that_another_has_removed(self):
        failing = self.held("failing", "unlink:1", "--plan", "/no/such.plan")  # about to remove what it created
        other = self.held("other", "lock:1")  # has opened that file
        self.assertEqual(failing()[0], 1)
        code, text = other()
        self.assertEqual(code, 0, text)
        self.assert_whole()

    def test_a_run_that_fails_leaves_a_file_that_another_made(self):
        other = self.held("other", "lock:1")
        failing = self.start("--plan", "/no/such.plan")
        self.assertEqual(failing.wait(60), 1)
        code, text = other()
        self.assertEqual(code, 0, text)
        self.assert_whole()

    def test_another_inode_number_each_time_is_not_another_file(self):
        child = self.start(inodes=True)
        text = child.communicate(timeout=60)[1]
        self.assertEqual(child.returncode, 0, text)
        self.assert_whole()
        child = self.start("--resume", inodes=True)
        text = child.communicate(timeout=60)[1]
        self.assertEqual(child.returncode, 0, text)
        self.assert_whole()

    def test_a_file_that_was_replaced_is_found_whatever_its_number(self):
        elsewhere = self.directory / "elsewhere.jsonl"
        for inodes in (False, True):
            for change in (lambda: self.output.unlink(),
                           lambda: self.output.rename(elsewhere),
                           lambda: (self.output.rename(elsewhere), os.mkfifo(self.output)),
                           lambda: (self.output.rename(elsewhere), self.output.write_bytes(b"another's\n")),
                           lambda: (shutil.copy(self.output, elsewhere), elsewhere.rename(self.output))):
                # The first write is the state's first line, the second are records of rows.
                changed = self.held("changed", "write:2", "--force", inodes=inodes)
                change()
                code, text = changed()
                self.assertEqual(code, 1, text)
                self.assertIn("was removed, renamed or replaced while the job ran", text)
                for path in self.directory.glob("changed*"):
                    path.unlink()
                self.output.unlink(missing_ok=True)

    def test_runs_at_once_give_one_output(self):
        finished = 0
        for _ in range(20):
            self.output.unlink(missing_ok=True)
            good = [self.start(), self.start()]
            failing = self.start("--plan", "/no/such.plan")
            texts = [child.communicate(timeout=60)[1].decode() for child in good]
            self.assertEqual(failing.wait(60), 1)
            codes = [child.returncode for child in good]
            if 0 in codes:
                finished += 1
                self.assert_whole()
            else:  # the failing run had the lock when both started
                self.assertEqual(codes, [1, 1])
                for text in texts:
                    self.assertIn("another run is writing to it", text)
                self.assertFalse(self.output.exists() and self.output.stat().st_size)
        self.assertGreater(finished, 0)

    def test_finished_rows_are_written_although_memory_failed_once(self):
        """The allocations just before the first records are written are for them."""
        self.input.write_bytes(lines([{**row, "max_tokens": 1} for row in token_rows(6)]))
        state = pathlib.Path(f"{self.output}.state")

        def has_records_if_killed_at(call):
            state.unlink(missing_ok=True)
            self.start("--force", fault=f"alloc+write:{call}:kill").wait(60)
            return state.exists() and len(state.read_bytes().partition(b"\n")[2]) > 0
        low, high = 1, 1
        while not has_records_if_killed_at(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if has_records_if_killed_at(middle) else (middle, high)
        for call in (low - 1, low - 2):
            child = self.start("--force", fault=f"alloc+write:{call}:once")
            text = child.communicate(timeout=60)[1].decode()
            self.assertEqual(child.returncode, 1, text)
            self.assertIn("out of memory", text)
            self.assertGreater(len(self.read_output()), 0, text)


class NotTheRowsFault(ProgramTest):
    """A single failure while rows are read, tokenized or handed out does not appear in any line of the output."""

    def test_memory_that_fails_once_is_no_rows_error(self):
        model = os.environ.get("BATCHLLM_TEXT_MODEL")
        if model is None:
            self.skipTest("no model with text")
        rows = [{"id": i, "prompt": f"text {i}", "max_tokens": 2} for i in range(20)]
        rows += [{"id": 100 + i, "messages": [{"role": "user", "content": str(i)}], "max_tokens": 2} for i in range(20)]
        constraints = ({"choices": ["red", "green"]}, {"regex": "[a-f]{3}x|yes"}, {"json_schema": {"type": "array", "items": {"enum": [1, "a"]}}})
        rows += [{"id": 200 + i, "prompt": "as said", "max_tokens": 2, **own} for i, own in enumerate(constraints)]
        self.input.write_bytes(lines(rows))
        command = [FAULTY, "run", "--backend", "sim", "--model", model, "-i", str(self.input), "-o", str(self.output),
                   "--progress", "none", "--threads", "2", "--force"]
        counts = self.directory / "calls"
        done = subprocess.run(command, env={**os.environ, "BATCHLLM_FAULTS": "alloc:0:once", "BATCHLLM_FAULTS_COUNT": str(counts)})
        self.assertEqual(done.returncode, 0)
        total = int(counts.read_text().split()[0])
        failed = 0
        for k in range(1, total, total // 40):
            done = subprocess.run(command, env={**os.environ, "BATCHLLM_FAULTS": f"alloc:{k}:once"}, stderr=subprocess.PIPE)
            self.assertIn(done.returncode, (0, 1), done.stderr)
            failed += done.returncode == 1
            for row in self.read_output() if self.output.exists() else []:
                self.assertNotEqual(row["finish_reason"], "error", f"alloc {k}: {row}")
        self.assertGreater(failed, 10)


    def test_an_adapters_file_that_cannot_be_read_for_once_is_no_rows_error(self):
        names = ("llama_qv_r4", "llama_one_layer")
        for name in names:
            shutil.copytree(GOLDEN / "adapters" / name, self.directory / "adapters" / name)
        self.input.write_bytes(lines({"id": f"{i} {name}", "tokens": [5, 6, i], "max_tokens": 2, "adapter": name} for i in range(4) for name in names))
        command = [FAULTY, "run", "--backend", "sim", "--model", str(GOLDEN / "llama_bias_f32"), "--adapters", str(self.directory / "adapters"),
                   "-i", str(self.input), "-o", str(self.output), "--progress", "none", "--threads", "2", "--force"]
        counts = self.directory / "calls"
        for kind in ("open", "read", "stat"):
            subprocess.run(command, env={**os.environ, "BATCHLLM_FAULTS": f"{kind}:0:once", "BATCHLLM_FAULTS_COUNT": str(counts)}, check=True)
            total, ended = int(counts.read_text().split()[0]), 0
            for k, how in [(k, how) for k in range(1, total + 1) for how in ("once", "forever")]:
                self.output.unlink(missing_ok=True)
                done = subprocess.run(command, env={**os.environ, "BATCHLLM_FAULTS": f"{kind}:{k}:{how}"}, stderr=subprocess.PIPE)
                self.assertIn(done.returncode, (0, 1), (kind, k, how, done.stderr))
                ended += done.returncode == 1
                for row in self.read_output() if self.output.exists() else []:
                    self.assertNotEqual(row["finish_reason"], "error", (kind, k, how, row))
            self.assertGreater(ended, 10)


class AddressSpace(ProgramTest):
    """`ulimit -v`: the heap may have room where nothing more can be mapped, such as oneDNN's code."""

    def test_however_little_there_is_the_program_says_so(self):
        model = os.environ.get("BATCHLLM_TEXT_MODEL")
        if not model:
            self.skipTest("no model with text")
        rows = [{"id": i, "prompt": "hello " * (1 + i % 40), "max_tokens": 4} for i in range(40)]
        self.input.write_bytes(lines(rows))
        command = [FAULTY, "run", "--model", model, "--backend", "cpu", "--threads", "2", "--kv-memory", "8MiB", "-i", str(self.input),
                   "-o", str(self.output), "--force", "--progress", "none"]
        short = 0
        for limit in range(48 << 20, 1 << 30, 3 << 20):
            done = subprocess.run(command, capture_output=True, timeout=120, check=False,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
            if done.returncode == 0:
                break
            self.assertIn(done.returncode, (1, 127), (limit, done.stderr))  # 127: the libraries do not fit
            short += done.returncode == 1
        self.assertEqual(done.returncode, 0)
        self.assertGreater(short, 3)


class Arguments(ProgramTest):
    def test_no_memory_while_they_are_read_is_said(self):
        command = [FAULTY, "inspect", "the-first-of-the-plans", "one-plan-too-many"]  # so that it ends soon
        counts = self.directory / "calls"
        subprocess.run(command, stderr=subprocess.DEVNULL, env={**os.environ, "BATCHLLM_FAULTS": "alloc:0:once",
                                                                "BATCHLLM_FAULTS_COUNT": str(counts)})
        total = int(counts.read_text().split()[0])
        for k in range(max(1, total - 150), total + 1):
            done = subprocess.run(command, stderr=subprocess.PIPE, env={**os.environ, "BATCHLLM_FAULTS": f"alloc:{k}:forever"})
            self.assertEqual(done.returncode, 1, f"alloc {k}: {done.stderr}")
            self.assertNotEqual(done.stderr, b"")


if __name__ == "__main__":
    unittest.main()
