#!/usr/bin/env python3
"""Tokenizing speed on one core beside Hugging Face tokenizers': same tokenizer, same text, same run.

    pip install tokenizers
    ninja -C build bench/tokenize
    bench/tokenize.py --build build [--megabytes 4]

Text is generated English; tokenizers of 32,000 tokens are trained on it, byte-level with the Llama 3
pattern, with DeepSeek V3's expressions, and in SentencePiece's form. Each side gets one line at a time, and the best of several rounds counts.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import (Regex, Tokenizer, decoders, models, normalizers,  # noqa: E402
                        pre_tokenizers, trainers)

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tests", "text"))
import make_golden  # noqa: E402
import sample_text  # noqa: E402


def byte_level(text):
    return trained(text, [make_golden.LLAMA3])


def expressions(text):
    return trained(text, make_golden.DEEPSEEK)


def trained(text, regexes):
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = make_golden.byte_level_splits(regexes)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=32000, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer.to_str()


def sentencepiece(text):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=32000, show_progress=False,
        special_tokens=["<unk>"] + [f"<0x{b:02X}>" for b in range(256)]))
    data = json.loads(tokenizer.to_str())
    data["pre_tokenizer"] = None
    data["added_tokens"] = data["added_tokens"][:1]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"),
                                                 normalizers.Replace(" ", "\u2581")])
    return tokenizer.to_str()


def reference_speed(path, lines, size, seconds):
    tokenizer = Tokenizer.from_file(path)
    best = 1e30
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        # The batch call without offsets is the reference's fastest call.
        encodings = tokenizer.encode_batch_fast(lines)
        best = min(best, time.perf_counter() - start)
    return size / best / 1e6, sum(len(encoding.ids) for encoding in encodings)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--seconds", type=float, default=4)
    arguments = parser.parse_args()
    text = sample_text.english(int(arguments.megabytes * 1e6), 5)
    lines = text.splitlines(True)
    with tempfile.TemporaryDirectory() as folder:
        text_path = os.path.join(folder, "text")
        with open(text_path, "w", encoding="utf-8") as file:
            file.write(text)
        for make in (byte_level, expressions, sentencepiece):
            path = os.path.join(folder, "tokenizer.json")
            with open(path, "w", encoding="utf-8") as file:
                file.write(make(text))
            speed, tokens = reference_speed(path, lines, len(text), arguments.seconds)
            done = subprocess.run([os.path.join(arguments.build, "bench", "tokenize"), path,
                                   text_path, str(arguments.seconds)], check=True, text=True,
                                  stdout=subprocess.PIPE)
            ours = float(done.stdout.split()[0])
            print(f"{make.__name__}: this library {done.stdout.strip()}")
            print(f"{make.__name__}: reference    {speed:.2f} MB/s, {tokens} tokens")
            print(f"{make.__name__}: {ours / speed:.1f} times the reference's speed")
            if f" {tokens} tokens" not in done.stdout:
                sys.exit("the numbers of tokens differ")


if __name__ == "__main__":
    main()
