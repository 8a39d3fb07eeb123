#!/usr/bin/env python3
"""Full steps of prompts through FlashAttention-3 as vLLM ships it, and through cuDNN, beside `build/bench/attention PS`.

    pip install vllm==0.33.0
    bench/attention_peer.py [--cudnn] [--library vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so]

16,384 tokens of prompts that share nothing, causal, 32 query heads and 8 key heads of 128 in bf16. FlashAttention-3 is
called as vLLM calls it but without its scheduler's metadata: with keys and values in pages of 16 and of 64 tokens at
random places, and without pages. cuDNN is PyTorch's scaled_dot_product_attention, without pages. A CUDA graph contains
16 launches that take turns with 2 to 8 sets of keys and values; the result is the median of six replays. --library
names the extension where vLLM is not installed; torch 2.11 loads it.
"""
import argparse
import importlib.util
import math
import pathlib
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

HEADS, KEY_HEADS, DIM = 32, 8, 128
STEP_TOKENS = 16384
LAUNCHES, REPLAYS = 16, 6
PAGES = (16, 64)
DEVICE = "cuda"


def installed_library():
    package = importlib.util.find_spec("vllm")
    if package is None:
        raise SystemExit("attention_peer.py: vllm is not installed; name its extension by --library")
    return pathlib.Path(package.origin).parent / "vllm_flash_attn" / "_vllm_fa3_C.abi3.so"


def flash_attention(q, k, v, out, starts, length, pages=None):
    """pages: [prompts, pages of a prompt], for k and v of [pages, tokens of a page, heads, DIM]."""
    used = None if pages is None else torch.full((len(starts) - 1,), length, device=DEVICE, dtype=torch.int32)

    def run():
        torch.ops._vllm_fa3_C.fwd(
            q, k, v, None, None, None, out, starts, starts if pages is None else None, None, None, used, length, length,
            pages, None, None, None, None, None, None, None, None, 1 / math.sqrt(DIM), True, -1, -1, 0.0, True, None, 1,
            None, 0, None, 1, 0, None)
    return run


def time_us(runs):
    """The time of a launch; runs: the same launch on different keys and values."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for run in runs:
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(LAUNCHES):
            runs[i % len(runs)]()
    times = []
    for replay in range(1 + REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if replay > 0:
            times.append(begin.elapsed_time(end) * 1e3 / LAUNCHES)
    return statistics.median(times)


def time_prompts(count, length, cudnn):
    def noise(*shape):
        return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)

    tokens = count * length
    copies = max(2, min(8, 700_000_000 // (tokens * KEY_HEADS * DIM * 4) + 1))
    q = noise(tokens, HEADS, DIM)
    stored = [(noise(tokens, KEY_HEADS, DIM), noise(tokens, KEY_HEADS, DIM)) for _ in range(copies)]
    out = torch.empty_like(q)
    starts = torch.arange(0, tokens + 1, length, device=DEVICE, dtype=torch.int32)
    flops = 4 * HEADS * DIM * count * length * (length + 1) / 2
    found = {"FA3": time_us([flash_attention(q, k, v, out, starts, length) for k, v in stored])}
    for size in PAGES:
        pages = torch.randperm(tokens // size, device=DEVICE).to(torch.int32).view(count, length // size)
        paged = [[x.view(tokens // size, size, KEY_HEADS, DIM) for x in both] for both in stored]
        found[f"FA3, pages of {size}"] = time_us(
            [flash_attention(q, k, v, out, starts, length, pages) for k, v in paged])
    if cudnn:
        def prompts(x):
            return x.view(count, length, -1, DIM).transpose(1, 2)

        def attend(k, v):
            return lambda: scaled_dot_product_attention(prompts(q), prompts(k), prompts(v), is_causal=True,
                                                        enable_gqa=True)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            found["cuDNN"] = time_us([attend(k, v) for k, v in stored])
    print(f"{count} prompts of {length}: " +
          "; ".join(f"{name} {us:.1f} us ({flops / us / 1e6:.0f} TFLOP/s)" for name, us in found.items()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cudnn", action="store_true", help="time cuDNN, too")
    parser.add_argument("--library", help="the extension with FlashAttention-3")
    arguments = parser.parse_args()
    torch.ops.load_library(str(arguments.library or installed_library()))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    for length in (512, 1024, 2048, 4096, 8192, 16384):
        time_prompts(STEP_TOKENS // length, length, arguments.cudnn)


if __name__ == "__main__":
    main()
