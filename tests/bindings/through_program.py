#!/usr/bin/env python3
"""The job of make_job.py through the program. Usage: through_program.py MODEL_DIRECTORY INPUT.jsonl OUTPUT, with
BATCHLLM_PROGRAM naming the program."""

import json
import os
import subprocess
import sys
import tempfile

model, job, output = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    rows = os.path.join(folder, "rows.jsonl")
    subprocess.run([os.environ["BATCHLLM_PROGRAM"], "run", "--model", model, "--input", job, "--output", rows, "--progress", "none"],
                   check=True)
    with open(rows, encoding="utf-8") as lines:
        tokens = {row["id"]: row["tokens"] for row in map(json.loads, lines)}
with open(output, "w", encoding="utf-8") as out:
    for row in range(1, len(tokens) + 1):
        out.write(" ".join(map(str, tokens[row])) + "\n")
