#!/usr/bin/env python3
"""Rows sampled from a random model under ten schemas: is each a text that PyPI's jsonschema accepts?

    python3 tests/structured/valid_rows.py --program build/src/cli/batchllm --rows 10000

Every row that ends by itself must be a value of its schema; a row cut by max_tokens must say so and have that many
tokens. At temperature 1.5, a model with random weights only produces JSON because of the constraint. Half the rows have
flexible white space and members in any order. Needs jsonschema; exits with 77 without it.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

try:
    from validate import fault_of, validator_of
except ImportError:
    print("skipped: jsonschema is not installed (scripts/setup --tests)")
    sys.exit(77)
from random_model import make_random_model  # noqa: E402

MAX_TOKENS = 160


def obj(properties, required=None, **more):
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required,
            "additionalProperties": False, **more}


SCHEMAS = {
    "record": obj({"name": {"type": "string", "minLength": 1, "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
                   "email": {"type": "string", "format": "email", "maxLength": 30}, "active": {"type": "boolean"}}),
    "labels": {"type": "array", "items": {"enum": ["billing", "bill", "spam", "urgent", "Zoë", None, 3]}, "minItems": 1,
               "maxItems": 5, "uniqueItems": True},
    "numbers": obj({"price": {"type": "number", "exclusiveMinimum": 0, "maximum": 99.5, "multipleOf": 0.25},
                    "offset": {"type": "number", "minimum": -3.5, "exclusiveMaximum": 12}, "even": {"type": "integer", "multipleOf": 2, "minimum": -40, "maximum": 40}}),
    "formats": obj({"day": {"type": "string", "format": "date"}, "id": {"type": "string", "format": "uuid"},
                    "host": {"type": "string", "format": "ipv4"}, "plate": {"type": "string", "pattern": "^[A-Z]{1,3}-\\d{1,4}(E|H)?$"}}),
    "tree": {"$ref": "#/$defs/node", "$defs": {"node": obj({"value": {"enum": [0, 1]}, "left": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
                                                            "right": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}})}},
    "shape": {"oneOf": [obj({"kind": {"const": "circle"}, "radius": {"type": "integer", "minimum": 1, "maximum": 99}}),
                        obj({"kind": {"const": "box"}, "sides": {"type": "array", "prefixItems": [{"type": "integer", "minimum": 1, "maximum": 9},
                                                                                                  {"type": "integer", "minimum": 1, "maximum": 9}],
                                                                 "items": False, "minItems": 2}})]},
    "dependent": obj({"card": {"type": "string", "pattern": "^[0-9]{4}$"}, "expires": {"type": "string", "pattern": "^(0[1-9]|1[0-2])/[0-9]{2}$"},
                      "country": {"enum": ["DE", "FR"]}, "postcode": {"type": "string", "pattern": "^[0-9]{5}$"}}, ["country"],
                     dependentRequired={"card": ["expires"]}, **{"if": {"properties": {"country": {"const": "DE"}}}, "then": {"required": ["postcode"]}}),
    "free names": {"type": "object", "patternProperties": {"^x_": {"type": "integer", "minimum": 0, "maximum": 9}},
                   "additionalProperties": {"type": "boolean"}, "propertyNames": {"maxLength": 8}, "maxProperties": 4},
    "contains": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 20}, "contains": {"minimum": 10}, "minContains": 1,
                 "maxContains": 2, "maxItems": 6},
    "answer": {"allOf": [{"type": "object", "properties": {"reason": {"type": "string", "maxLength": 40}}, "required": ["reason", "verdict"]},
                         obj({"reason": True, "verdict": {"type": "string", "enum": ["yes", "no", "unknown"]}, "sure": {"type": "number", "minimum": 0, "maximum": 1}},
                             ["verdict"])]},
}


def rows_of(names, count, seed):
    return [{"id": i, "prompt": f"Row {i // 7} of the job {seed}:", "json_schema": SCHEMAS[names[i % len(names)]], "temperature": 1.5,
             "seed": seed + i, "max_tokens": MAX_TOKENS} for i in range(count)]


def run(program, model, folder, rows, options):
    """[output rows] of a job that ends without row errors."""
    source, answers = Path(folder) / "rows.jsonl", Path(folder) / "answers.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [program, "run", "--model", model, "--input", source, "--output", answers, "--force", "--progress", "none", *options]
    subprocess.run([str(part) for part in command], check=True)
    return [json.loads(line) for line in answers.read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default=os.environ.get("BATCHLLM_PROGRAM"))
    parser.add_argument("--rows", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("BATCHLLM_TEST_SEED", 1)))
    arguments = parser.parse_args()
    names = list(SCHEMAS)
    validators = {name: validator_of(schema) for name, schema in SCHEMAS.items()}
    valid, cut, faults = collections.Counter(), collections.Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        make_random_model(Path(folder) / "model", arguments.seed)
        rows = rows_of(names, arguments.rows, arguments.seed)
        half = len(rows) // 2
        for part, options in ((rows[:half], []), (rows[half:], ["--flexible-whitespace", "--any-member-order"])):
            found = run(arguments.program, Path(folder) / "model", folder, part, options)
            if sorted(row["id"] for row in found) != [row["id"] for row in part]:
                faults.append("not every row has one answer")
            for row in found:
                name = names[row["id"] % len(names)]
                if row["finish_reason"] == "length" and len(row["tokens"]) == MAX_TOKENS:
                    cut[name] += 1
                    continue
                fault = fault_of(validators[name], row["text"]) if row["finish_reason"] == "stop" else f"ended by {row['finish_reason']}"
                if fault:
                    faults.append(f"row {row['id']}, {name}: {fault}: {row['text']!r}")
                else:
                    valid[name] += 1
    for name in names:
        print(f"{name:12} {valid[name]:6} valid, {cut[name]:5} cut by max_tokens")
    print(f"{sum(valid.values())} of {arguments.rows} rows valid, {sum(cut.values())} cut, {len(faults)} wrong (seed {arguments.seed})")
    for fault in faults[:20]:
        print(fault)
    # If nearly all rows were cut, nothing would have been tested.
    if faults or any(valid[name] < arguments.rows // len(names) // 4 for name in names):
        sys.exit(1)


if __name__ == "__main__":
    main()
