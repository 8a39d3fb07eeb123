"""Any number of short rows through the program on the simulated backend, from a pipe into a pipe, without files on
disk. Prints the program's resident memory during the job, and exits with 1 if it grows or a row does not have exactly
one result.

    python3 tests/cli/stream.py [--rows 100000000]
"""

import argparse
import os
import re
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from program import PROGRAM  # noqa: E402

LOOKS = 20


def write_rows(pipe, rows):
    """Groups of eight rows share five tokens; each row has three of its own. Base-1,000 digits make all rows
    distinct."""
    block, prefix = [], ""
    for i in range(rows):
        a, b, c = i // 1000000, i // 1000 % 1000, i % 1000
        if i % 8 == 0:
            prefix = f"{c},{b},{a % 1000},7,9"
        block.append(f'{{"id":{i},"tokens":[{prefix},{c},{b},{a % 1000}]}}\n')
        if len(block) == 10000:
            pipe.write("".join(block).encode())
            block.clear()
    pipe.write("".join(block).encode())
    pipe.close()


def resident_mib(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rows", type=int, default=100000000)
    rows = arguments.parse_args().rows
    start = time.monotonic()
    child = subprocess.Popen(
        [PROGRAM, "run", "--backend", "sim", "--backend-options", "vocabulary=1000,eos_token=999,min_length=1,max_length=4",
         "--step-tokens", "8192", "--max-tokens", "4", "--progress", "none", "-i", "-", "-o", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    writer = threading.Thread(target=write_rows, args=(child.stdin, rows), daemon=True)
    writer.start()
    seen = bytearray(rows)
    done, fault, memory = 0, None, []
    number = re.compile(rb'^\{"id":(\d+),')
    for line in child.stdout:
        i = int(number.match(line)[1])
        if seen[i] or b'"finish_reason":"error"' in line:
            fault = f"row {i}: a second result, or an error"
        seen[i] = 1
        done += 1
        if done % max(1, rows // LOOKS) == 0 and done < rows:
            memory.append(resident_mib(child.pid))
            print(f"{done:,} rows, {time.monotonic() - start:.0f} s, {memory[-1]:.0f} MiB", file=sys.stderr, flush=True)
    code = child.wait()
    seconds = time.monotonic() - start
    if code != 0:
        fault = f"exit code {code}"
    elif done != rows:
        fault = f"{rows - done} rows without a result"
    # After a tenth of the job, memory must not grow any more.
    early = max(memory[:LOOKS // 5])
    late = max(memory[LOOKS // 5:])
    if fault is None and late > 1.1 * early + 16:
        fault = f"memory grows: {early:.0f} MiB, {late:.0f} MiB"
    print(f"rows through the program: {rows} rows, {seconds:.0f} s, {early:.0f} MiB after a fifth, {late:.0f} MiB at most later")
    if fault is not None:
        print("FAILED rows through the program: " + fault)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
