#!/usr/bin/env python3
"""Products with four-bit weights by humming, the kernels of the vLLM project that come as a small wheel, beside
`build/bench/four_bits`.

    pip install humming-kernels==0.1.19 tabulate
    bench/four_bits_peer.py [--shapes gpt-oss] [--rows 16,64] [--no-fp8]

Its own heuristics choose the kernels, which it compiles when they are first used. Experts are given rows that stand in
the order of experts already (ours gather them). Inputs in fp8 are quantised beforehand, with a scale a row. A CUDA
graph contains some launches that take turns with copies of W; the result is the median of six replays.
"""
import argparse
import statistics

import torch
from humming.layer import HummingLayer, HummingLayerMethod

INT4 = {"dtype": "uint4", "group_size": 128, "has_zero_point": True}
MXFP4 = {"dtype": "float4e2m1", "group_size": 32, "scale_dtype": "float8e8m0"}
# name, W, rows and columns, experts, chosen
SHAPES = [
    ("Mistral-7B gate/up, int4", INT4, 28672, 4096, 0, 0),
    ("Llama-70B gate/up, int4", INT4, 57344, 8192, 0, 0),
    ("Llama-70B down, int4", INT4, 8192, 28672, 0, 0),
    ("gpt-oss-20b gate/up, mxfp4", MXFP4, 5760, 2880, 32, 4),
    ("gpt-oss-20b down, mxfp4", MXFP4, 2880, 2880, 32, 4),
    ("Qwen3-30B-A3B gate/up, int4", INT4, 1536, 2048, 128, 8),
    ("Qwen3-30B-A3B down, int4", INT4, 2048, 768, 128, 8),
]
ROWS = [16, 64, 256, 1024, 4096, 16384]
WORKING_SET = 300 << 20  # bytes of W that launches take turns with
REPLAYS = 6


def layer_of(config, rows, columns, experts, fp8):
    layer = HummingLayer(shape_n=rows, shape_k=columns, weight_config=dict(config), num_experts=experts or None,
                         input_config={"dtype": "float8e4m3"} if fp8 else None, torch_dtype=torch.bfloat16,
                         pad_n_to_multiple=256 if experts else 1, pad_k_to_multiple=128 if experts else 1).cuda()
    shape = (experts, rows, columns) if experts else (rows, columns)
    layer.load_from_unquantized(torch.randn(shape, dtype=torch.bfloat16, device="cuda") * 0.02)
    layer.transform()
    return layer


def microseconds(layers, rows, experts, chosen):
    turns = rows * max(1, chosen)
    x = torch.randn((turns, layers[0].shape_k), dtype=torch.bfloat16, device="cuda")
    x, scale = HummingLayerMethod.may_quant_input(layers[0], x)
    arguments = {"input_scale": scale}
    if experts:
        counts = torch.randint(experts, (turns,), device="cuda").bincount(minlength=experts)
        arguments["expert_layout"] = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).long()
        arguments["compute_config"] = {"gemm_type": "grouped_contiguous"}
    tuning = HummingLayerMethod.get_default_tuning_configs(
        layers[0], gemm_type="grouped_contiguous" if experts else "dense")
    y = torch.empty((turns, layers[0].shape_n), dtype=torch.bfloat16, device="cuda")

    def launch(layer):
        HummingLayerMethod.forward_layer(layer, x, outputs=y, tuning_config=tuning, **arguments)

    for layer in layers:
        launch(layer)
    torch.cuda.synchronize()
    launches = max(len(layers), 8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            launch(layers[i % len(layers)])
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / launches)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="")
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=ROWS)
    parser.add_argument("--no-fp8", action="store_true")
    options = parser.parse_args()
    for name, config, n, k, experts, chosen in SHAPES:
        if options.shapes not in name:
            continue
        for fp8 in [False] if options.no_fp8 else [False, True]:
            weights = max(1, experts) * n * k
            copies = max(1, min(24, WORKING_SET // (weights // 2)))
            layers = [layer_of(config, n, k, experts, fp8) for _ in range(copies)]
            for rows in options.rows:
                us = microseconds(layers, rows, experts, chosen)
                rate = 2e-6 * rows * max(1, chosen) * n * k / us
                print(f"{name}, x in {'e4m3' if fp8 else 'bf16'}, {rows} rows: {us:.1f} us, {rate:.1f} TFLOP/s",
                      flush=True)
            del layers
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
