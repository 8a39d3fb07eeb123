#!/usr/bin/env python3
"""How many answers are right.

    evaluate.py score --expected expected.jsonl --output out.jsonl      what batchllm wrote; standard library only
    evaluate.py model DIR --rows 500 --seed 7 --dtype float32           a model directory, by transformers
    evaluate.py sample DIR --output sample.json                         transformers' greedy answers, for the tests

Of a scored row the likelier of yes and no is the answer. An answer is right when it equals the expected one, white space around it apart. The sample holds, for
each of 100 held-out rows, the prompt, transformers' greedy tokens in float32, their text, and for each
token by how much its logit is above the next likeliest: where that is tiny, either token is right.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from generate import job  # noqa: E402

LENGTHS = ((1100, "short"), (2200, "middling"), (10**9, "long"))  # characters of the shared prefix


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def tell(expected, answers, show=0, stream=None):
    """Prints the share of right answers by task and length of the prefix; returns {task: share}.
    `answers` is {id: text}; a row without one counts as wrong."""
    stream = stream or sys.stdout
    shares = {}
    for task in ("extraction", "ranking"):
        rows = [row for row in expected if row["task"] == task]
        if not rows:
            continue
        wrong = [row for row in rows if (answers.get(row["id"]) or "").strip() != row["expected"]]
        shares[task] = 1 - len(wrong) / len(rows)
        line = f"{task}: {len(rows) - len(wrong)} of {len(rows)} right, {100 * shares[task]:.2f} %"
        if task == "extraction":
            parts, low = [], 0
            for high, name in LENGTHS:
                count = sum(low < row["prefix_characters"] <= high for row in rows)
                missed = sum(low < row["prefix_characters"] <= high for row in wrong)
                if count:
                    parts.append(f"{name} records {100 * (1 - missed / count):.2f} % of {count}")
                low = high
            line += f" ({', '.join(parts)})"
        print(line, file=stream)
        for row in wrong[:show]:
            print(f"  {row['id']} ({row['about']}): {answers.get(row['id'])!r}, not {row['expected']!r}", file=stream)
    return shares


def score(arguments):
    answers = {}
    for row in read_lines(arguments.output):
        scores = row.get("scores")  # of yes and no, in this order
        answers[row["id"]] = row.get("text") if not scores else "yes" if scores[0] > scores[1] else "no"
    shares = tell(read_lines(arguments.expected), answers, arguments.show)
    wanted = {"extraction": arguments.at_least_extraction, "ranking": arguments.at_least_ranking}
    low = [task for task, share in shares.items() if 100 * share < wanted[task]]
    if low or not shares:
        sys.exit(f"below what was asked for: {', '.join(low) or 'no rows'}")


class Reference:
    """transformers, greedy, one row after another: slow and simple."""

    def __init__(self, directory, dtype):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
        self.ends = {self.model.generation_config.eos_token_id}

    def answer(self, prompt, max_tokens):
        """(prompt tokens, tokens with the end token, margins of the top logit over the next)"""
        torch = self.torch
        ids = self.tokenizer(prompt, add_special_tokens=False).input_ids
        prompt_tokens, tokens, margins = list(ids), [], []
        past = None
        with torch.no_grad():
            while len(tokens) < max_tokens:
                out = self.model(torch.tensor([ids]), past_key_values=past, use_cache=True)
                past = out.past_key_values
                top = out.logits[0, -1].float().topk(2)
                tokens.append(int(top.indices[0]))
                margins.append(float(top.values[0] - top.values[1]))
                ids = tokens[-1:]
                if tokens[-1] in self.ends:
                    break
        return prompt_tokens, tokens, margins

    def text(self, tokens):
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


def rows_of(arguments, **options):
    extraction = arguments.rows * 3 // 5
    return job(arguments.split, arguments.seed, {"extraction": extraction, "ranking": arguments.rows - extraction}, **options)


def model(arguments):
    reference = Reference(arguments.directory, arguments.dtype)
    inputs, expected = rows_of(arguments)
    answers = {}
    for row in inputs:
        _, tokens, _ = reference.answer(row["prompt"], row["max_tokens"])
        answers[row["id"]] = reference.text(tokens)
    tell(expected, answers, arguments.show)


def sample(arguments):
    import torch
    import transformers

    reference = Reference(arguments.directory, "float32")
    inputs, expected = rows_of(arguments, questions=5)  # few on a record, so that many records fit a small file
    rows = []
    for row, right in zip(inputs, expected):
        prompt_tokens, tokens, margins = reference.answer(row["prompt"], row["max_tokens"])
        rows.append(
            {
                "id": row["id"], "prompt": row["prompt"], "prompt_tokens": len(prompt_tokens), "max_tokens": row["max_tokens"],
                "expected": right["expected"], "text": reference.text(tokens), "tokens": tokens, "margins": [round(m, 4) for m in margins],
            }  # fmt: skip
        )
    made = f"evaluate.py sample, seed {arguments.seed}, transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, float32, CPU"
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    Path(arguments.output).write_text(f'{{"made_by": {json.dumps(made)}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{sum(row['text'].strip() == row['expected'] for row in rows)} of {len(rows)} right, "
          f"smallest margin {min(min(row['margins']) for row in rows)}")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("score", help="what batchllm wrote, against the expected answers")
    command.add_argument("--expected", required=True)
    command.add_argument("--output", required=True)
    command.add_argument("--at-least-extraction", type=float, default=0, metavar="PERCENT", help="else exit with 1")
    command.add_argument("--at-least-ranking", type=float, default=0, metavar="PERCENT")
    command.set_defaults(run=score)
    for name, run, rows, seed in (("model", model, 500, "7"), ("sample", sample, 100, "sample")):
        command = commands.add_parser(name, help=run.__doc__)
        command.add_argument("directory")
        command.add_argument("--rows", type=int, default=rows)
        command.add_argument("--seed", default=seed)
        command.add_argument("--split", default="held-out")
        command.set_defaults(run=run)
        if name == "model":
            command.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
        else:
            command.add_argument("--output", required=True)
    for command in commands.choices.values():
        command.add_argument("--show", type=int, default=0, help="so many wrong answers of each task")
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
