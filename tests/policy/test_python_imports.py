#!/usr/bin/env python3
"""The modules of the Python package import each other without a cycle, imports for types and in functions included.

Standard library only.
"""
import ast
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
PACKAGE = Path(__file__).resolve().parent.parent.parent / "bindings/python/batchllm"


def imports(sources):
    """{name: source} -> {name: the modules of the package that it imports}."""
    found = {}
    for name, source in sources.items():
        found[name] = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                found[name] |= {node.module} if node.module else {one.name for one in node.names}
        found[name] &= sources.keys()
    return found


def cycle(edges):
    """A cycle as a list of names that begins and ends with the same one; None if there is none."""
    done, path = set(), []

    def visit(name):
        if name in path:
            return path[path.index(name):] + [name]
        if name in done:
            return None
        path.append(name)
        for other in sorted(edges.get(name, ())):
            if (found := visit(other)) is not None:
                return found
        done.add(path.pop())
        return None

    return next((found for name in sorted(edges) if (found := visit(name)) is not None), None)


class Imports(unittest.TestCase):
    def test_no_modules_import_each_other_in_a_cycle(self):
        edges = imports({path.stem: path.read_text(encoding="utf-8") for path in PACKAGE.glob("*.py")})
        self.assertIn("results", edges["engine"])
        self.assertIsNone(cycle(edges))

    def test_a_cycle_is_found_in_every_form_of_import(self):
        for form in ("from .b import c", "from . import b", "if TYPE_CHECKING:\n    from .b import c",
                     "def f():\n    from .b import c"):
            self.assertEqual(cycle(imports({"a": form, "b": "from .a import d"})), ["a", "b", "a"])
        self.assertIsNone(cycle(imports({"a": "from .b import c\nfrom .d import e", "b": "from .d import e", "d": "import os"})))


if __name__ == "__main__":
    unittest.main()
