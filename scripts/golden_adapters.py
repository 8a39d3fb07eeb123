#!/usr/bin/env python3
"""Makes tests/golden/adapters: small random LoRAs of some of the golden models, as PEFT writes them, and what the models
compute with their changes merged into the weights.

    .venv/bin/python scripts/golden_adapters.py        (PyPI's torch, transformers and peft)

Everything comes from fixed seeds. The changes are rounded to the type of the file before the reference sees them, and the
reference computes in float32. A tied head stays as it is where the embedding is changed, as in PEFT. tests/golden/README.md
describes the files.
"""
import json
import os
import pathlib
import shutil
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")

import peft
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from make_golden import greedy, score

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
ROWS = 4
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = ATTENTION + ["gate_proj", "up_proj", "down_proj"]

# name: (base, type of the file, strength of the changes, LoraConfig's arguments)
ADAPTERS = {
    "llama_qv_r4": ("llama_bias_f32", "float32", 1, dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "llama_all_r64_rs": ("llama_bias_f32", "bfloat16", 0.3, dict(r=64, lora_alpha=16, use_rslora=True, target_modules="all-linear")),
    "llama_patterns": ("llama_bias_f32", "float16", 1, dict(
        r=8, lora_alpha=16, target_modules=r".*\.(q_proj|k_proj|o_proj|up_proj)",
        rank_pattern={"o_proj": 3, r".*\.1\.self_attn\.k_proj": 16}, alpha_pattern={"q_proj": 32, "layers.0.mlp.up_proj": 4})),
    "llama_one_layer": ("llama_bias_f32", "float32", 1.5, dict(
        r=16, lora_alpha=16, target_modules=ALL, layers_to_transform=[1], layers_pattern="layers", exclude_modules=["k_proj"])),
    "llama_embedding_head": ("llama_bias_f32", "float32", 1, dict(r=8, lora_alpha=8, target_modules=["embed_tokens", "lm_head", "down_proj"])),
    "qwen2_tied_embedding": ("qwen2_tied_bf16", "bfloat16", 1, dict(r=8, lora_alpha=16, target_modules=["embed_tokens", "q_proj"])),
    "gemma3_scaled_embedding": ("gemma3_text_bf16", "float32", 1, dict(r=4, lora_alpha=8, target_modules=["embed_tokens", "gate_proj"])),
    "phi3_fused": ("phi3_bf16", "bfloat16", 1, dict(r=16, lora_alpha=32, target_modules=["qkv_proj", "gate_up_proj", "down_proj"])),
    "qwen3_moe_parameters": ("qwen3_moe_bf16", "float32", 1, dict(
        r=4, lora_alpha=8, target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])),
    "qwen3_moe_attention": ("qwen3_moe_bf16", "bfloat16", 1, dict(r=8, lora_alpha=16, target_modules=ATTENTION)),
    "gpt_oss_parameters": ("gpt_oss_bf16", "float32", 1, dict(
        r=4, lora_alpha=8, target_modules=["o_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])),
    "qwen3_next_linear": ("qwen3_next_dense_f16", "float32", 1, dict(r=8, lora_alpha=8, target_modules="all-linear")),
    "lfm2_convolutions": ("lfm2_bf16", "float32", 1, dict(r=8, lora_alpha=8, target_modules=["in_proj", "out_proj", "w1", "w2", "w3"])),
    "granite_mamba": ("granite_hybrid_dense_f16", "float32", 1, dict(r=8, lora_alpha=8, target_modules=["in_proj", "out_proj", "q_proj"])),
    # PEFT refuses Mamba's out_proj here.
    "falcon_h1": ("falcon_h1_bf16", "bfloat16", 1, dict(
        r=8, lora_alpha=16, target_modules=["in_proj", "q_proj", "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])),
    "deepseek_latents": ("deepseek_v3_bf16", "float32", 1, dict(
        r=8, lora_alpha=8, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"])),
    "qwen2_moe_router": ("qwen2_moe_bf16", "float32", 1, dict(
        r=4, lora_alpha=8, target_modules=["shared_expert_gate", "o_proj"], target_parameters=["mlp.gate.weight"])),
    # In transformers f_a_proj and f_b_proj are in a module of their own.
    "kimi_linear_gates": ("kimi_linear_f16", "float32", 2, dict(
        r=8, lora_alpha=16, target_modules=["f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj"])),
    "llama4_parameters": ("llama4_text_bf16", "float32", 1, dict(
        r=4, lora_alpha=8, target_modules=["q_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"])),
    "qwen2_moe_square": ("qwen2_moe_bf16", "float32", 2, dict(
        r=4, lora_alpha=8, target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj"])),
}


def fill(model, seed, strength, dtype):
    """Both matrices are random: PEFT begins with B = 0, which changes nothing."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            continue
        columns = parameter.shape[1]
        if "lora_embedding_A" in name:
            scale = 1.0
        elif "lora_B" in name or "lora_embedding_B" in name:
            scale = strength * 0.3 / columns ** 0.5
        else:
            scale = columns ** -0.5
        values = torch.randn(parameter.shape, generator=generator) * scale
        parameter.data = values.to(getattr(torch, dtype)).float()


def split_experts(path):
    """An adapter of each expert's modules, as transformers 4 had them, in place of one of both stacked parameters. A of gate and
    up is theirs together."""
    tensors, single = load_file(path / "adapter_model.safetensors"), {}
    config = json.loads((path / "adapter_config.json").read_text())
    rank = config["r"]
    for name, a in tensors.items():
        if "experts" not in name:
            single[name] = a
        if "experts" not in name or not name.endswith("lora_A.weight"):
            continue
        b = tensors[name.replace("lora_A", "lora_B")]
        module = name.replace(".base_layer", "").removesuffix("lora_A.weight")
        experts = a.shape[0] // rank
        for e in range(experts):
            rows = a[e * rank:(e + 1) * rank]
            columns = b.reshape(b.shape[0], rank, experts)[:, :, e]
            parts = {"down_proj": columns}
            if ".base_layer" in name:
                width = b.shape[0] // 2
                parts = {"gate_proj": columns[:width], "up_proj": columns[width:]}
            for part, own in parts.items():
                single[f"{module}{e}.{part}.lora_A.weight"] = rows.clone()
                single[f"{module}{e}.{part}.lora_B.weight"] = own.contiguous()
    config["target_parameters"] = None
    config["target_modules"] = ["q_proj", "gate_proj", "up_proj", "down_proj"]
    save_file(single, path / "adapter_model.safetensors", metadata={"format": "pt"})
    (path / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def turn_experts(path):
    """The changes of stacked parameters as PEFT wrote them before 0.19.1, which took [experts, rows, columns] for [experts, columns,
    rows]: each expert's A and B change places."""
    tensors = load_file(path / "adapter_model.safetensors")
    config = json.loads((path / "adapter_config.json").read_text())
    rank = config["r"]
    for name, a in list(tensors.items()):
        if "experts" not in name or not name.endswith("lora_A.weight"):
            continue
        other = name.replace("lora_A", "lora_B")
        b = tensors[other]
        each = b.reshape(b.shape[0], rank, -1)
        tensors[name] = each.permute(2, 1, 0).reshape(a.shape[0], b.shape[0]).contiguous()
        tensors[other] = a.reshape(-1, rank, a.shape[1]).permute(2, 1, 0).reshape(a.shape[1], a.shape[0]).contiguous()
    config["peft_version"] = "0.18.1"
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    (path / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def make(name, number, output):
    base, dtype, strength, settings = ADAPTERS[name]
    directory = output / name
    golden = json.loads((GOLDEN / base / "golden.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(GOLDEN / base, dtype=torch.float32, attn_implementation="eager").eval()
    changed = get_peft_model(model, LoraConfig(lora_dropout=0.0, bias="none", task_type="CAUSAL_LM", **settings)).eval()
    fill(changed, number, strength, dtype)
    changed.to(getattr(torch, dtype))
    changed.save_pretrained(directory, save_embedding_layers=False)
    (directory / "README.md").unlink(missing_ok=True)
    config = json.loads((directory / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base
    for key in ("target_modules", "exclude_modules", "target_parameters"):
        if isinstance(config.get(key), list):
            config[key].sort()
    (directory / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    os.chmod(directory / "adapter_model.safetensors", 0o644)
    model = AutoModelForCausalLM.from_pretrained(GOLDEN / base, dtype=torch.float32, attn_implementation="eager").eval()
    reference = peft.PeftModel.from_pretrained(model, directory, autocast_adapter_dtype=False).float().eval()
    if not (config_of(model).tie_word_embeddings and "embed_tokens" in settings["target_modules"]):
        reference = reference.merge_and_unload()
    eos = set(golden["eos_tokens"])
    rows = []
    with torch.no_grad():
        for i in range(ROWS):
            prompt = golden["rows"][i]["prompt"]
            rows.append({"row": i, **greedy(reference, prompt, eos)})
        one = golden["scores"][0]
        scored = {"prompt": one["prompt"], "continuations": one["continuations"],
                  "logprobs": score(reference, golden["rows"][one["prompt"]]["prompt"], one["continuations"])}
    differ = sum(row["tokens"] != golden["rows"][row["row"]]["tokens"] for row in rows)
    assert differ >= ROWS - 1, (name, differ)
    size = sum(os.path.getsize(directory / f) for f in os.listdir(directory))
    print(f"{name}: {size / 1000:.0f} kB, {differ} of {ROWS} rows differ from the base model's, variety "
          f"{sum(len(set(r['tokens'])) / len(r['tokens']) for r in rows) / ROWS:.2f}")
    return {"name": name, "base": base, "rows": rows, "score": scored}


def config_of(model):
    return model.config.get_text_config()


def main():
    output = GOLDEN / "adapters"
    shutil.rmtree(output, ignore_errors=True)
    adapters = [make(name, number, output) for number, name in enumerate(ADAPTERS)]
    # The same changes, written in another way.
    for name, source, rewrite in (("qwen3_moe_each", "qwen3_moe_parameters", split_experts),
                                  ("qwen2_moe_square_0_18", "qwen2_moe_square", turn_experts)):
        shutil.copytree(output / source, output / name)
        rewrite(output / name)
        [same] = [made for made in adapters if made["name"] == source]
        adapters.append({**same, "name": name})
    (output / "adapters.json").write_text(json.dumps(
        {"format": 1, "reference": f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}, "
                                   "CPU, float32, eager attention", "adapters": adapters}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
