"""The program, with every allocation and every call that touches a file made to fail: once, and from then on.

Whatever fails, a run ends with an exit code and a message on stderr, and if it continues with --resume, its output is
that of an undisturbed run: each row once, the same texts, tokens and usage (except for shared_tokens, which depends on
what ran together). Allocations are chosen by number, and also the first one of each call stack ("stack"), since
different stacks fail differently; a stack that several commands have, such as those of reading options, is tried in one
of them. Prints what was covered.

    torture.py [--seconds N] [--seed N] [--only TEXT]     0 seconds: everything; TEXT is part of "run-sim alloc"
"""

import argparse
import concurrent.futures
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
from program import SIM, by_id, lines, parse, token_rows  # noqa: E402

FAULTY = os.environ["BATCHLLM_FAULTY_PROGRAM"]
MODEL = os.environ.get("BATCHLLM_TEXT_MODEL")
KINDS = ["alloc", "open", "read", "write", "short", "map", "sync", "rename", "lock", "truncate", "stat", "unlink", "thread"]


def comparable(path):
    """Rows by id, without what may differ between runs."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        raise AssertionError("torn output")
    found = by_id([parse(line) for line in data.decode().splitlines()])
    for row in found.values():
        row.get("usage", {}).pop("shared_tokens", None)
    return found


def sim_rows():
    rows = token_rows(40, prefix=12, own=4)
    for i, row in enumerate(rows):
        row["max_tokens"] = 6
        if i % 3 == 0:
            row.update(n=1 + i % 4, temperature=1.0)
    rows[7] = "broken"
    rows[9]["score"] = [[1], [2, 3]]
    rows.append('{"id": "number", "tokens": [1, 1e999]}')
    rows.append('{"id": 88888888888888888888888888, "tokens": [1, 2], "max_tokens": 2}')
    return rows


def text_rows():
    rows = [{"id": i, "prompt": f"a text of the {i} kind", "max_tokens": 3} for i in range(6)]
    rows += [{"id": 10 + i, "messages": [{"role": "user", "content": f"say {i}"}], "max_tokens": 3} for i in range(4)]
    rows += [{"id": "stop", "prompt": "until", "stop": ["zz"], "max_tokens": 3, "logprobs": 2},
             {"id": "score", "prompt": "either", "score": ["one", "two"]},
             {"id": "choice", "prompt": "either", "choices": ["one", "two"], "max_tokens": 3},
             {"id": "schema", "prompt": "as JSON", "json_schema": {"type": "array", "items": {"enum": [1, "a"]}}, "max_tokens": 3},
             {"id": "bad", "messages": [{"role": "critic", "content": "no"}]}]
    return rows


class Case:
    """A command, its undisturbed output, and what must hold after a fault in it."""

    def __init__(self, name, folder, rows, arguments):
        self.name = name
        self.folder = folder
        self.input = folder / (name + ".in.jsonl")
        self.input.write_bytes(lines(rows))
        self.arguments = [str(a) for a in arguments]
        done = self.run(self.folder / (name + ".whole"))
        self.code = done.returncode
        if self.code not in (0, 3):
            raise AssertionError(f"{name}: undisturbed exit {self.code}: {done.stderr.decode()}")
        self.expected = self.read(self.folder / (name + ".whole"))

    def prepare(self, output):
        pass

    def count(self, kind):
        output = self.folder / (self.name + ".count")
        self.remove(output)
        self.prepare(output)
        counts = self.folder / (self.name + ".calls")
        self.run(output, BATCHLLM_FAULTS=f"{kind}:0:once", BATCHLLM_FAULTS_COUNT=str(counts))
        return int(counts.read_text().split()[0])

    def stacks(self):
        """The call stacks of the allocations in three runs, which differ by the interleaving of threads."""
        output = self.folder / (self.name + ".count")
        found = set()
        for _ in range(3):
            self.remove(output)
            self.prepare(output)
            stacks = self.folder / (self.name + ".stacks")
            self.run(output, BATCHLLM_FAULTS="alloc:0:once", BATCHLLM_FAULTS_STACKS=str(stacks))
            found |= {line.split()[0] for line in stacks.read_text().splitlines()}
        return sorted(found)

    def run(self, output, *more, **environment):
        return subprocess.run([FAULTY, *self.command(output), *more], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=300, env={**os.environ, **environment})

    def remove(self, output):
        for path in output.parent.glob(output.name + "*"):
            path.unlink()

    def check(self, fault, output):
        """Whether the call that should fail was made, if that is known."""
        self.remove(output)
        self.prepare(output)
        counts = self.folder / (output.name + ".calls")
        done = self.run(output, BATCHLLM_FAULTS=fault, BATCHLLM_FAULTS_COUNT=str(counts))
        failed = int(counts.read_text().split()[1]) if counts.exists() else 1
        counts.unlink(missing_ok=True)
        if done.returncode not in (self.code, 1):
            raise AssertionError(f"exit {done.returncode}: {done.stderr.decode()[-400:]}")
        if done.returncode == 1 and not done.stderr.startswith(b"batchllm: "):
            raise AssertionError(f"exit 1 without a word: {done.stderr!r}")
        if done.returncode == self.code:
            self.same(output, "exit as undisturbed")
        self.recover(output, done)
        self.remove(output)
        return failed > 0

    def same(self, output, when):
        found = self.read(output)
        if found != self.expected:
            wrong = found
            if isinstance(found, dict):
                wrong = {key: found.get(key) for key in {*found, *self.expected} if found.get(key) != self.expected.get(key)}
            raise AssertionError(f"{when}: differs: {str(wrong)[:600]}")


class RunCase(Case):
    def command(self, output):
        return ["run", *self.arguments, "-i", str(self.input), "-o", str(output), "--progress", "none"]

    def read(self, output):
        return comparable(output)

    def recover(self, output, failed):
        resumed = self.run(output, "--resume")
        if resumed.returncode != self.code:
            raise AssertionError(f"not resumable: exit {resumed.returncode}: {resumed.stderr.decode()[-400:]}, after "
                                 f"{failed.stderr.decode()[-400:]}")
        self.same(output, "after --resume")


class ResumeCase(RunCase):
    """Resumes a half-done output with a torn last line."""

    def prepare(self, output):
        whole = (self.folder / (self.name + ".whole")).read_bytes()
        output.write_bytes(whole[:len(whole) // 2])
        shutil.copyfile(self.folder / (self.name + ".whole.state"), str(output) + ".state")

    def command(self, output):
        command = super().command(output)
        return command if not output.exists() else [*command, "--resume"]

    def run(self, output, *more, **environment):
        return super().run(output, *[m for m in more if m != "--resume"], **environment)


class PlanCase(Case):
    def command(self, output):
        return ["plan", *self.arguments, "-i", str(self.input), "-o", str(output)]

    def read(self, output):
        return output.read_bytes()

    def recover(self, output, failed):
        # A plan is written completely or not at all, and nothing is left beside it.
        left = [path.name for path in output.parent.glob(output.name + ".*")]
        if left and b"unlink" not in failed.args[0]:
            raise AssertionError(f"left behind: {left}")
        if output.exists():
            self.same(output, "a plan that was written")
        again = self.run(output)
        if again.returncode != self.code:
            raise AssertionError(f"again: exit {again.returncode}")
        self.same(output, "again")


def cases(folder):
    steps = ["--step-tokens", "64", "--window-rows", "16"]
    yield RunCase("run-sim", folder, sim_rows(), [*SIM, *steps, "--threads", "2"])
    yield ResumeCase("resume-sim", folder, sim_rows(), [*SIM, *steps, "--threads", "2"])
    yield PlanCase("plan-rows", folder, sim_rows(), ["--self-contained"])
    if MODEL:
        cpu = ["--backend", "cpu", "--model", MODEL, "--kv-memory", "4MiB", "--threads", "2", "--compute-type", "f32"]
        # What is resumed has other company than before.
        steps = ["--step-tokens", "32", "--window-rows", "8", "--reproducible"]
        yield RunCase("run-cpu-text", folder, text_rows(), [*cpu, *steps])
        yield PlanCase("plan-text", folder, text_rows(), ["--model", MODEL])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    wanted = parser.parse_args()
    randomness = random.Random(wanted.seed)
    print(f"seed {wanted.seed}")
    failures = 0
    tries = 0
    with tempfile.TemporaryDirectory(prefix="batchllm-torture-") as name:
        folder = pathlib.Path(name)
        stacks_seen = set()
        work = []  # (position in its series, case, kind, how, k)
        totals = {}
        for case in cases(folder):
            for kind in [*KINDS, "stack"]:
                if wanted.only not in f"{case.name} {kind}":
                    continue
                if kind == "stack":
                    calls = [f"@{stack}" for stack in case.stacks() if stack not in stacks_seen]
                    stacks_seen.update(stack[1:] for stack in calls)
                else:
                    calls = range(1, case.count(kind) + 1)
                for how in ("once", "forever"):
                    totals[case.name, kind, how] = len(calls)
                    order = list(calls)
                    randomness.shuffle(order)
                    # Spread out, so that the available time goes to all series; series of allocations, which are few
                    # and long, get four times as much each.
                    often = 1 if kind in ("alloc", "stack") else 4
                    work += [((i + 1) * often, case, kind, how, k) for i, k in enumerate(order)]
        work.sort(key=lambda item: item[0])
        covered = dict.fromkeys(totals, 0)
        missed = dict.fromkeys(totals, 0)
        end = time.monotonic() + wanted.seconds if wanted.seconds > 0 else float("inf")

        def attempt(item):
            _, case, kind, how, k = item
            if time.monotonic() > end:
                return None
            output = folder / f"{case.name}.{kind}.{how}.{k}.out"
            try:
                if not case.check(f"{'alloc' if kind == 'stack' else kind}:{k}:{how}", output):
                    missed[case.name, kind, how] += 1
            except (AssertionError, ValueError, OSError, subprocess.TimeoutExpired) as fault:
                return f"{case.name}: {kind} {k} {how}: {fault}"
            return ""

        with concurrent.futures.ThreadPoolExecutor(wanted.jobs) as pool:
            for item, fault in zip(work, pool.map(attempt, work)):
                if fault is None:
                    continue
                covered[item[1].name, item[2], item[3]] += 1
                tries += 1
                if fault:
                    failures += 1
                    print("FAILED", fault, flush=True)
        for (case, kind, how), total in totals.items():
            if total:
                met = covered[case, kind, how] - missed[case, kind, how]
                print(f"{case}: {kind} {how}: {met} of {total}")
                if missed[case, kind, how]:
                    print(f"    and {missed[case, kind, how]} that were not met again: threads took other turns")
    print(f"{tries} tries, {failures} failures")
    return 1 if failures or not tries else 0


if __name__ == "__main__":
    sys.exit(main())
