#!/usr/bin/env python3
"""The public functions are the same everywhere: declared in the header, listed in the version script and in
symbols.txt (committed: a symbol is never removed), exported by the library, which exports nothing else, and called by a
test. handles.h closes every handle. Usage: symbols.py HEADER VERSION_SCRIPT SYMBOLS_TXT LIBRARY TEST_SOURCE.."""
import pathlib
import re
import subprocess
import sys


def main():
    header, script, committed, library = sys.argv[1:5]
    tests = "\n".join(pathlib.Path(path).read_text() for path in sys.argv[5:])
    listed = set(pathlib.Path(committed).read_text().split())
    exported = set()
    for line in subprocess.run(["nm", "-D", "--defined-only", library], check=True,
                               capture_output=True, text=True).stdout.splitlines():
        name, _, version = line.split()[-1].partition("@@")
        if line.split()[-2] != "A":  # the symbol of the version itself
            exported.add((name, version))
    text = re.sub(r"/\*.*?\*/", "", pathlib.Path(header).read_text(), flags=re.S)
    others = {
        "declared in the header": set(re.findall(r"BATCHLLM_API[^;(]*?(batchllm_\w+)\(", text)),
        "in the version script": set(re.findall(r"(batchllm_\w+);", pathlib.Path(script).read_text())),
        "exported by the library": {name for name, _ in exported},
        "called by a test": {name for name in listed if re.search(rf"\b{name}\(", tests)},
    }
    failed = False
    handles = (pathlib.Path(header).parent / "batchllm/handles.h").read_text()
    for name in sorted(listed):
        if name.endswith(("_destroy", "_free")) and f"{name}(" not in handles:
            print(f"{name}: not called by handles.h")
            failed = True
    for where, names in others.items():
        for name in sorted(listed - names):
            print(f"{name}: in symbols.txt, but not {where}")
            failed = True
        for name in sorted(names - listed):
            print(f"{name}: {where}, but not in symbols.txt")
            failed = True
    for name, version in sorted(exported):
        if not version:
            print(f"{name}: exported without a version")
            failed = True
    return 1 if failed else 0


sys.exit(main())
