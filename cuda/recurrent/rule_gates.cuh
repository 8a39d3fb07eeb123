// What the two kernels of the rule on Hopper share (rule_weights_sm90.cu, rule_sm90.cu): how a chunk's tokens and gates
// get into shared memory.
#pragma once

#include "attention/hopper.cuh"
#include "device/tma.cuh"
#include "recurrent/chunk.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kPanelRows = 2 * kStateChunk;
constexpr int kPanelBytes =
    kPanelRows * 128; // 64 columns, swizzled as TMA writes and wgmma wants them
constexpr int kHalfBytes = kPanelBytes / 2; // of 64 rows
constexpr int kBoxRows = 32;

// threadIdx.x, read anew: what follows from it is not kept in registers from part to part.
__device__ __forceinline__ int thread_anew() {
    unsigned thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return static_cast<int>(thread % 512); // its range is known then
}

// Of a chunk's tokens; those beyond its end have a decay of 1 and a rate of 0.
struct alignas(16) RuleGates {
    float sums[kStateChunk], rates[kStateChunk]; // G; rate
};
struct alignas(16) RuleDecays {
    float decays[kStateChunk], to_last[kStateChunk]; // exp(G); exp(G_last - G)
};

struct RulePlace {
    alignas(1024) unsigned char panels[2][kPanelBytes]; // k, then q: 64 columns each. Or of S^T
};

// Rows from `count` on of the chunk's keys, by the warpgroup.
__device__ __forceinline__ void clear_keys(RulePlace *place, int count) {
    for (int i = thread_anew() % 128; i < (kStateChunk - count) * 8; i += 128) {
#pragma unroll
        for (auto &panel : place->panels) {
            store_shared(shared_address(panel + count * 128 + i * 16), uint4{});
        }
    }
}

// Of a lane's two tokens, logarithm to base 2 of the decay, and rate.
struct LaneGates {
    float2 of[2];

    __device__ __forceinline__ void load(const ChunkArguments &c, const StateItem &item, int first,
                                         int head) {
        const int count = item.token_count - first, lane = thread_anew() % 32;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int t = 2 * lane + e;
            of[e] = make_float2(0, 0);
            if (t < count) {
                of[e] = c.gates[int64_t{item.token_begin + first + t} * c.delta.value_heads + head];
            }
        }
    }
    // G of them.
    __device__ __forceinline__ float2 sums() const {
        const int lane = thread_anew() % 32;
        float sum = of[0].x + of[1].x;
#pragma unroll
        for (int offset = 1; offset < 32; offset *= 2) {
            const float before = __shfl_up_sync(~0u, sum, offset);
            if (lane >= offset) sum += before;
        }
        return make_float2(sum - of[1].x, sum);
    }
    __device__ __forceinline__ void leave(RuleGates *to) const {
        leave_two(to->sums, sums());
        leave_two(to->rates, make_float2(of[0].y, of[1].y));
    }
    __device__ __forceinline__ void leave(RuleDecays *to) const {
        const float2 all = sums();
        const float last = __shfl_sync(~0u, all.y, 31);
        leave_two(to->decays, make_float2(exp2_approximate(all.x), exp2_approximate(all.y)));
        leave_two(to->to_last,
                  make_float2(exp2_approximate(last - all.x), exp2_approximate(last - all.y)));
    }
    static __device__ __forceinline__ void leave_two(float *to, float2 two) {
        reinterpret_cast<float2 *>(to)[thread_anew() % 32] = two;
    }
};

// kPanels times 64 columns of `count` tokens, by one thread: a box of which none is there is not loaded.
template <int kPanels>
__device__ __forceinline__ void load_tokens(const CUtensorMap &map, int column, int token,
                                            int count, const unsigned char *to, int panel_bytes,
                                            uint32_t barrier) {
#pragma unroll
    for (int row = 0; row < kStateChunk; row += kBoxRows) {
        if (row >= count) return;
#pragma unroll
        for (int i = 0; i < kPanels; ++i) {
            load_box(shared_address(to) + static_cast<uint32_t>(i * panel_bytes + row * 128), map,
                     column + i * 64, token + row, barrier);
        }
    }
}

// Bytes of two panels.
__device__ __forceinline__ uint32_t token_bytes(int count) {
    return static_cast<uint32_t>((count + kBoxRows - 1) / kBoxRows * kBoxRows * 256);
}

} // namespace
} // namespace batchllm::cuda
