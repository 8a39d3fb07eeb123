#!/usr/bin/env python3
"""The modules of src/ and cuda/ only include modules before them, without cycles, and docs/structure.svg shows them.

Standard library only.
"""
import importlib.util
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parent.parent.parent
SPEC = importlib.util.spec_from_file_location("draw_structure", ROOT / "scripts" / "draw_structure.py")
structure = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(structure)


class Structure(unittest.TestCase):
    def test_every_module_includes_only_what_stands_before_it(self):
        self.assertEqual(structure.faults(structure.includes(), structure.layers()), [])

    def test_no_modules_include_each_other_in_a_cycle(self):
        self.assertIsNone(structure.cycle(structure.includes()))

    def test_the_drawing_is_what_the_includes_give(self):
        drawn = structure.DRAWING.read_text(encoding="utf-8")
        self.assertTrue(drawn == structure.draw(), "out of date: run scripts/draw_structure.py and commit docs/structure.svg")


class Checks(unittest.TestCase):
    """The checks used above detect what they are for."""

    ORDER = ["include", "src/base", "src/text", "src/backend", "src/runtime", "src/cli", "cuda/device", "cuda"]

    def faults(self, *edges):
        return structure.faults({edge: {"a.cc includes b.h"} for edge in edges}, self.ORDER)

    def test_an_include_upwards_is_found_with_its_file(self):
        [line] = self.faults(("src/text", "src/runtime"), ("src/runtime", "src/text"))
        self.assertIn("src/text stands below src/runtime", line)
        self.assertIn("a.cc includes b.h", line)

    def test_the_program_includes_the_public_header_and_what_knows_no_models(self):
        self.assertEqual(self.faults(("src/cli", "include"), ("src/cli", "src/base")), [])
        self.assertEqual(len(self.faults(("src/cli", "src/text"))), 1)

    def test_cuda_knows_the_interface_of_a_backend_and_not_the_engine(self):
        self.assertEqual(self.faults(("cuda", "src/backend"), ("cuda", "cuda/device")), [])
        self.assertEqual(len(self.faults(("cuda/device", "src/runtime"))), 1)

    def test_a_module_without_a_layer_is_found(self):
        self.assertEqual(len(self.faults(("src/new", "src/base"), ("src/text", "src/new"))), 2)

    def test_a_cycle_is_found_wherever_it_begins(self):
        self.assertIsNone(structure.cycle({("a", "b"), ("b", "c"), ("a", "c")}))
        found = structure.cycle({("a", "b"), ("b", "c"), ("c", "d"), ("d", "b")})
        self.assertEqual(sorted(found[:-1]), ["b", "c", "d"])
        self.assertEqual(found[0], found[-1])

    def test_files_are_read_as_the_compiler_finds_them(self):
        edges = structure.includes()
        self.assertIn("src/text/jinja/template.h includes base/status.h", edges["src/text", "src/base"])
        self.assertIn("cuda/step/forward.h includes backend/backend.h", edges["cuda/step", "src/backend"])


if __name__ == "__main__":
    unittest.main()
