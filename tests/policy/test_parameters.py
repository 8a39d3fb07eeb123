#!/usr/bin/env python3
"""Every parameter of a row that the library's table lists is on the page of rows, and its field is in the header.

Standard library only; the C compiler's preprocessor reads the table.
"""
import importlib.util
import re
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("parameters", ROOT / "bindings" / "parameters.py")
parameters = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(parameters)


class Parameters(unittest.TestCase):
    def setUp(self):
        self.table = parameters.read(ROOT / "src/parameters/row_parameters.inc", ["cc"])
        self.assertGreater(len(self.table), 20)

    def test_the_page_of_rows_names_each_key(self):
        page = (ROOT / "docs/formats.md").read_text(encoding="utf-8")
        rows = "".join(re.findall(r"^\| (`.*?) \|", page, re.M))
        self.assertEqual([one.key for one in self.table if f"`{one.key}`" not in rows], [])

    def test_texts_are_sentences_and_help_is_not(self):
        for one in self.table:
            self.assertRegex(one.text, r"^(0:|[A-Z]).*\.$", one.name)
            self.assertNotRegex(one.help, r"\.$", one.name)


if __name__ == "__main__":
    unittest.main()
