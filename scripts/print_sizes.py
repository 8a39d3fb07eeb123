#!/usr/bin/env python3
"""Prints the largest classes, functions and files of src/, cuda/ and the C++ of bindings/, for a reviewer to read.

    scripts/print_sizes.py [COUNT]      the COUNT (12) largest of each

A class that holds much state and does much with it is often two; a long function, several. No limit is enforced: cutting
one class over several files makes the files short and the class no clearer.
A function extends from the line on which its head begins to its closing brace, with everything defined inside. A class
counts the functions and fields that it declares itself, public and private, not those of classes inside it.
Generated tables (*.inc) are left out. Standard library only.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["src", "cuda", "bindings"]
ENDINGS = {".h", ".cc", ".c", ".cu", ".cuh"}

# Comments, strings and directives with their continuation lines are blanked; line ends are kept.
BLANKED = re.compile(r'''//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'(?![\w])
                         |^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*''', re.S | re.X | re.M)
# A constructor's ": a_{..}": the braces are those of a member, not of the body.
INITIALIZED_MEMBER = re.compile(r"\)[\s\w]*:(?!:)(?:.*[\s,:>])?\w+$", re.S)
SCOPE = re.compile(r"\b(?:namespace|struct|class|union|enum|extern)\b[^()]*$|\bextern\b\s*$")
TYPE = re.compile(r"^(?:template\b.*)?\s*(?:typedef\s+)?(?:struct|class|union|enum)\b(?!.*\)\s*(?:const|noexcept|override|->.*)?\s*$)", re.S)
CLASS = re.compile(r"(?:^|[;{}>\s])(?:struct|class)\s+(?:\[\[\w+\]\]\s*)?(\w+(?:::\w+)*)(?:\s+final)?(?:\s*:(?!:)[^;(){}]*)?\s*$", re.S)
ACCESS = re.compile(r"^\s*(?:public|private|protected)\s*:")
NOT_MEMBERS = re.compile(r"^(?:using|typedef|friend|static_assert|template\s*<[^;]*>\s*(?:class|struct|friend)|enum|struct\s+\w+\s*$|class\s+\w+\s*$)\b")


def blanked(text):
    return BLANKED.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def functions(text):
    """(name, first line, lines) of every function that the text defines outside of functions."""
    text = blanked(text)
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


def _angles_removed(text):
    """Template arguments hold commas and parentheses that are not the declaration's."""
    while True:
        shorter = re.sub(r"<[^<>]*>", "", text)
        if shorter == text:
            return text
        text = shorter


def _count(body):
    """(functions, fields) that a class body declares itself."""
    depth, flat, closed_function = 0, [], False
    for mark in re.finditer(r"[{}]|[^{}]+", body):
        part = mark.group()
        if part == "{":
            depth += 1
        elif part == "}":
            depth -= 1
            if depth == 0:
                flat.append("\0")
        elif depth == 0:
            flat.append(part)
    # A body's end closes a function's declaration; after a field's or a type's braces a semicolon follows.
    text = re.sub(r"\0\s*;", ";", re.sub(r"\0(?!\s*[;,.\[])", ";", "".join(flat)))
    methods = fields = 0
    for statement in text.replace("\0", "").split(";"):
        statement = ACCESS.sub("", statement.strip()).strip()
        while ACCESS.match(statement):
            statement = ACCESS.sub("", statement).strip()
        if not statement or NOT_MEMBERS.match(statement):
            continue
        plain = _angles_removed(re.sub(r"\boperator\s*\S+?\s*(?=\()", "operator_", statement))
        head = re.split(r"=(?!=)", plain, maxsplit=1)[0]
        if re.search(r"\balignas\s*\([^)]*\)|\[\[.*?\]\]", head):
            head = re.sub(r"\balignas\s*\([^)]*\)|\[\[.*?\]\]", "", head)
        if "(" in head:
            methods += 1
        elif re.match(r"^(?:struct|class|union)\b.*\b\w+$", head, re.S) is None or "," in head:
            fields += 1 + head.count(",")
    return methods, fields


def classes(text):
    """(name, line, functions, fields) of every class and struct that the text defines."""
    text = blanked(text)
    found, open_braces = [], []
    begin = 0
    for mark in re.finditer(r"[{};]", text):
        if mark.group() == "{":
            name = CLASS.search(text[begin:mark.start()])
            open_braces.append((name.group(1) if name and "(" not in _angles_removed(text[begin:mark.start()]) else None, mark.end()))
        elif mark.group() == "}" and open_braces:
            name, start = open_braces.pop()
            if name is not None:
                methods, fields = _count(text[start:mark.start()])
                found.append((name, text.count("\n", 0, start) + 1, methods, fields))
        begin = mark.end()
    return found


def files():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in ENDINGS:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def main(count=12):
    tree = list(files())
    print("classes: functions, fields")
    rows = [(methods, fields, f"{file}:{line}", name) for file, text in tree for name, line, methods, fields in classes(text)]
    for methods, fields, place, name in sorted(rows, key=lambda row: (-row[0] - row[1], row[2]))[:count]:
        print(f"  {methods:4} {fields:4}  {name}  ({place})")
    print("functions: lines")
    rows = [(lines, f"{file}:{line}", name) for file, text in tree for name, line, lines in functions(text)]
    for lines, place, name in sorted(rows, key=lambda row: (-row[0], row[1]))[:count]:
        print(f"  {lines:4}  {name}  ({place})")
    print("files: lines")
    for lines, file in sorted(((text.count("\n"), file) for file, text in tree), key=lambda row: (-row[0], row[1]))[:count]:
        print(f"  {lines:4}  {file}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
