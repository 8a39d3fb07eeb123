"""The program `batchllm` of a wheel: the console script of the same name runs it in its own place."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    program = Path(__file__).resolve().with_name("batchllm")
    try:
        os.execv(program, ["batchllm", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{program}: {error.strerror}: this package was built without the program")
