// NVIDIA's library of collectives (NCCL 2.19 or later), loaded when devices are to work as one. Declared here, so that
// building needs none.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/status.h"

namespace batchllm::cuda {

struct NcclCommunicator; // one device's

struct Nccl {
    // As in nccl.h.
    static constexpr int success = 0, sum = 0;
    static constexpr int of_int32 = 2, of_f16 = 6, of_f32 = 7, of_bf16 = 9, of_bytes = 1;

    // Found by the loader, which also knows one that PyTorch has loaded, or where PyPI's package nvidia-nccl-cu13 is
    // beside this library's. BACKEND_UNAVAILABLE: there is none.
    static Result<const Nccl *> load();

    int (*get_version)(int *version);
    const char *(*get_error_string)(int result);
    int (*comm_init_all)(NcclCommunicator **all, int count, const int *devices);
    int (*comm_destroy)(NcclCommunicator *one);
    int (*comm_abort)(NcclCommunicator *one);
    int (*all_reduce)(const void *from, void *to, size_t count, int type, int operation,
                      NcclCommunicator *one, cudaStream_t stream);
    int (*send)(const void *from, size_t count, int type, int to, NcclCommunicator *one,
                cudaStream_t stream);
    int (*recv)(void *to, size_t count, int type, int from, NcclCommunicator *one,
                cudaStream_t stream);
    int (*group_start)();
    int (*group_end)();
};

} // namespace batchllm::cuda
