#!/usr/bin/env python3
"""The catalogue as a table whose fields stand in any order: what reordering them saves, and what it does to the answers.

    fields.py --program build/src/cli/batchllm --rows 600

A row is a question on a record, and a record is four fields: its opening, its data, its text and what it says of other
products. The prompt is one line for each field and one for the question. The orders are: as the model was trained (the
question last), a few drawn at random, and the same with --fields reorder. Rows come in random order. Runs alternate, so
that a machine that is busy meanwhile slows all of them. Standard library only.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from generate import job, write_lines  # noqa: E402

FIELDS = ("opening", "data", "text", "others", "question")
LABELS = {"opening": "Product", "data": "Data", "text": "More", "others": "Others", "question": "Question"}


def table(seed, rows):
    """(rows of columns, answers by id)."""
    inputs, expected = job("held-out", seed, {"extraction": rows})
    made = []
    for row in inputs:
        record, question = row["prompt"].rsplit("\n\nQuestion: ", 1)
        parts = record.split("\n\n", 3)
        parts += ["-"] * (4 - len(parts))
        columns = dict(zip(FIELDS, (*(" ".join(part.split("\n")) for part in parts), question.removesuffix("\nAnswer:"))))
        made.append({"id": row["id"], **columns})
    random.Random(f"rows/{seed}").shuffle(made)
    return made, {row["id"]: row["expected"] for row in expected}


def template(order):
    return "".join(f"{LABELS[name]}: {{{name}}}\n" for name in order) + "Answer:"


def run(arguments, folder, order, reorder):
    """(seconds, saving ratio, share of right answers)."""
    out, stats = folder / "out.jsonl", folder / "stats.json"
    begun = time.perf_counter()
    subprocess.run(
        [arguments.program, "run", "--model", arguments.model, "--backend", "cpu", "--input", folder / "rows.jsonl",
         "--output", out, "--stats", stats, "--force", "--template", template(order), "--progress", "none", "--max-tokens", "32",
         "--fields", "reorder" if reorder else "given"],
        check=True, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    answers = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    right = sum(row["text"].strip().split("\n")[0] == arguments.expected[row["id"]] for row in answers)
    return seconds, json.loads(stats.read_text())["saving_ratio"], right / len(answers)


def mean(values):
    return sum(values) / len(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/src/cli/batchllm")
    parser.add_argument("--model", default=pathlib.Path(__file__).resolve().parent / "model")
    parser.add_argument("--seed", default="7")
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--orders", type=int, default=4, help="drawn at random")
    parser.add_argument("--repeats", type=int, default=1, help="of each run; the fastest counts")
    arguments = parser.parse_args()
    rows, arguments.expected = table(arguments.seed, arguments.rows)
    draw = random.Random(f"fields/{arguments.seed}")
    orders = [FIELDS] + [tuple(draw.sample(FIELDS, len(FIELDS))) for _ in range(arguments.orders)]
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_lines(folder / "rows.jsonl", rows)
        for _ in range(arguments.repeats):
            for order in orders:
                for reorder in (False, True):
                    found.setdefault((order, reorder), []).append(run(arguments, folder, order, reorder))
    print(f"{'fields':42s} {'':9s} {'seconds':>8s} {'rows/s':>8s} {'saved':>7s} {'right':>7s}")
    sums = {}
    for (order, reorder), runs in found.items():
        seconds, saved, right = min(run[0] for run in runs), runs[0][1], runs[0][2]
        kind = "reordered" if reorder else "given"
        print(f"{' '.join(order):42s} {kind:9s} {seconds:8.1f} {len(rows) / seconds:8.1f} {saved:7.1%} {right:7.2%}")
        if order != FIELDS:
            sums.setdefault(kind, []).append((seconds, saved, right))
    if "given" in sums:
        given, moved = ([mean(column) for column in zip(*sums[kind])] for kind in ("given", "reordered"))
        print(f"orders drawn at random, means: reordering {given[0] / moved[0]:.2f} times as fast, saves {moved[1]:.1%} for {given[1]:.1%}, "
              f"{moved[2]:.2%} right for {given[2]:.2%}")  # fmt: skip


if __name__ == "__main__":
    main()
