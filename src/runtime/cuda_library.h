// libbatchllm_cuda.so -> its backend. The library is looked for beside the one that holds this
// function, in cuda/ of that one's build folder, then on the loader's path; it is never unloaded.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace batchllm {

// BATCHLLM_ERROR_BACKEND_UNAVAILABLE with the reason: no library, no driver, no device that it runs on.
Result<std::unique_ptr<Backend>> make_cuda_backend(const Model &model,
                                                   const BackendOptions &options);

} // namespace batchllm
