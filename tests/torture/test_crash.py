"""A job killed at each of its writes, and a machine that crashes: after either, --resume gives the output of an
undisturbed run.

The same texts, tokens and usage, each row once. Only usage.shared_tokens may differ: how much of a prompt was computed for
other rows too depends on what ran together.

The machine: a run's changes to its files are recorded call by call (faults.h). At any point of that record, everything
that was synced is on disk; of the writes, truncations, creations and renames since, any subset may have reached it. A
lost write before one that reached the disk reads as zeros; pages of 4,096 bytes are written or lost independently.
"""

import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
from program import SIM, ProgramTest, by_id, lines, token_rows  # noqa: E402

FAULTY = os.environ["BATCHLLM_FAULTY_PROGRAM"]
STEPS = ["--step-tokens", "64", "--window-rows", "16"]
CHANGES = ["write", "sync", "rename", "truncate", "open"]
PAGE = 4096


def comparable(rows):
    found = by_id(rows)
    for row in found.values():
        row["usage"].pop("shared_tokens", None)
    return found


class Crash(ProgramTest):
    def setUp(self):
        super().setUp()
        rows = token_rows(60, prefix=12, own=4)
        for row in rows[::3]:
            row.update(n=3, temperature=1.0)
        rows[20] = "broken"
        self.input.write_bytes(lines(rows))
        done = self.job(self.directory / "whole.jsonl")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.expected = comparable(self.read_output(self.directory / "whole.jsonl"))

    def job(self, output, *arguments, **environment):
        return subprocess.run([FAULTY, "run", *SIM, *STEPS, "-i", str(self.input), "-o", str(output), "--progress", "none",
                               *arguments], env={**os.environ, **environment}, stderr=subprocess.PIPE, timeout=60)

    def resume(self, output, what):
        done = self.job(output, "--resume")
        self.assertEqual(done.returncode, 3, f"{what}: {done.stderr.decode()}")
        self.assertEqual(comparable(self.read_output(output)), self.expected, what)
        self.assertEqual(sorted(path.name for path in output.parent.glob(output.name + "*")),
                         [output.name, output.name + ".state"], what)


class Killed(Crash):
    def test_killed_before_and_within_each_call_that_changes_a_file(self):
        tried = 0
        for kind in CHANGES:
            counts = self.directory / "calls"
            for path in self.directory.glob("out.jsonl*"):
                path.unlink()
            self.job(self.output, BATCHLLM_FAULTS=f"{kind}:0:once", BATCHLLM_FAULTS_COUNT=str(counts))
            calls = int(counts.read_text().split()[0])
            for k in range(1, calls + 1):
                for how in ["kill", "torn"] if kind == "write" else ["kill"]:
                    for path in self.directory.glob("out.jsonl*"):
                        path.unlink()
                    done = self.job(self.output, BATCHLLM_FAULTS=f"{kind}:{k}:{how}")
                    # The number of rows per write depends on how fast they are read, so this run may have had fewer
                    # writes.
                    if done.returncode == 3 and k > calls // 2:
                        self.assertEqual(comparable(self.read_output(self.output)), self.expected)
                        continue
                    self.assertEqual(done.returncode, -9, f"{kind} {k} {how}")
                    self.resume(self.output, f"{kind} {k} {how}")
                    tried += 1
        self.assertGreater(tried, 60)
        print(f"killed {tried} times")

    def test_killed_while_it_resumes(self):
        self.assertEqual(self.job(self.output, BATCHLLM_FAULTS="write:14:torn").returncode, -9)
        shutil.copytree(self.directory, self.directory / "half", ignore=shutil.ignore_patterns("half"))
        for kind in CHANGES:
            for k in range(1, 100):
                for path in (self.directory / "half").glob("out.jsonl*"):
                    shutil.copyfile(path, self.directory / path.name)
                done = self.job(self.output, "--resume", BATCHLLM_FAULTS=f"{kind}:{k}:kill")
                if done.returncode == 3:
                    break
                self.assertEqual(done.returncode, -9)
                self.resume(self.output, f"{kind} {k}")


    def test_killed_while_it_drops_the_lines_of_failed_rows(self):
        # A job that is done, one of whose lines has an error in the middle; and one that was interrupted behind it.
        self.assertEqual(self.job(self.output).returncode, 3)
        shutil.copytree(self.directory, self.directory / "done", ignore=shutil.ignore_patterns("done", "half"))
        failed = [i for i, row in enumerate(self.read_output()) if "error" in row]
        self.assertEqual(len(failed), 1)
        with open(self.output, "rb+") as file:
            whole = file.readlines()
            file.truncate(sum(map(len, whole[: failed[0] + 3])) + 5)
        shutil.copytree(self.directory, self.directory / "half", ignore=shutil.ignore_patterns("done", "half"))
        tried = 0
        for folder in ("done", "half"):
            for kind in CHANGES:
                for k in range(1, 200):
                    for how in ["kill", "torn"] if kind == "write" else ["kill"]:
                        for path in self.directory.glob("out.jsonl*"):
                            path.unlink()
                        for path in (self.directory / folder).glob("out.jsonl*"):
                            shutil.copyfile(path, self.directory / path.name)
                        done = self.job(self.output, "--resume", "--retry-failed", BATCHLLM_FAULTS=f"{kind}:{k}:{how}")
                        if done.returncode == 3:
                            break
                        self.assertEqual(done.returncode, -9, done.stderr)
                        tried += 1
                        again = ["--retry-failed"] if tried % 2 else []
                        left = self.job(self.output, "--resume", *again)
                        self.assertEqual(left.returncode, 3, f"{folder} {kind} {k} {how} {again}: {left.stderr.decode()}")
                        self.assertEqual(comparable(self.read_output()), self.expected, f"{folder} {kind} {k} {how}")
                        self.assertEqual(len(list(self.directory.glob("out.jsonl*"))), 2, f"{folder} {kind} {k} {how}")
                        self.resume(self.output, f"{folder} {kind} {k} {how}, again")
                    if done.returncode == 3:
                        break
        self.assertGreater(tried, 20)
        print(f"killed {tried} times")


