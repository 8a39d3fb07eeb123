#!/usr/bin/env python3
"""Writes a checkpoint of a published model's shape with random weights, to try loading and speed with.

    scripts/make_shape.py qwen3-30b-a3b DIR       57 GiB, every expert's matrices tensors of their own
    scripts/make_shape.py qwen3-30b-a3b-int4 DIR  16 GiB, the same with GPTQ's four bits
    scripts/make_shape.py gpt-oss-20b DIR         13 GiB, experts in MXFP4
    scripts/make_shape.py gpt-oss-120b DIR        61 GiB, the same
    scripts/make_shape.py llama-3.3-70b-awq DIR   37 GiB, four bits of AutoAWQ, in f16
    scripts/make_shape.py qwen3.5-9b DIR          17 GiB, gated delta nets in three layers of four
    scripts/make_shape.py granite-4.0-h-micro DIR   6 GiB, Mamba-2 in nine layers of ten
    scripts/make_shape.py lfm2-1.2b DIR           2 GiB, short convolutions in ten layers of sixteen
    scripts/make_shape.py gemma-4-26b-a4b DIR     47 GiB, experts beside every feed-forward, in two tensors a layer
    scripts/make_shape.py NAME DIR --small        the same kinds of layers and tensors in a megabyte or so

DIR gets config.json, generation_config.json, tokenizer.json (a small one of this tree, whose tokens are a part of
the vocabulary) and shards with their index. Python's standard library is enough. The weights are cut from one block
of random bytes, at another place for each tensor, so a disk or memory is what writing waits for.
"""

import argparse
import concurrent.futures
import json
import math
import pathlib
import random
import shutil
import sys
import time

TEXT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "text"
BLOCK = 1 << 26


def matrix(name, *shape):
    return name, "BF16", shape, "normal"


def ones(name, length):
    return name, "BF16", (length,), "ones"


