// What the families share in reading a config.json. A key that is absent has the default of
// transformers' configuration class of that family. What would change the model's output and is not
// computed is refused by name; other keys are ignored, as transformers ignores them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "model/model.h"

namespace batchllm {

// Defaults of a family's configuration class.
struct ConfigDefaults {
    int32_t vocabulary = 32000;
    int32_t hidden = 4096;
    int32_t intermediate = 11008;
    int32_t layers = 32;
    int32_t heads = 32;
    std::optional<int32_t> kv_heads = std::nullopt; // nothing: as many as heads
    int32_t head_dim = 0;                           // 0: hidden / heads
    int32_t max_positions = 2048;
    std::optional<int32_t> bos = std::nullopt;
    std::optional<int32_t> eos = std::nullopt;
    bool tied = false;
    const char *epsilon_key = "rms_norm_eps";
    double epsilon = 1e-6;
};

// The numbers that shape a decoder, beside those that Model itself holds.
struct DecoderShape {
    int32_t intermediate = 0;
    int32_t layers = 0;
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    float epsilon = 0;
};

// A number from 1 to most; a flag; a number. `otherwise` where the key is absent or null.
Result<int32_t> read_count(const JsonValue &config, std::string_view key, int32_t otherwise,
                           int32_t most);
Result<bool> read_flag(const JsonValue &config, std::string_view key, bool otherwise);
Result<double> read_number(const JsonValue &config, std::string_view key, double otherwise,
                           double least, double most);
// "silu", "gelu_pytorch_tanh" and the like.
Result<Activation> read_activation(const JsonValue &config, std::string_view key,
                                   Activation otherwise);

// vocab_size, hidden_size, ..., dtype and special tokens into the model; the rest is the result.
Result<DecoderShape> read_shape(const JsonValue &config, const ConfigDefaults &defaults,
                                Model *model);

// A token id, or a list of them; each must be below vocabulary.
Status read_tokens(const JsonValue &value, int32_t vocabulary, std::vector<int32_t> *tokens);

// "sliding_window", or 0 when it is null; `otherwise` when it is absent.
Result<int32_t> read_window(const JsonValue &config, int32_t otherwise);
// Gives the window to the layers that "layer_types" makes sliding_attention; without that key to
// those from `full` on. A window of 0: none.
Status set_windows(const JsonValue &config, int32_t window, int64_t full, Model *model);

// The rope of all layers: keys at the top ("rope_theta", "rope_scaling") or in one object
// ("rope_parameters").
Result<Rope> read_rope(const JsonValue &config, const Model &model, int32_t head_dim);
// Its index in the model's list, which it is added to unless it is there.
int32_t add_rope(Model *model, Rope rope);

// Tensors by the names that most families give them: the weight `prefix`.weight, [rows, columns].
Weight named_weight(const std::string &prefix, int64_t rows, int64_t columns);
void add_bias(Weight *weight); // `prefix`.bias
Norm named_norm(NormKind kind, const std::string &prefix, int64_t length, float epsilon);

// A decoder as Llama is: "model.layers.N.self_attn.q_proj" and so on, norms before attention and
// feed-forward, silu, no biases, no window, one rope. Families change what they have otherwise.
Status describe_decoder(const JsonValue &config, const DecoderShape &shape, Model *model);
std::string layer_prefix(size_t layer); // "model.layers.N."

} // namespace batchllm
