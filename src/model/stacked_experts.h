// Experts that are stored in one tensor per layer, in a checkpoint whose description names one
// tensor per expert; and the reverse.
#pragma once

#include <functional>
#include <string>

#include "model/model.h"

namespace batchllm {

// Some files have P.gate_up_proj [experts, 2 width, hidden] (for experts without a gate P.up_proj
// [experts, width, hidden]) and P.down_proj [experts, hidden, width] instead of
// P.0.gate_proj.weight and so on, or other names for the three. If these files do, the description
// is changed to name those tensors. has: whether the files have a tensor with that name.
void find_stacked_experts(const std::function<bool(const std::string &name)> &has, Model *model);

// Quantised files of families whose experts are stacked as [experts, columns, rows] may have P.0.gate_proj.weight and so on,
// or what four-bit schemes have instead, for P.gate_up_proj and P.down_proj. If these files do, the description is changed to
// name those tensors.
void find_separate_experts(const std::function<bool(const std::string &name)> &has, Model *model);

} // namespace batchllm
