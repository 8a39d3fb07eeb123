// The only function of libbatchllm_cuda.so. The core's C++ types are private to both libraries, so
// both must come from one build of one tree: the caller passes its build's name, and any other is
// refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "batchllm.h"

#include "backend/backend.h"

// Changes when batchllm_cuda_layout or the function does.
#define BATCHLLM_CUDA_INTERFACE "batchllm cuda backend, interface 3"

// What both libraries must agree on. Its first member stays as it is, for a library of another version.
struct batchllm_cuda_layout {
    const char *interface_text; // BATCHLLM_CUDA_INTERFACE
    uint64_t version;           // of batchllm.h
    uint64_t headers; // hash of backend/backend.h, of all that it includes, and of the compiler
};

extern "C" {
// Makes *backend, or returns an error code and its text in *message. model is borrowed. Throws
// nothing.
int32_t batchllm_cuda_backend_create_v1(const batchllm_cuda_layout *layout,
                                        const batchllm::Model *model,
                                        const batchllm::BackendOptions *options,
                                        std::unique_ptr<batchllm::Backend> *backend,
                                        std::string *message);
}

namespace batchllm {

using CudaBackendCreate = decltype(&batchllm_cuda_backend_create_v1);

// Of the core that the caller is linked with. Each of the two libraries has a core of its own.
batchllm_cuda_layout cuda_layout();

} // namespace batchllm
