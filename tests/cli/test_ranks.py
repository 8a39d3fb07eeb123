"""Jobs on two devices that work as one, cut short: the program is killed, a device fails, and the job is resumed."""

import os
import pathlib
import signal
import subprocess
import time
import unittest

from program import PROGRAM, TESTS, ProgramTest, by_id, lines

# "cpu": two ranks on this machine's CPU.
BACKEND = os.environ.get("BATCHLLM_RANKS_BACKEND", "cuda")
DEVICES = ["--devices", "0,1"] if BACKEND == "cuda" else []
FAILING_DEVICE = os.environ.get("BATCHLLM_FAILING_DEVICE", "")
# Reproducible, so that tokens do not depend on where a job was cut; and so small that most rows wait for others.
JOB = ["--model", str(TESTS / "golden/llama_bias_f32"), "--backend", BACKEND, "--tensor-parallel", "2", *DEVICES,
       "--compute-type", "f32", "--reproducible", "--kv-memory", "16MiB", "--progress", "none"]


def job_rows(count):
    return [{"id": i, "tokens": [2 + (i // 8 * 5 + j) % 280 for j in range(30)] + [2 + i % 8, 2 + i // 8 % 250],
             "max_tokens": 20 + i * 7 % 80, "ignore_eos": True} for i in range(count)]


def tokens_of(rows):
    return {name: row["tokens"] for name, row in by_id(rows).items()}


class Ranks(ProgramTest):
    def setUp(self):
        super().setUp()
        self.input.write_bytes(lines(job_rows(400 if BACKEND == "cpu" else 2000)))

    def start(self, *arguments, output=None, **options):
        return subprocess.Popen([PROGRAM, "run", *JOB, "-i", str(self.input), "-o", str(output or self.output),
                                 *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def finish(self, *arguments, output=None):
        child = self.start(*arguments, output=output)
        errors = child.communicate(timeout=120)[1]
        if output is not None and child.returncode == 1 and 'backend "cuda"' in errors:  # the first run: there is none, or one device
            self.skipTest(errors)
        self.assertEqual(child.returncode, 0, errors)
        return tokens_of(self.read_output(output))

    def wait_for_rows(self, child, more_than=0):
        while child.poll() is None and not (self.output.exists() and self.output.stat().st_size > more_than):
            time.sleep(0.001)
        self.assertIsNone(child.poll(), "it ended before any of its rows")

    def test_a_job_that_is_killed_is_resumed(self):
        whole = self.finish(output=self.directory / "whole.jsonl")
        for mode in ("--force", "--resume"):
            size = self.output.stat().st_size if self.output.exists() else 0
            child = self.start(mode)
            self.wait_for_rows(child, size)
            child.kill()
            child.communicate()
            self.assertEqual(child.returncode, -signal.SIGKILL)
        done = self.output.read_bytes().count(b"\n")
        self.assertLess(done, len(whole))
        print(f"killed with {done} of {len(whole)} rows done")
        self.assertEqual(self.finish("--resume"), whole)

    @unittest.skipUnless(FAILING_DEVICE and BACKEND == "cuda", "needs the library that the build makes")
    def test_a_device_that_fails_ends_the_job_which_is_resumed(self):
        whole = self.finish(output=self.directory / "whole.jsonl")
        fails = self.directory / "fail"
        child = self.start(env={**os.environ, "LD_PRELOAD": FAILING_DEVICE, "BATCHLLM_FAIL_WHEN": str(fails)})
        self.wait_for_rows(child)
        fails.touch()
        start = time.monotonic()
        errors = child.communicate(timeout=60)[1]
        took = time.monotonic() - start
        print(f"ended after {took:.1f} s, {self.output.read_bytes().count(bytes([10]))} rows done: {errors.strip()}")
        self.assertEqual(child.returncode, 1, errors)
        self.assertLess(took, 10)
        self.assertIn("cuda", errors.lower())
        self.assertEqual(self.finish("--resume"), whole)


if __name__ == "__main__":
    unittest.main()
