// Shared by families with Mamba-2 layers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace batchllm {

inline constexpr int32_t most_mamba_heads = 1 << 14;
inline constexpr int32_t most_mamba_head_dim = 1024;

// A Mamba-2 layer without its tensors, and whether its convolution has a bias.
struct MambaShape {
    Mamba2 layer;
    bool bias = true;
};

// From the keys of Granite 4, Bamba and Falcon-H1: "mamba_n_heads" and so on. Each group has its own norm. values: of all
// heads, or none: mamba_expand * hidden_size.
Result<MambaShape> read_mamba(const JsonValue &config, int32_t hidden,
                              std::optional<int32_t> values = std::nullopt);
// The two limits of its steps, if the key is given.
Status read_step_limits(const JsonValue &config, std::string_view key, Mamba2 *mamba);

// The layer with its tensors: `prefix`in_proj, conv1d, A_log, dt_bias, D, norm, out_proj.
Mamba2 named_mamba(const MambaShape &shape, const std::string &prefix, int64_t hidden,
                   float epsilon);

// Bamba's and Falcon-H1's names of a decoder's norms and feed-forwards.
void set_bamba_names(const DecoderShape &shape, Model *model);

// For families with these keys: replaces attention by Mamba-2, "mamba.", where `types` is true.
Status set_mamba_layers(const JsonValue &config, const std::vector<bool> &types, Model *model);

} // namespace batchllm
