#!/usr/bin/env python3
"""Compares this library's tokenizer with Hugging Face tokenizers on random strings.

    pip install tokenizers
    ninja -C build tests/tokenize_records
    tests/text/fuzz_tokenizer.py --build build [--strings 20000] [--seed 1] [--only llama3] [--unicode]

Ids, decoded text and decoded text without special tokens must be equal, for each tokenizer beside
this file, with special tokens added or not, and parsed or not; and random ids must decode alike. Exits with 1 at the
first difference.
--configurations N makes N tokenizers of random parts instead, with 200 strings each; those that this library rejects,
or on which the reference fails, are counted.
--unicode tries every code point instead, in a few contexts each, with the tokenizers that use the classes in different
ways. This takes minutes.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RUST_BACKTRACE"] = "0"
from tokenizers import Tokenizer  # noqa: E402

import make_golden  # noqa: E402
import sample_text  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))

UNICODE_TOKENIZERS = ["digits", "gpt2", "qwen2", "qwen3_5", "o200k", "tekken", "seed", "deepseek", "kimi"]


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
                    for options, data in ((o, struct.pack(f"<{len(t)}i", *t) if o & 4
                                           else t.encode()) for o, t in cases))
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
        yield 2, "".join("A" + c + "Bb" + c + "c" for c in characters)
        yield 2, "".join("e\u0323" + c + "\u0301" for c in characters)
        yield 2, "".join(c + "dog" + c + "[WORD]" for c in characters)
        yield 2, "".join(c + "<both>" + c for c in characters)


def random_cases(count, specials, vocabulary, generator):
    """One in eight is a list of ids to decode, the others are texts."""
    for _ in range(count):
        if generator.randrange(8) == 0:
            yield 4, sample_text.token_ids(generator, vocabulary)
            continue
        yield generator.randrange(4), sample_text.hostile(generator, specials)


def reference(tokenizer, options, text):
    """What the library must return; None if the reference panics."""
    try:
        return make_golden.expected(tokenizer, options, text)
    except BaseException as error:  # a panic in Rust is not an Exception
        if "panic" not in type(error).__name__.lower() and not isinstance(error, Exception):
            raise
        return None


def compare(program, name, path, cases):
    tokenizer = Tokenizer.from_file(path)
    tested = 0
    for batch in batches(cases, 5000):
        for (options, text), got in zip(batch, run_library(program, path, batch)):
            wanted = reference(tokenizer, options, text)
            if wanted is None:
                continue
            if tuple(got) != wanted:
                print(f"{name}\noptions {options}, text {ascii(text)[:300]}", file=sys.stderr)
                print(f"expected {ascii(wanted)[:1000]}", file=sys.stderr)
                print(f"got      {ascii(got)[:1000]}", file=sys.stderr)
                sys.exit(1)
            tested += 1
    return tested


def random_file(generator):
    """A tokenizer.json of random parts, as a dictionary."""
    pick = generator.choice
    flag = lambda: generator.random() < 0.5  # noqa: E731
    byte_level = flag()
    name = pick(["llama3", "qwen2", "gpt2", "digits", "o200k"] if byte_level else
                ["llama2", "metaspace", "metaspace_split", "gemma"])
    with open(os.path.join(HERE, name, "tokenizer.json"), encoding="utf-8") as file:
        data = json.load(file)
    size = len(data["model"]["vocab"])
    data["model"].update(ignore_merges=flag(), fuse_unk=flag(), byte_fallback=flag(),
                         unk_token=pick([None, "t", "<unk>" if not byte_level else "e", "<absent>"]))
    data["added_tokens"] = []
    for content in generator.sample(["<s>", "</s>", "<x>", "<x>y", "the", "  ", "\u2581", "\u00e9",
                                     "e\u0301a", "<|end|>", "ab c", " b", "\n", "dog"], 5):
        known = data["model"]["vocab"].get(content)
        data["added_tokens"].append({
            "id": size if known is None else known, "content": content, "single_word": flag(),
            "lstrip": flag(), "rstrip": flag(), "normalized": flag(), "special": flag()})
        size += known is None
    data["post_processor"] = None
    part = {"nfc": {"type": "NFC"},
            "prepend": {"type": "Prepend", "prepend": pick(["\u2581", "x "])},
            "replace": {"type": "Replace", "pattern": {"String": pick([" ", "  ", "the", "a"])},
                        "content": pick(["\u2581", "", "xy", " "])}}
    data["normalizer"] = pick([None, part["nfc"], part["prepend"], part["replace"], {
        "type": "Sequence", "normalizers": [part[n] for n in generator.sample(sorted(part), 2)]}])
    behavior = pick([("Isolated", False), ("Isolated", True), ("Removed", True)])
    splits = [{"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior[0],
               "invert": behavior[1]}
              for regex in (make_golden.LLAMA3, make_golden.QWEN2, make_golden.CL100K,
                            make_golden.GPT2, make_golden.QWEN3_5, make_golden.SEED,
                            make_golden.LING, make_golden.O200K, make_golden.TEKKEN, make_golden.KIMI,
                            *make_golden.DEEPSEEK)]
    splits += [{"type": "Split", "pattern": {"String": pick([" ", "the", "e", "aa", "\u2581", "\n"])},
                "behavior": name, "invert": flag()}
               for name in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                            "Contiguous")]
    numbers = {"type": "Digits", "individual_digits": flag()}
    metaspace = {"type": "Metaspace", "replacement": pick("\u2581_"),
                 "prepend_scheme": pick(["always", "first", "never"]), "split": flag()}
    steps = pick([[], [pick(splits)], [numbers], [pick(splits), numbers],
                  [pick(splits), pick(splits)]])
    if byte_level:
        steps.append({"type": "ByteLevel", "add_prefix_space": flag(), "trim_offsets": flag(),
                      "use_regex": flag()})
    elif flag():
        steps.insert(generator.randint(0, len(steps)), metaspace)
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps} if steps else None
    decoders = [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Replace", "pattern": {"String": pick(["\u2581", "the", "aa", "  "])},
                 "content": pick([" ", "", "aa"])},
                {"type": "Strip", "content": pick(" \u2581t"), "start": pick([0, 1, 2]),
                 "stop": pick([0, 0, 1, 2])}, dict(metaspace)]
    data["decoder"] = pick([None, {"type": "Sequence", "decoders": generator.sample(
        decoders, generator.randint(0, 5))}])
    return data


def compare_configurations(program, count, generator):
    compared = refused = strings = 0
    for _ in range(count):
        data = random_file(generator)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tokenizer.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(data, file)
            done = subprocess.run([program, path], input=b"", capture_output=True, check=False)
            if done.returncode != 0:
                refused += 1
                continue
            specials = [token["content"] for token in data["added_tokens"]]
            size = Tokenizer.from_file(path).get_vocab_size()
            shown = json.dumps({k: v for k, v in data.items() if k != "model"} | {
                k: v for k, v in data["model"].items() if k not in ("vocab", "merges")})
            strings += compare(program, shown, path, random_cases(200, specials, size, generator))
            compared += 1
    print(f"{compared} tokenizers, {strings} strings equal; {refused} tokenizers refused")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--strings", type=int, default=20000, help="for each tokenizer")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", help="name of one tokenizer")
    parser.add_argument("--unicode", action="store_true")
    parser.add_argument("--configurations", type=int, default=0)
    arguments = parser.parse_args()
    program = os.path.join(arguments.build, "tests", "tokenize_records")
    if arguments.configurations:
        print(f"seed {arguments.seed}", flush=True)
        compare_configurations(program, arguments.configurations, random.Random(arguments.seed))
        return
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
            random_cases(arguments.strings, specials, tokenizer.get_vocab_size(),
                         generator)
        start = time.time()
        tested = compare(program, name, os.path.join(HERE, name, "tokenizer.json"), cases)
        total += tested
        print(f"{name}: {tested} strings equal, {time.time() - start:.1f} s", flush=True)
    print(f"{total} strings equal, seed {arguments.seed}")


if __name__ == "__main__":
    main()
