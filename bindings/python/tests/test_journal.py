"""batchllm.Journal: jobs of one's own, resumed. What a job on files does is in test_files.py."""

import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest

import batchllm
from batchllm import Journal


class Journals(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.output = os.path.join(folder.name, "out.txt")
        self.folder = folder.name

    def test_lines_are_done_when_the_job_is_resumed(self):
        with Journal(self.output, parts={"n": 2, "words": ["ä", None]}) as journal:
            self.assertEqual((journal.rows_done, journal.rows_written, journal.failed), (0, 0, 0))
            journal.append_lines([3, 0], ["three", "zero\n"], [True, False])
            journal.append_lines([70], ["seventy"])
            self.assertEqual((journal.rows_written, journal.failed), (3, 1))
        self.assertEqual(pathlib.Path(self.output).read_text(), "three\nzero\nseventy\n")
        with Journal(self.output, parts={"n": 2, "words": ["ä", None]}, resume=True) as journal:
            self.assertEqual((journal.rows_done, journal.rows_written, journal.failed), (3, 0, 1))
            self.assertEqual(journal.left(0, 5), [1, 2, 4])
            self.assertEqual([journal.count_done(0, 71), journal.count_done(1, 70), journal.count_done(70, 10**6)], [3, 1, 1])
            self.assertTrue(journal.is_done(70) and not journal.is_done(71) and not journal.is_done(10**9))
            with self.assertRaisesRegex(batchllm.InvalidArgumentError, "row 3 has a result already"):
                journal.append_lines([4, 3], ["a", "b"])
            journal.append_lines([4], ["four"])
            journal.sync()
        with self.assertRaises(batchllm.ClosedError):
            journal.is_done(3)
        with self.assertRaises(TypeError):
            pickle.dumps(journal)

    def test_rows_that_failed_are_tried_again(self):
        with batchllm.Journal(self.output) as journal:
            journal.append_lines([0, 1, 2], ["a", "B", "c"], [False, True, False])
        with batchllm.Journal(self.output, resume=True, retry_failed=True) as journal:
            self.assertEqual((journal.left(0, 3), journal.rows_done, journal.failed), ([1], 2, 0))
            journal.append_lines([1], ["b"], [False])
        self.assertEqual(pathlib.Path(self.output).read_text(), "a\nc\nb\n")
        with batchllm.Journal(self.output, resume=True) as journal:
            self.assertEqual((journal.left(0, 3), journal.failed), ([], 0))
        with self.assertRaisesRegex(ValueError, "give resume=True too"):
            batchllm.Journal(self.output, retry_failed=True)

    def test_a_killed_process_loses_nothing_that_was_appended(self):
        code = ("import os, sys, batchllm\n"
                "journal = batchllm.Journal(sys.argv[1], resume=True, kind=sys.argv[2])\n"
                "row = journal.rows_done\n"
                "journal.append_block([row], b'x' * row) if sys.argv[2] == 'blocks' else journal.append_lines([row], [f'row {row}'])\n"
                "os.kill(os.getpid(), 9)\n")
        for kind in ("lines", "blocks"):
            output = self.output + kind
            for _ in range(3):
                self.assertEqual(subprocess.run([sys.executable, "-c", code, output, kind]).returncode, -9)
            with Journal(output, resume=True, kind=kind) as journal:
                self.assertEqual(journal.left(0, 4), [3])
                self.assertEqual([journal.read_block(i) for i in range(journal.blocks)], [b"", b"x", b"xx"] if kind == "blocks" else [])

    def test_blocks_become_an_output(self):
        with Journal(self.output, kind="blocks") as journal:
            journal.append_block([5, 2], memoryview(b"ab"), [False, True])
            journal.append_block([0], b"")
            self.assertEqual([journal.block_rows(i) for i in range(journal.blocks)], [[5, 2], [0]])
            self.assertFalse(journal.complete or os.path.exists(self.output))
            pathlib.Path(self.output + ".new").write_bytes(journal.read_block(0))
            journal.finish(self.output + ".new")
            self.assertTrue(journal.complete)
        self.assertEqual(pathlib.Path(self.output).read_bytes(), b"ab")
        self.assertEqual(sorted(os.listdir(self.folder)), ["out.txt", "out.txt.state"])
        with Journal(self.output, kind="blocks", resume=True) as journal:
            self.assertEqual((journal.complete, journal.rows_done, journal.failed), (True, 3, 1))

    def test_what_cannot_be_resumed_is_refused(self):
        with Journal(self.output, parts={"seed": 1, "text": "a\0b"}) as journal:
            with self.assertRaisesRegex(batchllm.StateError, "another run is writing to it"):
                Journal(self.output, resume=True)
            journal.append_lines([0, 1], ["a", "c"])
        with self.assertRaisesRegex(batchllm.JournalExistsError, "exists; resume continues it, force starts over"):
            Journal(self.output)
        with self.assertRaisesRegex(batchllm.JournalMismatchError, r"seed \(was 1, now 2\), .*; force starts over"):
            Journal(self.output, resume=True, parts={"seed": 2})
        pathlib.Path(self.output).write_text("b\nc\n")
        with self.assertRaisesRegex(batchllm.JournalFormatError, "line 1 is not what an earlier run wrote there; force"):
            Journal(self.output, resume=True, parts={"seed": 1, "text": "a\0b"})
        Journal(self.output, force=True).close()
        self.assertEqual(pathlib.Path(self.output).read_text(), "b\nc\n")  # nothing was written
        with self.assertRaisesRegex(ValueError, "kind is 'rows'"):
            Journal(self.output, kind="rows")

    def test_to_continue_and_to_start_over_exclude_each_other(self):
        with Journal(self.output) as journal:
            journal.append_lines([0], ["a"])
        kept = {name: pathlib.Path(self.folder, name).read_bytes() for name in os.listdir(self.folder)}
        with self.assertRaisesRegex(ValueError, "resume and force exclude each other"):
            Journal(self.output, resume=True, force=True)
        self.assertEqual({name: pathlib.Path(self.folder, name).read_bytes() for name in os.listdir(self.folder)}, kept)

    def test_the_state_of_an_output_elsewhere_is_the_callers(self):
        with Journal(None, parts={"a": 1}) as journal:
            kept = journal.state
        with Journal(None, parts={"a": 1}, resume=True, earlier_state=kept) as journal:
            self.assertEqual(journal.state, kept)
        with self.assertRaises(batchllm.JournalMismatchError):
            Journal(None, parts={"a": 2}, resume=True, earlier_state=kept)


if __name__ == "__main__":
    unittest.main()
