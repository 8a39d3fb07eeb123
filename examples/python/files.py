"""A Parquet file with a column of texts -> the same with answers as columns of a schema, a report, and one line about it
all. An interrupted job goes on where it was. Usage: files.py MODEL_DIRECTORY IN.parquet OUT.parquet"""

import sys

import batchllm

SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["praise", "complaint"]}}, "required": ["kind"], "additionalProperties": False}

model, source, target = sys.argv[1:]
params = batchllm.SamplingParams(max_tokens=64, json_schema=SCHEMA)
done = batchllm.run_files(
    model, source, target, template="Review: {text}\nAs JSON: ", params=params, parsed=True, columns=["id"], report=target + ".html", resume=True
)
print(done.summary or f"{done.rows} rows were done before")
