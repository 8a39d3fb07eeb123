#!/usr/bin/env python3
"""Any files of a target can be compiled as one unit, whatever their order: no two of them use one name for two things.

scripts/test compiles eight files at a time for the sanitizers, which takes half the time. Which eight are together
changes with each new file, so names that are not unique would fail there, late, and in files that nobody has changed.

Usage: test_units.py BUILD_FOLDER
"""
import collections
import json
import os
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# What is never compiled so: kernels, whether a GPU's or of one set of instructions, benches, and the library once more
# for its ABI.
LEFT_OUT = ("cuda/", "src/backend/cpu/libbatchllm_cpu_kernels", "bench/", "tests/abi/")


def targets_of(commands):
    """{folder of a target's objects: its commands}, of those with several C++ files."""
    targets = collections.defaultdict(list)
    for command in commands:
        if command["file"].endswith(".cc") and not command["output"].startswith(LEFT_OUT):
            targets[os.path.dirname(command["output"])].append(command)
    return {name: of for name, of in targets.items() if len(of) > 1}


def errors_of(commands):
    """What the compiler says of all files of a target as one."""
    words = shlex.split(commands[0]["command"])
    for flag in ("-MQ", "-MF", "-o", "-c"):
        del words[words.index(flag):words.index(flag) + 2]
    # meson.build turns these off where units are on; what only the other compiler knows is no error.
    words += ["-Wno-shadow", "-Wno-subobject-linkage", "-Wno-unknown-warning-option", "-fsyntax-only"]
    with tempfile.NamedTemporaryFile("w", suffix=".cc") as unit:
        for command in commands:
            unit.write(f'#include "{os.path.join(command["directory"], command["file"])}"\n')
        unit.flush()
        run = subprocess.run([word for word in words if word != "-MD"] + [unit.name], cwd=commands[0]["directory"],
                             capture_output=True, text=True, check=False)
    return run.stderr if run.returncode else ""


class Units(unittest.TestCase):
    def test_files_of_a_target_share_no_names(self):
        folder = Path(sys.argv[1])
        targets = targets_of(json.loads((folder / "compile_commands.json").read_text(encoding="utf-8")))
        self.assertIn("src/libbatchllm_core.a.p", targets)
        for name, commands in targets.items():
            with self.subTest(name):
                errors = errors_of(commands)
                self.assertEqual(errors, "", errors[:4000])

    def test_a_name_that_two_files_use_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            texts = {"a.cc": "namespace { int f() { return 1; } } int a() { return f(); }",
                     "b.cc": "namespace { int f() { return 2; } } int b() { return f(); }",
                     "c.cc": "namespace { int g() { return 2; } } int c() { return g(); }"}
            commands = {}
            for name, text in texts.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
                commands[name] = {"directory": folder, "file": name, "output": "x.p/" + name + ".o",
                                  "command": f"c++ -MD -MQ x -MF x -o x -c {name}"}
            self.assertIn("redefinition", errors_of([commands["a.cc"], commands["b.cc"]]))
            self.assertEqual(errors_of([commands["a.cc"], commands["c.cc"]]), "")


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main(argv=sys.argv[:1])
