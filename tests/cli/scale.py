"""A long input on the simulated backend: prints the program's peak memory and its rate.

    python3 tests/cli/scale.py [--rows 2000000] [--limit-mib 2048]

Exits with 1 if the peak is above the limit or a row has no result. The input is written to a temporary folder (about
300 bytes per row) and removed. Not part of the quick tests.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from program import PROGRAM  # noqa: E402


def write_input(path, rows, sharing):
    with open(path, "w", encoding="ascii") as file:
        prefix = ""
        for i in range(rows):
            # Digits to base 1,000 make every prefix and every row differ: none is computed twice.
            if i % sharing == 0:
                prefix = ",".join(str((i // 1000 ** (j % 3) + j) % 1000) for j in range(48))
            own = ",".join(str((i // 1000 ** (j % 3) + 7 * j) % 1000) for j in range(12))
            file.write('{"id":%d,"tokens":[%s,%s]}\n' % (i, prefix, own))


def check_output(path, rows):
    seen = bytearray(rows)
    with open(path, "rb") as file:
        for line in file:
            row = json.loads(line)
            if seen[row["id"]] or row["finish_reason"] == "error":
                return "two results for row %d, or an error" % row["id"]
            seen[row["id"]] = 1
    missing = rows - sum(seen)
    return "%d rows without a result" % missing if missing else None


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rows", type=int, default=2000000)
    arguments.add_argument("--sharing", type=int, default=8)
    arguments.add_argument("--limit-mib", type=int, default=2048)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="batchllm-scale-") as directory:
        source = pathlib.Path(directory) / "in.jsonl"
        output = pathlib.Path(directory) / "out.jsonl"
        write_input(source, options.rows, options.sharing)
        print("input: %d rows, %.0f MiB" % (options.rows, source.stat().st_size / 2**20),
              flush=True)
        start = time.monotonic()
        child = subprocess.Popen(
            [PROGRAM, "run", "--backend", "sim", "--backend-options",
             "vocabulary=1000,eos_token=999,min_length=1,max_length=8", "--step-tokens", "8192",
             "-i", str(source), "-o", str(output)])
        _, status, usage = os.wait4(child.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - start
        peak = usage.ru_maxrss / 1024
        print("exit %d, %.0f s, %.0f rows/s, peak %.0f MiB" %
              (code, seconds, options.rows / seconds, peak))
        fault = check_output(output, options.rows) if code == 0 else "exit code %d" % code
        if fault is None and peak > options.limit_mib:
            fault = "more than %d MiB" % options.limit_mib
    if fault is not None:
        print("FAILED: " + fault)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
