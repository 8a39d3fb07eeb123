#include "backend/cuda_library.h"

#include "backend/interface_hash.h" // made by interface_hash.py

namespace batchllm {

batchllm_cuda_layout cuda_layout() {
    return {BATCHLLM_CUDA_INTERFACE,
            (BATCHLLM_VERSION_MAJOR << 16) | (BATCHLLM_VERSION_MINOR << 8) | BATCHLLM_VERSION_PATCH,
            BATCHLLM_INTERFACE_HASH};
}

} // namespace batchllm