def integers(module, rows, columns, how, group=128):
    """Four bits with scales of `group` columns: of AutoAWQ (eight rows in a word), or of GPTQ (eight columns)."""
    words = (columns, rows // 8) if how == "awq" else (columns // 8, rows)
    groups = -(-columns // group)
    yield module + ".qweight", "I32", words, "codes"
    yield module + ".qzeros", "I32", (groups, rows // 8), "sevens"
    yield module + ".scales", "F16", (groups, rows), "scales"
    if how == "gptq":
        yield module + ".g_idx", "I32", (columns,), "groups"


class Qwen3Moe:
    """Qwen3-30B-A3B."""

    tokenizer = "qwen2"
    full = dict(hidden=2048, layers=48, heads=32, kv_heads=4, head_dim=128, intermediate=6144, width=768,
                experts=128, chosen=8, vocabulary=151936, eos=[151645, 151643])
    small = dict(full, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=32, intermediate=128, width=32,
                 experts=8, chosen=3, vocabulary=900, eos=[802, 800])

    @staticmethod
    def config(s):
        return dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", attention_bias=False,
                    decoder_sparse_step=1, head_dim=s["head_dim"], hidden_act="silu", hidden_size=s["hidden"],
                    intermediate_size=s["intermediate"], max_position_embeddings=40960, mlp_only_layers=[],
                    moe_intermediate_size=s["width"], norm_topk_prob=True, num_attention_heads=s["heads"],
                    num_experts=s["experts"], num_experts_per_tok=s["chosen"], num_hidden_layers=s["layers"],
                    num_key_value_heads=s["kv_heads"], rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1e6,
                    sliding_window=None, tie_word_embeddings=False, torch_dtype="bfloat16",
                    use_sliding_window=False, vocab_size=s["vocabulary"])

    @staticmethod
    def tensors(s):
        hidden, queries, keys = s["hidden"], s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
        yield matrix("model.embed_tokens.weight", s["vocabulary"], hidden)
        for layer in range(s["layers"]):
            at = f"model.layers.{layer}."
            yield ones(at + "input_layernorm.weight", hidden)
            for expert in range(s["experts"]):
                one = f"{at}mlp.experts.{expert}."
                yield matrix(one + "down_proj.weight", hidden, s["width"])
                yield matrix(one + "gate_proj.weight", s["width"], hidden)
                yield matrix(one + "up_proj.weight", s["width"], hidden)
            yield matrix(at + "mlp.gate.weight", s["experts"], hidden)
            yield ones(at + "post_attention_layernorm.weight", hidden)
            yield ones(at + "self_attn.k_norm.weight", s["head_dim"])
            yield matrix(at + "self_attn.k_proj.weight", keys, hidden)
            yield matrix(at + "self_attn.o_proj.weight", hidden, queries)
            yield ones(at + "self_attn.q_norm.weight", s["head_dim"])
            yield matrix(at + "self_attn.q_proj.weight", queries, hidden)
            yield matrix(at + "self_attn.v_proj.weight", keys, hidden)
        yield ones("model.norm.weight", hidden)
        yield matrix("lm_head.weight", s["vocabulary"], hidden)


class Qwen3MoeInt4(Qwen3Moe):
    """Qwen3-30B-A3B-GPTQ-Int4."""

    small = dict(Qwen3Moe.small, hidden=128, heads=2, head_dim=64, kv_heads=1, width=128)

    @staticmethod
    def config(s):
        own = dict(quant_method="gptq", bits=4, group_size=128, sym=True, desc_act=False, lm_head=False,
                   true_sequential=True, damp_percent=0.01, checkpoint_format="gptq")
        return dict(Qwen3Moe.config(s), quantization_config=own)

    @staticmethod
    def tensors(s):
        for name, dtype, shape, kind in Qwen3Moe.tensors(s):
            if name.endswith("_proj.weight"):
                yield from integers(name.removesuffix(".weight"), *shape, "gptq")
            else:
                yield name, dtype, shape, kind


class Llama70Awq:
    """Llama-3.3-70B-Instruct as AutoAWQ writes it."""

    tokenizer = "llama3"
    full = dict(hidden=8192, layers=80, heads=64, kv_heads=8, intermediate=28672, vocabulary=128256,
                eos=[128001, 128008, 128009])
    small = dict(full, hidden=128, layers=2, heads=2, kv_heads=1, intermediate=256, vocabulary=920, eos=[902])

    @staticmethod
    def config(s):
        own = dict(quant_method="awq", bits=4, group_size=128, zero_point=True, version="gemm",
                   modules_to_not_convert=None)
        rope = dict(factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0,
                    original_max_position_embeddings=8192, rope_type="llama3")
        return dict(architectures=["LlamaForCausalLM"], model_type="llama", attention_bias=False,
                    head_dim=s["hidden"] // s["heads"], hidden_act="silu", hidden_size=s["hidden"],
                    intermediate_size=s["intermediate"], max_position_embeddings=131072, mlp_bias=False,
                    num_attention_heads=s["heads"], num_hidden_layers=s["layers"],
                    num_key_value_heads=s["kv_heads"], quantization_config=own, rms_norm_eps=1e-5,
                    rope_scaling=rope, rope_theta=500000.0, tie_word_embeddings=False, torch_dtype="float16",
                    vocab_size=s["vocabulary"])

    @staticmethod
    def tensors(s):
        hidden, wide = s["hidden"], s["intermediate"]
        keys = hidden // s["heads"] * s["kv_heads"]

        def whole(name, *shape):
            return name, "F16", shape, "halves"

        def unit(name):
            return name, "F16", (hidden,), "half_ones"
        yield whole("model.embed_tokens.weight", s["vocabulary"], hidden)
        for layer in range(s["layers"]):
            at = f"model.layers.{layer}."
            yield unit(at + "input_layernorm.weight")
            for name, rows, columns in (("down", hidden, wide), ("gate", wide, hidden), ("up", wide, hidden)):
                yield from integers(f"{at}mlp.{name}_proj", rows, columns, "awq")
            yield unit(at + "post_attention_layernorm.weight")
            for name, rows in (("k", keys), ("o", hidden), ("q", hidden), ("v", keys)):
                yield from integers(f"{at}self_attn.{name}_proj", rows, hidden, "awq")
        yield unit("model.norm.weight")
        yield whole("lm_head.weight", s["vocabulary"], hidden)


class GptOss:
    """gpt-oss-20b."""

    tokenizer = "o200k"
    full = dict(hidden=2880, layers=24, heads=64, kv_heads=8, head_dim=64, width=2880, experts=32, chosen=4,
                window=128, vocabulary=201088, eos=[200002, 199999, 200012])
    small = dict(full, hidden=64, layers=4, heads=8, kv_heads=2, head_dim=16, width=96, experts=6, chosen=2,
                 window=20, vocabulary=1100, eos=[601])

    @staticmethod
    def config(s):
        kinds = ["sliding_attention", "full_attention"]
        return dict(architectures=["GptOssForCausalLM"], model_type="gpt_oss", attention_bias=True,
                    attention_dropout=0.0, experts_per_token=s["chosen"], head_dim=s["head_dim"], hidden_act="silu",
                    hidden_size=s["hidden"], initial_context_length=4096, intermediate_size=s["width"],
                    layer_types=[kinds[i % 2] for i in range(s["layers"])], max_position_embeddings=131072,
                    num_attention_heads=s["heads"], num_experts_per_tok=s["chosen"],
                    num_hidden_layers=s["layers"], num_key_value_heads=s["kv_heads"],
                    num_local_experts=s["experts"], rms_norm_eps=1e-5,
                    rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=32.0,
                                      original_max_position_embeddings=4096, rope_type="yarn", truncate=False),
                    rope_theta=150000, sliding_window=s["window"], swiglu_limit=7.0, tie_word_embeddings=False,
                    quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=[
                        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]),
                    vocab_size=s["vocabulary"])

    @staticmethod
    def tensors(s):
        hidden, width, experts = s["hidden"], s["width"], s["experts"]
        yield matrix("model.embed_tokens.weight", s["vocabulary"], hidden)
        for layer in range(s["layers"]):
            at = f"model.layers.{layer}."
            yield ones(at + "input_layernorm.weight", hidden)
            for name, rows, columns in (("down_proj", hidden, width), ("gate_up_proj", 2 * width, hidden)):
                one = f"{at}mlp.experts.{name}_"
                yield matrix(one + "bias", experts, rows)
                yield one + "blocks", "U8", (experts, rows, columns // 32, 16), "codes"
                yield one + "scales", "U8", (experts, rows, columns // 32), "powers"
            yield matrix(at + "mlp.router.bias", experts)
            yield matrix(at + "mlp.router.weight", experts, hidden)
            yield ones(at + "post_attention_layernorm.weight", hidden)
            heads = dict(q=s["heads"], k=s["kv_heads"], v=s["kv_heads"])
            for name, count in heads.items():
                yield matrix(f"{at}self_attn.{name}_proj.bias", count * s["head_dim"])
                yield matrix(f"{at}self_attn.{name}_proj.weight", count * s["head_dim"], hidden)
            yield matrix(at + "self_attn.o_proj.bias", hidden)
            yield matrix(at + "self_attn.o_proj.weight", hidden, s["heads"] * s["head_dim"])
            yield matrix(at + "self_attn.sinks", s["heads"])
        yield ones("model.norm.weight", hidden)
        yield matrix("lm_head.weight", s["vocabulary"], hidden)


class GptOss120(GptOss):
    """gpt-oss-120b."""

    full = dict(GptOss.full, layers=36, experts=128)


class Qwen35:
    """Qwen3.5-9B: the text model, under the names that it has beside a vision tower."""

    tokenizer = "qwen3_5"
    full = dict(hidden=4096, layers=32, heads=16, kv_heads=4, head_dim=256, intermediate=12288, key_heads=16,
                value_heads=32, delta_dim=128, vocabulary=248320, eos=[248046, 248044])
    small = dict(full, hidden=64, layers=4, heads=4, kv_heads=2, head_dim=32, intermediate=96, key_heads=2,
                 value_heads=4, delta_dim=16, vocabulary=900, eos=[602, 600])

    @staticmethod
    def config(s):
        kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(s["layers"])]
        text = dict(model_type="qwen3_5_text", attention_bias=False, dtype="bfloat16", eos_token_id=s["eos"][1],
                    head_dim=s["head_dim"], hidden_act="silu", hidden_size=s["hidden"],
                    intermediate_size=s["intermediate"], layer_types=kinds, linear_conv_kernel_dim=4,
                    linear_key_head_dim=s["delta_dim"], linear_num_key_heads=s["key_heads"],
                    linear_num_value_heads=s["value_heads"], linear_value_head_dim=s["delta_dim"],
                    max_position_embeddings=262144, num_attention_heads=s["heads"],
                    num_hidden_layers=s["layers"], num_key_value_heads=s["kv_heads"], rms_norm_eps=1e-6,
                    rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25),
                    tie_word_embeddings=False, vocab_size=s["vocabulary"])
        return dict(architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5", text_config=text,
                    tie_word_embeddings=False)

    @staticmethod
    def delta_net(at, s):
        hidden, keys = s["hidden"], s["key_heads"] * s["delta_dim"]
        values = s["value_heads"] * s["delta_dim"]
        yield matrix(at + "A_log", s["value_heads"])
        yield matrix(at + "conv1d.weight", 2 * keys + values, 1, 4)
        yield ones(at + "dt_bias", s["value_heads"])
        yield matrix(at + "in_proj_a.weight", s["value_heads"], hidden)
        yield matrix(at + "in_proj_b.weight", s["value_heads"], hidden)
        yield matrix(at + "in_proj_qkv.weight", 2 * keys + values, hidden)
        yield matrix(at + "in_proj_z.weight", values, hidden)
        yield ones(at + "norm.weight", s["delta_dim"])
        yield matrix(at + "out_proj.weight", hidden, values)

    @staticmethod
    def tensors(s):
        hidden, queries, keys = s["hidden"], s["heads"] * s["head_dim"], s["kv_heads"] * s["head_dim"]
        yield matrix("model.language_model.embed_tokens.weight", s["vocabulary"], hidden)
        for layer in range(s["layers"]):
            at = f"model.language_model.layers.{layer}."
            yield matrix(at + "input_layernorm.weight", hidden)  # one is added to norms' weights
            yield matrix(at + "post_attention_layernorm.weight", hidden)
            for name in ("gate", "up"):
                yield matrix(f"{at}mlp.{name}_proj.weight", s["intermediate"], hidden)
            yield matrix(at + "mlp.down_proj.weight", hidden, s["intermediate"])
            if layer % 4 != 3:
                yield from Qwen35.delta_net(at + "linear_attn.", s)
                continue
            yield matrix(at + "self_attn.k_norm.weight", s["head_dim"])
            yield matrix(at + "self_attn.k_proj.weight", keys, hidden)
            yield matrix(at + "self_attn.o_proj.weight", hidden, queries)
            yield matrix(at + "self_attn.q_norm.weight", s["head_dim"])
            yield matrix(at + "self_attn.q_proj.weight", 2 * queries, hidden)
            yield matrix(at + "self_attn.v_proj.weight", keys, hidden)
        yield matrix("model.language_model.norm.weight", hidden)
        yield matrix("lm_head.weight", s["vocabulary"], hidden)


