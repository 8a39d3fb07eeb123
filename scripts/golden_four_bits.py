"""Quantises to four bits for make_golden.py, like golden_fp8.py, in the forms that AutoAWQ, AutoGPTQ and GPTQModel,
llm-compressor, ModelOpt and OpenAI publish.

Codes, scales and zero points are computed here and packed by the tools' own formulas. The float32 values that they
represent are computed before packing.
"""

import re

import torch

from golden_fp8 import LINEAR, compressed

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # which of eight rows is in each four bits of a word, lowest bits first
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def packed(strategy, group, symmetric, **more):
    """quantization_config of compressed-tensors with integers of four bits."""
    config = compressed(strategy, {}, ["lm_head"], format="pack-quantized")
    config["config_groups"]["group_0"]["input_activations"] = None
    config["config_groups"]["group_0"]["weights"].update(num_bits=4, type="int", group_size=group, symmetric=symmetric,
                                                         **more)
    return config


def mxfp4_config():
    config = packed("group", 32, True)
    config["format"] = "mxfp4-pack-quantized"
    config["config_groups"]["group_0"]["weights"].update(type="float", scale_dtype="torch.uint8")
    return config


def nvfp4_config():
    config = packed("tensor_group", 16, True)
    config["format"] = "nvfp4-pack-quantized"
    group = config["config_groups"]["group_0"]
    group["weights"].update(type="float", scale_dtype="torch.float8_e4m3fn")
    group["input_activations"] = dict(group["weights"], dynamic="local")
    return config


