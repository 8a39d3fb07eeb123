// The jobs of bench/throughput by name, and models of named shapes without weights.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "jobs.h"
#include "model/model.h"
#include "model/tower.h"
#include "schedule/scheduler.h"

namespace batchllm {

struct NamedJob {
    const char *name, *model;
    int64_t rows;
    double prefix;
    int32_t common;
    double own, sharing;
    int32_t generated;
    double spread;
    double vllm; // rows/s; 0: not measured
};

inline const NamedJob kJobs[] = {
    {"a16", "Mistral-7B", 1024, 2000, 0, 200, 16, 100, 0, 59.9},
    {"a4", "Mistral-7B", 768, 2000, 0, 200, 4, 100, 0, 38.3},
    {"b16", "Mistral-7B", 640, 1000, 0, 1000, 16, 100, 0, 27.9},
    {"b4", "Mistral-7B", 640, 1000, 0, 1000, 4, 100, 0, 0},
    {"c16", "Mistral-7B", 384, 200, 0, 2000, 16, 100, 0, 16.9},
    {"c4", "Mistral-7B", 384, 200, 0, 2000, 4, 100, 0, 0},
    {"one", "Mistral-7B", 1024, 2000, 0, 200, 1024, 100, 0, 74.4},
    {"industry1", "Mistral-7B", 3000, 1100, 275, 400, 7, 100, 0.2, 49.9},
    {"industry2", "Qwen2-7B", 1000, 770, 0, 978, 11.36, 20, 0.2, 40.2},
};

inline JobRows make_rows(const NamedJob &job, int32_t vocabulary) {
    JobShape shape;
    shape.rows = job.rows;
    shape.prefix = job.prefix;
    shape.common = job.common;
    shape.own = job.own;
    shape.sharing = job.sharing;
    shape.spread = job.spread;
    JobRows rows = make_job_rows(shape);
    for (int32_t &token : rows.tokens) token %= vocabulary;
    return rows;
}

// All rows generate the same number of tokens, so their lengths only matter to heads by cost.
inline Result<Plan> plan_job(const NamedJob &job, const JobRows &rows, const PlanOptions &options) {
    std::vector<int32_t> lengths;
    if (options.levels == levels_auto) lengths.assign(rows.rows.size(), job.generated);
    return make_plan(rows.rows, lengths, options, nullptr);
}

// The rows as requests that generate exactly as many tokens as the job says.
struct JobRequests {
    SamplingParams params;
    std::vector<Request> requests;
    std::vector<Request *> held;