class Granite4:
    """Granite-4.0-H-Micro."""

    tokenizer = "qwen2"
    full = dict(hidden=2048, layers=40, attention=(5, 15, 25, 35), heads=32, kv_heads=8, intermediate=8192,
                mamba_heads=64, state=128, vocabulary=100352, eos=[100257])
    small = dict(full, hidden=64, layers=3, attention=(1,), heads=4, kv_heads=2, intermediate=96, mamba_heads=4,
                 state=16, vocabulary=900, eos=[800])

    @staticmethod
    def config(s):
        kinds = ["attention" if i in s["attention"] else "mamba" for i in range(s["layers"])]
        return dict(architectures=["GraniteMoeHybridForCausalLM"], model_type="granitemoehybrid", attention_bias=False,
                    attention_multiplier=0.015625, bos_token_id=s["eos"][0], embedding_multiplier=12,
                    eos_token_id=s["eos"][0], hidden_act="silu", hidden_size=s["hidden"],
                    intermediate_size=s["intermediate"], layer_types=kinds, logits_scaling=8, mamba_chunk_size=256,
                    mamba_conv_bias=True, mamba_d_conv=4, mamba_d_head=2 * s["hidden"] // s["mamba_heads"],
                    mamba_d_state=s["state"], mamba_expand=2, mamba_n_groups=1, mamba_n_heads=s["mamba_heads"],
                    mamba_proj_bias=False, max_position_embeddings=131072, normalization_function="rmsnorm",
                    num_attention_heads=s["heads"], num_experts_per_tok=0, num_hidden_layers=s["layers"],
                    num_key_value_heads=s["kv_heads"], num_local_experts=0, position_embedding_type="nope",
                    residual_multiplier=0.22, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=10000,
                    shared_intermediate_size=s["intermediate"], tie_word_embeddings=True, torch_dtype="bfloat16",
                    vocab_size=s["vocabulary"])

    @staticmethod
    def mamba(at, s):
        hidden, heads = s["hidden"], s["mamba_heads"]
        channels = 2 * hidden + 2 * s["state"]
        yield matrix(at + "A_log", heads)
        yield ones(at + "D", heads)
        yield matrix(at + "conv1d.bias", channels)
        yield matrix(at + "conv1d.weight", channels, 1, 4)
        yield ones(at + "dt_bias", heads)
        yield matrix(at + "in_proj.weight", 2 * hidden + channels + heads, hidden)
        yield ones(at + "norm.weight", 2 * hidden)
        yield matrix(at + "out_proj.weight", hidden, 2 * hidden)

    @staticmethod
    def tensors(s):
        hidden = s["hidden"]
        keys = hidden // s["heads"] * s["kv_heads"]
        yield matrix("model.embed_tokens.weight", s["vocabulary"], hidden)
        for layer in range(s["layers"]):
            at = f"model.layers.{layer}."
            yield ones(at + "input_layernorm.weight", hidden)
            yield ones(at + "post_attention_layernorm.weight", hidden)
            yield matrix(at + "shared_mlp.input_linear.weight", 2 * s["intermediate"], hidden)
            yield matrix(at + "shared_mlp.output_linear.weight", hidden, s["intermediate"])
            if layer not in s["attention"]:
                yield from Granite4.mamba(at + "mamba.", s)
                continue
            yield matrix(at + "self_attn.k_proj.weight", keys, hidden)
            yield matrix(at + "self_attn.o_proj.weight", hidden, hidden)
            yield matrix(at + "self_attn.q_proj.weight", hidden, hidden)
            yield matrix(at + "self_attn.v_proj.weight", keys, hidden)
        yield ones("model.norm.weight", hidden)