class Change:
    """One call of the record."""

    def __init__(self, kind, offset, data, path):
        self.kind, self.offset, self.data, self.path = kind, offset, data, path


def read_trace(data):
    changes = []
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        kind, _, offset, size, path = data[at:end].decode().split(" ", 4)
        at = end + 1
        content = b""
        if kind == "write":
            content = data[at:at + int(size)]
            at += int(size)
        changes.append(Change(kind, int(offset), content, re.sub(r" \(deleted\)$", "", path)))
    return changes


class Disk:
    """Files as left by a machine that crashes: by name, after the changes that reached the disk."""

    def __init__(self, files):
        self.files = {i: bytearray(content) for i, content in enumerate(files.values())}  # inode -> bytearray
        self.names = {name: i for i, name in enumerate(files)}  # name -> inode, on the disk
        self.current = dict(self.names)  # name -> inode, as the program sees it
        self.pending = []  # (inode or None, function) not synced
        self.inodes = len(files)

    def do(self, change):
        name = change.path
        if change.kind == "create":
            if name in self.current:
                return
            inode = self.inodes = self.inodes + 1
            self.files[inode] = bytearray()
            self.current[name] = inode
            self.pending.append((os.path.dirname(name), lambda: self.names.__setitem__(name, inode)))
        elif change.kind in ("write", "truncate"):
            inode = self.current.get(name)
            if inode is None:
                return
            content = self.files[inode]
            if change.kind == "truncate":
                def cut():
                    size = change.offset
                    content[size:] = b"" if len(content) >= size else bytes(size - len(content))
                self.pending.append((inode, cut))
            else:
                at, data = change.offset, change.data
                while data:
                    part = PAGE - at % PAGE
                    self.pending.append((inode, lambda at=at, piece=data[:part]: self.put(content, at, piece)))
                    at, data = at + part, data[part:]
        elif change.kind == "rename":
            old, new = name.split("\t")
            old, new = (p if os.path.isabs(p) else os.path.join(change.directory, p) for p in (old, new))
            inode = self.current.pop(old)
            self.current[new] = inode

            def move():
                self.names.pop(old, None)
                self.names[new] = inode
            self.pending.append((os.path.dirname(new), move))
        elif change.kind == "unlink":
            self.current.pop(name, None)
            self.pending.append((os.path.dirname(name), lambda: self.names.pop(name, None)))
        elif change.kind == "sync":
            key = self.current.get(name, name)
            rest = []
            for owner, act in self.pending:
                if owner == key:
                    act()
                else:
                    rest.append((owner, act))
            # A synced file is found again: its name is on disk too (ext4, XFS and btrfs ensure that).
            self.pending = rest

    @staticmethod
    def put(content, at, piece):
        if len(content) < at:
            content.extend(bytes(at - len(content)))
        content[at:at + len(piece)] = piece

    def go_down(self, randomness, share):
        kept = [act for _, act in self.pending if randomness.random() < share]
        # Names in order, since a directory is a journal. Contents in any order.
        for act in kept:
            act()


class GoneDown(Crash):
    def test_unsynced_writes_lost_in_any_order(self):
        self.lose_writes(20)

    def test_unsynced_writes_lost_while_lines_of_failed_rows_are_dropped(self):
        self.assertEqual(self.job(self.output).returncode, 3)
        self.lose_writes(3, "--resume", "--retry-failed")

    def lose_writes(self, least, *arguments):
        seed = int(os.environ.get("BATCHLLM_TEST_SEED", random.randrange(1 << 30)))
        print("seed", seed)
        randomness = random.Random(seed)
        record = self.directory / "trace"
        before = {str(path): path.read_bytes() for path in self.directory.glob("out.jsonl*")}
        done = self.job(self.output, *arguments, BATCHLLM_FAULTS_TRACE=str(record))
        self.assertEqual(done.returncode, 3, done.stderr)
        changes = read_trace(record.read_bytes())
        for change in changes:
            change.directory = str(self.directory)
        self.assertGreater(sum(change.kind == "write" for change in changes), least)
        tries = int(os.environ.get("TEST_TRIES", "3"))
        tried = lost = 0
        for point in range(len(changes) + 1):
            for share in [0, 1, *(randomness.random() for _ in range(tries))]:
                disk = Disk(before)
                for change in changes[:point]:
                    disk.do(change)
                lost += len(disk.pending)
                disk.go_down(randomness, share)
                for path in self.directory.glob("out.jsonl*"):
                    path.unlink()
                for name, inode in disk.names.items():
                    pathlib.Path(name).write_bytes(disk.files[inode])
                self.resume(self.output, f"after change {point} of {len(changes)}, {share:.2f} kept")
                tried += 1
        print(f"went down {tried} times, with {lost} changes not synced")


if __name__ == "__main__":
    unittest.main()
