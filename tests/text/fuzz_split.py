#!/usr/bin/env python3
"""Compares how Split cuts texts with Hugging Face tokenizers, with random regular expressions and published ones.

    pip install tokenizers
    ninja -C build tests/split_records
    tests/text/fuzz_split.py --build build [--expressions 2000] [--texts 40] [--seed 1]

The pieces must be the same, for each behavior. Exits with 1 at the first difference. Expressions that this library
refuses, or that the reference finds invalid, are counted.
"""
import argparse
import collections
import json
import os
import random
import struct
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RUST_BACKTRACE"] = "0"
from tokenizers import Regex  # noqa: E402
from tokenizers.pre_tokenizers import Split  # noqa: E402

import sample_text  # noqa: E402

BEHAVIORS = {"Isolated": "isolated", "Removed": "removed", "MergedWithPrevious": "merged_with_previous",
             "MergedWithNext": "merged_with_next", "Contiguous": "contiguous"}
# As they stand in published files; some have several steps, of which each is tried alone.
PUBLISHED = [
    r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    "[\r\n]", r"\s+$", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve"
    r"|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re"
    r"|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    r"(?=(\d{3})+(?!\d))", r"[0-9][0-9][0-9]", r"\w+|[^\w\s]+", r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
    r" ?[^(\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+", r"\d{1,3}(?=(?:\d{3})*\b)",
]
ATOMS = ["a", "b", "A", "s", "'", " ", "1", "\\.", "\u00e9", "\u4e2d", ".", r"\s", r"\S", r"\d", r"\D", r"\w", r"\W", r"\p{L}", r"\p{N}", r"\p{P}", r"\p{S}",
         r"\p{M}", r"\p{Lu}", r"\p{Ll}", r"\p{^L}", r"\P{N}", r"\p{Han}", r"\p{Hiragana}", r"\p{hangul}", r"\p{Latin}", r"\h", r"\n", r"\r", r"[\r\n]", "[a-c]", "[^a]",
         r"[^\s\p{L}]", r"[\p{L}&&[^a-m]]", r"[a-z&&[^s]\d]", r"[[a-c]x]", "[-a]", "[a-]", r"[\w-]", r"[^\p{N}&&\S]", "x", "\\x41", "\\u00e9", "\\x{4e2d}", "\\t", "[a-&&b]", r"[.-&&\W]",
         "[:;]", "[a&&A]", "[s]", r"\x73", "t", "f", "i", "(?#\\)a)"]
EMPTY = ["^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z", "(?=a)", r"(?!\S)", r"(?=\d{2})", "(?!ab|b)", r"(?=\p{L}+\s)", ""]
COUNTS = ["", "", "", "", "?", "*", "+", "??", "*?", "+?", "?+", "*+", "++", "{2}", "{1,3}", "{2,}", "{,2}", "{1,3}?", "{2}+", "{1,2}+", "{2}?", "{2,2}?", "{1,1}?", "??+", "+?+", "+{2}", "{1}"]


def expression(generator, depth=0):
    """A random one."""
    branches = []
    for _ in range(generator.choice([1, 1, 2, 3])):
        parts = []
        for _ in range(generator.choice([1, 2, 3])):
            kind = generator.random()
            if kind < 0.12:
                parts.append(generator.choice(EMPTY))
                continue
            if kind < 0.35 and depth < 3:
                start = generator.choice(["(", "(?:", "(?:", "(?i:", "(?>", "(?m:", "(?="])
                inner = start + expression(generator, depth + 1) + ")"
                parts.append(inner if start == "(?=" else inner + generator.choice(COUNTS))
                continue
            parts.append(generator.choice(ATOMS) + generator.choice(COUNTS))
        branches.append("".join(parts))
    return "|".join(branches)


def text(generator):
    """A random one of what the atoms tell apart."""
    if generator.random() < 0.2:
        return sample_text.hostile(generator, ["<s>"]) or "a"
    if generator.random() < 0.02:
        return "".join(generator.choice("ab") for _ in range(400))
    alphabet = generator.choice(["ab", "sStf\u00df\ufb01\ufb06 i", "j\u030c\u01f0\u2167\u2177\u0345a", "abc 1", "a1.\n", "sStTkK\u017f\u212a' ", "a\u00e9\u4e2d\u3042\uac00 1x", "aA1 \n\r\t'.,\u0301\u00b2\u2167\u3000\u00a0_-", "123456789 a"])
    return "".join(generator.choice(alphabet) for _ in range(generator.randint(1, 24)))


def reference_pieces(reference, one):
    """Their sizes in bytes; None if the reference panics, as it does when it has turned back too often."""
    try:
        return [len(piece.encode()) for piece, _ in reference.pre_tokenize_str(one)]
    except BaseException as error:  # a panic in Rust is not an Exception
        if "panic" not in type(error).__name__.lower():
            raise
        return None


def run_library(program, cases):
    """[(pre-tokenizer, texts)] -> [(why it is refused, pieces of each text)]"""
    record = lambda data: struct.pack("<I", len(data)) + data  # noqa: E731
    sent = b"".join(record(json.dumps(part).encode()) + b"".join(record(one.encode()) for one in texts) + record(b"")
                    for part, texts in cases)
    done = subprocess.run([program], input=sent, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"{program} failed")
    at = 0

    def number():
        nonlocal at
        at += 4
        return struct.unpack_from("<I", done.stdout, at - 4)[0]

    for _, texts in cases:
        size = number()
        why, at = done.stdout[at:at + size].decode(), at + size
        yield why, [[number() for _ in range(number())] for _ in texts]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--expressions", type=int, default=2000)
    parser.add_argument("--texts", type=int, default=40, help="for each expression")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    program = os.path.join(arguments.build, "tests", "split_records")
    refused, invalid, compared = collections.Counter(), 0, 0
    expressions = PUBLISHED + [expression(generator) for _ in range(arguments.expressions)]
    for first in range(0, len(expressions), 100):
        cases, references = [], []
        for regex in expressions[first:first + 100]:
            behavior, invert = generator.choice(list(BEHAVIORS)), generator.random() < 0.3
            if regex in PUBLISHED:
                behavior, invert = "Isolated", False
            try:
                reference = Split(Regex(regex), BEHAVIORS[behavior], invert)
            except Exception:  # noqa: BLE001
                invalid += 1
                continue
            part = {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}
            cases.append((part, [text(generator) for _ in range(arguments.texts)]))
            references.append(reference)
        for (part, texts), reference, (why, found) in zip(cases, references, run_library(program, cases)):
            if why:
                if part["pattern"]["Regex"] in PUBLISHED:
                    sys.exit(f"refused: {why}")
                refused[why.rpartition(": ")[2]] += 1
                continue
            for one, pieces in zip(texts, found):
                wanted = reference_pieces(reference, one)
                if wanted is None:
                    continue
                if pieces != wanted:
                    print(f"{json.dumps(part)}\ntext     {ascii(one)}\nexpected {wanted}\ngot      {pieces}", file=sys.stderr)
                    sys.exit(1)
                compared += 1
    print(f"{compared} texts equal, seed {arguments.seed}; {invalid} expressions invalid, refused: {dict(refused.most_common())}")


if __name__ == "__main__":
    main()
