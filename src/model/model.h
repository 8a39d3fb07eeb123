// A Hugging Face model directory -> configuration and weights. The weights are views into mapped
// files: nothing is read until a backend copies or packs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/status.h"

namespace batchllm {

enum class Architecture : uint8_t { llama, mistral, qwen2, qwen3 };

enum class RopeKind : uint8_t { plain, linear, llama3 };

struct RopeConfig {
    RopeKind kind = RopeKind::plain;
    double theta = 10000;
    double factor = 1; // linear, llama3
    double low_freq_factor = 1;
    double high_freq_factor = 4;
    int64_t original_max_positions = 8192;
};

// rope frequencies: angle of dimension pair i at position p is p * inverse_frequencies[i].
// [head_dim / 2], scaled as the config says.
std::vector<float> rope_inverse_frequencies(const RopeConfig &rope, int32_t head_dim);

struct ModelConfig {
    Architecture architecture = Architecture::llama;
    DType dtype = DType::f32; // as the config states it, else (load_model) the embedding's
    bool dtype_stated = false;
    int32_t vocabulary = 0;
    int32_t hidden = 0;
    int32_t intermediate = 0;
    int32_t layers = 0;
    int32_t heads = 0;
    int32_t kv_heads = 0; // divides heads
    int32_t head_dim = 0; // even
    int32_t max_positions = 0;
    int32_t sliding_window = 0; // positions a token sees, itself included; 0: all
    // With a sliding window, the first `full_attention_layers` layers see everything (Qwen2's
    // max_window_layers); 0 for Mistral.
    int32_t full_attention_layers = 0;
    double norm_epsilon = 1e-6;
    bool tied_embeddings = false;
    bool attention_bias = false;        // on q, k, v
    bool attention_output_bias = false; // on o
    bool mlp_bias = false;
    bool qk_norm = false; // RMSNorm on each head of q and k
    RopeConfig rope;
    std::vector<int32_t> eos_tokens; // generation_config.json's, else config.json's
    int32_t bos_token = -1;

    // The window of a layer, 0: none.
    int32_t window(int32_t layer) const {
        return layer < full_attention_layers ? 0 : sliding_window;
    }
    int32_t gqa_ratio() const { return heads / kv_heads; }
};

// config.json and generation_config.json alone.
Result<ModelConfig> load_config(const std::string &model_dir);

// A matrix [rows, columns], row-major (or a vector: rows = length, columns = 1), in a mapped file.
// data is null for a tensor that the architecture does not have, and else aligned to nothing: the
// format allows any offset. All of a model's tensors need not be of one type.
struct Tensor {
    DType dtype = DType::f32;
    const std::byte *data = nullptr;
    int64_t rows = 0;
    int64_t columns = 0;

    explicit operator bool() const { return data != nullptr; }
    int64_t bytes() const { return rows * columns * dtype_bytes(dtype); }
};

struct LayerWeights {
    Tensor input_norm; // [hidden]
    Tensor q, k, v;    // [heads * head_dim | kv_heads * head_dim, hidden]
    Tensor q_bias, k_bias, v_bias;
    Tensor q_norm, k_norm; // [head_dim]
    Tensor o;              // [hidden, heads * head_dim]
    Tensor o_bias;
    Tensor post_attention_norm; // [hidden]
    Tensor gate, up;            // [intermediate, hidden]
    Tensor down;                // [hidden, intermediate]
    Tensor gate_bias, up_bias, down_bias;
};

// Read-only once loaded; the files stay mapped while it lives.
struct Model {
    ModelConfig config;
    std::string directory;
    Tensor embedding; // [vocabulary, hidden]
    std::vector<LayerWeights> layers;
    Tensor final_norm; // [hidden]
    Tensor lm_head;    // [vocabulary, hidden]; the embedding's own bytes when tied
    std::vector<MappedFile> files;

    int64_t weight_bytes() const;
};

// Reads config.json, generation_config.json, model.safetensors or model.safetensors.index.json with
// its shards, and checks every tensor's type and shape against the configuration.
Result<std::unique_ptr<Model>> load_model(const std::string &model_dir);

} // namespace batchllm
