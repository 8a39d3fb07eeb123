#!/usr/bin/env python3
"""The library's ABI against the committed dump, by libabigail: what a program compiled against an older header
relies on must not change. Usage: abi.py LIBRARY HEADER_DIRECTORY DUMP FROZEN|--update

Additions are compatible: they are shown, and need --update (tests/abi/README.md). FROZEN: the folder with a folder for each published version
(scripts/freeze), whose functions and fields must all be there as they were. If abidw or abidiff is missing, the
test is skipped. abidiff checks struct fields; header_values.c checks the values of macros."""
import gzip
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

SKIPPED = 77
INCOMPATIBLE = 8  # abidiff's bit for a change that breaks a program; 4 is any change


def dump(library, headers, output):
    subprocess.run(["abidw", "--headers-dir", headers, "--drop-private-types",
                    "--exported-interfaces-only", "--no-corpus-path",
                    "--no-comp-dir-path", "--no-show-locs", "--no-elf-needed", "--no-architecture",
                    "--type-id-style", "hash", "--out-file", output, library], check=True)
    text = pathlib.Path(output).read_text()
    # Differs between compilers, but is not part of the interface.
    text = re.sub(r" comp-dir-path='[^']*'", "", text)
    text = re.sub(r" path='[^']*(src/api/[^']*)'", r" path='\1'", text)
    pathlib.Path(output).write_text(text)


def interface(data):
    """Of a dump: the types of each function, and the place and type of each field. An identifier is the hash of its type's name."""
    root, found = xml.etree.ElementTree.fromstring(data), {}
    for function in root.iter("function-decl"):
        if function.get("elf-symbol-id"):
            found[function.get("name")] = [type.get("type-id") for type in function]
    for struct in root.iter("class-decl"):
        for member in struct.iter("data-member"):
            field = member.find("var-decl")
            found[f"{struct.get('name')}.{field.get('name')}"] = [member.get("layout-offset-in-bits"), field.get("type-id")]
    return found


def main():
    library, headers, committed, frozen = sys.argv[1:5]
    if shutil.which("abidw") is None or shutil.which("abidiff") is None:
        print("abidw or abidiff is not installed (Debian: abigail-tools)")
        return SKIPPED
    if frozen == "--update":
        dump(library, headers, committed)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        fresh = directory + "/fresh.abi"
        dump(library, headers, fresh)
        compared = subprocess.run(["abidiff", "--no-added-syms", committed, fresh],
                                  capture_output=True, text=True)
        print(compared.stdout, compared.stderr)
        if compared.returncode & INCOMPATIBLE or compared.returncode & 3:
            return 1
        if compared.returncode != 0:
            print("changed: compatible additions are committed with abi.py --update")
            return 1
        now = interface(pathlib.Path(fresh).read_bytes())
        dumps = sorted(pathlib.Path(frozen).glob("*/batchllm.abi.gz"))
        if not dumps:
            print(f"{frozen}: no version's batchllm.abi.gz is there")
            return 1
        for path in dumps:
            before = interface(gzip.decompress(path.read_bytes()))
            changed = [name for name, what in before.items() if now.get(name) != what]
            if changed or not before:
                print(f"{path}: not as in that version: {', '.join(changed)}")
                return 1
    return 0


sys.exit(main())
