#!/usr/bin/env python3
"""The C code of the SWIG files that read Arrow, without SWIG. Usage: arrow_code.py OUT FILE.i.."""

import pathlib
import re
import sys

folder = pathlib.Path(sys.argv[2]).parent


def read(path):
    """A file's text, with each %include replaced by the text of that file."""
    return re.sub(r'^%include "(arrow_.*)"$', lambda found: read(folder / found[1]), pathlib.Path(path).read_text(), flags=re.MULTILINE)


code = []
for path in sys.argv[2:]:
    text = read(path)
    # The contents of %{ .. %} and %inline %{ .. %}, but not of %init, which is inside a function.
    code += re.findall(r"^(?:%inline )?%\{\n(.*?)^%\}", text, re.MULTILINE | re.DOTALL)
pathlib.Path(sys.argv[1]).write_text("".join(code))
