#!/usr/bin/env python3
"""Makes tests/golden: small random models of every family, and what transformers computes with them.

    python3 -m venv .venv && .venv/bin/pip install torch torchvision transformers numpy safetensors pillow
    .venv/bin/python scripts/make_golden.py [--only NAME] [--output tests/golden]

Everything comes from fixed seeds. The weights are rounded to the type of the file before the
reference sees them, and the reference computes in float32. tests/golden/README.md describes the
files.
"""

import argparse
import json
import math
import os
import re
import shutil
import tempfile
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText,
                          AutoModelForSequenceClassification)

import golden_four_bits
import golden_fp8
import golden_pictures
import golden_saved

NEW_TOKENS = 24
HYBRIDS = ("qwen3_next", "qwen3_5")
WINDOW = "sliding_window"

# What most models are.
SMALL = dict(vocab_size=300, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)

GPT_OSS = dict(
    SMALL, intermediate_size=32, head_dim=16, num_local_experts=6, num_experts_per_tok=3, sliding_window=20,
    rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0,
                         truncate=False, original_max_position_embeddings=64))

GRANITE = dict(SMALL, tie_word_embeddings=True, attention_multiplier=0.11, embedding_multiplier=9.0,
               residual_multiplier=0.6, logits_scaling=0.4)

FALCON_H1 = dict(
    SMALL, intermediate_size=72, embedding_multiplier=5.65, lm_head_multiplier=0.4, key_multiplier=0.39,
    attention_in_multiplier=1.3, attention_out_multiplier=0.9, ssm_in_multiplier=1.25, ssm_out_multiplier=0.7,
    mlp_multipliers=[0.88, 0.6], ssm_multipliers=[0.8, 0.5, 0.7, 1.3, 0.3],
    rope_parameters=dict(rope_type="default", rope_theta=100000000000.0))

LATENT = dict(SMALL, num_key_value_heads=4, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24)

LLAMA4 = dict(SMALL, num_hidden_layers=4, head_dim=24, intermediate_size=40, intermediate_size_mlp=72,
              num_local_experts=5, attention_chunk_size=32, floor_scale=20, attn_scale=0.3)

KIMI_LINEAR = dict(LATENT, num_hidden_layers=4, moe_intermediate_size=24, routed_scaling_factor=1.3,
                   layer_types=["linear_attention", "full_attention"] * 2)

# With vision_config and token ids beside it.
GEMMA4_MOE = dict(
    SMALL, intermediate_size=48, head_dim=16, global_head_dim=24, sliding_window=24, attention_k_eq_v=True,
    num_global_key_value_heads=1, hidden_size_per_layer_input=0, final_logit_softcapping=20.0,
    use_bidirectional_attention="vision", enable_moe_block=True, num_experts=6, top_k_experts=2,
    moe_intermediate_size=40)
GEMMA4_VISION = dict(
    vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
                       num_key_value_heads=1, head_dim=16, patch_size=4, position_embedding_size=16),
    image_token_id=305, video_token_id=306, audio_token_id=307, tie_word_embeddings=True)

NEMOTRON = {key: value for key, value in SMALL.items() if key != "num_hidden_layers"}
NEMOTRON_LETTERS = dict(linear_attention="M", full_attention="*", mlp="-", moe="E")


def layers_of(pattern):
    kinds = {letter: kind for kind, letter in NEMOTRON_LETTERS.items()}
    return [kinds[letter] for letter in pattern]


