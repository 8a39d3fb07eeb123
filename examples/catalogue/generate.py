#!/usr/bin/env python3
"""Writes a catalogue as a job for `batchllm run`, and the answers it should give.

    generate.py --seed 7 --rows 500 --output rows.jsonl --expected expected.jsonl

Rows of one document share its text as their prefix. Input rows: id, prompt, max_tokens; with --score,
ranking rows have the continuations to score in place of max_tokens. Expected rows: id, task, about, expected,
prefix_characters. Equal options give equal files, on any machine. Standard library only.
"""

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from documents import extraction, ranking  # noqa: E402
from vocabulary import SPLITS, Vocabulary, generator  # noqa: E402

MAX_TOKENS = {"extraction": 32, "ranking": 2}


def documents(split, seed, task, low=150, high=1200, questions=24, products=16):
    """Endless documents of one task; the same for equal arguments."""
    vocabulary = Vocabulary(split)
    index = 0
    while True:
        rng = generator(split, f"{seed}/{task}", index)
        if task == "extraction":
            # By magnitude, so that short records are not rare.
            yield extraction(vocabulary, rng, int(low * (high / low) ** rng.random()), questions)
        else:
            yield ranking(vocabulary, rng, products)
        index += 1


def job(split, seed, rows_by_task, **options):
    """(input rows, expected rows) with exactly the number of rows asked for of each task."""
    inputs, expected = [], []
    for task, wanted in rows_by_task.items():
        if not wanted:
            continue
        made = 0
        for number, document in enumerate(documents(split, seed, task, **options)):
            for order, row in enumerate(document.rows[: wanted - made]):
                name = f"{task}-{number:05}-{order:02}"
                inputs.append({"id": name, "prompt": document.prefix + row.own, "max_tokens": MAX_TOKENS[task]})
                expected.append(
                    {"id": name, "task": task, "about": row.about, "expected": row.answer, "prefix_characters": len(document.prefix)}
                )
            made += len(document.rows)
            if made >= wanted:
                break
    return inputs, expected


def write_lines(path, rows):
    with open(path, "w", encoding="utf-8") if path != "-" else sys.stdout as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", default="1", help="any text; default 1")
    parser.add_argument("--split", choices=SPLITS, default="held-out", help="vocabulary of names and values")
    parser.add_argument("--task", choices=("both", "extraction", "ranking"), default="both")
    parser.add_argument("--rows", type=int, default=500, help="rows in all; of both tasks, three in five are extraction")
    parser.add_argument("--questions", type=int, default=24, help="most questions on one record, from 4")
    parser.add_argument("--products", type=int, default=16, help="products for each request")
    parser.add_argument("--min-tokens", type=int, default=150, help="shortest record, roughly")
    parser.add_argument("--max-tokens", type=int, default=1200, help="longest record, roughly")
    parser.add_argument("--shuffle", action="store_true", help="rows in random order, not document by document")
    parser.add_argument("--score", action="store_true", help="ranking rows ask for the scores of yes and no, not for an answer")
    parser.add_argument("--output", default="-", help="input rows of the job; default standard output")
    parser.add_argument("--expected", help="expected answers")
    arguments = parser.parse_args()

    asked = {"extraction": arguments.rows, "ranking": arguments.rows}
    if arguments.task == "both":
        asked["extraction"] = arguments.rows * 3 // 5
        asked["ranking"] = arguments.rows - asked["extraction"]
    else:
        asked = {arguments.task: arguments.rows}
    inputs, expected = job(
        arguments.split, arguments.seed, asked, low=arguments.min_tokens, high=arguments.max_tokens,
        questions=arguments.questions, products=arguments.products,
    )
    if arguments.score:
        for row in inputs:
            if row["id"].startswith("ranking"):
                row["score"] = [" yes", " no"]
                del row["max_tokens"]
    if arguments.shuffle:
        random.Random(f"shuffle/{arguments.seed}").shuffle(inputs)
    write_lines(arguments.output, inputs)
    if arguments.expected:
        write_lines(arguments.expected, expected)


if __name__ == "__main__":
    main()