    JobRequests(const JobRows &rows, const NamedJob &job) : requests(rows.rows.size()) {
        params.max_tokens = job.generated;
        params.ignore_eos = true;
        for (size_t i = 0; i < requests.size(); ++i) {
            requests[i].prompt = rows.rows[i];
            requests[i].params = &params;
            requests[i].max_tokens = job.generated;
            held.push_back(&requests[i]);
        }
    }
    JobRequests(const JobRequests &) = delete;
};

// Models by name, and their config.json.
inline constexpr struct {
    const char *name, *config;
} kNamedModels[] = {
    {"Mistral-7B",
     R"({"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 14336, "vocab_size": 32768, "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5, "rope_theta": 1e6, "torch_dtype": "bfloat16",
            "tie_word_embeddings": false, "sliding_window": null, "eos_token_id": null})"},
    {"Llama-3-8B",
     R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5, "rope_theta": 5e5, "torch_dtype": "bfloat16",
            "tie_word_embeddings": false, "eos_token_id": null})"},
    {"Qwen2-7B",
     R"({"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28,
            "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
            "vocab_size": 152064, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
            "rope_theta": 1e6, "torch_dtype": "bfloat16", "tie_word_embeddings": false,
            "use_sliding_window": false, "eos_token_id": null})"},
    {"qwen3-30b-a3b",
     R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
            "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
            "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
            "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
            "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "torch_dtype": "bfloat16",
            "tie_word_embeddings": false, "use_sliding_window": false, "eos_token_id": null})"},
    {"glm-4.7-flash",
     R"({"model_type": "glm4_moe_lite", "hidden_size": 2048, "num_hidden_layers": 47,
            "num_attention_heads": 20, "num_key_value_heads": 20, "q_lora_rank": 768,
            "kv_lora_rank": 512, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
            "v_head_dim": 256, "intermediate_size": 10240, "moe_intermediate_size": 1536,
            "n_routed_experts": 64, "num_experts_per_tok": 4, "n_shared_experts": 1,
            "first_k_dense_replace": 1, "routed_scaling_factor": 1.8, "n_group": 1,
            "topk_group": 1, "norm_topk_prob": true, "vocab_size": 154880,
            "max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
            "torch_dtype": "bfloat16", "tie_word_embeddings": false, "eos_token_id": null})"},
    {"deepseek-v2-lite",
     R"({"model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27,
            "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": null,
            "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "intermediate_size": 10944, "moe_intermediate_size": 1408,
            "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2,
            "first_k_dense_replace": 1, "topk_method": "greedy", "vocab_size": 102400,
            "max_position_embeddings": 163840, "rms_norm_eps": 1e-6, "rope_theta": 10000,
            "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1,
            "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096},
            "torch_dtype": "bfloat16", "tie_word_embeddings": false, "eos_token_id": null})"},
    {"Llama-3.2-1B",
     R"({"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
            "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "rope_theta": 5e5, "torch_dtype": "bfloat16",
            "tie_word_embeddings": true, "eos_token_id": null})"},
    {"Llama-3.2-3B",
     R"({"model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 28,
            "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "rope_theta": 5e5, "torch_dtype": "bfloat16",
            "tie_word_embeddings": true, "eos_token_id": null})"},
    {"Qwen3-4B",
     R"({"model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 9728, "vocab_size": 151936, "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6, "rope_theta": 1e6, "torch_dtype": "bfloat16",
            "tie_word_embeddings": true, "use_sliding_window": false, "eos_token_id": null})"},
    {"Qwen3-VL-8B", // the picture's token as tests/image/processors/qwen3_vl has it
     R"({"model_type": "qwen3_vl", "image_token_id": 7, "tie_word_embeddings": false,
            "eos_token_id": null, "torch_dtype": "bfloat16",
            "text_config": {"model_type": "qwen3_vl_text", "hidden_size": 4096,
            "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
            "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "eos_token_id": null,
            "rope_parameters": {"mrope_interleaved": true, "mrope_section": [24, 20, 20],
            "rope_theta": 5000000, "rope_type": "default"}},
            "vision_config": {"model_type": "qwen3_vl", "hidden_size": 1152, "depth": 27,
            "num_heads": 16, "intermediate_size": 4304, "out_hidden_size": 4096,
            "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
            "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24],
            "hidden_act": "gelu_pytorch_tanh"}})"},
    {"gpt-oss-20b", // with experts in 16 bits; as published: gpt-oss-20b-mxfp4
     R"({"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
            "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4,
            "vocab_size": 201088, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "attention_bias": true, "sliding_window": 128, "swiglu_limit": 7.0,
            "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
            "original_max_position_embeddings": 4096}, "torch_dtype": "bfloat16",
            "tie_word_embeddings": false, "eos_token_id": null})"},
    {"gpt-oss-120b",
     R"({"model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
            "intermediate_size": 2880, "num_local_experts": 128, "num_experts_per_tok": 4,
            "vocab_size": 201088, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "attention_bias": true, "sliding_window": 128, "swiglu_limit": 7.0,
            "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
            "original_max_position_embeddings": 4096}, "torch_dtype": "bfloat16",
            "tie_word_embeddings": false, "eos_token_id": null})"},
    {"Llama-3.3-70B",
     R"({"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
            "intermediate_size": 28672, "vocab_size": 128256, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "rope_theta": 5e5, "torch_dtype": "bfloat16",
            "tie_word_embeddings": false, "eos_token_id": null})"},
    {"qwen3.5-9b",
     R"({"model_type": "qwen3_5_text", "hidden_size": 4096, "num_hidden_layers": 32,
            "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
            "intermediate_size": 12288, "full_attention_interval": 4, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4, "vocab_size": 248320, "max_position_embeddings": 262144,
            "partial_rotary_factor": 0.25, "rope_theta": 1e7, "rms_norm_eps": 1e-6,
            "torch_dtype": "bfloat16", "tie_word_embeddings": false, "eos_token_id": null})"},
    {"granite-4.0-h-micro",
     R"({"model_type": "granitemoehybrid", "hidden_size": 2048, "num_hidden_layers": 40,
            "layer_types": ["mamba", "mamba", "mamba", "mamba", "mamba", "attention", "mamba",
            "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "attention",
            "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba",
            "attention", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba", "mamba",
            "mamba", "attention", "mamba", "mamba", "mamba", "mamba"],
            "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192,
            "shared_intermediate_size": 8192, "num_local_experts": 0, "num_experts_per_tok": 0,
            "mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
            "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": true,
            "mamba_proj_bias": false, "position_embedding_type": "nope",
            "attention_multiplier": 0.015625, "embedding_multiplier": 12, "logits_scaling": 8,
            "residual_multiplier": 0.22, "vocab_size": 100352, "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "tie_word_embeddings": true,
            "eos_token_id": null})"},
    {"nemotron-h-8b",
     R"({"model_type": "nemotron_h", "hidden_size": 4096, "num_hidden_layers": 52,
            "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            "num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128,
            "intermediate_size": 21504, "mamba_num_heads": 128, "mamba_head_dim": 64,
            "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "mlp_hidden_act": "relu2",
            "vocab_size": 131072, "max_position_embeddings": 8192, "layer_norm_epsilon": 1e-5,
            "torch_dtype": "bfloat16", "tie_word_embeddings": false, "eos_token_id": null})"},
    {"nemotron-3-nano",
     R"({"model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 52,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
            "intermediate_size": 1856, "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128,
            "num_experts_per_tok": 6, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
            "norm_topk_prob": true, "routed_scaling_factor": 2.5, "mamba_num_heads": 64,
            "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
            "mlp_hidden_act": "relu2", "vocab_size": 131072, "max_position_embeddings": 262144,
            "layer_norm_epsilon": 1e-5, "torch_dtype": "bfloat16", "tie_word_embeddings": false,
            "eos_token_id": null})"},
    {"lfm2-1.2b",
     R"({"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14], "num_attention_heads": 32,
            "num_key_value_heads": 8, "block_ff_dim": 12288, "block_auto_adjust_ff_dim": true,
            "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "conv_L_cache": 3,
            "conv_bias": false, "norm_eps": 1e-5, "rope_theta": 1e6, "vocab_size": 65536,
            "max_position_embeddings": 128000, "torch_dtype": "bfloat16", "eos_token_id": null})"},
    {"Gemma-3-12B",
     R"({"model_type": "gemma3_text", "hidden_size": 3840, "num_hidden_layers": 48,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
            "intermediate_size": 15360, "vocab_size": 262208, "max_position_embeddings": 131072,
            "query_pre_attn_scalar": 256, "sliding_window": 1024, "sliding_window_pattern": 6,
            "rope_theta": 1e6, "rope_local_base_freq": 1e4, "torch_dtype": "bfloat16",
            "eos_token_id": null})"},
    {"gemma-4-26b-a4b",
     R"({"model_type": "gemma4_text", "hidden_size": 2816, "num_hidden_layers": 30,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
            "attention_k_eq_v": true, "num_global_key_value_heads": 2, "global_head_dim": 512,
            "sliding_window": 1024, "intermediate_size": 2112, "enable_moe_block": true,
            "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
            "hidden_size_per_layer_input": 0, "final_logit_softcapping": 30.0,
            "vocab_size": 262144, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
            "torch_dtype": "bfloat16", "tie_word_embeddings": true, "eos_token_id": null})"},
};

