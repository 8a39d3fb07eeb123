#!/usr/bin/env python3
"""A job with many adapters, as files: a model directory of Mistral-7B's shape without weights, N adapters of rank R of all of its
projections (40 MB each at rank 8), and rows that have an adapter each, in turn.

    python3 bench/adapter_files.py /dev/shm/job --adapters 1000 --rank 8 --rows 1000 --prompt 600
    batchllm run --model /dev/shm/job/model --backend cuda --backend-options random_weights=1 --adapters /dev/shm/job/adapters \\
        --input /dev/shm/job/rows.jsonl --output /dev/shm/job/out.jsonl --max-tokens 20 --ignore-eos --stats /dev/shm/job/stats.json
"""
import sys

sys.path.pop(0)  # where tokenize.py is not Python's own
import argparse
import concurrent.futures
import json
import pathlib
import random

parser = argparse.ArgumentParser()
parser.add_argument("directory", type=pathlib.Path)
for name, value in dict(adapters=1000, rank=8, rows=1000, prompt=600, hidden=4096, width=14336, layers=32, kv=1024).items():
    parser.add_argument("--" + name, type=int, default=value)
a = parser.parse_args()
if a.directory.exists():
    parser.error(f"{a.directory} exists: remove it, or name another directory")
HEADS, VOCABULARY = a.hidden // 128, 32000
SHAPES = {"self_attn.q_proj": (a.hidden, a.hidden), "self_attn.k_proj": (a.kv, a.hidden), "self_attn.v_proj": (a.kv, a.hidden),
          "self_attn.o_proj": (a.hidden, a.hidden), "mlp.gate_proj": (a.width, a.hidden), "mlp.up_proj": (a.width, a.hidden),
          "mlp.down_proj": (a.hidden, a.width)}


def header(shapes):
    """Of a safetensors file with tensors in bf16, and how many bytes follow it."""
    at, entries = 0, {}
    for name, shape in shapes:
        count = 2
        for size in shape:
            count *= size
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + count]}
        at += count
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, at


def make_model(directory):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(dict(
        architectures=["MistralForCausalLM"], model_type="mistral", hidden_size=a.hidden, intermediate_size=a.width,
        num_hidden_layers=a.layers, num_attention_heads=HEADS, num_key_value_heads=a.kv // 128, head_dim=128, vocab_size=VOCABULARY,
        hidden_act="silu", max_position_embeddings=32768, rms_norm_eps=1e-5, rope_theta=1e4, sliding_window=None,
        tie_word_embeddings=False, torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2)))
    shapes = [("model.embed_tokens.weight", (VOCABULARY, a.hidden))]
    for i in range(a.layers):
        at = f"model.layers.{i}."
        shapes += [(at + name + ".weight", shape) for name, shape in SHAPES.items()]
        shapes += [(at + name + ".weight", (a.hidden,)) for name in ("input_layernorm", "post_attention_layernorm")]
    start, size = header(shapes + [("model.norm.weight", (a.hidden,)), ("lm_head.weight", (VOCABULARY, a.hidden))])
    with open(directory / "model.safetensors", "wb") as file:
        file.write(start)
        file.truncate(len(start) + size)


def make_adapter(number):
    """They differ in their bytes, so that no file is another one's."""
    directory = a.directory / "adapters" / f"a{number:04}"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(dict(
        peft_type="LORA", task_type="CAUSAL_LM", r=a.rank, lora_alpha=a.rank, bias="none",
        target_modules=sorted({name.split(".")[1] for name in SHAPES}))))
    shapes = []
    for i in range(a.layers):
        for name, (rows, columns) in SHAPES.items():
            module = f"base_model.model.model.layers.{i}.{name}"
            shapes += [(module + ".lora_A.weight", (a.rank, columns)), (module + ".lora_B.weight", (rows, a.rank))]
    start, size = header(shapes)
    # bf16 from 0.004 to 0.016 of either sign
    numbers = random.Random(number)
    block = b"".join((0x3b80 + n % 256 + n // 256 % 2 * 0x8000).to_bytes(2, "little")
                     for n in (numbers.getrandbits(16) for _ in range(1 << 16)))
    with open(directory / "adapter_model.safetensors", "wb") as file:
        file.write(start)
        while size > 0:
            size -= file.write(block[:size])


make_model(a.directory / "model")
with concurrent.futures.ProcessPoolExecutor() as pool:
    list(pool.map(make_adapter, range(a.adapters)))
numbers = random.Random(0)
with open(a.directory / "rows.jsonl", "w") as file:
    for i in range(a.rows):
        tokens = [numbers.randrange(3, VOCABULARY) for _ in range(a.prompt)]
        file.write(json.dumps({"id": i, "tokens": tokens, "adapter": f"a{i % a.adapters:04}"} if a.adapters > 0
                              else {"id": i, "tokens": tokens}) + "\n")
