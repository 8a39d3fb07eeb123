#!/usr/bin/env python3
"""add.py FILE ..: adds the choices of tuning caches to the files of this folder, one for each version of cuBLASLt and kind of device."""
import pathlib
import re
import sys

FIRST_LINE = "batchllm tuning 4\n"


def sum_of(text):
    """FNV-1a, as linear/tuning_cache.cc has it."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"end {value:016x}\n"


def read(path):
    """(stamp, {key: candidate}); ends with an error if the file is not whole."""
    text = path.read_text()
    body = text[:text.rfind("end ")]
    if not body.startswith(FIRST_LINE) or text != body + sum_of(body):
        sys.exit(f"{path}: torn, or not a tuning cache of this version")
    _, stamp, *lines = body.splitlines()
    return stamp, {tuple(map(int, line.split()[:6])): int(line.split()[6]) for line in lines}


def main():
    here = pathlib.Path(__file__).resolve().parent
    for path in map(pathlib.Path, sys.argv[1:]):
        stamp, choices = read(path)
        kept = here / (re.sub(r"[^A-Za-z0-9.]", "-", stamp) + ".txt")
        before = read(kept)[1] if kept.exists() else {}
        both = {**before, **choices}
        body = f"{FIRST_LINE}{stamp}\n" + "".join(" ".join(map(str, key)) + f" {both[key]}\n" for key in sorted(both))
        kept.write_text(body + sum_of(body))
        print(f"{kept.name}: {len(both)} choices, {len(both) - len(before)} of them new")


if __name__ == "__main__":
    main()
