// Waiting for ranks, in a kernel.
#pragma once

#include "ranks/peers.h"

namespace batchllm::cuda {

__device__ __forceinline__ uint32_t load_acquire_system(const uint32_t *from) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

// One thread waits for one rank; all of the block may read what the ranks have made after a barrier. If a rank has
// failed it returns all the same.
__device__ __forceinline__ void wait_for_rank(const uint32_t *counts, const uint32_t *own_count,
                                              const uint32_t *ended, int rank) {
    const uint32_t wanted = *own_count;
    for (uint32_t polls = 1; static_cast<int32_t>(load_acquire_system(counts + rank) - wanted) < 0;
         ++polls) {
        // Over the bus, so seldom.
        if (polls % 65536 == 0 && load_acquire_system(ended) != 0) return;
    }
}

} // namespace batchllm::cuda
