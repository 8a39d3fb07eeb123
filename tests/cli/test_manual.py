"""The manual page and the completion of bash say what the program's --help says."""

import pathlib
import shutil
import subprocess
import sys
import unittest

from program import PROGRAM, ProgramTest, TESTS

CLI = TESTS.parent / "src" / "cli"


class Manual(ProgramTest):
    def test_both_are_what_the_program_says_of_itself(self):
        done = subprocess.run([sys.executable, TESTS.parent / "scripts/make_manual.py", PROGRAM, "--check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_page_that_is_out_of_date_is_told(self):
        tree = self.directory / "tree"
        (tree / "scripts").mkdir(parents=True)
        shutil.copy(TESTS.parent / "scripts/make_manual.py", tree / "scripts")
        (tree / "src/cli").mkdir(parents=True)
        for name in ("batchllm.1", "batchllm.bash"):
            text = (CLI / name).read_text()
            self.assertIn("kv", text)
            (tree / "src/cli" / name).write_text(text.replace("memory", "memories"))
        done = subprocess.run([sys.executable, tree / "scripts/make_manual.py", PROGRAM, "--check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("batchllm.1 is not what", done.stderr)

    @unittest.skipIf(shutil.which("groff") is None, "needs groff")
    def test_the_page_is_formatted_without_a_warning(self):
        done = subprocess.run(["groff", "-man", "-ww", "-z", str(CLI / "batchllm.1")], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    @unittest.skipIf(shutil.which("bash") is None, "needs bash")
    def test_words_are_completed(self):
        for words, wanted in ((["in"], ["inspect"]), (["run", "--max-to"], ["--max-tokens"]), (["run", "--progress", "j"], ["json"]),
                              (["plan", "--device", "h2"], ["h200"]), (["tokenize", "--res"], []), (["run", "--seed", ""], []),
                              (["run", "--input", "in.js"], ["in.jsonl"]), (["run", "--json-sch"], ["--json-schema"])):
            self.input.touch()
            script = f"source {CLI / 'batchllm.bash'}; COMP_WORDS=(batchllm \"$@\"); COMP_CWORD=$#; _batchllm; printf '%s\\n' \"${{COMPREPLY[@]}}\""
            done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, cwd=self.directory)
            self.assertEqual((done.stdout.split(), done.stderr), (wanted, ""), words)


if __name__ == "__main__":
    unittest.main()
