"""The manual page and the completion of bash, which the build makes from the program's --help."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

PAGE = pathlib.Path(os.environ["BATCHLLM_MANUAL"])
COMPLETION = pathlib.Path(os.environ["BATCHLLM_COMPLETION"])


class Manual(unittest.TestCase):
    def test_the_page_has_every_command_with_its_options_and_their_groups(self):
        text = PAGE.read_text().replace("\\-", "-")
        for part in (".SH BATCHLLM RUN", ".SH BATCHLLM TOKENIZE", ".SS Defaults for rows", "\\fB--max-tokens\\fR \\fIN\\fR", "\\fB--device\\fR"):
            self.assertIn(part, text)

    @unittest.skipIf(shutil.which("groff") is None, "needs groff")
    def test_the_page_is_formatted_without_a_warning(self):
        done = subprocess.run(["groff", "-man", "-ww", "-z", str(PAGE)], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    @unittest.skipIf(shutil.which("bash") is None, "needs bash")
    def test_words_are_completed(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        folder = pathlib.Path(made.name)
        (folder / "in.jsonl").touch()
        for words, wanted in ((["in"], ["inspect"]), (["run", "--max-to"], ["--max-tokens"]), (["run", "--progress", "j"], ["json"]),
                              (["plan", "--device", "h2"], ["h200"]), (["tokenize", "--res"], []), (["run", "--seed", ""], []),
                              (["run", "--input", "in.js"], ["in.jsonl"]), (["run", "--json-sch"], ["--json-schema"])):
            script = f"source {COMPLETION}; COMP_WORDS=(batchllm \"$@\"); COMP_CWORD=$#; _batchllm; printf '%s\\n' \"${{COMPREPLY[@]}}\""
            done = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, cwd=folder)
            self.assertEqual((done.stdout.split(), done.stderr), (wanted, ""), words)


if __name__ == "__main__":
    unittest.main()