class Lfm2:
    """LFM2-1.2B."""

    tokenizer = "llama3"
    full = dict(hidden=2048, layers=16, attention=(2, 5, 8, 10, 12, 14), heads=32, kv_heads=8, intermediate=12288,
                width=8192, multiple=256, vocabulary=65536, eos=[7])
    small = dict(full, hidden=64, layers=4, attention=(1, 2), heads=4, kv_heads=2, intermediate=150, width=112,
                 multiple=16, vocabulary=920, eos=[902])

    @staticmethod
    def config(s):
        return dict(architectures=["Lfm2ForCausalLM"], model_type="lfm2", block_auto_adjust_ff_dim=True,
                    block_ff_dim=s["intermediate"], block_ffn_dim_multiplier=1.0, block_multiple_of=s["multiple"],
                    block_norm_eps=1e-5, bos_token_id=1, conv_L_cache=3, conv_bias=False,
                    full_attn_idxs=list(s["attention"]), hidden_size=s["hidden"], max_position_embeddings=128000,
                    norm_eps=1e-5, num_attention_heads=s["heads"], num_hidden_layers=s["layers"],
                    num_key_value_heads=s["kv_heads"], rope_theta=1e6, torch_dtype="bfloat16",
                    vocab_size=s["vocabulary"])

    @staticmethod
    def tensors(s):
        hidden, head_dim = s["hidden"], s["hidden"] // s["heads"]
        yield matrix("model.embed_tokens.weight", s["vocabulary"], hidden)
        yield ones("model.embedding_norm.weight", hidden)
        for layer in range(s["layers"]):
            at = f"model.layers.{layer}."
            if layer not in s["attention"]:
                yield matrix(at + "conv.conv.weight", hidden, 1, 3)
                yield matrix(at + "conv.in_proj.weight", 3 * hidden, hidden)
                yield matrix(at + "conv.out_proj.weight", hidden, hidden)
            yield matrix(at + "feed_forward.w1.weight", s["width"], hidden)
            yield matrix(at + "feed_forward.w2.weight", hidden, s["width"])
            yield matrix(at + "feed_forward.w3.weight", s["width"], hidden)
            yield ones(at + "ffn_norm.weight", hidden)
            yield ones(at + "operator_norm.weight", hidden)
            if layer not in s["attention"]:
                continue
            yield ones(at + "self_attn.k_layernorm.weight", head_dim)
            yield matrix(at + "self_attn.k_proj.weight", s["kv_heads"] * head_dim, hidden)
            yield matrix(at + "self_attn.out_proj.weight", hidden, hidden)
            yield ones(at + "self_attn.q_layernorm.weight", head_dim)
            yield matrix(at + "self_attn.q_proj.weight", hidden, hidden)
            yield matrix(at + "self_attn.v_proj.weight", s["kv_heads"] * head_dim, hidden)


