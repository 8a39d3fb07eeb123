#!/usr/bin/env python3
"""The hash by which libbatchllm.so and libbatchllm_cuda.so recognise that they come from the same build. Standard
library only."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent.parent / "src/backend/interface_hash.py"
FILES = {"a/top.h": '#include <vector>\n#include "a/middle.h"\n#include "b.h"\nstruct Top {};\n',
         "a/middle.h": '#  include "a/top.h"\nstruct Middle { int i; };\n', "b.h": "struct B {};\n", "c.h": "struct C {};\n"}


class InterfaceHash(unittest.TestCase):
    def written(self, files, compiler="gcc 12"):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(exist_ok=True)
                (root / name).write_text(text)
            command = [sys.executable, SCRIPT, root / "out.h", root / "out.d", compiler, "a/top.h", root]
            subprocess.run(command, check=True)
            self.read = (root / "out.d").read_text().replace(str(root), "")
            return (root / "out.h").read_text()

    def test_a_change_of_any_shared_header_or_the_compiler_changes_the_hash(self):
        first = self.written(FILES)
        self.assertRegex(first, r"#define BATCHLLM_INTERFACE_HASH 0x[0-9a-f]{16}u\n")
        self.assertEqual(first, self.written(FILES))
        for name in ("a/top.h", "a/middle.h", "b.h"):
            self.assertNotEqual(first, self.written(FILES | {name: FILES[name] + "struct More { int j; };\n"}), name)
        self.assertNotEqual(first, self.written(FILES, "gcc 13"))
        self.assertEqual(first, self.written(FILES | {"c.h": "struct C { int unread; };\n"}))

    def test_the_build_is_told_of_every_header(self):
        self.written(FILES)
        self.assertEqual(sorted(self.read.split()), ["/a/middle.h", "/a/top.h", "/b.h", "/out.h:"])


if __name__ == "__main__":
    unittest.main()
