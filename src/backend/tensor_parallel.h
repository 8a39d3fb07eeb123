// The backend option tensor_parallel: how many devices each compute a part of the model (model/parts.h) and work as one.
#pragma once

#include <cstdint>
#include <string>

#include "backend/backend.h"
#include "base/status.h"

namespace batchllm {

inline constexpr const char *tensor_parallel_key = "tensor_parallel";

// "auto": 0.
Result<int32_t> read_tensor_parallel(const std::string &value);
// 1 unless the option is there. Backends get a number: "auto" is made one before (backend/gpu/rank_choice.h).
Result<int32_t> tensor_parallel_of(const BackendOptions &options);

} // namespace batchllm
