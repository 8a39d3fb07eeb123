// What families with Mamba-2 layers share.
#pragma once

#include <string>
#include <string_view>

#include "model/config.h"

namespace batchllm {

inline constexpr int32_t most_mamba_heads = 1 << 14;
inline constexpr int32_t most_mamba_head_dim = 1024;

// A Mamba-2 layer, all but its sizes and tensors.
LinearAttention mamba_layer();

// The two limits of its steps, if the key is given.
Status read_step_limits(const JsonValue &config, std::string_view key, LinearAttention *mamba);

// Its tensors, once its sizes are known: `prefix`in_proj, conv1d, A_log, dt_bias, D, norm, out_proj. bias: of the
// convolution.
void name_mamba_tensors(const std::string &prefix, int64_t hidden, float epsilon, bool bias,
                        LinearAttention *mamba);

} // namespace batchllm