# name of the golden model: how it is quantised. group: columns per scale, 0 for all; type: that of the stored scales;
# order: columns of a group may be anywhere; config: "quantization_config". left: weights that are not quantised.
FOUR_BITS = {
    "llama_awq": dict(
        form="awq", group=32, symmetric=False, type=torch.float16, left="lm_head",
        config=dict(quant_method="awq", bits=4, group_size=32, version="gemm", zero_point=True,
                    modules_to_not_convert=None)),
    "phi3_awq": dict(
        form="awq", group=0, symmetric=False, type=torch.float16, left=r"lm_head|1\.mlp\.down_proj",
        config=dict(quant_method="awq", bits=4, group_size=-1, version="GEMM", zero_point=True, backend="autoawq",
                    modules_to_not_convert=["layers.1.mlp.down_proj"])),
    "qwen2_gptq_act_order": dict(
        form="gptq", group=16, symmetric=False, order=True, version=1, type=torch.float16, left="lm_head",
        config=dict(quant_method="gptq", bits=4, group_size=16, desc_act=True, sym=False, damp_percent=0.01,
                    static_groups=False, true_sequential=True, checkpoint_format="gptq", model_name_or_path=None)),
    "phi3_gptq_v2": dict(
        form="gptq", group=0, symmetric=False, version=2, type=torch.bfloat16, left="lm_head",
        config=dict(quant_method="gptq", bits=4, group_size=-1, desc_act=False, sym=False, lm_head=False,
                    checkpoint_format="gptq_v2", pack_dtype="int32", meta=dict(quantizer=["gptqmodel:4.0.0"]))),
    # Claims the first version but has the zero points of the second; zero biases, as AutoGPTQ writes them.
    "llama_gptq_sym": dict(
        form="gptq", group=32, symmetric=True, version=2, biases=True, type=torch.float16, left="lm_head",
        config=dict(quant_method="gptq", bits=4, group_size=32, desc_act=False, sym=True, checkpoint_format="gptq")),
    "llama_ct_packed": dict(
        form="packed", group=32, symmetric=True, order=True, type=torch.bfloat16, left="lm_head",
        config=packed("group", 32, True, actorder="group")),
    "qwen3_ct_packed_asym": dict(
        form="packed", group=0, symmetric=False, type=torch.bfloat16, left="lm_head",
        config=packed("channel", None, False)),
    "llama_ct_mxfp4": dict(form="mxfp4", group=32, left="lm_head", config=mxfp4_config()),
    "llama_ct_nvfp4": dict(form="nvfp4", group=16, left="lm_head", divided=True, config=nvfp4_config()),
    "qwen3_moe_modelopt_nvfp4": dict(
        form="nvfp4", group=16, left=r"lm_head|self_attn\.o_proj", divided=False,
        file=dict(producer=dict(name="modelopt", version="0.40.0"),
                  quantization=dict(quant_algo="NVFP4", kv_cache_quant_algo=None, group_size=16,
                                    exclude_modules=["lm_head", "*.mlp.gate", "*.self_attn.o_proj"]))),
    # Stacks of experts are [experts, columns / 2, rows], with one factor.
    "llama4_modelopt_nvfp4": dict(
        form="nvfp4", group=16, left=r"lm_head|self_attn|vision|multi_modal", divided=False,
        file=dict(producer=dict(name="modelopt", version="0.29.0"),
                  quantization=dict(quant_algo="NVFP4", kv_cache_quant_algo=None, group_size=16, exclude_modules=[
                      "*self_attn*", "*.feed_forward.router", "language_model.lm_head", "lm_head", "vision_model*",
                      "multi_modal_projector*"]))),
    "qwen3_moe_gptq": dict(
        form="gptq", group=128, symmetric=True, version=1, type=torch.float16, left="lm_head",
        config=dict(quant_method="gptq", bits=4, group_size=128, desc_act=False, sym=True, lm_head=False,
                    true_sequential=True, damp_percent=0.01, checkpoint_format="gptq")),
    "gpt_oss_mxfp4": dict(
        form="experts", group=32, left="lm_head",
        config=dict(quant_method="mxfp4", modules_to_not_convert=[
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"])),
}


def words(codes, order=range(8)):
    """int32 words of eight neighbours in each row; the last word may have fewer."""
    rows, columns = codes.shape
    eights = torch.zeros(rows, -(-columns // 8) * 8, dtype=torch.int64)
    eights[:, :columns] = codes
    eights = eights.reshape(rows, -1, 8)
    total = sum(eights[:, :, which] << (4 * place) for place, which in enumerate(order))
    return torch.where(total >= 1 << 31, total - (1 << 32), total).to(torch.int32)


def groups_of(columns, how, random):
    group = how["group"] or columns
    order = torch.arange(columns) // group
    return order[torch.randperm(columns, generator=random)] if how.get("order") else order


def quantize_integers(weight, groups, how):
    """Codes and zero points from 0 to 15, stored scales by row and group, and the values that they represent."""
    count = int(groups.max()) + 1
    weight = weight.float()
    scales = torch.zeros(weight.shape[0], count)
    zeros = torch.full((weight.shape[0], count), 8)
    for group in range(count):
        part = weight[:, groups == group]
        if how["symmetric"]:
            scales[:, group] = part.abs().amax(1) / 7.5
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scales[:, group] = (high - low) / 15
            zeros[:, group] = (-low / scales[:, group]).round().clamp(0, 15).to(torch.int64)
    stored = scales.to(how["type"])
    wide, middle = stored.float()[:, groups], zeros[:, groups]
    codes = (weight / wide).round().to(torch.int64).add(middle).clamp(0, 15)
    return codes, zeros, stored, (codes - middle).float() * wide


def quantize_mxfp4(weight):
    """Codes of e2m1, exponents + 127 for blocks of 32, and the values that they represent."""
    blocks = weight.float().reshape(*weight.shape[:-1], -1, 32)
    exponents = blocks.abs().amax(-1).clamp(min=2.0 ** -100).log2().floor() - 2
    scaled = blocks / torch.exp2(exponents)[..., None]
    codes = (scaled[..., None] - E2M1).abs().argmin(-1)
    meant = torch.ldexp(E2M1[codes], exponents[..., None].to(torch.int32))
    return codes, (exponents + 127).to(torch.uint8), meant.reshape(weight.shape)


def quantize_nvfp4(weight):
    """Codes of e2m1, scales in e4m3 for blocks of 16, the factor of all, and the values that they represent."""
    blocks = weight.float().reshape(*weight.shape[:-1], -1, 16)
    factor = blocks.abs().max() / (6 * 448)
    scales = (blocks.abs().amax(-1) / (6 * factor)).to(torch.float8_e4m3fn)
    wide = scales.float().clamp(min=2.0 ** -9)[..., None] * factor
    codes = ((blocks / wide)[..., None] - E2M1).abs().argmin(-1)
    meant = E2M1[codes].double() * scales.double()[..., None] * factor.double()
    return codes, scales, factor, meant.float().reshape(weight.shape)


def pairs(codes):
    """Two neighbours per byte, the first in its low half."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)


def quantize_matrix(module, weight, how, random):
    """The stored tensors of a module's weight by name, and the values that they represent."""
    if how["form"] == "mxfp4":
        codes, exponents, meant = quantize_mxfp4(weight)
        return {f"{module}.weight_packed": pairs(codes.reshape(weight.shape)),
                f"{module}.weight_scale": exponents}, meant
    if how["form"] == "nvfp4":
        codes, scales, factor, meant = quantize_nvfp4(weight)
        names = ("weight_packed", "weight_global_scale") if how["divided"] else ("weight", "weight_scale_2")
        stored = {names[0]: pairs(codes.reshape(weight.shape)), "weight_scale": scales,
                  names[1]: (1 / factor).reshape(1) if how["divided"] else factor,
                  "input_global_scale" if how["divided"] else "input_scale": torch.ones(1)}
        if how["divided"]:  # what is represented is divided by the stored number
            meant = (E2M1[codes].double() * scales.double()[..., None] /
                     stored[names[1]].double()).float().reshape(weight.shape)
        return {f"{module}.{name}": tensor for name, tensor in stored.items()}, meant
    groups = groups_of(weight.shape[1], how, random)
    codes, zeros, scales, meant = quantize_integers(weight, groups, how)
    if how["form"] == "packed":
        stored = {"weight_packed": words(codes), "weight_scale": scales, "weight_shape": torch.tensor(weight.shape)}
        if not how["symmetric"]:
            stored["weight_zero_point"] = words(zeros.T).T.contiguous()
        if how.get("order"):
            stored["weight_g_idx"] = groups.to(torch.int32)
    elif how["form"] == "awq":
        stored = {"qweight": words(codes.T, AWQ_ORDER), "qzeros": words(zeros.T, AWQ_ORDER),
                  "scales": scales.T.contiguous()}
    else:
        zero_words = words(zeros.T)
        if how["version"] == 1:
            zero_words -= 0x11111111  # wraps around, as in GPTQModel
        stored = {"qweight": words(codes).T.contiguous(), "qzeros": zero_words, "scales": scales.T.contiguous(),
                  "g_idx": groups.to(torch.int32)}
        if how.get("biases"):
            stored["bias"] = torch.zeros(weight.shape[0], dtype=how["type"])
    return {f"{module}.{name}": tensor for name, tensor in stored.items()}, meant


def quantize_tensors(tensors, how):
    """The tensors of a file as stored, and the values that they represent."""
    stored, meant = {}, {}
    random = torch.Generator().manual_seed(5)
    for name, tensor in sorted(tensors.items()):
        if how["form"] == "experts" and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            codes, exponents, floats = quantize_mxfp4(tensor.transpose(1, 2))
            stored[f"{name}_blocks"], stored[f"{name}_scales"] = pairs(codes), exponents
            meant[name] = floats.transpose(1, 2).contiguous()
        elif how["form"] == "nvfp4" and tensor.dim() == 3 and not re.search(how["left"], name):
            codes, scales, factor, floats = quantize_nvfp4(tensor.transpose(1, 2))
            stored[name] = pairs(codes.reshape(floats.shape)).transpose(1, 2).contiguous()
            stored[f"{name}_weight_scale"] = scales.transpose(1, 2).contiguous()
            stored[f"{name}_weight_scale_2"], stored[f"{name}_input_scale"] = factor, torch.tensor(1.0)
            meant[name] = floats.transpose(1, 2).contiguous()
        elif how["form"] == "experts" or not LINEAR.search(name) or re.search(how["left"], name):
            stored[name], meant[name] = tensor, tensor.float()
        else:
            parts, meant[name] = quantize_matrix(name.removesuffix(".weight"), tensor, how, random)
            stored.update(parts)
    return stored, meant
