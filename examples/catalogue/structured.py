#!/usr/bin/env python3
"""The catalogue's structured job: each record becomes a JSON object of its own schema, in one row.

    structured.py --program build/src/cli/batchllm --seed 7 --records 100
    structured.py --program build/src/cli/batchllm --compare 3      and against free text of the same lengths

A member of the object is an attribute that is asked for; its value is the question and one of the values that were
found in the record. The model was never trained on JSON: the constraint writes it, question and all, and the model
chooses the values. Each text is checked by jsonschema (PyPI's, or Debian's python3-jsonschema); where that is not
installed only the values are. Exits with 1 if any text is wrong, or fewer values than --at-least percent are right.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from evaluate import read_lines  # noqa: E402
from generate import documents, write_lines  # noqa: E402

MODEL = Path(__file__).resolve().parent / "model"
MAX_TOKENS = 600  # more than any object here has


def schema_of(document):
    """An object with a member for each question: the question, and one of the record's values as its answer."""
    values = sorted({row.answer for row in document.rows})
    members = {row.about: {"enum": [f"{row.own} {value}" for value in values]} for row in document.rows}
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


def job(seed, records, questions=6):
    """(input rows, {id: {attribute: the value that is right}})"""
    inputs, expected = [], {}
    for number, document in enumerate(itertools.islice(documents("held-out", seed, "extraction", questions=questions), records)):
        name = f"record-{number:05}"
        inputs.append({"id": name, "prompt": document.prefix, "json_schema": schema_of(document), "max_tokens": MAX_TOKENS})
        expected[name] = {row.about: row.answer for row in document.rows}
    return inputs, expected


def free_rows(inputs, outputs):
    """The same prompts without a constraint, each to generate as many tokens as its object has."""
    lengths = {row["id"]: row["usage"]["completion_tokens"] for row in outputs}
    return [{"id": row["id"], "prompt": row["prompt"], "max_tokens": lengths[row["id"]], "ignore_eos": True} for row in inputs]


def run(program, folder, rows, options):
    """([output rows], stats)"""
    write_lines(folder / "rows.jsonl", rows)
    command = [program, "run", "--model", MODEL, "--input", folder / "rows.jsonl", "--output", folder / "out.jsonl", "--force",
               "--progress", "none", "--stats", folder / "stats.json", *options]
    subprocess.run([str(part) for part in command], check=True)
    return read_lines(folder / "out.jsonl"), json.loads((folder / "stats.json").read_text())


def faults_of(inputs, outputs):
    """What jsonschema has against the texts; None where it is not installed."""
    try:
        import jsonschema
    except ImportError:
        return None
    schemas = {row["id"]: row["json_schema"] for row in inputs}
    faults = []
    for row in outputs:
        try:
            if row["finish_reason"] != "stop":
                raise ValueError(f"ended by {row['finish_reason']}")
            jsonschema.Draft202012Validator(schemas[row["id"]]).validate(json.loads(row["text"]))
        except (ValueError, jsonschema.ValidationError) as fault:
            faults.append(f"{row['id']}: {fault}: {row['text']!r}")
    return faults


def right_values(expected, outputs):
    """(values that are right, values)"""
    right = 0
    for row in outputs:
        try:
            found = json.loads(row["text"])
        except ValueError:
            continue
        right += sum(found[about].endswith(f"Answer: {value}") for about, value in expected[row["id"]].items())
    return right, sum(len(values) for values in expected.values())


def compare(program, folder, inputs, outputs, options, rounds):
    """Prints how fast the objects are made beside free text of their lengths; returns the ratio, a median."""
    free = free_rows(inputs, outputs)
    ratios = []
    for _ in range(rounds):
        _, of_free = run(program, folder, free, options)
        _, of_objects = run(program, folder, inputs, options)
        assert of_free["completion_tokens"] == of_objects["completion_tokens"]
        seconds = [stats["seconds"]["total"] - stats["seconds"]["load"] for stats in (of_free, of_objects)]  # compiling included
        ratios.append(seconds[0] / seconds[1])
        for name, stats, took in zip(("free", "objects"), (of_free, of_objects), seconds):
            print(f"  {name + ':':9}{len(inputs) / took:7.1f} rows a second, {stats['completion_tokens']} tokens "
                  f"in {stats['steps']} steps")
    print(f"rate of the objects: {statistics.median(ratios):.2f} times that of free text of the same lengths (median of {rounds})")
    return statistics.median(ratios)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--seed", default="7", help="any text")
    parser.add_argument("--records", type=int, default=100)
    parser.add_argument("--questions", type=int, default=6, help="most members of an object, from 4")
    parser.add_argument("--compare", type=int, default=0, metavar="ROUNDS", help="against free text of the same lengths")
    parser.add_argument("--must-check", action="store_true", help="leave with 77 where jsonschema is not installed")
    parser.add_argument("--at-least", type=float, default=0, metavar="PERCENT", help="values that must be right")
    arguments, options = parser.parse_known_args()  # others are the program's

    inputs, expected = job(arguments.seed, arguments.records, arguments.questions)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        outputs, stats = run(arguments.program, folder, inputs, options)
        first = next(row for row in outputs if row["id"] == inputs[0]["id"])
        print("A record's object:")
        for about, value in json.loads(first["text"]).items():
            print(f"  {about}: {value!r}")
        faults = faults_of(inputs, outputs)
        if faults is None and arguments.must_check:
            print("skipped: jsonschema is not installed (scripts/setup --tests)")
            sys.exit(77)
        right, values = right_values(expected, outputs)
        valid = "not checked (jsonschema is not installed)" if faults is None else f"{len(outputs) - len(faults)} valid by jsonschema"
        print(f"{len(outputs)} objects, each of its own schema, {valid}; {right} of {values} values right, {100 * right / values:.1f} %; "
              f"{stats['completion_tokens']} tokens in {stats['steps']} steps")
        for fault in (faults or [])[:10]:
            print(fault)
        if arguments.compare:
            compare(arguments.program, folder, inputs, outputs, options, arguments.compare)
    if faults or len(outputs) != len(inputs) or 100 * right < arguments.at_least * values:
        sys.exit(1)


if __name__ == "__main__":
    main()
