"""Quantises for make_golden.py: a directory saved by transformers -> the same model in the form of a published fp8
checkpoint, and for the reference a plain one in float32 with the weights that the fp8 ones represent.

The formats are those of their own tools (llm-compressor, transformers, ModelOpt): names, shapes and types of the
scales, and the keys of config.json.
"""

import json
import os
import re
import shutil

import torch
from safetensors.torch import load_file, save_file

MOST = 448.0  # the largest e4m3 number
LINEAR = re.compile(r"(_proj|_proj_with_mqa|\.w[123])\.weight$")


def compressed(strategy, activations, ignore, **more):
    """quantization_config of compressed-tensors, as llm-compressor writes it."""
    arguments = dict(actorder=None, block_structure=None, dynamic=False, group_size=None, num_bits=8,
                     observer="minmax", observer_kwargs={}, strategy=strategy, symmetric=True, type="float")
    if strategy == "block":
        arguments["block_structure"] = [128, 128]
    group = dict(input_activations=dict(arguments, **activations), output_activations=None,
                 targets=["Linear"], weights=arguments)
    return dict(dict(config_groups=dict(group_0=group), format="float-quantized",
                     global_compression_ratio=None, ignore=ignore, kv_cache_scheme=None,
                     quant_method="compressed-tensors", quantization_status="compressed"), **more)


STATIC = dict(strategy="tensor", dynamic=False)
KV = dict(num_bits=8, type="float", strategy="tensor", dynamic=False, symmetric=True)

# name of the golden model: how it is quantised. kind: what a scale applies to; scale: its name after that of the
# weight's module; type and shape: those of the stored scales; left: weights that are not quantised; extra: further
# tensors of a quantised module, or of each layer's attention; config: "quantization_config";
# file: hf_quant_config.json instead.
FP8 = {
    "llama_ct_tensor_fp8": dict(
        kind="tensor", scale="weight_scale", type=torch.bfloat16, shape=[1], left="lm_head",
        extra=["input_scale", "self_attn.k_scale", "self_attn.v_scale"],
        config=compressed("tensor", STATIC, ["lm_head"], kv_cache_scheme=KV)),
    "phi3_ct_channel_fp8": dict(
        kind="channel", scale="weight_scale", type=torch.bfloat16, shape=[-1, 1], left=r"1\.mlp\.down_proj",
        config=compressed("channel", dict(strategy="token", dynamic=True),
                          ["lm_head", r"re:.*layers\.1\.mlp\.down.*$"])),
    "qwen2_ct_naive_fp8": dict(
        kind="channel", scale="weight_scale", type=torch.float16, shape=[-1, 1], left="self_attn",
        config=dict(compressed("channel", dict(strategy="token", dynamic=True), []),
                    format="naive-quantized", config_groups=dict(
                        FP8_DYNAMIC=[r"re:model\.layers\.\d+\.mlp\.(gate|up|down)_proj"]))),
    "llama_ct_block_fp8": dict(
        kind="block", scale="weight_scale", type=torch.bfloat16, shape=None, left="lm_head",
        config=compressed("block", dict(strategy="group", group_size=128, dynamic=True), ["re:.*lm_head"])),
    "qwen3_block_fp8": dict(
        kind="block", scale="weight_scale_inv", type=torch.float32, shape=None, left="lm_head",
        config=dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8",
                    modules_to_not_convert=["lm_head", "model.layers.0.input_layernorm"],
                    weight_block_size=[128, 128])),
    "deepseek_v3_block_fp8": dict(
        kind="block", scale="weight_scale_inv", type=torch.float32, shape=None, left="lm_head",
        config=dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=[128, 128])),
    "phi3_block_fp8": dict(
        kind="block", scale="weight_scale_inv", type=torch.bfloat16, shape=None, left="lm_head",
        config=dict(activation_scheme="dynamic", quant_method="fp8", weight_block_size=[48, 80])),
    "qwen3_moe_block_fp8": dict(
        kind="block", scale="weight_scale_inv", type=torch.float32, shape=None, left="lm_head",
        config=dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=[32, 32],
                    modules_to_not_convert=["lm_head", "model.layers.0.mlp.gate", "model.layers.2.mlp.gate"])),
    "qwen3_moe_wide_block_fp8": dict(
        kind="block", scale="weight_scale_inv", type=torch.bfloat16, shape=None, left="lm_head",
        config=dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=[128, 128],
                    modules_to_not_convert=["lm_head", "model.layers.1.mlp.gate"])),
    "qwen3_moe_channel_fp8": dict(
        kind="channel", scale="weight_scale", type=torch.bfloat16, shape=[-1, 1], left="lm_head",
        config=compressed("channel", dict(strategy="token", dynamic=True), ["lm_head", r"re:.*mlp\.gate$"])),
    "gemma4_moe_channel_fp8": dict(
        kind="channel", scale="weight_scale", type=torch.bfloat16, shape=[-1, 1], left="vision",
        config=compressed("channel", dict(strategy="token", dynamic=True),
                          ["lm_head", r"re:.*embed_vision.*", r"re:.*router", r"re:.*vision_tower.*"])),
    "ministral3_tensor_fp8": dict(
        kind="tensor", scale="weight_scale_inv", type=torch.bfloat16, shape=[], left="lm_head",
        extra=["activation_scale"],
        config=dict(activation_scheme="static", dequantize=False, modules_to_not_convert=["lm_head"],
                    quant_method="fp8", weight_block_size=None)),
    "mistral_static_fp8": dict(
        kind="tensor", scale="weight_scale", type=torch.float32, shape=[], left="lm_head",
        extra=["input_scale"],
        config=dict(activation_scheme="static", ignored_layers=["lm_head"], quant_method="fp8")),
    "llama_modelopt_fp8": dict(
        kind="tensor", scale="weight_scale", type=torch.float32, shape=[], left="lm_head",
        extra=["input_scale", "self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"],
        file=dict(producer=dict(name="modelopt", version="0.33.0"),
                  quantization=dict(quant_algo="FP8", kv_cache_quant_algo="FP8",
                                    exclude_modules=["lm_head", "*.mlp.router*"]))),
    "nemotron_h_modelopt_fp8": dict(
        kind="tensor", scale="weight_scale", type=torch.float32, shape=[], left=r"lm_head|layers\.2\.mixer",
        extra=["input_scale"],
        file=dict(producer=dict(name="modelopt", version="0.33.0"),
                  quantization=dict(quant_algo="FP8", kv_cache_quant_algo="FP8", exclude_modules=[
                      "lm_head", "backbone.layers.*.mixer.conv1d", "backbone.layers.2.mixer.q_proj",
                      "backbone.layers.2.mixer.k_proj", "backbone.layers.2.mixer.v_proj",
                      "backbone.layers.2.mixer.o_proj"]))),
    # Stacks of experts have one scale, their names no ".weight".
    "llama4_modelopt_fp8": dict(
        kind="tensor", scale="weight_scale", type=torch.float32, shape=[], left=r"lm_head|layers\.2\.",
        extra=["input_scale", "self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"],
        file=dict(producer=dict(name="modelopt", version="0.27.0"),
                  quantization=dict(quant_algo="FP8", kv_cache_quant_algo="FP8", exclude_modules=[
                      "lm_head", "*.feed_forward.router", "*layers.2.*"]))),
    "mixtral_modelopt_fp8": dict(
        kind="block", scale="weight_scale", type=torch.float32, shape="4d", left="lm_head",
        config=dict(quant_method="modelopt", quant_algo="FP8_PB_WO", ignore=["lm_head", "*gate"],
                    producer=dict(name="modelopt", version="0.40.0"))),
}


