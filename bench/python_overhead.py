#!/usr/bin/env python3
"""What Python costs beyond C: the same columns of tokens through `columns` (bench/columns.c) and through the package, on
the sim backend. Compares wall time, peak memory and native calls.

    PYTHONPATH=build/bindings/python bench/python_overhead.py build/bench/columns --rows 200000 --length 500 --rounds 3

Time is the least of the rounds, which alternate. --check: fails if the limits below are exceeded.
"""

import sys

sys.path.pop(0)  # this folder's tokenize.py would hide Python's

import argparse  # noqa: E402
import os  # noqa: E402
import pathlib  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402

TIME_LIMIT = 1.10
MEMORY_LIMIT = 1.5  # times the columns, beyond C's
CALLS_LIMIT = 1000  # plus some for each slice of 50 ms


def run_python(path, length):
    """Runs the job in this process: seconds, peak kilobytes, results, tokens, native calls."""
    import resource
    import time
    from array import array

    import batchllm
    from batchllm import native

    tokens = array("i")
    size = os.path.getsize(path) // tokens.itemsize
    with open(path, "rb") as data:
        tokens.fromfile(data, size)
    offsets = array("q", range(0, size + 1, length))
    with batchllm.Engine(backend="sim", step_tokens=8192) as engine:
        before = native.batchllm_calls()
        start = time.perf_counter()
        results = engine.generate(batchllm.Tokens(tokens, offsets), batchllm.SamplingParams(max_tokens=8))
        seconds = time.perf_counter() - start
        calls = native.batchllm_calls() - before
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"{seconds:.4f} {peak} {len(results)} {len(results.tokens)} {calls}")


def measure(command):
    return [float(word) for word in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("columns", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--length", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokens")
        subprocess.run([options.columns, "write", path, str(options.rows), str(options.length)], check=True)
        c, python = [], []
        for _ in range(options.rounds):
            c.append(measure([options.columns, "run", path, str(options.length)]))
            python.append(measure([sys.executable, __file__, "--one", path, str(options.length)]))
    column_mib = options.rows * (options.length * 4 + 8) / 2**20
    c_seconds, python_seconds = min(run[0] for run in c), min(run[0] for run in python)
    extra = (max(run[1] for run in python) - max(run[1] for run in c)) / 1024
    calls = max(run[4] for run in python)
    print(f"{options.rows} rows of {options.length} tokens, columns of {column_mib:.0f} MiB")
    print(f"C       {c_seconds:8.3f} s  {max(run[1] for run in c) / 1024:8.0f} MiB")
    print(f"Python  {python_seconds:8.3f} s  {max(run[1] for run in python) / 1024:8.0f} MiB  {calls:.0f} native calls")
    print(f"time {python_seconds / c_seconds:.3f} times C's; memory beyond C's: {extra / column_mib:.2f} times the columns")
    if options.check:
        assert all(run[2:4] == c[0][2:4] for run in c + python), "not the same results"
        assert python_seconds < options.time_limit * c_seconds, "time"
        assert extra < MEMORY_LIMIT * column_mib, "memory"
        assert calls < CALLS_LIMIT + 50 * python_seconds / 0.05, "native calls"


if sys.argv[1:2] == ["--one"]:
    run_python(sys.argv[2], int(sys.argv[3]))
else:
    main()
