#!/usr/bin/env python3
"""Writes a C++ header with a hash of what libbatchllm.so and libbatchllm_cuda.so must have in common: the given headers, all
that they include of this tree, and the compiler.

    interface_hash.py OUTPUT DEPFILE COMPILER HEADER FOLDER...

HEADER is found in the FOLDERs, as what it includes is. DEPFILE, in make's syntax, names every file that was read.
"""
import hashlib
import re
import sys
from pathlib import Path

INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)


def headers_of(name, folders):
    """{name: (path, bytes)} of the header and all that it includes from the folders."""
    found = {}
    waiting = [name]
    while waiting:
        name = waiting.pop()
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if name in found or path is None:
            continue
        found[name] = path, path.read_bytes()
        waiting += [included.decode() for included in INCLUDE.findall(found[name][1])]
    return found


def hash_of(compiler, headers):
    digest = hashlib.sha256(compiler.encode())
    for name in sorted(headers):
        content = headers[name][1]
        digest.update(f"\n{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def main(output, depfile, compiler, header, *folders):
    headers = headers_of(header, [Path(folder) for folder in folders])
    if header not in headers:
        sys.exit(f"{header} is in none of {', '.join(folders)}")
    Path(output).write_text("// Made by interface_hash.py.\n#pragma once\n\n"
                            f"#define BATCHLLM_INTERFACE_HASH 0x{hash_of(compiler, headers)}u\n")
    paths = " ".join(str(path).replace(" ", "\\ ") for path, _ in headers.values())
    Path(depfile).write_text(f"{output}: {paths}\n")


if __name__ == "__main__":
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    main(*sys.argv[1:])
