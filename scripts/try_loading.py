#!/usr/bin/env python3
"""Loads and runs a checkpoint written by transformers: gigabytes per second, and the tokens compared.

    pip install torch transformers
    scripts/try_loading.py build/src/cli/batchllm    on a GPU: Llama 3.2's 3B shape, 6.4 GB
    scripts/try_loading.py build/src/cli/batchllm --small --backend cpu --compute-types f32    anywhere: a small one

Weights are random, saved as bfloat16 in shards; the files are in the page cache when they are read. There are 64 rows
of 760 tokens, eight per prefix, and 32 tokens are generated greedily. In f32 they must equal those of transformers in
float32 (exit status 1 if not); in bf16 the first token of many rows is a close call, so differences are only counted.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM

TOKENIZER = pathlib.Path(__file__).resolve().parent.parent / "examples" / "catalogue" / "model"
NEW = 32


def configuration(small):
    sizes = dict(vocab_size=128256, hidden_size=3072, intermediate_size=8192, num_hidden_layers=28,
                 num_attention_heads=24, num_key_value_heads=8, head_dim=128)
    if small:
        sizes = dict(vocab_size=4096, hidden_size=256, intermediate_size=512, num_hidden_layers=3,
                     num_attention_heads=8, num_key_value_heads=2, head_dim=32)
    return LlamaConfig(
        **sizes, max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0,
        rope_scaling={"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 8192})


def make_rows():
    rng = random.Random(5)

    def tokens(count):
        return [rng.randrange(300, 3000) for _ in range(count)]

    prefixes = [tokens(700) for _ in range(8)]
    return [prefix + tokens(60) for prefix in prefixes for _ in range(8)]


def reference(folder, small, rows):
    """Writes the checkpoint; -> transformers' greedy tokens for the rows in float32."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = LlamaForCausalLM(configuration(small))
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder, max_shard_size="2GB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((TOKENIZER / name).read_bytes())
    prompts = torch.tensor(rows, device=device)
    with torch.no_grad():
        out = model.float().eval().generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=NEW,
                                            min_new_tokens=NEW, do_sample=False, pad_token_id=0)
    wanted = out[:, prompts.shape[1]:].tolist()
    del model, out, prompts
    torch.cuda.empty_cache()
    return wanted


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="batchllm")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--compute-types", default="f32,bf16", help="not every processor has bf16")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rows = make_rows()
        wanted = reference(folder, options.small, rows)
        gigabytes = sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e9
        job, output, stats = folder / "rows.jsonl", folder / "out.jsonl", folder / "stats.json"
        job.write_text("".join(
            json.dumps({"id": i, "tokens": row, "max_tokens": NEW, "ignore_eos": True}) + "\n" for i, row in enumerate(rows)))
        equal = {}
        for kind in options.compute_types.split(","):
            subprocess.run([options.program, "run", "--model", folder, "--input", job, "--output", output, "--force",
                            "--backend", options.backend, "--compute-type", kind, "--stats", stats, "--progress", "none"],
                           check=True)
            found = {row["id"]: row["tokens"] for row in map(json.loads, output.read_text().splitlines())}
            equal[kind] = sum(a == b for i, row in enumerate(wanted) for a, b in zip(found[i], row))
            load = json.loads(stats.read_text())["seconds"]["load"]
            print(f"{kind}: {equal[kind]} of {NEW * len(rows)} tokens are transformers' in float32; "
                  f"loaded in {load:.2f} s, {gigabytes / load:.1f} GB/s of {gigabytes:.2f} GB")
    return 0 if equal.get("f32", NEW * len(rows)) == NEW * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
