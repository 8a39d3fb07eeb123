// libbatchllm_cuda.so's one function. The core's C++ types are private to both libraries, so both must
// come from one build of one tree: the caller names its own, and any other is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "batchllm.h"

#include "backend/backend.h"

// Changes with every change to what the two libraries share.
#define BATCHLLM_CUDA_INTERFACE "batchllm cuda backend, interface 2"

// Sizes of the shared types: a library built from another tree most likely differs in one.
struct batchllm_cuda_layout {
    const char *interface_text; // BATCHLLM_CUDA_INTERFACE
    uint64_t version;           // of batchllm.h
    uint64_t model, options, info, batch, params;
};

extern "C" {
// Makes *backend, or returns the code of an error and its text in *message. model is borrowed. Lets no
// exception through.
int32_t batchllm_cuda_backend_create_v1(const batchllm_cuda_layout *layout,
                                        const batchllm::Model *model,
                                        const batchllm::BackendOptions *options,
                                        std::unique_ptr<batchllm::Backend> *backend,
                                        std::string *message);
}

namespace batchllm {

using CudaBackendCreate = decltype(&batchllm_cuda_backend_create_v1);

inline batchllm_cuda_layout cuda_layout() {
    return {BATCHLLM_CUDA_INTERFACE,
            (BATCHLLM_VERSION_MAJOR << 16) | (BATCHLLM_VERSION_MINOR << 8) | BATCHLLM_VERSION_PATCH,
            sizeof(Model),
            sizeof(BackendOptions),
            sizeof(BackendInfo),
            sizeof(TokenBatch),
            sizeof(SamplingParams)};
}

} // namespace batchllm
