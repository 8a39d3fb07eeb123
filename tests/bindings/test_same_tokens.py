#!/usr/bin/env python3
"""A job gives the same tokens through every interface that can run it.

Usage: test_same_tokens.py ROWS NAME=COMMAND.. with each command's words parted by '|'. It is called with a model
directory (BATCHLLM_TEXT_MODEL), the job and a file for the tokens, as make_job.py says.
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import make_job


def check_structured(reference, rows):
    """Checks rows with a schema; a token of this model is a byte. Returns how many such rows there are."""
    found = 0
    for row, line in zip(make_job.job(rows), reference):
        if "json_schema" not in row:
            continue
        value = json.loads(bytes(map(int, line.split())))
        kind = make_job.SCHEMAS.index(row["json_schema"])
        good = (
            isinstance(value, dict) and value["wort"] in make_job.WORDS and isinstance(value["ja"], bool)
            and -5 <= value.get("ganz", 0) <= 120 if kind == 0
            else 1 <= len(value) <= 3 and all(re.fullmatch("[a-zä]{1,4}", item) for item in value) if kind == 1
            else value == {"nichts": None} or bool(datetime.date.fromisoformat(value))
        )
        assert good, f"row {row['id']}: {value!r} is not of {row['json_schema']}"
        found += 1
    return found


def main():
    rows, runners = sys.argv[1], [runner.split("=", 1) for runner in sys.argv[2:]]
    here = pathlib.Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        job = pathlib.Path(folder) / "job.jsonl"
        subprocess.run([sys.executable, here / "make_job.py", rows, job], check=True)
        outputs = {}
        for name, command in runners:
            output = pathlib.Path(folder) / name
            subprocess.run([*command.split("|"), os.environ["BATCHLLM_TEXT_MODEL"], job, output], check=True)
            outputs[name] = output.read_text().splitlines()
    reference_name, reference = next(iter(outputs.items()))
    assert len(reference) == int(rows) and all(reference), f"{reference_name}: a row without tokens"
    assert len(set(reference)) > int(rows) // 4, "the rows hardly differ: the test would see nothing"
    for name, found in outputs.items():
        assert len(found) == len(reference), f"{name}: {len(found)} rows"
        wrong = [i for i, (mine, other) in enumerate(zip(found, reference)) if mine != other]
        assert not wrong, f"{name}: {len(wrong)} rows differ from {reference_name}'s, the first is {wrong[0]}:\n" \
            f"  {found[wrong[0]]}\n  {reference[wrong[0]]}"
    structured = check_structured(reference, int(rows))
    print(f"{rows} rows, {structured} of them JSON, {sum(len(row.split()) for row in reference)} tokens, the same through {', '.join(outputs)}")


main()
