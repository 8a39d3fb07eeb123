#!/usr/bin/env python3
"""The job of make_job.py through the Python package. Usage: through_python.py MODEL_DIRECTORY INPUT.jsonl OUTPUT"""

import json
import sys

import batchllm

model, job, output = sys.argv[1:]
with open(job, encoding="utf-8") as lines:
    rows = [json.loads(line) for line in lines]
params = [
    batchllm.SamplingParams(
        max_tokens=row["max_tokens"],
        temperature=row.get("temperature", 0.0),
        seed=row.get("seed", 0),
        json_schema=row.get("json_schema"),
    )
    for row in rows
]
with batchllm.Engine(model) as engine:
    results = engine.generate([row["prompt"] for row in rows], params, on_error="raise", first_row=1)
with open(output, "w", encoding="utf-8") as out:
    for result in results:
        out.write(" ".join(map(str, result.tokens)) + "\n")
