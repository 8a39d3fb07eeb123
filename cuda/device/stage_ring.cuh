// A ring of stages in shared memory, between the threads that fill them and those that use them. Both step through the
// same sequence.
#pragma once

#include <cstdint>

namespace batchllm::cuda {

// A position in the ring. The stages come first, StageBytes each. At Barriers, also in bytes from
// the base, are the "full" barriers of all stages, followed by the "empty" ones.
template <int Stages, int StageBytes, int Barriers> struct StageRing {
    int slot = 0;
    uint32_t phase = 0;
    uint32_t base; // of shared memory

    __device__ explicit StageRing(uint32_t at) : base(at) {}
    __device__ uint32_t stage() const { return base + slot * StageBytes; }
    __device__ uint32_t full() const { return base + Barriers + slot * 8; }
    __device__ uint32_t empty() const { return base + Barriers + (Stages + slot) * 8; }
    __device__ void advance() {
        if (++slot == Stages) {
            slot = 0;
            phase ^= 1;
        }
    }
};

} // namespace batchllm::cuda
