#!/usr/bin/env python3
"""Prints what came out of a job about pages: some questions and answers, and how many are right.

    report.py DIR      DIR holds what draw.py wrote, and answers.jsonl

Standard library only.
"""

import json
import sys
from pathlib import Path

SHOWN = 3  # pages

folder = Path(sys.argv[1])
expected, answered = ([json.loads(line) for line in (folder / name).read_text().splitlines()] for name in ("expected.jsonl", "answers.jsonl"))
answers = {row["id"]: f"({row['error']['message']})" if "error" in row else row["text"] for row in answered}
pages = list(dict.fromkeys(row["page"] for row in expected))
for page in pages[:SHOWN]:
    print(f"\n{page}, a picture")
    for row in expected:
        if row["page"] == page:
            print(f"    {row['question']}  ->  {answers[row['id']]}")
right = sum(answers[row["id"]] == row["expected"] for row in expected)
print(f"\npages: {right} of {len(expected)} answers right, {100 * right / len(expected):.2f} %")