class Gemma4Moe:
    """Gemma 4 26B-A4B: the text model, under the names that it has beside a vision tower."""

    tokenizer = "gemma"
    full = dict(hidden=2816, layers=30, heads=16, kv_heads=8, head_dim=256, full_kv_heads=2, full_head_dim=512,
                period=6, window=1024, intermediate=2112, width=704, experts=128, chosen=8, vocabulary=262144,
                eos=[1, 106])
    small = dict(full, hidden=64, layers=3, heads=4, kv_heads=2, head_dim=16, full_kv_heads=1, full_head_dim=32,
                 period=3, window=20, intermediate=48, width=32, experts=8, chosen=3, vocabulary=920, eos=[2, 909])

    @staticmethod
    def config(s):
        kinds = ["sliding_attention" if (i + 1) % s["period"] else "full_attention" for i in range(s["layers"])]
        ropes = dict(full_attention=dict(partial_rotary_factor=0.25, rope_theta=1e6, rope_type="proportional"),
                     sliding_attention=dict(rope_theta=1e4, rope_type="default"))
        text = dict(model_type="gemma4_text", attention_bias=False, attention_k_eq_v=True, bos_token_id=2,
                    dtype="bfloat16", enable_moe_block=True, eos_token_id=s["eos"][0], final_logit_softcapping=30.0,
                    global_head_dim=s["full_head_dim"], head_dim=s["head_dim"], hidden_activation="gelu_pytorch_tanh",
                    hidden_size=s["hidden"], hidden_size_per_layer_input=0, intermediate_size=s["intermediate"],
                    layer_types=kinds, max_position_embeddings=262144, moe_intermediate_size=s["width"],
                    num_attention_heads=s["heads"], num_experts=s["experts"],
                    num_global_key_value_heads=s["full_kv_heads"], num_hidden_layers=s["layers"],
                    num_key_value_heads=s["kv_heads"], num_kv_shared_layers=0, rms_norm_eps=1e-6,
                    rope_parameters=ropes, sliding_window=s["window"], tie_word_embeddings=True,
                    top_k_experts=s["chosen"], use_bidirectional_attention="vision", use_double_wide_mlp=False,
                    vocab_size=s["vocabulary"], vocab_size_per_layer_input=s["vocabulary"])
        return dict(architectures=["Gemma4ForConditionalGeneration"], model_type="gemma4", text_config=text,
                    tie_word_embeddings=True)

    @staticmethod
    def attention(at, full, s):
        dim, kv_heads = (s["full_head_dim"], s["full_kv_heads"]) if full else (s["head_dim"], s["kv_heads"])
        yield ones(at + "k_norm.weight", dim)
        yield matrix(at + "k_proj.weight", kv_heads * dim, s["hidden"])
        yield matrix(at + "o_proj.weight", s["hidden"], s["heads"] * dim)
        yield ones(at + "q_norm.weight", dim)
        yield matrix(at + "q_proj.weight", s["heads"] * dim, s["hidden"])
        if not full:  # there the keys are the values
            yield matrix(at + "v_proj.weight", kv_heads * dim, s["hidden"])

    @staticmethod
    def tensors(s):
        hidden, width, experts = s["hidden"], s["width"], s["experts"]
        yield matrix("model.language_model.embed_tokens.weight", s["vocabulary"], hidden)
        for layer in range(s["layers"]):
            at = f"model.language_model.layers.{layer}."
            yield matrix(at + "experts.down_proj", experts, hidden, width)
            yield matrix(at + "experts.gate_up_proj", experts, 2 * width, hidden)
            yield ones(at + "layer_scalar", 1)
            for name in ("gate", "up"):
                yield matrix(f"{at}mlp.{name}_proj.weight", s["intermediate"], hidden)
            yield matrix(at + "mlp.down_proj.weight", hidden, s["intermediate"])
            for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
                yield ones(f"{at}{name}_layernorm.weight", hidden)
            for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
                         "pre_feedforward_layernorm_2"):
                yield ones(f"{at}{name}.weight", hidden)
            yield ones(at + "router.per_expert_scale", experts)
            yield matrix(at + "router.proj.weight", experts, hidden)
            yield ones(at + "router.scale", hidden)
            yield from Gemma4Moe.attention(at + "self_attn.", (layer + 1) % s["period"] == 0, s)
        yield ones("model.language_model.norm.weight", hidden)


