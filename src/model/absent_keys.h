// Explains why a tensor may have another shape than config.json implies: a key that determines
// shapes is missing.
#pragma once

#include <string>

namespace batchllm {

// "; config.json has no num_key_value_heads: the shape may follow from a default", to append to an
// error; "" if all keys are there or the file cannot be read.
std::string absent_shape_keys(const std::string &model_dir);

} // namespace batchllm
