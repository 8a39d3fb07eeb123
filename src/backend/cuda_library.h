// The functions of libbatchllm_cuda.so. Both libraries use the core's private C++ types, so
// both must be built from the same headers: the caller passes its hash of them, and the library
// rejects any other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batchllm.h"

#include "backend/backend.h"
#include "backend/gpu/rank_choice.h"

// Change whenever batchllm_cuda_layout or a function changes.
#define BATCHLLM_CUDA_INTERFACE "batchllm cuda backend, interface 4"

// What both libraries must agree on. The first member never changes, so that other versions can
// read it.
struct batchllm_cuda_layout {
    const char *interface_text; // BATCHLLM_CUDA_INTERFACE
    uint64_t version;           // of batchllm.h
    uint64_t headers; // hash of backend/backend.h, everything it includes, and the compiler
};

extern "C" {
// Creates *backend, or returns an error code and its text in *message. model is borrowed. Never
// throws.
int32_t batchllm_cuda_backend_create_v1(const batchllm_cuda_layout *layout,
                                        const batchllm::Model *model,
                                        const batchllm::BackendOptions *options,
                                        std::unique_ptr<batchllm::Backend> *backend,
                                        std::string *message);
// For tensor_parallel=auto: on how many of the devices (none named: of all that there are) the model fits with room.
int32_t batchllm_cuda_choose_ranks_v1(const batchllm_cuda_layout *layout,
                                      const batchllm::Model *model,
                                      const batchllm::BackendOptions *options,
                                      const std::vector<int32_t> *devices,
                                      batchllm::RankChoice *choice, std::string *message);
}

namespace batchllm {

using CudaBackendCreate = decltype(&batchllm_cuda_backend_create_v1);
using CudaChooseRanks = decltype(&batchllm_cuda_choose_ranks_v1);

// The layout of the core that the caller is linked with. Each of the two libraries has its own
// core.
batchllm_cuda_layout cuda_layout();

} // namespace batchllm
