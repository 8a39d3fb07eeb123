#!/usr/bin/env python3
"""Prints what came out of a catalogue job: a few records with questions and answers, what sharing saved,
rows a second, accuracy.

    report.py DIR [--seed TEXT]     DIR holds rows.jsonl, expected.jsonl, answers.jsonl, stats.json

Standard library only.
"""

import argparse
import json
import textwrap
from pathlib import Path

from evaluate import read_lines, tell


def show(title, rows, answers, prefix_characters, count):
    prefix = rows[0]["prompt"][:prefix_characters]
    print(f"\n{title}")
    print(textwrap.indent(textwrap.shorten(prefix, 420, placeholder=" ..."), "  "))
    for row in rows[:count]:
        own = " ".join(row["prompt"][prefix_characters:].split())
        print(f"    {textwrap.shorten(own, 100, placeholder=' ...')}  ->  {answers[row['id']].strip()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", default="")
    arguments = parser.parse_args()
    rows = read_lines(arguments.directory / "rows.jsonl")
    expected = {row["id"]: row for row in read_lines(arguments.directory / "expected.jsonl")}
    answers = {row["id"]: row.get("text") or "" for row in read_lines(arguments.directory / "answers.jsonl")}
    stats = json.loads((arguments.directory / "stats.json").read_text())

    documents = {}  # rows of one document share its text
    for row in rows:
        task = expected[row["id"]]["task"]
        prefix = row["prompt"][: expected[row["id"]]["prefix_characters"]]
        documents.setdefault((task, prefix), []).append(row)
    shown = {"extraction": 2, "ranking": 1}
    for (task, prefix), members in documents.items():
        if shown[task]:
            shown[task] -= 1
            title = "A record, and questions about it:" if task == "extraction" else "A request, and products checked against it:"
            show(title, members, answers, len(prefix), 4)

    seconds = stats["seconds"]["total"]
    print(f"\n{len(rows)} rows over {len(documents)} documents (seed {arguments.seed}) in {seconds:.1f} s: "
          f"{len(rows) / seconds:.0f} rows a second")
    print(f"prompt tokens: {stats['logical_prompt_tokens']:,}, of which computed: {stats['processed_prompt_tokens']:,} "
          f"({100 * stats['saving_ratio']:.1f} % saved by sharing)")
    tell(list(expected.values()), answers)


if __name__ == "__main__":
    main()
