#!/usr/bin/env python3
"""No function of src/, cuda/ and the C++ of bindings/ is longer than 100 lines, and no file is longer than 400.

A function extends from the line on which its head begins to its closing brace, including everything defined inside it.
Generated tables (*.inc) are left out. Standard library only.
"""
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["src", "cuda", "bindings"]
ENDINGS = {".h", ".cc", ".c", ".cu", ".cuh"}
FUNCTION_LINES, FILE_LINES = 100, 400

# Comments, strings and directives with their continuation lines are blanked; line ends are kept.
BLANKED = re.compile(r'''//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'(?![\w])
                         |^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*''', re.S | re.X | re.M)
# A constructor's ": a_{..}": the braces are those of a member, not of the body.
INITIALIZED_MEMBER = re.compile(r"\)[\s\w]*:(?!:)(?:.*[\s,:>])?\w+$", re.S)
SCOPE = re.compile(r"\b(?:namespace|struct|class|union|enum|extern)\b[^()]*$|\bextern\b\s*$")
TYPE = re.compile(r"^(?:template\b.*)?\s*(?:typedef\s+)?(?:struct|class|union|enum)\b(?!.*\)\s*(?:const|noexcept|override|->.*)?\s*$)", re.S)


def functions(text):
    """(name, first line, lines) of every function that the text defines outside of functions."""
    text = BLANKED.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
    depth, begin, found, inside, member = 0, 0, [], None, None
    for mark in re.finditer(r"[{};]", text):
        if mark.group() == "{":
            depth += 1
            head = text[begin:mark.start()]
            if inside is None and member is None and INITIALIZED_MEMBER.search(head):
                member = depth
            elif inside is None and member is None and "(" in head and not TYPE.match(head.strip()) and not SCOPE.search(head.strip()):
                start = begin + len(head) - len(head.lstrip())
                name = re.search(r"([~\w:]+(?:\s*\(\s*\))?)\s*\(", head)
                inside = (depth, name.group(1) if name else "?", text.count("\n", 0, start) + 1)
        elif mark.group() == "}":
            if inside is not None and inside[0] == depth:
                last = text.count("\n", 0, mark.start()) + 1
                found.append((inside[1], inside[2], last - inside[2] + 1))
                inside = None
            depth -= 1
            if member is not None and depth < member:
                member = None
                continue
        if inside is None and member is None:
            begin = mark.end()
    return found


def files():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in ENDINGS:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


class Sizes(unittest.TestCase):
    def test_no_function_is_longer_than_100_lines(self):
        self.assertEqual([f"{file}:{line}: {name} has {lines} lines" for file, text in files()
                          for name, line, lines in functions(text) if lines > FUNCTION_LINES], [])

    def test_no_file_is_longer_than_400_lines(self):
        self.assertEqual([f"{file}: {text.count(chr(10))} lines" for file, text in files()
                          if text.count("\n") > FILE_LINES], [])


class Checks(unittest.TestCase):
    """Functions are found, whatever they look like and wherever they are."""

    def test_functions_of_namespaces_classes_and_templates_are_measured(self):
        text = """namespace a {
struct S final : Base<int> {
    S() : b_{1}, c_(2) {
        f();
    }
    int x = 3;
};
template <typename T>
__global__ void __launch_bounds__(128) kernel(T *out,
                                              int n) { // {
    for (int i = 0; i < n; ++i) {
        out[i] = '}';
    }
}
extern "C" int one(void) { return 1; }
constexpr int table[] = {
    1,
};
auto S::get() const -> int { return [] { return "{{"; }()[0]; }
} // namespace a
"""
        found = {name: lines for name, _, lines in functions(text)}
        self.assertEqual(found.pop("S", None), 3)
        self.assertEqual(found.pop("one", None), 1)
        self.assertEqual(found.pop("S::get", None), 1)
        self.assertEqual(sorted(found.values()), [7])

    def test_most_of_the_tree_is_measured(self):
        count = sum(len(functions(text)) for _, text in files())
        self.assertGreater(count, 1500)


if __name__ == "__main__":
    unittest.main()
