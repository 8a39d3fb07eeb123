#!/usr/bin/env python3
"""Makes tests/text/chat/golden.jsonl: what transformers renders from the templates beside it. These are this project's
own, in the style of published ones. Needs PyPI's transformers and jinja2.
Usage: make_chat_golden.py  (from anywhere)

A line is {"template", "conversation", "prompt", "text"}; without "text", the template or transformers rejects the
conversation."""
import json
import pathlib
import random
import sys

TEXT = pathlib.Path(__file__).resolve().parent.parent / "tests/text"
sys.path.insert(0, str(TEXT))
import chat_reference  # noqa: E402


def main():
    with open(TEXT / "chat/golden.jsonl", "w") as out:
        for path in sorted((TEXT / "chat").glob("*.jinja")):
            template = path.read_text()
            rng = random.Random(f"20261122 {path.stem}")
            for _ in range(24):
                conversation = chat_reference.conversation(rng, chat_reference.TAKES_PARTS.get(path.stem))
                prompt = rng.random() < 0.8
                text, _ = chat_reference.reference(template, conversation, prompt)
                line = {"template": path.stem, "conversation": conversation, "prompt": prompt}
                if text is not None:
                    line["text"] = text
                out.write(json.dumps(line) + "\n")


main()