# name: (model_type, file dtype, spelling of config.json, configuration, eos in generation_config,
# size of a shard in kB or None). Spelling "new" is what transformers 5 writes; "type" and
# "rope_type" are the older spellings of the rope keys; "stacked" has a layer's experts in two tensors, "each" has
# a tensor for every matrix of every expert.
MODELS = {
    "llama2_mha_f16": ("llama", "float16", "type", dict(
        vocab_size=288, hidden_size=128, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512,
        rms_norm_eps=0.01), 2, None),
    "llama3_gqa_sharded_bf16": ("llama", "bfloat16", "new", dict(
        vocab_size=300, hidden_size=96, intermediate_size=80, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=64)),
        [298, 299], 160),
    "llama_gqa8_llama3_bf16": ("llama", "bfloat16", "rope_type", dict(
        vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=1, head_dim=64, max_position_embeddings=512,
        tie_word_embeddings=True,
        rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=32.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=128)),
        "frequent", None),
    "llama_mqa_linear_bf16": ("llama", "bfloat16", "type", dict(
        vocab_size=257, hidden_size=96, intermediate_size=112, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, head_dim=64, max_position_embeddings=1024,
        rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)), None, None),
    "llama_bias_f32": ("llama", "float32", "new", dict(
        vocab_size=290, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=80, max_position_embeddings=512,
        attention_bias=True, mlp_bias=True), None, None),
    "mistral_window_bf16": ("mistral", "bfloat16", "type", dict(
        vocab_size=300, hidden_size=96, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=512,
        sliding_window=27), 299, None),
    "mistral_full_f16": ("mistral", "float16", "type", dict(
        vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=128, max_position_embeddings=512,
        sliding_window=None), 299, None),
    "qwen2_tied_bf16": ("qwen2", "bfloat16", "type", dict(
        vocab_size=304, hidden_size=128, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
        tie_word_embeddings=True), [302, 303], None),
    "qwen2_window_bf16": ("qwen2", "bfloat16", "new", dict(
        vocab_size=300, hidden_size=128, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
        use_sliding_window=True, sliding_window=40, max_window_layers=1), None, None),
    "qwen3_bf16": ("qwen3", "bfloat16", "type", dict(
        vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=128, max_position_embeddings=512,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0)), [298, 299], None),
    "qwen3_bias_tied_sharded_f16": ("qwen3", "float16", "new", dict(
        vocab_size=310, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=96, max_position_embeddings=512,
        attention_bias=True, tie_word_embeddings=True), None, 120),
    "qwen2_yarn_bf16": ("qwen2", "bfloat16", "type", dict(
        SMALL, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                             original_max_position_embeddings=32)), None, None),
    "llama_yarn_factors_bf16": ("llama", "bfloat16", "rope_type", dict(
        SMALL, rope_parameters=dict(
            rope_type="yarn", rope_theta=5000.0, factor=8.0, beta_fast=20.0, beta_slow=2.0,
            mscale=1.2, mscale_all_dim=0.7, truncate=False,
            original_max_position_embeddings=64)), 298, None),
    "gemma2_bf16": ("gemma2", "bfloat16", "type", dict(
        SMALL, num_hidden_layers=3, head_dim=24, sliding_window=20, query_pre_attn_scalar=40,
        attn_logit_softcapping=3.0, final_logit_softcapping=6.0), [298, 299], None),
    "gemma3_text_bf16": ("gemma3_text", "bfloat16", "rope_type", dict(
        SMALL, num_hidden_layers=4, head_dim=24, sliding_window=20, query_pre_attn_scalar=20,
        layer_types=["sliding_attention"] * 2 + ["full_attention", "sliding_attention"],
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", rope_theta=100000.0, factor=8.0),
            sliding_attention=dict(rope_type="default", rope_theta=5000.0))), None, None),
    "gemma3_vision_bf16": ("gemma3", "bfloat16", "hub", dict(
        text_config=dict(
            SMALL, num_hidden_layers=6, head_dim=16, num_attention_heads=2, intermediate_size=48,
            sliding_window=16, query_pre_attn_scalar=20),
        vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                           num_attention_heads=1, image_size=28, patch_size=14),
        mm_tokens_per_image=4), [297, 299], None),
    "phi3_bf16": ("phi3", "bfloat16", "type", dict(
        SMALL, sliding_window=40), 299, None),
    "phi3_longrope_short_bf16": ("phi3", "bfloat16", "type", dict(
        SMALL, num_attention_heads=2, num_key_value_heads=1, partial_rotary_factor=0.75,
        original_max_position_embeddings=512,
        rope_parameters=dict(
            rope_type="longrope", rope_theta=10000.0, factor=8.0,
            short_factor=[1.0 + 0.05 * i for i in range(12)],
            long_factor=[1.0 + 1.5 * i for i in range(12)])), [297, 299], None),
    "phi3_longrope_long_bf16": ("phi3", "bfloat16", "type", dict(
        SMALL, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
        original_max_position_embeddings=2,
        rope_parameters=dict(
            rope_type="longrope", rope_theta=10000.0, attention_factor=1.2,
            short_factor=[1.0 + 0.05 * i for i in range(16)],
            long_factor=[1.0 + 0.7 * i for i in range(16)])), None, None),
    "olmo2_bf16": ("olmo2", "bfloat16", "type", dict(SMALL), 298, None),
    "olmo3_bf16": ("olmo3", "bfloat16", "rope_type", dict(
        SMALL, num_hidden_layers=4, sliding_window=24,
        rope_parameters=dict(
            full_attention=dict(
                rope_type="yarn", rope_theta=500000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0,
                attention_factor=1.2079441541679836, original_max_position_embeddings=64),
            sliding_attention=dict(rope_type="default", rope_theta=500000.0))), None, None),
    "smollm3_bf16": ("smollm3", "bfloat16", "type", dict(
        SMALL, num_hidden_layers=4, no_rope_layers=[1, 0, 1, 1]), 299, None),
    "granite_bf16": ("granite", "bfloat16", "type", dict(
        SMALL, tie_word_embeddings=True, attention_multiplier=0.11, embedding_multiplier=9.0,
        residual_multiplier=0.6, logits_scaling=0.5), None, None),
    "glm_bf16": ("glm", "bfloat16", "type", dict(SMALL, head_dim=24), [297, 299], None),
    "glm4_bf16": ("glm4", "bfloat16", "new", dict(SMALL, head_dim=32), [297, 299], None),
    "exaone4_bf16": ("exaone4", "bfloat16", "type", dict(
        SMALL, num_hidden_layers=3, sliding_window=24, sliding_window_pattern=3), None, None),
    "exaone4_full_bf16": ("exaone4", "bfloat16", "new", dict(
        SMALL, sliding_window=None, layer_types=["full_attention"] * 2), 298, None),
    "cohere2_bf16": ("cohere2", "bfloat16", "type", dict(
        SMALL, num_hidden_layers=4, sliding_window=24, logit_scale=0.5), 299, None),
    "seed_oss_bf16": ("seed_oss", "bfloat16", "type", dict(SMALL, head_dim=24), 299, None),
    "ministral3_bf16": ("ministral3", "bfloat16", "new", dict(
        SMALL, head_dim=24, rope_parameters=dict(
            rope_type="yarn", rope_theta=1000000.0, factor=16.0, beta_fast=32.0, beta_slow=1.0,
            mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3,
            original_max_position_embeddings=32)), 299, None),
    "mistral3_vision_bf16": ("mistral3", "bfloat16", "hub", dict(
        text_config=dict(SMALL, model_type="mistral", head_dim=24, sliding_window=None,
                         rope_theta=1000000000.0),
        vision_config=dict(model_type="pixtral", hidden_size=16, intermediate_size=16,
                           num_hidden_layers=1, num_attention_heads=1, image_size=28,
                           patch_size=14, head_dim=16),
        tie_word_embeddings=False, spatial_merge_size=1), 299, None),
    "starcoder2_bf16": ("starcoder2", "bfloat16", "type", dict(
        SMALL, sliding_window=50, tie_word_embeddings=False), 298, None),
    "qwen2_vl_bf16": ("qwen2_vl", "bfloat16", "flat", dict(
        text_config=dict(SMALL, rope_parameters=dict(
            rope_type="default", rope_theta=1000000.0, mrope_section=[2, 3, 3])),
        vision_config=dict(depth=1, embed_dim=16, hidden_size=64, num_heads=1, mlp_ratio=1,
                           patch_size=14)), 299, None),
    "qwen3_vl_bf16": ("qwen3_vl", "bfloat16", "new", dict(
        text_config=dict(SMALL, head_dim=24, rope_parameters=dict(
            rope_type="default", rope_theta=500000.0, mrope_section=[4, 4, 4],
            mrope_interleaved=True)),
        vision_config=dict(depth=1, hidden_size=16, num_heads=1, intermediate_size=16,
                           out_hidden_size=64, patch_size=14, num_position_embeddings=16,
                           deepstack_visual_indexes=[0])), 298, None),
    "gemma4_bf16": ("gemma4", "bfloat16", "hub", dict(
        text_config=dict(
            SMALL, num_hidden_layers=6, intermediate_size=48, head_dim=16, global_head_dim=24,
            sliding_window=24, num_kv_shared_layers=3, use_double_wide_mlp=True,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
            hidden_size_per_layer_input=24, vocab_size_per_layer_input=310),
        **GEMMA4_VISION), None, None),
    "gemma4_text_bf16": ("gemma4_text", "bfloat16", "new", dict(
        SMALL, num_hidden_layers=4, head_dim=24, global_head_dim=32, sliding_window=24,
        num_attention_heads=4, num_global_key_value_heads=1, attention_k_eq_v=True,
        layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=0,
        final_logit_softcapping=20.0, tie_word_embeddings=True), 299, None),
    "qwen3_moe_bf16": ("qwen3_moe", "bfloat16", "type", dict(
        SMALL, head_dim=24, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40,
        norm_topk_prob=True, num_hidden_layers=3, mlp_only_layers=[1]), [298, 299], None),
    "qwen2_moe_bf16": ("qwen2_moe", "bfloat16", "type", dict(
        SMALL, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=32,
        shared_expert_intermediate_size=48), None, None),
    "mixtral_bf16": ("mixtral", "bfloat16", "type", dict(
        SMALL, num_local_experts=4, num_experts_per_tok=2, sliding_window=30), 299, None),
    "olmoe_bf16": ("olmoe", "bfloat16", "type", dict(
        SMALL, intermediate_size=24, num_experts=8, num_experts_per_tok=3), None, None),
    "granite_moe_bf16": ("granitemoe", "bfloat16", "type", dict(
        SMALL, intermediate_size=24, num_local_experts=8, num_experts_per_tok=2,
        tie_word_embeddings=True, attention_multiplier=0.11, embedding_multiplier=9.0,
        residual_multiplier=0.6, logits_scaling=0.25), None, None),
    "glm4_moe_bf16": ("glm4_moe", "bfloat16", "new", dict(
        SMALL, head_dim=32, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3,
        moe_intermediate_size=32, n_shared_experts=2, first_k_dense_replace=1, num_hidden_layers=3,
        routed_scaling_factor=1.5, use_qk_norm=True, attention_bias=True), 299, None),
    # Quantised by golden_fp8.py. Sizes that blocks do not divide.
    "llama_ct_tensor_fp8": ("llama", "bfloat16", "new", dict(SMALL), 299, None),
    "phi3_ct_channel_fp8": ("phi3", "bfloat16", "type", dict(SMALL), 299, None),
    "qwen2_ct_naive_fp8": ("qwen2", "float16", "type", dict(SMALL, tie_word_embeddings=True), None, None),
    "llama_ct_block_fp8": ("llama", "bfloat16", "type", dict(
        SMALL, hidden_size=144, intermediate_size=136, head_dim=36, tie_word_embeddings=True), 299, None),
    "qwen3_block_fp8": ("qwen3", "bfloat16", "new", dict(
        SMALL, hidden_size=136, intermediate_size=160, head_dim=40, tie_word_embeddings=True),
        [298, 299], 160),
    "phi3_block_fp8": ("phi3", "bfloat16", "type", dict(SMALL, intermediate_size=72), None, None),
    "qwen3_moe_block_fp8": ("qwen3_moe", "bfloat16", "type", dict(
        SMALL, head_dim=24, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40,
        norm_topk_prob=True, num_hidden_layers=3, mlp_only_layers=[1]), 299, None),
    "ministral3_tensor_fp8": ("ministral3", "bfloat16", "new", dict(
        SMALL, head_dim=24, rope_parameters=dict(
            rope_type="yarn", rope_theta=1000000.0, factor=16.0, beta_fast=32.0, beta_slow=1.0,
            mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3,
            original_max_position_embeddings=32)), 299, None),
    "mistral_static_fp8": ("mistral", "bfloat16", "type", dict(SMALL, sliding_window=None), 299, None),
    "llama_modelopt_fp8": ("llama", "bfloat16", "type", dict(SMALL), 298, None),
    "mixtral_modelopt_fp8": ("mixtral", "bfloat16", "type", dict(
        SMALL, hidden_size=136, head_dim=32, num_local_experts=3, num_experts_per_tok=2,
        sliding_window=None, tie_word_embeddings=True), None, None),
    # Gated delta nets. Sizes of heads that whole vectors do not divide.
    "qwen3_next_bf16": ("qwen3_next", "bfloat16", "hub", dict(
        SMALL, num_hidden_layers=4, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=16, linear_value_head_dim=24, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=24, shared_expert_intermediate_size=40, mlp_only_layers=[1]), 299, None),
    "qwen3_next_dense_f16": ("qwen3_next", "float16", "new", dict(
        SMALL, num_hidden_layers=3, head_dim=24, linear_num_key_heads=3, linear_num_value_heads=3,
        linear_key_head_dim=20, linear_value_head_dim=16, linear_conv_kernel_dim=3, num_experts=0,
        attention_bias=True, tie_word_embeddings=True,
        layer_types=["full_attention", "linear_attention", "linear_attention"]), [298, 299], None),
    "qwen3_5_bf16": ("qwen3_5", "bfloat16", "new", dict(
        text_config=dict(
            SMALL, num_hidden_layers=4, head_dim=32, linear_num_key_heads=1, linear_num_value_heads=3,
            linear_key_head_dim=32, linear_value_head_dim=16, rope_parameters=dict(
                rope_type="default", rope_theta=100000.0, partial_rotary_factor=0.5,
                mrope_section=[3, 3, 2], mrope_interleaved=True)),
        vision_config=dict(depth=1, hidden_size=16, num_heads=1, intermediate_size=16,
                           out_hidden_size=64, patch_size=14, num_position_embeddings=16)), None, None),
    "qwen3_5_moe_bf16": ("qwen3_5_moe_text", "bfloat16", "stacked", dict(
        SMALL, num_hidden_layers=4, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=16, linear_value_head_dim=16, num_experts=6, num_experts_per_tok=3,
        moe_intermediate_size=24, shared_expert_intermediate_size=24), 299, None),
    "gpt_oss_bf16": ("gpt_oss", "bfloat16", "new", dict(GPT_OSS, num_hidden_layers=3), [298, 299], None),
    # Quantised by golden_four_bits.py.
    "gpt_oss_mxfp4": ("gpt_oss", "bfloat16", "rope_type", dict(GPT_OSS, swiglu_limit=7.0), 299, 120),
    "llama_awq": ("llama", "float16", "type", dict(SMALL, attention_bias=True), 299, None),
    "phi3_awq": ("phi3", "float16", "type", dict(SMALL, intermediate_size=56), None, None),
    "qwen2_gptq_act_order": ("qwen2", "float16", "type", dict(SMALL, tie_word_embeddings=True), 299, None),
    "phi3_gptq_v2": ("phi3", "bfloat16", "type", dict(SMALL, intermediate_size=72), [298, 299], None),
    "llama_gptq_sym": ("llama", "float16", "type", dict(SMALL), None, None),
    "llama_ct_packed": ("llama", "bfloat16", "new", dict(SMALL), 299, None),
    "qwen3_ct_packed_asym": ("qwen3", "bfloat16", "new", dict(
        SMALL, hidden_size=60, head_dim=26, intermediate_size=70, tie_word_embeddings=True), 299, 120),
    "llama_ct_mxfp4": ("llama", "bfloat16", "new", dict(SMALL), 298, None),
    # Sizes that the blocks of 128 of products in fp8 divide.
    "qwen3_moe_wide_block_fp8": ("qwen3_moe", "bfloat16", "type", dict(
        SMALL, hidden_size=256, intermediate_size=128, num_attention_heads=2, num_key_value_heads=1, head_dim=128,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=256, norm_topk_prob=True,
        mlp_only_layers=[0]), 299, None),
    "qwen3_moe_channel_fp8": ("qwen3_moe", "bfloat16", "type", dict(
        SMALL, hidden_size=128, num_attention_heads=2, num_key_value_heads=1, head_dim=64, num_experts=6,
        num_experts_per_tok=3, moe_intermediate_size=128, norm_topk_prob=True), 299, None),
    # Mamba-2. Sizes of heads that whole vectors do not divide.
    "granite_hybrid_moe_bf16": ("granitemoehybrid", "bfloat16", "type", dict(
        GRANITE, intermediate_size=24, num_hidden_layers=3, num_local_experts=6, num_experts_per_tok=2,
        shared_intermediate_size=40, mamba_n_heads=4, mamba_d_state=24,
        layer_types=["linear_attention", "full_attention", "linear_attention"]), 299, None),
    # With transformers 5.23: in 5.17 the norm is of all groups together.
    "granite_hybrid_dense_f16": ("granitemoehybrid", "float16", "new", dict(
        GRANITE, hidden_size=56, num_hidden_layers=3, num_local_experts=0, shared_intermediate_size=72,
        mamba_n_heads=6, mamba_n_groups=3, mamba_d_state=20, mamba_d_conv=3, mamba_expand=3,
        mamba_conv_bias=False, attention_bias=True, position_embedding_type="rope", tie_word_embeddings=False,
        logits_scaling=1.25, layer_types=["full_attention", "linear_attention", "linear_attention"]),
        [298, 299], None),
    "granite_attention_bf16": ("granitemoehybrid", "bfloat16", "type", dict(
        GRANITE, num_local_experts=0, shared_intermediate_size=64, position_embedding_type="rope",
        mamba_n_heads=4, layer_types=["full_attention"] * 2), None, None),
    "granite_moe_shared_bf16": ("granitemoeshared", "bfloat16", "type", dict(
        GRANITE, intermediate_size=24, num_local_experts=5, num_experts_per_tok=2,
        shared_intermediate_size=40), 298, None),
    # Short convolutions. Sizes that whole vectors do not divide.
    "lfm2_bf16": ("lfm2", "bfloat16", "hub", dict(
        SMALL, hidden_size=60, num_attention_heads=3, num_key_value_heads=1, intermediate_size=100,
        block_ffn_dim_multiplier=1.2, block_multiple_of=12, num_hidden_layers=4, full_attn_idxs=[2],
        conv_bias=True), [298, 299], None),
    "lfm2_moe_bf16": ("lfm2_moe", "bfloat16", "new", dict(
        SMALL, num_hidden_layers=4, num_dense_layers=1, num_experts=6, num_experts_per_tok=2,
        moe_intermediate_size=24, routed_scaling_factor=1.5, conv_L_cache=4,
        layer_types=["conv", "full_attention", "conv", "full_attention"]), 299, None),
    "lfm2_vl_bf16": ("lfm2_vl", "bfloat16", "new", dict(
        text_config=dict(SMALL, intermediate_size=48, block_multiple_of=8, num_hidden_layers=3,
                         layer_types=["full_attention", "conv", "conv"]),
        vision_config=dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                           num_attention_heads=1, patch_size=4, num_patches=16),
        projector_hidden_size=16, image_token_id=298), 299, None),
    # Layers of one thing each: Mamba-2, attention, a feed-forward, experts.
    "nemotron_h_bf16": ("nemotron_h", "bfloat16", "hub", dict(
        NEMOTRON, head_dim=24, intermediate_size=72, mamba_num_heads=6, mamba_head_dim=20, n_groups=2,
        ssm_state_size=24, layers_block_type=layers_of("-M-MM*--M-")), [298, 299], None),
    "nemotron_h_moe_bf16": ("nemotron_h", "bfloat16", "hub", dict(
        NEMOTRON, head_dim=32, mamba_num_heads=8, mamba_head_dim=16, n_groups=4, ssm_state_size=16, n_routed_experts=8,
        num_experts_per_tok=4, moe_intermediate_size=16, moe_shared_expert_intermediate_size=40,
        routed_scaling_factor=0.6, layers_block_type=layers_of("MEM*E")), 299, None),
    "nemotron_h_stacked_f16": ("nemotron_h", "float16", "stacked", dict(
        NEMOTRON, hidden_size=56, head_dim=20, intermediate_size=40, mlp_bias=True, use_conv_bias=False, conv_kernel=3,
        mamba_num_heads=3, mamba_head_dim=24, n_groups=1, ssm_state_size=20, n_routed_experts=6, n_group=3,
        topk_group=2, num_experts_per_tok=2, norm_topk_prob=False, moe_intermediate_size=24,
        moe_shared_expert_intermediate_size=32, layers_block_type=layers_of("E*-M")), [297, 299], None),
    "nemotron_h_modelopt_fp8": ("nemotron_h", "bfloat16", "hub", dict(
        NEMOTRON, head_dim=16, intermediate_size=48, mamba_num_heads=4, mamba_head_dim=16, n_groups=2, ssm_state_size=16,
        n_routed_experts=4, moe_intermediate_size=24, moe_shared_expert_intermediate_size=32,
        layers_block_type=layers_of("ME*-")), 299, None),
    "bamba_bf16": ("bamba", "bfloat16", "type", dict(
        SMALL, intermediate_size=72, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1,
        attn_layer_indices=[1], mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=20), 299, None),
    # States with heads as in the published models, for which CUDA has kernels of their own.
    "qwen3_next_wide_bf16": ("qwen3_next", "bfloat16", "new", dict(
        SMALL, num_hidden_layers=3, head_dim=32, linear_num_key_heads=1, linear_num_value_heads=2,
        linear_key_head_dim=128, linear_value_head_dim=128, num_experts=0,
        layer_types=["linear_attention", "full_attention", "linear_attention"]), [298, 299], None),
    "granite_hybrid_wide_bf16": ("granitemoehybrid", "bfloat16", "new", dict(
        GRANITE, num_hidden_layers=3, num_local_experts=0, shared_intermediate_size=64, mamba_n_heads=2,
        mamba_d_state=128, layer_types=["linear_attention", "full_attention", "linear_attention"]), 299, None),
    "gemma4_moe_bf16": ("gemma4", "bfloat16", "hub", dict(
        GEMMA4_VISION, text_config=dict(
            GEMMA4_MOE, num_hidden_layers=3,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"])), [298, 299], None),
    "gemma4_moe_channel_fp8": ("gemma4", "bfloat16", "each", dict(
        GEMMA4_VISION, text_config=dict(
            GEMMA4_MOE, layer_types=["sliding_attention", "full_attention"])), 299, None),
    # Quantised by golden_four_bits.py.
    "llama_ct_nvfp4": ("llama", "bfloat16", "new", dict(
        SMALL, hidden_size=128, intermediate_size=192, num_attention_heads=2, num_key_value_heads=1, head_dim=64), 299, None),
    "qwen3_moe_modelopt_nvfp4": ("qwen3_moe", "bfloat16", "type", dict(
        SMALL, hidden_size=128, num_attention_heads=2, num_key_value_heads=1, head_dim=64, num_experts=6,
        num_experts_per_tok=3, moe_intermediate_size=80, norm_topk_prob=True), 299, None),
    "qwen3_moe_gptq": ("qwen3_moe", "bfloat16", "type", dict(
        SMALL, hidden_size=128, num_attention_heads=2, num_key_value_heads=1, head_dim=64, num_experts=6,
        num_experts_per_tok=3, moe_intermediate_size=128, norm_topk_prob=True), [298, 299], None),
    "arcee_bf16": ("arcee", "bfloat16", "type", dict(
        SMALL, head_dim=24, attention_bias=True, mlp_bias=True), [298, 299], None),
    "ernie4_5_bf16": ("ernie4_5", "bfloat16", "type", dict(
        SMALL, head_dim=24, use_bias=True, tie_word_embeddings=True), 299, None),
    "ernie4_5_moe_bf16": ("ernie4_5_moe", "bfloat16", "type", dict(
        SMALL, num_hidden_layers=4, moe_num_experts=6, moe_k=3, moe_intermediate_size=24,
        moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=2), None, None),
    "minimax_m2_bf16": ("minimax_m2", "bfloat16", "type", dict(
        SMALL, head_dim=32, intermediate_size=40, num_local_experts=6, num_experts_per_tok=2, rotary_dim=16),
        299, None),
    "dots1_bf16": ("dots1", "bfloat16", "type", dict(
        SMALL, num_hidden_layers=3, head_dim=24, n_routed_experts=8, n_group=2, topk_group=1, num_experts_per_tok=3,
        moe_intermediate_size=32, n_shared_experts=2, first_k_dense_replace=1, norm_topk_prob=True,
        routed_scaling_factor=1.7, sliding_window=24, max_window_layers=2), 298, None),
    "apertus_bf16": ("apertus", "bfloat16", "new", dict(
        SMALL, intermediate_size=80, rope_parameters=dict(
            rope_type="llama3", rope_theta=12000000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64)), 299, None),
    "hunyuan_dense_bf16": ("hunyuan_v1_dense", "bfloat16", "type", dict(
        SMALL, head_dim=32, attention_bias=True, rope_parameters=dict(
            rope_type="dynamic", rope_theta=10000.0, alpha=1000.0, factor=1.0)), 298, None),
    "hunyuan_moe_bf16": ("hunyuan_v1_moe", "bfloat16", "type", dict(
        SMALL, head_dim=24, intermediate_size=40, num_experts=6, moe_topk=[2, 2], rope_parameters=dict(
            rope_type="dynamic", rope_theta=10000.0, alpha=100.0, factor=1.0), tie_word_embeddings=True), 299, None),
    "phimoe_bf16": ("phimoe", "bfloat16", "type", dict(
        SMALL, num_local_experts=6, num_experts_per_tok=2, router_jitter_noise=0.4, attention_bias=True,
        lm_head_bias=True, intermediate_size=40, rope_parameters=dict(
            rope_type="longrope", rope_theta=10000.0, short_mscale=1.2, long_mscale=1.3,
            original_max_position_embeddings=512, short_factor=[1.0 + 0.05 * i for i in range(8)],
            long_factor=[1.0 + 1.5 * i for i in range(8)])), None, None),
    "afmoe_bf16": ("afmoe", "bfloat16", "type", dict(
        SMALL, num_hidden_layers=4, head_dim=24, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
        num_shared_experts=1, num_dense_layers=1, route_scale=1.6, global_attn_every_n_layers=2,
        sliding_window=20, mup_enabled=True), [298, 299], None),
    # Latent attention.
    "deepseek_v2_lite_bf16": ("deepseek_v2", "bfloat16", "type", dict(
        LATENT, q_lora_rank=None, n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=24,
        n_shared_experts=2, first_k_dense_replace=1, rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0, mscale=0.707,
            mscale_all_dim=0.707, original_max_position_embeddings=64)), 299, None),
    "deepseek_v2_bf16": ("deepseek_v2", "bfloat16", "new", dict(
        LATENT, q_lora_rank=40, kv_lora_rank=40, attention_bias=True, n_routed_experts=8, num_experts_per_tok=3,
        topk_method="group_limited_greedy", n_group=4, topk_group=2, moe_intermediate_size=32, n_shared_experts=1,
        routed_scaling_factor=1.6), [298, 299], None),
    "deepseek_v3_bf16": ("deepseek_v3", "bfloat16", "hub", dict(
        LATENT, num_hidden_layers=3, q_lora_rank=48, v_head_dim=16, n_routed_experts=8, n_group=4, topk_group=2,
        num_experts_per_tok=3, moe_intermediate_size=32, n_shared_experts=1, first_k_dense_replace=1,
        rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
            mscale_all_dim=1.0, original_max_position_embeddings=64)), 299, None),
    "deepseek_v3_block_fp8": ("deepseek_v3", "bfloat16", "type", dict(
        LATENT, q_lora_rank=48, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2,
        moe_intermediate_size=40, n_shared_experts=1, first_k_dense_replace=1), 299, None),
    "glm4_moe_lite_bf16": ("glm4_moe_lite", "bfloat16", "new", dict(
        LATENT, q_lora_rank=32, v_head_dim=32, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=32,
        routed_scaling_factor=1.4), [298, 299], None),
    # With the latents of the published models, for which CUDA has kernels.
    "deepseek_v3_wide_bf16": ("deepseek_v3", "bfloat16", "type", dict(
        LATENT, num_attention_heads=2, num_key_value_heads=2, q_lora_rank=64, kv_lora_rank=512, qk_rope_head_dim=64,
        qk_nope_head_dim=32, v_head_dim=32, first_k_dense_replace=2), 298, None),
    "mistral4_vision_bf16": ("mistral3", "bfloat16", "new", dict(
        text_config=dict(
            LATENT, model_type="mistral4", q_lora_rank=24, n_routed_experts=8, n_group=2, topk_group=1,
            num_experts_per_tok=2, moe_intermediate_size=24, n_shared_experts=1, routed_scaling_factor=1.3,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=10000.0, factor=16.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
                mscale_all_dim=1.0, llama_4_scaling_beta=0.3, original_max_position_embeddings=32)),
        vision_config=dict(model_type="pixtral", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
                           num_attention_heads=1, image_size=28, patch_size=14, head_dim=16),
        tie_word_embeddings=False, spatial_merge_size=1), 299, None),
    # Attention and Mamba-2 side by side, with multipliers.
    "falcon_h1_bf16": ("falcon_h1", "bfloat16", "hub", dict(
        FALCON_H1, mamba_d_ssm=96, mamba_n_heads=4, mamba_d_head=24, mamba_n_groups=2, mamba_d_state=20),
        [298, 299], None),
    "falcon_h1_norm_f16": ("falcon_h1", "float16", "new", dict(
        FALCON_H1, mamba_d_ssm=None, mamba_n_heads=4, mamba_d_state=24, mamba_d_conv=3, mamba_rms_norm=True,
        mamba_norm_before_gate=False, mamba_n_groups=2, mamba_conv_bias=False, attention_bias=True, mlp_bias=True,
        projectors_bias=True, tie_word_embeddings=True, lm_head_multiplier=9.0), 299, None),
    "falcon_h1_norm_first_bf16": ("falcon_h1", "bfloat16", "new", dict(
        FALCON_H1, mamba_d_ssm=64, mamba_n_heads=2, mamba_d_state=16, mamba_rms_norm=True, ssm_multipliers=None,
        mlp_multipliers=None), None, None),
    # Attention in chunks.
    "llama4_text_bf16": ("llama4_text", "bfloat16", "type", dict(
        LLAMA4, interleave_moe_layer_step=2, no_rope_layer_interval=3, num_experts_per_tok=1, rope_parameters=dict(
            rope_type="llama3", rope_theta=500000.0, factor=16.0, low_freq_factor=1.0, high_freq_factor=1.0,
            original_max_position_embeddings=64)), [298, 299], None),
    "llama4_vision_bf16": ("llama4", "bfloat16", "new", dict(
        text_config=dict(LLAMA4, num_experts_per_tok=2, use_qk_norm=False, attention_bias=True,
                         attention_chunk_size=48, no_rope_layers=[1, 0, 1, 1]),
        vision_config=dict(hidden_size=16, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1,
                           image_size=28, patch_size=14, vision_output_dim=16, projector_input_dim=16,
                           projector_output_dim=16)), 299, None),
    # A delta net whose keys' channels decay differently, and latent attention without a rope.
    "kimi_linear_bf16": ("kimi_linear", "bfloat16", "hub", dict(
        KIMI_LINEAR, linear_head_dim=24, linear_num_heads=3, num_local_experts=6, num_experts_per_tok=3), [298, 299], None),
    "kimi_linear_f16": ("kimi_linear", "float16", "new", dict(
        KIMI_LINEAR, linear_head_dim=16, linear_num_heads=4, linear_conv_kernel_dim=3, num_local_experts=8, n_group=4,
        topk_group=2, num_experts_per_tok=2, n_shared_experts=2, norm_topk_prob=False, tie_word_embeddings=True,
        layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention"]), 299, None),
    "llama4_modelopt_fp8": ("llama4_text", "bfloat16", "type", dict(LLAMA4, num_experts_per_tok=1), 299, None),
    "llama4_modelopt_nvfp4": ("llama4", "bfloat16", "new", dict(
        text_config=dict(LLAMA4, intermediate_size=48, intermediate_size_mlp=80, num_experts_per_tok=2),
        vision_config=dict(hidden_size=16, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1,
                           image_size=28, patch_size=14, vision_output_dim=16, projector_input_dim=16,
                           projector_output_dim=16)), 299, None),
    "cohere_bf16": ("cohere", "bfloat16", "type", dict(
        SMALL, logit_scale=0.6, rope_parameters=dict(rope_type="default", rope_theta=8000000.0)), 299, None),
    "cwm_bf16": ("cwm", "bfloat16", "rope_type", dict(
        SMALL, num_hidden_layers=5, head_dim=24, sliding_window=24, rope_parameters=dict(
            rope_type="llama3", rope_theta=1000000.0, factor=16.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64)), 299, None),
    "ministral_bf16": ("ministral", "bfloat16", "type", dict(
        SMALL, num_hidden_layers=3, head_dim=24, sliding_window=24,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        rope_parameters=dict(rope_type="default", rope_theta=100000000.0)), 298, None),
    "hyperclovax_bf16": ("hyperclovax", "bfloat16", "type", dict(
        SMALL, head_dim=24, attention_multiplier=0.11, embedding_multiplier=9.0, residual_multiplier=0.6,
        logits_scaling=0.8, rope_parameters=dict(rope_type="default", rope_theta=100000000.0)), 299, None),
    "qwen3_vl_moe_bf16": ("qwen3_vl_moe", "bfloat16", "new", dict(
        text_config=dict(
            SMALL, num_hidden_layers=3, head_dim=24, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40,
            mlp_only_layers=[1], tie_word_embeddings=False, rope_parameters=dict(
                rope_type="default", rope_theta=500000.0, mrope_section=[4, 4, 4], mrope_interleaved=True)),
        vision_config=dict(depth=1, hidden_size=16, num_heads=1, intermediate_size=16,
                           out_hidden_size=64, patch_size=14, num_position_embeddings=16,
                           deepstack_visual_indexes=[0]), tie_word_embeddings=False), 299, None),
    "exaone_moe_bf16": ("exaone_moe", "bfloat16", "hub", dict(
        SMALL, num_hidden_layers=4, head_dim=24, sliding_window=24, num_experts=8, num_experts_per_tok=3, n_group=4,
        topk_group=2, moe_intermediate_size=24, num_shared_experts=2, first_k_dense_replace=1,
        routed_scaling_factor=1.7), [298, 299], None),
    "solar_open_bf16": ("solar_open", "bfloat16", "type", dict(
        SMALL, head_dim=24, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, n_shared_experts=1,
        routed_scaling_factor=1.3, rope_parameters=dict(
            rope_type="yarn", rope_theta=1000000.0, factor=2.0, original_max_position_embeddings=64)), 299, None),
    "hy_v3_bf16": ("hy_v3", "bfloat16", "hub", dict(
        SMALL, num_hidden_layers=3, head_dim=24, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
        num_shared_experts=1, router_scaling_factor=1.6), 298, None),
    "nemotron_bf16": ("nemotron", "bfloat16", "type", dict(
        SMALL, head_dim=24, intermediate_size=80, rope_parameters=dict(
            rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)), 299, None),
    "phi_bf16": ("phi", "bfloat16", "type", dict(
        SMALL, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25)), 299, None),
    "internlm3_bf16": ("internlm3", "bfloat16", "rope_type", dict(
        SMALL, head_dim=24, attention_bias=True, mlp_bias=True, rope_parameters=dict(
            rope_type="dynamic", rope_theta=50000000.0, factor=6.0)), 299, None),
    "vaultgemma_bf16": ("vaultgemma", "bfloat16", "type", dict(
        SMALL, num_hidden_layers=3, head_dim=24, sliding_window=20, query_pre_attn_scalar=40,
        attn_logit_softcapping=3.0, final_logit_softcapping=6.0), [298, 299], None),
    "jais2_bf16": ("jais2", "bfloat16", "type", dict(SMALL, intermediate_size=80), 299, None),
    "gemma_bf16": ("gemma", "bfloat16", "type", dict(SMALL, head_dim=24, num_key_value_heads=1), 299, None),
    "stablelm_bf16": ("stablelm", "bfloat16", "type", dict(SMALL, use_qkv_bias=True), [298, 299], None),
    "stablelm_parallel_f16": ("stablelm", "float16", "new", dict(
        SMALL, use_parallel_residual=True, rope_parameters=dict(
            rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)), 299, None),
    "falcon_bf16": ("falcon", "bfloat16", "type", dict(
        vocab_size=300, hidden_size=80, num_hidden_layers=2, num_attention_heads=5, num_kv_heads=5,
        max_position_embeddings=512), 299, None),
    "exaone_bf16": ("exaone", "bfloat16", "rope_type", dict(
        SMALL, head_dim=24, intermediate_size=80, rope_parameters=dict(
            rope_type="llama3", rope_theta=1000000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64)), 299, None),
    "olmo_bf16": ("olmo", "bfloat16", "type", dict(SMALL), 299, None),
    "helium_bf16": ("helium", "bfloat16", "type", dict(SMALL, head_dim=16), 298, None),
    "iquestcoder_bf16": ("iquestcoder", "bfloat16", "type", dict(SMALL, head_dim=24), 299, None),
    "flex_olmo_bf16": ("flex_olmo", "bfloat16", "type", dict(
        SMALL, intermediate_size=24, num_experts=5, num_experts_per_tok=3), 299, None),
    "mellum_bf16": ("mellum", "bfloat16", "new", dict(
        SMALL, num_hidden_layers=3, head_dim=24, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32,
        sliding_window=24, layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        mlp_layer_types=["dense", "sparse", "sparse"], rope_parameters=dict(
            full_attention=dict(rope_type="yarn", rope_theta=500000.0, factor=4.0, original_max_position_embeddings=64),
            sliding_attention=dict(rope_type="default", rope_theta=10000.0))), 299, None),
    "gemma4_unified_bf16": ("gemma4_unified", "bfloat16", "hub", dict(
        text_config=dict(
            SMALL, num_hidden_layers=3, head_dim=16, global_head_dim=24, sliding_window=24, attention_k_eq_v=True,
            num_global_key_value_heads=1, final_logit_softcapping=20.0,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"]),
        vision_config=dict(patch_size=2, pooling_kernel_size=1, mm_embed_dim=16, mm_posemb_size=8, output_proj_dims=64),
        image_token_id=305, video_token_id=306, audio_token_id=307, tie_word_embeddings=True), [298, 299], None),
    "gemma4_unified_text_bf16": ("gemma4_unified_text", "bfloat16", "new", dict(
        SMALL, num_hidden_layers=4, head_dim=24, global_head_dim=32, sliding_window=24,
        layer_types=["sliding_attention", "full_attention"] * 2, num_kv_shared_layers=2), 299, None),
    "youtu_bf16": ("youtu", "bfloat16", "type", dict(LATENT, q_lora_rank=40), [298, 299], None),
    "minicpm3_bf16": ("minicpm3", "bfloat16", "type", dict(
        LATENT, q_lora_rank=40, tie_word_embeddings=False, scale_emb=6, scale_depth=0.9, dim_model_base=24,
        original_max_position_embeddings=512, rope_parameters=dict(
            rope_type="longrope", rope_theta=10000.0, short_factor=[1.0 + 0.05 * i for i in range(4)],
            long_factor=[1.0 + 1.5 * i for i in range(4)])), 299, None),
    "sarvam_moe_bf16": ("sarvam_moe", "bfloat16", "type", dict(
        SMALL, num_hidden_layers=3, head_dim=24, n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3,
        moe_intermediate_size=24, n_shared_experts=2, first_k_dense_replace=1), 299, None),
}


# Of tests/golden/embedding. name: (model_type, file dtype, configuration, what sentence-transformers'
# files say or None). Without such files: a classifier.
EMBEDDING_MODELS = {
    "qwen3_last_bf16": ("qwen3", "bfloat16", dict(SMALL, head_dim=24, tie_word_embeddings=True),
                        dict(pooling="lasttoken", normalize=True)),
    "llama_mean_f32": ("llama", "float32", dict(SMALL), dict(pooling="mean_tokens", normalize=False)),
    "qwen3_labels_bf16": ("qwen3", "bfloat16", dict(
        SMALL, head_dim=24, tie_word_embeddings=True,
        id2label={0: "refuted", 1: "open", 2: "supported"},
        problem_type="single_label_classification"), None),
    "llama_several_f32": ("llama", "float32", dict(
        SMALL, id2label={i: name for i, name in enumerate("abcd")},
        problem_type="multi_label_classification"), None),
}


def fill_weights(model, seed, tied):
    """Random weights with which greedy output wanders instead of repeating itself."""
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            shape = tuple(parameter.shape)
            values = random.standard_normal(shape)
            is_norm = "norm" in name or name.startswith("transformer.ln_f.")
            if is_norm and name.endswith(".bias"):
                values *= 0.2
            elif is_norm:
                values = 1 + 0.2 * values
                if name.endswith(("model.norm.weight", "model.embedding_norm.weight", "transformer.ln_f.weight")) and tied:
                    values *= 3
                norms_before = model.config.model_type in ("gemma", "vaultgemma")  # and none after
                if norms_before or model.config.model_type.startswith("gemma"):
                    # They add one. Tied as they are, the last feed-forward decides, not the last
                    # token's embedding.
                    last = model.config.get_text_config().num_hidden_layers - 1
                    if f"layers.{last}.post_feedforward" in name:
                        values *= 5
                    elif norms_before:
                        values *= 3 if f"layers.{last}.p" in name else 1
                    elif "post_" in name:
                        values *= 0.4
                    values -= not model.config.model_type.startswith("gemma4")
                if model.config.model_type == "nemotron":
                    values -= 1
                if model.config.model_type.startswith(HYBRIDS) and "linear_attn" not in name:
                    values -= 1  # they add one
            elif name.endswith("e_score_correction_bias"):
                values *= 0.05
            elif name.endswith("A_log"):
                values = random.uniform(-5, 2, shape)  # states that last, and some that hardly do
            elif name.endswith(".bias"):
                values *= 0.12
            elif name.endswith("sinks"):
                values *= 2
            elif model.config.model_type == "gpt_oss" and name.endswith("gate_up_proj"):
                values *= 4 / math.sqrt(shape[1])  # so that some gates are past their bound
            elif model.config.model_type == "gpt_oss" and name.endswith("down_proj"):
                values *= 0.2 / math.sqrt(shape[1])
            elif name.endswith(("router.scale", "router.per_expert_scale")):
                values = 1 + 0.3 * values
            elif model.config.model_type.startswith("gemma4") and "router" in name:
                values *= 3  # its logits are divided by the square root of shape[1]
            elif any(part in name for part in ("mlp.gate.weight", "feed_forward.gate.weight", "mixer.gate.weight",
                                               "router")):
                values *= 3 / math.sqrt(shape[1])  # so that few choices are close
            elif "embed_tokens" in name or name in ("model.embeddings.weight", "transformer.word_embeddings.weight"):
                # Small when tied: the residual stream must not be the last token's embedding,
                # which would make that token the likeliest.
                multiplier = getattr(model.config, "embedding_multiplier", getattr(model.config, "scale_emb", 1))
                values *= (0.08 if tied else 0.5) / multiplier
            elif "lm_head" in name:
                values *= 3 / math.sqrt(shape[1])
            elif "q_proj" in name or "k_proj" in name or "query_key_value" in name:
                values *= 1.5 / math.sqrt(shape[1])
            else:
                values *= 1.2 / math.sqrt(shape[-1])
            parameter.copy_(torch.from_numpy(values))
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith("layer_scalar"):
                buffer.copy_(torch.from_numpy(random.uniform(0.6, 1.2, tuple(buffer.shape))))
            elif name.endswith(("expert_bias", "mixer.gate.e_score_correction_bias")) or (
                    name.endswith("e_score_correction_bias") and model.config.model_type != "glm4_moe"):
                buffer.copy_(torch.from_numpy(random.uniform(-0.2, 0.2, tuple(buffer.shape))))


def respell(path, spelling):
    """Rewrites config.json with the keys that models published before transformers 5 have."""
    with open(path) as file:
        config = json.load(file)
    if config["model_type"] in ("glm", "glm4", "cwm"):
        config["eos_token_id"] = None  # their class puts its own ids, beyond this vocabulary
        write_config(config, path)
    if spelling in ("new", "stacked"):
        return
    config["torch_dtype"] = config.pop("dtype")
    if config["model_type"] == "nemotron_h":
        kinds = config.pop("layers_block_type")
        config["hybrid_override_pattern"] = "".join(NEMOTRON_LETTERS[kind] for kind in kinds)
        config["num_hidden_layers"] = len(kinds)
        config["time_step_limit"] = [0.0, math.inf]  # as Python writes it
        return write_config(config, path)
    if config["model_type"] == "kimi_linear":
        kinds = config.pop("layer_types")
        layers = {kind: [i + 1 for i, other in enumerate(kinds) if other == kind] for kind in set(kinds)}
        config["linear_attn_config"] = dict(
            full_attn_layers=layers["full_attention"], kda_layers=layers["linear_attention"],
            head_dim=config.pop("linear_head_dim"), num_heads=config.pop("linear_num_heads"),
            short_conv_kernel_size=config.pop("linear_conv_kernel_dim"))
        config["first_k_dense_replace"] = config.pop("mlp_layer_types").count("dense")
        config.update(mla_use_nope=True, moe_layer_freq=1, moe_router_activation_func="sigmoid",
                      num_nextn_predict_layers=0, use_grouped_topk=True)
        return write_config(config, path)
    if spelling == "flat":
        # As Qwen2-VL was published: the text model's keys at the top.
        text = config.pop("text_config")
        for key in ("model_type", "dtype", "tie_word_embeddings", "layer_types",
                    "bos_token_id", "eos_token_id", "pad_token_id"):
            text.pop(key, None)
        config.update(text)
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope["rope_theta"]
        config["rope_scaling"] = dict(type="mrope", mrope_section=rope["mrope_section"])
        return write_config(config, path)
    if config["model_type"] in ("gemma4", "gemma4_unified"):
        # Heads of layers without a window by the keys that the hub has.
        text = config["text_config"]
        own = text.pop("per_layer_config")
        full = next(iter(own.values()))
        text["global_head_dim"] = full["head_dim"]
        text["num_global_key_value_heads"] = full.get("num_key_value_heads")
        return write_config(config, path)
    respell_rope(config.get("text_config", config), "type" if spelling == "hub" else spelling)
    if config["model_type"] in ("llama", "mistral", "qwen2", "qwen3"):
        config.pop("layer_types", None)
    if config["model_type"] == "lfm2":
        config.pop("layer_types")
        config["block_ff_dim"] = config.pop("intermediate_size")
        config["tie_embedding"] = config.pop("tie_word_embeddings")
    if config["model_type"] == "qwen3_next":
        config.pop("layer_types")
        config["full_attention_interval"] = 4
    if config["model_type"] in ("llama", "mistral", "qwen2") and config.get("head_dim") == (
            config["hidden_size"] // config["num_attention_heads"]):
        config.pop("head_dim")
    if config["model_type"] == "internlm3":
        config["architectures"] = ["InternLM3ForCausalLM"]
        config["qkv_bias"] = config.pop("attention_bias")
        config["bias"] = config.pop("mlp_bias")
    if config["model_type"] == "iquestcoder":
        config["architectures"] = ["IQuestCoderForCausalLM"]
    if config["model_type"] == "exaone":
        config["architectures"] = ["ExaoneForCausalLM"]
        config["num_layers"] = config.pop("num_hidden_layers")
        config["layer_norm_epsilon"] = config.pop("rms_norm_eps")
        config["activation_function"] = config.pop("hidden_act")
    if config["model_type"] == "sarvam_moe":
        config["architectures"] = ["SarvamMoEForCausalLM"]
        config["num_experts"] = config.pop("n_routed_experts")
        config["num_shared_experts"] = config.pop("n_shared_experts")
        config["use_qkv_bias"] = config.pop("attention_bias")
    if config["model_type"] == "gemma":
        config["hidden_act"] = "gelu"  # which means its approximation
    if config["model_type"] == "granitemoehybrid":
        names = dict(linear_attention="mamba", full_attention="attention")
        config["layer_types"] = [names[kind] for kind in config["layer_types"]]
        config["position_embedding_type"] = config.get("position_embedding_type") or "nope"
        config.pop("time_step_limit", None)
    write_config(config, path)


def write_config(config, path):
    with open(path, "w") as file:
        json.dump(config, file, indent=2)
        file.write("\n")


def respell_rope(config, spelling):
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        local = rope["sliding_attention"]
        rope = rope["full_attention"]
        if config["model_type"].startswith("gemma3"):
            config["rope_local_base_freq"] = local["rope_theta"]
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    if "original_max_position_embeddings" in config:
        rope.pop("original_max_position_embeddings", None)
    if config["model_type"] in ("phi", "phi3", "glm", "bamba", "nemotron", "stablelm"):
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    config["rope_scaling"] = None if kind == "default" else {spelling: kind, **rope}


def make_prompts(random, vocabulary):
    """24 prompts that share prefixes on two levels, from 3 to 200 tokens."""
    def run(length):
        return [int(t) for t in random.integers(3, vocabulary - 4, length)]

    head = run(33)
    prefixes = [head + run(12), head + run(31), head + run(71)]  # 45, 64, 104 tokens
    prompts = []
    for prefix, own_lengths in zip(prefixes, ([1, 2, 9, 20], [1, 5, 16], [3, 17, 40])):
        prompts += [prefix + run(length) for length in own_lengths]
    long_prefix = run(130)
    prompts += [long_prefix + run(length) for length in (1, 30, 70)]
    short_prefix = run(5)
    prompts += [short_prefix + run(length) for length in (1, 4, 11)]
    prompts.append(list(prefixes[1]))          # a prompt that is others' prefix
    prompts.append(list(prompts[2]))           # and two equal ones
    prompts += [run(length) for length in (3, 16, 17, 64, 65, 200)]
    order = random.permutation(len(prompts))
    return [prompts[i] for i in order]


def greedy(model, prompt, eos):
    """Token by token, each from a fresh pass over all that stands before it."""
    tokens, margins, logprobs = [], [], []
    for _ in range(NEW_TOKENS):
        logits = model(torch.tensor([prompt + tokens]), use_cache=False).logits[0, -1].double()
        top = torch.topk(logits, 2)
        token = int(top.indices[0])
        tokens.append(token)
        margins.append(round(float(top.values[0] - top.values[1]), 6))
        logprobs.append(round(float(torch.log_softmax(logits, 0)[token]), 6))
        if token in eos:
            break
    return {"tokens": tokens, "margins": margins, "logprobs": logprobs}


def score(model, prompt, continuations):
    out = []
    for continuation in continuations:
        logits = model(torch.tensor([prompt + continuation]), use_cache=False).logits[0].double()
        rows = torch.log_softmax(logits[len(prompt) - 1:-1], 1)
        out.append([round(float(rows[i, t]), 6) for i, t in enumerate(continuation)])
    return out


def check_against_generate(model, prompts, rows, eos):
    """transformers' own generate(), with its cache, must agree but where two tokens are close."""
    for prompt, row in zip(prompts, rows):
        generated = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0,
            eos_token_id=sorted(eos) or None)[0, len(prompt):].tolist()
        for i, (a, b) in enumerate(zip(generated, row["tokens"])):
            if row["margins"][i] < 1e-3:
                break
            assert a == b, (prompt, i, generated, row)


def add_unread_tensors(model, path):
    """Layers that share others' keys and values have tensors for their own in published files; hybrids have
    heads that predict further tokens."""
    text = model.config.get_text_config()
    if model.config.model_type.startswith((*HYBRIDS, "nemotron_h", "exaone_moe")):
        tensors = load_file(path)
        tensors["mtp.fc.weight"] = torch.ones(2)
        save_file(tensors, path, metadata={"format": "pt"})
    if model.config.model_type in ("deepseek_v3", "hy_v3"):
        tensors = load_file(path)
        tensors[f"model.layers.{text.num_hidden_layers}.eh_proj.weight"] = torch.ones(2)
        save_file(tensors, path, metadata={"format": "pt"})
    if model.config.model_type == "kimi_linear":  # transformers saves dense layers as if they had experts
        tensors = {re.sub(r"block_sparse_moe\.(gate|up|down)_proj", r"mlp.\1_proj", name): tensor
                   for name, tensor in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
    shared = getattr(text, "num_kv_shared_layers", 0)
    if not shared:
        return
    tensors = load_file(path)
    for layer in range(text.num_hidden_layers - shared, text.num_hidden_layers):
        for name in ("k_proj", "v_proj", "k_norm"):
            tensors[f"model.language_model.layers.{layer}.self_attn.{name}.weight"] = torch.ones(2)
    save_file(tensors, path, metadata={"format": "pt"})


def stack_experts(path):
    """A layer's experts in two tensors, as they are published."""
    tensors = load_file(path)
    for prefix in sorted({name.split(".experts.")[0] for name in tensors if ".experts." in name}):
        parts = {}
        for kind in ("gate", "up", "down"):
            parts[kind] = []  # of gates there may be none
            while (name := f"{prefix}.experts.{len(parts[kind])}.{kind}_proj.weight") in tensors:
                parts[kind].append(tensors.pop(name))
        if parts["gate"]:
            tensors[f"{prefix}.experts.gate_up_proj"] = torch.stack(
                [torch.cat(pair) for pair in zip(parts["gate"], parts["up"])])
        else:
            tensors[f"{prefix}.experts.up_proj"] = torch.stack(parts["up"])
        tensors[f"{prefix}.experts.down_proj"] = torch.stack(parts["down"])
    save_file(tensors, path, metadata={"format": "pt"})


def part_experts(path):
    """Every expert's matrices in tensors of their own, as quantised checkpoints have them."""
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(".experts.gate_up_proj")]:
        prefix = name[:-len("gate_up_proj")]
        downs = tensors.pop(prefix + "down_proj")
        for expert, (both, down) in enumerate(zip(tensors.pop(name), downs)):
            gate, up = both.chunk(2)
            for kind, tensor in (("gate", gate), ("up", up), ("down", down)):
                tensors[f"{prefix}{expert}.{kind}_proj.weight"] = tensor.clone()
    save_file(tensors, path, metadata={"format": "pt"})


def make_model(name, seed, output):
    model_type, dtype, spelling, settings, eos, shard_kb = MODELS[name]
    directory = os.path.join(output, name)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    config = AutoConfig.for_model(model_type, bos_token_id=1, eos_token_id=None, pad_token_id=None,
                                  **settings)
    random = np.random.default_rng([seed, 1])
    vocabulary = config.get_text_config().vocab_size
    prompts = make_prompts(random, vocabulary)

    auto = AutoModelForImageTextToText if "vision_config" in settings else AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    fill_weights(model, [seed, 0], config.tie_word_embeddings)
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(directory, **({"max_shard_size": f"{shard_kb}KB"} if shard_kb else {}))
    if spelling == "hub":
        add_unread_tensors(model, os.path.join(directory, "model.safetensors"))
    if model_type == "qwen3_vl_moe":
        golden_pictures.transpose_experts(os.path.join(directory, "model.safetensors"))
    if spelling == "stacked":
        stack_experts(os.path.join(directory, "model.safetensors"))
    if spelling == "each":
        part_experts(os.path.join(directory, "model.safetensors"))
    for file in os.listdir(directory):
        os.chmod(os.path.join(directory, file), 0o644)
    respell(os.path.join(directory, "config.json"), spelling)

    # The reference reads the directory as a user would: the same files, the spelling included. Of a
    # quantised one it reads what the weights stand for.
    with tempfile.TemporaryDirectory() as temporary:
        read = directory
        if name in golden_fp8.FP8:
            read = os.path.join(temporary, "plain")
            golden_fp8.quantize_directory(directory, golden_fp8.FP8[name], read)
        if name in golden_four_bits.FOUR_BITS:
            read = os.path.join(temporary, "plain")
            golden_fp8.quantize_directory(directory, golden_four_bits.FOUR_BITS[name], read,
                                          golden_four_bits.quantize_tensors)
        if spelling == "each":  # their class reads only stacks; separate experts would stay random
            if read == directory:
                read = os.path.join(temporary, "plain")
                shutil.copytree(directory, read)
            stack_experts(os.path.join(read, "model.safetensors"))
        reference = auto.from_pretrained(
            read, dtype=torch.float32, attn_implementation="eager").eval()
    if model_type == "llama4":  # transformers 5.24 fails without a picture
        reference = reference.language_model
    with torch.no_grad():
        if eos == "frequent":
            # Two ids that do come up: rows end at them, at different lengths.
            rows = [greedy(reference, prompt, set()) for prompt in prompts]
            ends = {}
            for row in rows:
                for token in set(row["tokens"][2:]):
                    ends[token] = ends.get(token, 0) + 1
            eos = sorted(sorted(ends, key=lambda t: (-ends[t], t))[:2])
        ids = set() if eos is None else {eos} if isinstance(eos, int) else set(eos)
        rows = [greedy(reference, prompt, ids) for prompt in prompts]
        check_against_generate(reference, prompts, rows, ids)
        scores = []
        for i in random.choice(len(prompts), 6, replace=False):
            lengths = [1, 1, 1, 1] if len(scores) % 2 == 0 else [1, 2, 3, 6]
            continuations = [[int(t) for t in random.integers(0, vocabulary, length)]
                             for length in lengths]
            scores.append({"prompt": int(i), "continuations": continuations,
                           "logprobs": score(reference, prompts[i], continuations)})

    with open(os.path.join(directory, "generation_config.json"), "w") as file:
        generation = {"bos_token_id": 1, "do_sample": False}
        if eos is not None:
            generation["eos_token_id"] = eos
        json.dump(generation, file, indent=2)
        file.write("\n")

    variety = [len(set(row["tokens"])) / len(row["tokens"]) for row in rows]
    flat = [m for row in rows for m in row["margins"]]
    close = sum(m < 1e-3 for m in flat)
    assert np.mean(variety) > 0.5, (name, variety)
    assert len({tuple(row["tokens"]) for row in rows}) >= len(prompts) - 2, name
    assert close <= 0.01 * len(flat), (name, close, len(flat))
    golden = {
        "format": 1,
        "reference": f"transformers {transformers.__version__}, torch {torch.__version__}, CPU, "
                     "float32, eager attention",
        "new_tokens": NEW_TOKENS,
        "eos_tokens": sorted(ids),
        "rows": [{"prompt": prompt, **row} for prompt, row in zip(prompts, rows)],
        "scores": scores,
    }
    with open(os.path.join(directory, "golden.json"), "w") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")
    size = sum(os.path.getsize(os.path.join(directory, f)) for f in os.listdir(directory))
    print(f"{name}: {size / 1000:.0f} kB, variety {np.mean(variety):.2f}, least margin "
          f"{min(flat):.2g}, {close} of {len(flat)} under 1e-3, eos {sorted(ids)}, mean length "
          f"{np.mean([len(r['tokens']) for r in rows]):.1f}")


def write_modules(directory, pooling, normalize):
    """The files that sentence-transformers reads beside a model's own."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")] + [("2_Normalize", "Normalize")] * normalize
    write_config([dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{kind}")
                  for i, (path, kind) in enumerate(kinds)], os.path.join(directory, "modules.json"))
    os.makedirs(os.path.join(directory, "1_Pooling"))
    modes = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens",
             "lasttoken"]
    write_config(dict(word_embedding_dimension=SMALL["hidden_size"],
                      **{f"pooling_mode_{mode}": mode == pooling for mode in modes},
                      include_prompt=True), os.path.join(directory, "1_Pooling", "config.json"))


def rounded(tensor):
    return [float(f"{x:.7g}") for x in tensor.tolist()]


def make_embedding_model(name, seed, output):
    """A model without a head for text, or with one for labels, and its hidden states or logits."""
    model_type, dtype, settings, modules = EMBEDDING_MODELS[name]
    directory = os.path.join(output, "embedding", name)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    auto = AutoModelForSequenceClassification if modules is None else AutoModel
    config = AutoConfig.for_model(model_type, bos_token_id=1, eos_token_id=None, pad_token_id=None,
                                  **settings)
    prompts = make_prompts(np.random.default_rng([seed, 1]), config.vocab_size)
    model = auto.from_config(config, dtype=torch.float32)
    fill_weights(model, [seed, 0], False)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    for file in os.listdir(directory):
        os.chmod(os.path.join(directory, file), 0o644)
    if modules is not None:
        write_modules(directory, **modules)
    reference = auto.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    rows = []
    with torch.no_grad():
        for prompt in prompts:
            computed = reference(torch.tensor([prompt]))
            row = {"prompt": prompt}
            if modules is None:
                logits = computed.logits[0]
                several = settings["problem_type"].startswith("multi")
                row["logits"] = rounded(logits)
                row["probabilities"] = rounded(
                    torch.sigmoid(logits) if several else torch.softmax(logits, 0))
            else:
                hidden = computed.last_hidden_state[0]
                row.update(last=rounded(hidden[-1]), mean=rounded(hidden.mean(0)),
                           first=rounded(hidden[0]))
            rows.append(row)
    golden = {"format": 1, "reference": f"transformers {transformers.__version__}, "
              f"torch {torch.__version__}, CPU, float32, eager attention", "rows": rows}
    with open(os.path.join(directory, "embedding.json"), "w") as file:
        json.dump(golden, file, separators=(",", ":"))
        file.write("\n")
    size = sum(os.path.getsize(os.path.join(root, f))
               for root, _, files in os.walk(directory) for f in files)
    print(f"embedding/{name}: {size / 1000:.0f} kB")


def make_rope(output):
    """Inverse frequencies as transformers computes them, as the bits of their float32."""
    cases = []
    shapes = [(16, 10000.0), (64, 10000.0), (80, 10000.0), (96, 250000.0), (128, 10000.0),
              (128, 500000.0), (128, 1000000.0), (256, 1e7), (2, 10000.0)]
    kinds = [dict(rope_type="default"),
             dict(rope_type="linear", factor=4.0), dict(rope_type="linear", factor=2.5),
             dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=8192),
             dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=8192),
             dict(rope_type="llama3", factor=8.0, low_freq_factor=1.5, high_freq_factor=3.7,
                  original_max_position_embeddings=64),
             dict(rope_type="proportional", partial_rotary_factor=0.25),
             dict(rope_type="proportional", partial_rotary_factor=0.3, factor=8.0),
             dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768),
             dict(rope_type="yarn", factor=2.5, original_max_position_embeddings=64, beta_fast=20.0,
                  beta_slow=3.0, truncate=False),
             dict(rope_type="yarn", factor=40.0, original_max_position_embeddings=4096, mscale=1.0,
                  mscale_all_dim=0.7)]
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    for head_dim, theta in shapes:
        for kind in kinds:
            rope = {"rope_theta": theta, **kind}
            config = transformers.LlamaConfig(
                hidden_size=head_dim * 2, num_attention_heads=2, head_dim=head_dim,
                max_position_embeddings=131072, rope_parameters=dict(rope))
            embedding = LlamaRotaryEmbedding(config)
            frequencies = embedding.inv_freq.float().numpy()
            cases.append({"head_dim": head_dim, **rope, "scale": embedding.attention_scaling,
                          "bits": [int(b) for b in frequencies.view(np.uint32)]})
    with open(os.path.join(output, "rope.json"), "w") as file:
        json.dump(cases, file, separators=(",", ":"))
        file.write("\n")
    print(f"rope.json: {len(cases)} cases")


FAMILIES = ["arcee", "cohere", "cohere2", "cwm", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text",
            "gemma4_text", "gemma4_unified_text", "glm", "glm4", "granite", "helium", "hyperclovax", "internlm3",
            "iquestcoder", "jais2", "llama", "ministral3", "mistral", "olmo2", "olmo3", "phi", "phi3", "qwen2",
            "qwen3", "seed_oss", "smollm3", "stablelm", "starcoder2", "vaultgemma"]


def windows_of(config):
    """The window of each layer, 0 for none."""
    window = getattr(config, "sliding_window", None) or 0
    types = getattr(config, "layer_types", None)
    if types is None:
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else 0 for kind in types]


def make_defaults(output):
    """What each architecture's configuration class makes of a config.json with nothing in it, and the
    tensors of such a model: those outside the layers, of the first layer and of the last."""
    keys = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
            "tie_word_embeddings", "bos_token_id", "eos_token_id"]
    out = {}
    for model_type in FAMILIES:
        config = AutoConfig.for_model(model_type)
        config.allow_global_per_layer_attribute_access = True  # of layers with a window
        facts = {key: getattr(config, key, None) for key in keys}
        for key in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon"):
            facts["epsilon"] = getattr(config, key, facts.get("epsilon"))
        facts["activation"] = getattr(config, "hidden_activation", None) or config.hidden_act
        facts["windows"] = windows_of(config)
        rope = config.rope_parameters
        facts["rope_part"] = rope.get("full_attention", rope).get("partial_rotary_factor")
        facts["rope_theta"] = rope.get("full_attention", rope)["rope_theta"]
        facts["windowed_rope_theta"] = rope.get("sliding_attention", rope)["rope_theta"]
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        last = f".layers.{config.num_hidden_layers - 1}."
        facts["tensors"] = {
            name: list(tensor.shape) for name, tensor in sorted(model.state_dict().items())
            if name != "lm_head.weight" and
            (".layers." not in name or ".layers.0." in name or last in name)}
        out[model_type] = facts
    with open(os.path.join(output, "config_defaults.json"), "w") as file:
        file.write("{\n" + ",\n".join(json.dumps(t) + ": " + json.dumps(f)
                                      for t, f in out.items()) + "\n}\n")
    print("config_defaults.json")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--output", default=os.path.join(here, "..", "tests", "golden"))
    parser.add_argument("--only", help="one model of this name; fp8, four-bits, saved, pictures: those; or none of them: rope, defaults")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.makedirs(arguments.output, exist_ok=True)
    for index, name in enumerate(MODELS):
        quantized = {"fp8": golden_fp8.FP8, "four-bits": golden_four_bits.FOUR_BITS}.get(arguments.only, ())
        if arguments.only in (None, name) or name in quantized:
            make_model(name, 1000 + index, arguments.output)
    for index, name in enumerate(EMBEDDING_MODELS):
        if arguments.only in (None, name):
            make_embedding_model(name, 2000 + index, arguments.output)
    for index, name in enumerate(golden_saved.SAVED):
        if arguments.only in (None, "saved", name):
            golden_saved.make_saved(name, 3000 + index, arguments.output, fill_weights, respell)
    for index, name in enumerate(golden_pictures.PICTURES):
        if arguments.only in (None, "pictures", name):
            golden_pictures.make_pictures(name, 4000 + index, arguments.output, fill_weights)
    if arguments.only in (None, "rope"):
        make_rope(arguments.output)
    if arguments.only in (None, "defaults"):
        make_defaults(arguments.output)


if __name__ == "__main__":
    main()