SHAPES = {"qwen3-30b-a3b": Qwen3Moe, "gpt-oss-20b": GptOss, "qwen3.5-9b": Qwen35, "granite-4.0-h-micro": Granite4,
          "lfm2-1.2b": Lfm2, "gemma-4-26b-a4b": Gemma4Moe, "qwen3-30b-a3b-int4": Qwen3MoeInt4,
          "gpt-oss-120b": GptOss120, "llama-3.3-70b-awq": Llama70Awq}
SIZES = {"BF16": 2, "F16": 2, "I32": 4, "U8": 1}


def random_block(kind, size, generator):
    if kind == "ones":
        return b"\x80\x3f" * (size // 2)
    if kind == "half_ones":
        return b"\x00\x3c" * (size // 2)
    if kind == "codes":
        return generator.randbytes(size)
    if kind == "sevens":  # zero points, as both formats store those of 7 and of 8
        return b"\x77" * size
    if kind == "groups":  # of columns that are in order, 128 to a group
        return b"".join((i // 128).to_bytes(4, "little") for i in range(min(size // 4, 1 << 18)))
    if kind in ("scales", "halves"):
        # float16 from 2^-8 on, less than a quarter more; of either sign from 2^-7 to 2^-5.
        own = [0x1C] if kind == "scales" else [sign | high for sign in (0, 0x80) for high in range(0x20, 0x28)]
        block = bytearray(generator.randbytes(size))
        block[1::2] = block[1::2].translate(bytes(own[i % len(own)] for i in range(256)))
        return bytes(block)
    if kind == "powers":  # of two: 2^-8 to 2^-6, so that weights deviate by about 0.02
        return generator.randbytes(size).translate(bytes(119 + i % 3 for i in range(256)))
    # bfloat16 of either sign from 2^-9 to 2^-5, more of the greater ones: their deviation is 0.017.
    high = bytes((128 if i % 2 else 0) + (59 if i % 8 < 2 else 60) for i in range(256))
    block = bytearray(size)
    block[0::2] = generator.randbytes(size // 2)
    block[1::2] = generator.randbytes(size // 2).translate(high)
    return bytes(block)


def bytes_of(tensor):
    _, dtype, shape, _ = tensor
    return math.prod(shape) * SIZES[dtype]


def split(tensors, most):
    """Shards of so many bytes at most, unless one tensor is larger."""
    shards, size = [[]], 0
    for tensor in tensors:
        if shards[-1] and size + bytes_of(tensor) > most:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += bytes_of(tensor)
    return shards


def write_shard(path, tensors, blocks, first):
    """first: the number of the shard's first tensor."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, _ in tensors:
        end = offset + bytes_of((name, dtype, shape, None))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for number, tensor in enumerate(tensors, first):
            block = memoryview(blocks[tensor[3]])
            at, left = number * 1000003 * 2 % len(block), bytes_of(tensor)
            if tensor[3] == "groups":
                at = 0
            while left > 0:
                part = block[at:at + left]
                file.write(part)
                left -= len(part)
                at = 0


def write(name, small, directory, shard_bytes, threads, seed):
    shape = SHAPES[name]
    sizes = shape.small if small else shape.full
    directory.mkdir(parents=True, exist_ok=True)
    tensors = list(shape.tensors(sizes))
    generator = random.Random(seed)
    block = min(BLOCK, 1 << 20 if small else BLOCK)
    blocks = {kind: random_block(kind, block, generator) for kind in sorted({t[3] for t in tensors})}
    shards = split(tensors, shard_bytes or (200_000 if small else 5_000_000_000))
    names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        jobs, first = [], 0
        for file, part in zip(names, shards):
            jobs.append(pool.submit(write_shard, directory / file, part, blocks, first))
            first += len(part)
        for job in jobs:
            job.result()
    places = {tensor[0]: file for file, part in zip(names, shards) for tensor in part}
    total = sum(map(bytes_of, tensors))
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    config = dict(shape.config(sizes), eos_token_id=sizes["eos"][0])
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    generation = {"do_sample": False, "eos_token_id": sizes["eos"]}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2))
    shutil.copyfile(TEXT / shape.tokenizer / "tokenizer.json", directory / "tokenizer.json")
    return total, len(tensors), len(shards)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(SHAPES))
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--small", action="store_true", help="a megabyte or so")
    parser.add_argument("--shard-bytes", type=int, help="of a shard at most; default 5 GB")
    parser.add_argument("--threads", type=int, default=4, help="shards written at once; default 4")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if (arguments.directory / "config.json").exists():
        sys.exit(f"{arguments.directory}: there is a config.json")
    start = time.monotonic()
    total, tensors, shards = write(arguments.name, arguments.small, arguments.directory, arguments.shard_bytes,
                                   arguments.threads, arguments.seed)
    print(f"{arguments.directory}: {total / 2**30:.1f} GiB, {tensors} tensors in {shards} shards, "
          f"{time.monotonic() - start:.1f} s")


if __name__ == "__main__":
    main()
