// The jobs of bench/throughput by name, and models of named shapes without weights.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "jobs.h"
#include "model/model.h"

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

inline ModelConfig named_model(const std::string &name) {
    ModelConfig c;
    c.dtype = DType::bf16;
    c.hidden = 4096;
    c.layers = 32;
    c.heads = 32;
    c.kv_heads = 8;
    c.head_dim = 128;
    c.intermediate = 14336;
    c.max_positions = 32768;
    c.norm_epsilon = 1e-5;
    if (name == "Mistral-7B") {
        c.architecture = Architecture::mistral;
        c.vocabulary = 32768;
        c.rope.theta = 1e6;
    } else if (name == "Llama-3-8B") {
        c.vocabulary = 128256;
        c.rope.theta = 5e5;
    } else if (name == "Qwen2-7B") {
        c.architecture = Architecture::qwen2;
        c.vocabulary = 152064;
        c.hidden = 3584;
        c.layers = 28;
        c.heads = 28;
        c.kv_heads = 4;
        c.intermediate = 18944;
        c.rope.theta = 1e6;
        c.attention_bias = true;
        c.norm_epsilon = 1e-6;
    } else {
        c.layers = 0;
    }
    return c;
}

// A model whose tensors have shapes alone: the backend makes the weights.
inline Model shape_of(const ModelConfig &c) {
    static const std::byte anything{};
    const auto tensor = [](int64_t rows, int64_t columns) {
        return Tensor{DType::bf16, &anything, rows, columns};
    };
    const int64_t q = int64_t{c.heads} * c.head_dim, kv = int64_t{c.kv_heads} * c.head_dim;
    Model model;
    model.config = c;
    model.embedding = tensor(c.vocabulary, c.hidden);
    model.final_norm = tensor(c.hidden, 1);
    static const std::byte other{};
    model.lm_head = tensor(c.vocabulary, c.hidden);
    if (!c.tied_embeddings) model.lm_head.data = &other;
    for (int32_t i = 0; i < c.layers; ++i) {
        LayerWeights w;
        w.input_norm = w.post_attention_norm = tensor(c.hidden, 1);
        w.q = tensor(q, c.hidden);
        w.k = w.v = tensor(kv, c.hidden);
        if (c.attention_bias) {
            w.q_bias = tensor(q, 1);
            w.k_bias = w.v_bias = tensor(kv, 1);
        }
        if (c.qk_norm) w.q_norm = w.k_norm = tensor(c.head_dim, 1);
        w.o = tensor(c.hidden, q);
        w.gate = w.up = tensor(c.intermediate, c.hidden);
        w.down = tensor(c.hidden, c.intermediate);
        model.layers.push_back(w);
    }
    return model;
}

// A directory that loads as a model of this shape: the file of its weights is a hole, which takes no
// room on the disk and which random_weights=1 never reads.
inline Status write_model_directory(const ModelConfig &c, const std::string &directory) {
    std::error_code failure;
    std::filesystem::create_directories(directory, failure);
    char text[1024];
    std::snprintf(text, sizeof text,
                  "{\"model_type\": \"%s\", \"hidden_size\": %d, \"num_hidden_layers\": %d, "
                  "\"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, "
                  "\"intermediate_size\": %d, \"vocab_size\": %d, \"max_position_embeddings\": %d, "
                  "\"rms_norm_eps\": %g, \"rope_theta\": %g, \"torch_dtype\": \"bfloat16\", "
                  "\"tie_word_embeddings\": %s, \"sliding_window\": null, \"eos_token_id\": null}",
                  c.architecture == Architecture::qwen2     ? "qwen2"
                  : c.architecture == Architecture::mistral ? "mistral"
                                                            : "llama",
                  c.hidden, c.layers, c.heads, c.kv_heads, c.head_dim, c.intermediate, c.vocabulary,
                  c.max_positions, c.norm_epsilon, c.rope.theta,
                  c.tied_embeddings ? "true" : "false");
    RETURN_IF_ERROR(write_file(directory + "/config.json", text));
    std::string header = "{";
    int64_t offset = 0;
    const auto add = [&](const std::string &name, int64_t rows, int64_t columns) {
        const int64_t end = offset + 2 * rows * std::max<int64_t>(columns, 1);
        header.append(header.size() > 1 ? ", \"" : "\"").append(name);
        header.append("\": {\"dtype\": \"BF16\", \"shape\": [").append(std::to_string(rows));
        if (columns > 0) header.append(", ").append(std::to_string(columns));
        header.append("], \"data_offsets\": [").append(std::to_string(offset));
        header.append(", ").append(std::to_string(end)).append("]}");
        offset = end;
    };
    const int64_t q = int64_t{c.heads} * c.head_dim, kv = int64_t{c.kv_heads} * c.head_dim;
    add("model.embed_tokens.weight", c.vocabulary, c.hidden);
    if (!c.tied_embeddings) add("lm_head.weight", c.vocabulary, c.hidden);
    add("model.norm.weight", c.hidden, 0);
    for (int32_t i = 0; i < c.layers; ++i) {
        const std::string layer = "model.layers." + std::to_string(i) + ".";
        add(layer + "input_layernorm.weight", c.hidden, 0);
        add(layer + "post_attention_layernorm.weight", c.hidden, 0);
        for (const char *part : {"q", "k", "v"}) {
            const int64_t rows = *part == 'q' ? q : kv;
            add(layer + "self_attn." + part + "_proj.weight", rows, c.hidden);
            if (c.attention_bias) add(layer + "self_attn." + part + "_proj.bias", rows, 0);
        }
        if (c.qk_norm) {
            add(layer + "self_attn.q_norm.weight", c.head_dim, 0);
            add(layer + "self_attn.k_norm.weight", c.head_dim, 0);
        }
        add(layer + "self_attn.o_proj.weight", c.hidden, q);
        add(layer + "mlp.gate_proj.weight", c.intermediate, c.hidden);
        add(layer + "mlp.up_proj.weight", c.intermediate, c.hidden);
        add(layer + "mlp.down_proj.weight", c.hidden, c.intermediate);
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