def block_of(weight, how):
    rows, columns = weight.shape
    if how["kind"] == "tensor":
        return rows, columns
    if how["kind"] == "channel":
        return 1, columns
    return tuple(how.get("config", {}).get("weight_block_size") or (128, 128))


def spread(scales, block, shape):
    """A scale for each element."""
    spread_out = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return spread_out[:shape[0], :shape[1]]


def quantize(weight, how):
    """A weight in e4m3, its stored scales, and the float32 values that the two represent."""
    weight = weight.float()
    block = block_of(weight, how)
    down, across = (-(-size // step) for size, step in zip(weight.shape, block))
    padded = torch.zeros(down * block[0], across * block[1])
    padded[:weight.shape[0], :weight.shape[1]] = weight
    most = padded.reshape(down, block[0], across, block[1]).abs().amax((1, 3))
    stored = (most / MOST).to(how["type"])
    scales = spread(stored.float(), block, weight.shape)
    eighth = (weight / scales).clamp(-MOST, MOST).to(torch.float8_e4m3fn)
    meant = eighth.float() * scales
    if how["shape"] == "4d":
        stored = stored.reshape(down, 1, across, 1)
    elif how["shape"] is not None:
        stored = stored.reshape(how["shape"])
    return eighth, stored, meant


def quantize_tensors(tensors, how):
    """The tensors of a file as stored, and the values that they represent."""
    stored, meant = {}, {}
    for name, tensor in tensors.items():
        stack = tensor.dim() == 3 and "conv1d" not in name  # experts
        if stack and how["kind"] == "tensor" and not re.search(how["left"], name):
            scale = (tensor.float().abs().max() / MOST).to(how["type"])
            stored[name] = (tensor.float() / scale).clamp(-MOST, MOST).to(torch.float8_e4m3fn)
            stored[f"{name}_weight_scale"], stored[f"{name}_input_scale"] = scale, torch.tensor(0.0625)
            meant[name] = stored[name].float() * scale
            continue
        if not LINEAR.search(name) or re.search(how["left"], name):
            stored[name], meant[name] = tensor, tensor.float()
            continue
        module = name.removesuffix(".weight")
        stored[name], scales, meant[name] = quantize(tensor, how)
        stored[f"{module}.{how['scale']}"] = scales
        for extra in how.get("extra", []):
            owner = module if "." not in extra else module.split(".self_attn.")[0]
            if "." in extra and not module.endswith("self_attn.o_proj"):
                continue
            stored[f"{owner}.{extra}"] = torch.tensor(0.0625, dtype=how["type"]).reshape(scales.shape)
    return stored, meant


def quantize_directory(directory, how, plain, quantize_file=quantize_tensors):
    """Quantises a saved model in place; `plain` becomes the directory with the values that its weights represent."""
    os.makedirs(plain)
    names = {}
    for file in sorted(os.listdir(directory)):
        path = os.path.join(directory, file)
        if not file.endswith(".safetensors"):
            shutil.copy(path, plain)
            continue
        stored, meant = quantize_file(load_file(path), how)
        save_file(stored, path, metadata={"format": "pt"})
        save_file(meant, os.path.join(plain, file), metadata={"format": "pt"})
        names.update({tensor: file for tensor in stored})
    index = os.path.join(directory, "model.safetensors.index.json")
    if os.path.exists(index):
        write(dict(metadata={}, weight_map=dict(sorted(names.items()))), index)
    if "file" in how:
        return write(how["file"], os.path.join(directory, "hf_quant_config.json"))
    path = os.path.join(directory, "config.json")
    with open(path) as file:
        config = json.load(file)
    config["quantization_config"] = how["config"]
    write(config, path)


def write(value, path):
    with open(path, "w") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
