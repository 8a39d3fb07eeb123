// Why a tensor may have another shape than config.json makes it: a key that decides shapes is not there.
#pragma once

#include <string>

namespace batchllm {

// "; config.json has no num_key_value_heads, which is taken as its default: .." to be put behind an error; "" where
// all keys are there, or the file cannot be read.
std::string absent_shape_keys(const std::string &model_dir);

} // namespace batchllm
