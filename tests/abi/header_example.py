#!/usr/bin/env python3
"""Writes the complete program that opens a public header to a file of its own. Usage: header_example.py HEADER OUT"""
import pathlib
import sys

header, output = map(pathlib.Path, sys.argv[1:3])
lines = []
for line in header.read_text().splitlines():
    text = line[3:] if line.startswith((" * ", "// ")) else ""
    inside = bool(lines) and lines[-1] != "}"
    if text in ("    #include <batchllm.h>", "    #include <batchllm/handles.h>") or inside:
        lines.append(text[4:])
if not lines or lines[-1] != "}" or len(lines) > 40:
    sys.exit(f"{header}: no example of 40 lines or fewer that ends with a brace: {len(lines)} lines")
output.write_text("\n".join(lines) + "\n")
