#!/usr/bin/env python3
"""Compares this library's tokenizer with Hugging Face tokenizers on random strings.

    pip install tokenizers
    ninja -C build tests/tokenize_records
    tests/text/fuzz_tokenizer.py --build build [--strings 20000] [--seed 1] [--only llama3] [--unicode]

Ids, decoded text and decoded text without special tokens must be equal, for each tokenizer beside
this file, with special tokens added or not, and parsed or not. Exits with 1 at the first difference.
--unicode goes through every code point instead, in a few contexts each, with the tokenizers that use
the classes in different ways. It takes minutes.
"""
import argparse
import os
import random
import struct
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402

import sample_text  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))

UNICODE_TOKENIZERS = ["digits", "gpt2", "qwen2"]


def batches(items, size):
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def run_library(program, path, cases):
    """[(options, text)] -> [(ids, decoded, decoded without special)]"""
    sent = b"".join(struct.pack("<II", options, len(data)) + data
                    for options, data in ((o, t.encode()) for o, t in cases))
    done = subprocess.run([program, path], input=sent, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"{program} failed on {path}")
    at = 0

    def take_text():
        nonlocal at
        size, = struct.unpack_from("<I", done.stdout, at)
        at += 4 + size
        return done.stdout[at - size:at].decode()

    for _ in cases:
        count, = struct.unpack_from("<I", done.stdout, at)
        at += 4
        if count == 2 ** 32 - 1:
            yield None, take_text(), ""
            continue
        ids = list(struct.unpack_from(f"<{count}i", done.stdout, at))
        at += 4 * count
        yield ids, take_text(), take_text()


def every_code_point():
    points = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
    for first in range(0, len(points), 64):
        characters = [chr(p) for p in points[first:first + 64]]
        yield 2, "".join(c + "a" for c in characters)
        yield 2, "".join(c + " " for c in characters)
        yield 2, "".join("1" + c + c + "'" for c in characters)
        yield 2, "".join("e\u0323" + c + "\u0301" for c in characters)
        yield 2, "".join(c + "dog" + c + "[WORD]" for c in characters)
        yield 2, "".join(c + "<both>" + c for c in characters)


def random_cases(count, specials, generator):
    for _ in range(count):
        yield generator.randrange(4), sample_text.hostile(generator, specials)


def compare(program, name, cases):
    path = os.path.join(HERE, name, "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tested = 0
    for batch in batches(cases, 5000):
        for (options, text), got in zip(batch, run_library(program, path, batch)):
            tokenizer.encode_special_tokens = not options & 2
            ids = tokenizer.encode(text, add_special_tokens=bool(options & 1)).ids
            wanted = (ids, tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids))
            if tuple(got) != wanted:
                print(f"{name}: options {options}, text {ascii(text)[:300]}", file=sys.stderr)
                print(f"expected {ascii(wanted)[:1000]}", file=sys.stderr)
                print(f"got      {ascii(got)[:1000]}", file=sys.stderr)
                sys.exit(1)
            tested += 1
    return tested


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--strings", type=int, default=20000, help="for each tokenizer")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", help="name of one tokenizer")
    parser.add_argument("--unicode", action="store_true")
    arguments = parser.parse_args()
    program = os.path.join(arguments.build, "tests", "tokenize_records")
    names = sorted(name for name in os.listdir(HERE)
                   if os.path.exists(os.path.join(HERE, name, "tokenizer.json")))
    total = 0
    for name in names:
        if arguments.only not in (None, name):
            continue
        if arguments.unicode and not arguments.only and name not in UNICODE_TOKENIZERS:
            continue
        tokenizer = Tokenizer.from_file(os.path.join(HERE, name, "tokenizer.json"))
        specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
        specials += ["<0x41>", "<unk>"]
        generator = random.Random(f"{name} {arguments.seed}")
        cases = every_code_point() if arguments.unicode else \
            random_cases(arguments.strings, specials, generator)
        start = time.time()
        tested = compare(program, name, cases)
        total += tested
        print(f"{name}: {tested} strings equal, {time.time() - start:.1f} s", flush=True)
    print(f"{total} strings equal, seed {arguments.seed}")


if __name__ == "__main__":
    main()
