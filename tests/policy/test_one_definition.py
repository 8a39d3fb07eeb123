#!/usr/bin/env python3
"""No two types in a namespace have the same name, or names that differ only in case.

A compiler sees one file at a time. The linker merges two structs with the same name in two files as if they were one,
and functions of one then run on the other. Types in anonymous namespaces, in other types and in functions are not
merged. Standard library only.
"""
import collections
import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ["include", "src", "cuda", "tests", "bench"]
ENDINGS = {".h", ".cc", ".cu", ".cuh"}

# Comments, strings, and directives with their continuation lines are left out.
LEFT_OUT = re.compile(r'''//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'(?![\w])
                          |^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*''', re.S | re.X | re.M)
NAMESPACE = re.compile(r"(?:inline\s+)?namespace\s*((?:\w+(?:\s*::\s*\w+)*)?)\s*$")
TYPE = re.compile(r"\b(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+"
                  r"(?:(?:alignas|__align__|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)\s*|\[\[[^\]]*\]\]\s*)*"
                  r"(\w+(?:::\w+)*)\s*(?:final\s*)?(?::(?!:)[^;(]*)?$")
ANONYMOUS, TRANSPARENT, OTHER = "(anonymous)", "", "(other)"


def types_of(text):
    """Qualified names of the types that the text defines at namespace level."""
    text = LEFT_OUT.sub(" ", text)
    scopes, begin = [], 0
    for brace in re.finditer(r"[{};]", text):
        head = text[begin:brace.start()].strip()
        begin = brace.end()
        if brace.group() == "}":
            if scopes:
                scopes.pop()
            continue
        if brace.group() == ";":
            continue
        namespace, made = NAMESPACE.search(head), TYPE.search(head)
        if namespace:
            scopes.append(re.sub(r"\s", "", namespace.group(1)) or ANONYMOUS)
        elif re.fullmatch(r"extern(\s+C)?", head):
            scopes.append(TRANSPARENT)
        else:
            if made and OTHER not in scopes and ANONYMOUS not in scopes:
                yield "::".join([scope for scope in scopes if scope] + [made.group(1)])
            scopes.append(OTHER)


def faults(files):
    """files: {name: text}. Returns their faults, one per line."""
    places = collections.defaultdict(list)
    for name, text in files.items():
        for qualified in types_of(text):
            places[qualified].append(name)
    spellings = collections.defaultdict(list)
    for qualified in places:
        spellings[qualified.lower()].append(qualified)
    return ([f"{name} is defined in {' and '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1] +
            [f"{' and '.join(sorted(names))} differ in case alone" for names in spellings.values() if len(names) > 1])


class OneDefinition(unittest.TestCase):
    def test_the_tree_defines_each_type_once(self):
        files = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for folder in FOLDERS
                 for path in sorted((ROOT / folder).rglob("*"))
                 if path.suffix in ENDINGS and path.parent.name != "abi"}  # the original header
        self.assertGreater(sum(len(list(types_of(text))) for text in files.values()), 300)
        self.assertEqual(faults(files), [])

    def test_two_definitions_in_one_namespace_are_found(self):
        self.assertEqual(faults({"a.h": "namespace n { struct alignas(16) X final : Y { int i; }; }",
                                 "b.cc": "namespace n {\nclass X;\nenum class X : char { a };\n}"}),
                         ["n::X is defined in a.h and b.cc"])
        self.assertEqual(faults({"a.h": "namespace n::m { struct StopWatch {}; }",
                                 "b.h": 'extern "C" { } namespace n { namespace m { struct Stopwatch {}; } }'}),
                         ["n::m::StopWatch and n::m::Stopwatch differ in case alone"])

    def test_what_the_linker_does_not_merge_is_left_alone(self):
        self.assertEqual(faults({"a.cc": "namespace n { namespace { struct X {}; } struct A { struct X {}; }; }",
                                 "b.cc": 'namespace n { struct X { }; void f() { struct X {}; } char c = \'{\'; }',
                                 "c.cc": "// struct X {\n/* namespace n { struct X {}; } */ namespace m { struct X {}; }",
                                 "d.cc": 'namespace n { const char *s = "struct X {"; struct X *g(); X<int> x{}; }'}), [])


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()