// What a name may end with: the same model as quantised checkpoints describe it.
inline constexpr struct {
    const char *ending, *config;
} kQuantized[] = {
    {"-mxfp4", R"({"quant_method": "mxfp4"})"}, // the experts of gpt-oss
    {"-awq", R"({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true})"},
    {"-gptq", R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true})"},
    {"-nvfp4", R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]})"},
};

// Empty: no such name.
inline std::string named_config(const std::string &name) {
    for (const auto &model : kNamedModels) {
        const std::string config = model.config;
        if (name == model.name) return config;
        for (const auto &quantized : kQuantized) {
            if (name != std::string(model.name) + quantized.ending) continue;
            return config.substr(0, config.rfind('}')) +
                   ", \"quantization_config\": " + quantized.config + "}";
        }
    }
    return "";
}

// A model without weights; the backend makes them.
struct BenchModel {
    std::string config; // the text of its config.json
    Model model;
};

// name: a named model, or a directory with a config.json.
inline Result<BenchModel> bench_model(const std::string &name) {
    BenchModel made;
    std::string file = name;
    made.config = named_config(name);
    if (made.config.empty()) {
        file += "/config.json";
        ASSIGN_OR_RETURN(made.config, read_file(file, size_t{1} << 20));
    }
    ASSIGN_OR_RETURN(made.model, describe_config(made.config, file));
    return made;
}

