#!/usr/bin/env python3
"""Writes the job that every binding runs: rows of text with prefixes shared by a few, many and no rows, a fifth of them
sampled, a ninth of them JSON of a schema. Usage: make_job.py ROWS OUTPUT.jsonl

Lines have "id" (the line's number, from 1), "prompt", "max_tokens" and, if sampled, "temperature" and "seed"; some have
"json_schema" as the last key. A runner takes MODEL_DIRECTORY, INPUT.jsonl and OUTPUT, and writes a line for each row,
in the order of the input: the generated token ids, separated by spaces. It uses ids as tags, like the program, since a
row's tag determines its random numbers.
"""

import json
import random
import sys

WORDS = "river stone lamp winter copper cloud märz tide über garden seven north glass paper orange".split()


SCHEMAS = [
    {"type": "object", "properties": {"wort": {"enum": WORDS}, "ganz": {"type": "integer", "minimum": -5, "maximum": 120},
                                      "ja": {"type": "boolean"}}, "required": ["wort", "ja"], "additionalProperties": False},
    {"type": "array", "items": {"type": "string", "pattern": "^[a-zä]{1,4}$"}, "minItems": 1, "maxItems": 3},
    {"anyOf": [{"const": {"nichts": None}}, {"type": "string", "format": "date"}]},
]  # fmt: skip


def job(rows, seed=1):
    draw = random.Random(seed)
    documents = [" ".join(draw.choices(WORDS, k=draw.randrange(5, 25))) for _ in range(max(1, rows // 12))]
    for i in range(rows):
        # The first document has many rows; every seventh row shares nothing.
        document = documents[0] if i % 3 == 0 else draw.choice(documents)
        own = " ".join(draw.choices(WORDS, k=draw.randrange(1, 8)))
        row = {"id": i + 1, "prompt": f"{i} {own}" if i % 7 == 0 else f"{document}. {own} {i % 50}?",
               "max_tokens": draw.randrange(1, 13)}
        if i % 5 == 0:
            row["temperature"] = 0.8
            row["seed"] = draw.randrange(1 << 31)
        if i % 9 == 4:
            row["max_tokens"] = 90
            row["json_schema"] = SCHEMAS[i // 9 % len(SCHEMAS)]
        yield row


if __name__ == "__main__":
    with open(sys.argv[2], "w", encoding="utf-8") as out:
        for line in job(int(sys.argv[1])):
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
