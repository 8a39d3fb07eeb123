// Waiting for ranks, in a kernel.
#pragma once

#include "ranks/peers.h"

namespace batchllm::cuda {

__device__ __forceinline__ uint32_t load_acquire_system(const uint32_t *from) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// One thread waits until one rank has come so often; all of the block may read what the ranks have made after a barrier. If
// a rank has failed it returns all the same.
__device__ __forceinline__ void wait_for_rank(const uint32_t *counts, uint32_t wanted,
                                              const uint32_t *ended, int rank) {
    for (uint32_t polls = 1; static_cast<int32_t>(load_acquire_system(counts + rank) - wanted) < 0;
         ++polls) {
        // Over the bus, so seldom.
        if (polls % 65536 == 0 && load_acquire_system(ended) != 0) return;
    }
}

template <typename T> __device__ __forceinline__ T *away(T *from, int64_t bytes) {
    return reinterpret_cast<T *>(reinterpret_cast<char *>(from) + bytes);
}

} // namespace batchllm::cuda