// Writes a directory that loads as this model. Its weights file is sparse: it takes no space on
// disk, and random_weights=1 never reads it.
inline Status write_model_directory(const BenchModel &from, const std::string &directory) {
    std::error_code failure;
    std::filesystem::create_directories(directory, failure);
    RETURN_IF_ERROR(write_file(directory + "/config.json", from.config));
    std::vector<std::pair<std::string, std::string>> shapes; // shapes of the tensors in the file,
                                                             // in order
    int64_t offset = 0;
    const auto add = [&](const Tensor &tensor) {
        const bool seen = std::any_of(shapes.begin(), shapes.end(),
                                      [&](const auto &s) { return s.first == tensor.name; });
        if (seen) return; // other rows of the same tensor
        const int64_t rows = tensor.stored_rows > 0 ? tensor.stored_rows : tensor.rows;
        const int64_t stack = std::max<int64_t>(1, tensor.stored_stack);
        const int64_t end = offset + 2 * stack * rows * tensor.columns;
        std::string shape = std::to_string(rows);
        if (tensor.columns > 1 && tensor.stored_transposed) {
            shape = std::to_string(tensor.columns) + ", " + shape;
        } else if (tensor.columns > 1) {
            shape += ", " + std::to_string(tensor.columns);
        }
        if (tensor.stored_stack > 0) shape = std::to_string(stack) + ", " + shape;
        shapes.emplace_back(tensor.name, shape + "], \"data_offsets\": [" + std::to_string(offset) +
                                             ", " + std::to_string(end));
        offset = end;
    };
    for_each_tensor(from.model, add);
    if (from.model.tower != nullptr) for_each_tensor(*from.model.tower, add);
    std::string header = "{";
    for (const auto &[name, shape] : shapes) {
        header.append(header.size() > 1 ? ", \"" : "\"").append(name);
        header.append("\": {\"dtype\": \"BF16\", \"shape\": [").append(shape).append("]}");
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string start(8, '\0');
    for (int i = 0; i < 8; ++i)
        start[static_cast<size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
    const std::string path = directory + "/model.safetensors";
    RETURN_IF_ERROR(write_file(path, start + header));
    std::filesystem::resize_file(path, 8 + header.size() + static_cast<uint64_t>(offset), failure);
    if (!failure) return {};
    return error(BATCHLLM_ERROR_IO, "%s: %s", path.c_str(), failure.message().c_str());
}

} // namespace batchllm
