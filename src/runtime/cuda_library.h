// libbatchllm_cuda.so -> its backend. The library is searched for in the directory of the library
// that contains this function, in the folder cuda/ of that library's build directory, then on the
// loader's path. It is never unloaded.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/rank_choice.h"

namespace batchllm {

// Fails with BATCHLLM_ERROR_BACKEND_UNAVAILABLE and the reason: no library, no driver, no supported
// device.
Result<std::unique_ptr<Backend>> make_cuda_backend(const Model &model,
                                                   const BackendOptions &options);

// For tensor_parallel=auto. devices: empty: all that there are.
Result<RankChoice> choose_cuda_ranks(const Model &model, const BackendOptions &options,
                                     const std::vector<int32_t> &devices);

} // namespace batchllm
