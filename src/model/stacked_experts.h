// Experts whose weights are in one tensor per layer, in a checkpoint whose description names one
// tensor per expert.
#pragma once

#include <functional>
#include <string>

#include "model/model.h"

namespace batchllm {

// Where the files have P.gate_up_proj [experts, 2 width, hidden] (of experts without a gate P.up_proj [experts, width,
// hidden]) and P.down_proj [experts, hidden, width] in place of P.0.gate_proj.weight and so on, or other names of the
// three, the description names those. has: whether the files have a tensor of that name.
void find_stacked_experts(const std::function<bool(const std::string &name)> &has, Model *model);

} // namespace batchllm
