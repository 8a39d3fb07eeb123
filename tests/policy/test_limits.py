#!/usr/bin/env python3
"""SECURITY.md's table of limits says what the code does.

Standard library only.
"""
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# (what the table says, the file, the code that must be in it)
LIMITS = [
    ("input line | `--max-line-bytes`, 256 MiB", "src/cli/commands.h", "max_line_bytes = int64_t{256} << 20"),
    ("tokenizer.json | 512 MiB, 4 million ids", "src/text/tokenizer_json.cc", "kMostFileBytes = size_t{512} << 20"),
    ("4 million ids", "src/text/tokenizer_json.cc", "kMostId = (1 << 22) - 1"),
    ("other JSON files of a model | 64 MiB", "src/base/json.h", "limit = size_t{64} << 20"),
    ("JSON of any kind | nesting of 1,024", "src/base/json_view.h", "most_depth = 1024"),
    ("a JSON schema 200", "src/base/json_tree.cc", "most_depth = 200"),
    ("a JSON schema 200", "src/constraint/json_schema/meaning.cc", "kMostDepth = 200"),
    ("values in a template 200", "src/text/jinja/value.h", "most_depth = 200"),
    ("regular expression | 64 KiB", "src/text/regex/parser.cc", "an expression of more than 64 KiB"),
    ("of a grammar, nested 200 deep", "src/text/regex/parser.cc", "groups more than 200 deep"),
    ("constraint | 524,288 automaton states", "src/constraint/budget.h", "kStates = int64_t{1} << 19"),
    ("refused 32 as too large", "src/constraint/constraint_maker.h", "kAllowed = 32"),
    ("one more for each 64 constraints", "src/constraint/constraint_maker.h", "kAsked = 64"),
    ("a thirty-second part", "src/constraint/constraint_maker.h", "kPart = 32"),
    ("picture | 256 MiB", "src/image/decode.h", "bytes = 256 << 20"),
    ("178,956,970 pixels", "src/image/decode.h", "pixels = 178'956'970"),
    ("sides of 1,048,576", "src/image/decode.h", "side = 1 << 20"),
    ("500 scans of a JPEG", "src/image/decode_jpeg.cc", "most_scans = 500"),
    ("safetensors file | 100 MB", "src/model/safetensors.cc", "header_limit = 100'000'000"),
    ("chat template | 4 MiB", "src/text/chat_template.cc", "most_template_bytes = size_t{4} << 20"),
    ("nesting of 60", "src/text/jinja/grammar.h", "most_nesting = 60"),
    ("plan file | 1,024 times its size when unpacked, plus 1 MiB", "src/plan/plan_file.cc",
     "(uint64_t{1} << 20) + frame_bytes * 1024"),
    ("tuning cache | 16,384 entries", "cuda/linear/tuning_cache.h", "kMostEntries = 1 << 14"),
]


class Limits(unittest.TestCase):
    def test_the_table_says_what_the_code_does(self):
        table = (ROOT / "SECURITY.md").read_text()
        for said, file, code in LIMITS:
            with self.subTest(said):
                self.assertIn(said, table)
                text = re.sub(r"\s+", " ", (ROOT / file).read_text())
                self.assertIn(code, text, file)


if __name__ == "__main__":
    unittest.main()
