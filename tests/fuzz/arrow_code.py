#!/usr/bin/env python3
"""The C code of the SWIG files that read Arrow, without SWIG. Usage: arrow_code.py OUT FILE.i.."""

import pathlib
import re
import sys

code = []
for path in sys.argv[2:]:
    text = pathlib.Path(path).read_text()
    # What %{ .. %} and %inline %{ .. %} hold; not %init's, which stands in a function.
    code += re.findall(r"^(?:%inline )?%\{\n(.*?)^%\}", text, re.MULTILINE | re.DOTALL)
pathlib.Path(sys.argv[1]).write_text("".join(code))
