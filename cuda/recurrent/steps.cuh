// What the warps of the kernel that goes token by token (steps.cu) share, the barriers that they wait at, and the ring of
// stages through which S comes.
#pragma once

#include "attention/mma.cuh"
#include "recurrent/delta.cuh"
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#include "attention/hopper.cuh"
#endif

namespace batchllm::cuda::steps {

constexpr int kGroups = 2, kWarps = 8; // of a group
constexpr int kGroupThreads = 32 * kWarps;
constexpr int kMixers = 2; // of a group
// Five warps for each of an SM's four files of registers, which gives each thread 96.
constexpr int kThreads = kGroups * (kGroupThreads + 32 * kMixers);
constexpr int kTokens = 4;    // that a group's mixers are ahead
constexpr int kUpcoming = 16; // items that a mixer loads together
constexpr int kMostStages = 8;
constexpr int kRows = 16;                         // of S, a thread's
constexpr int kParts = kMostDeltaDim / 2 / kRows; // of the rows, that warps have

// What a token needs besides S. q and k are not normed. Zeros beyond a head's dims.
struct alignas(16) StepToken {
    float mixed[3][kMostDeltaDim]; // q, k and v
    float gain[kMostDeltaDim];     // of the normed result
    float decay, forget, learn;    // forget and learn: decay and rate over k's length
    float of_query, overlap;       // 1 / (q's length times the root of key_dim); q . k
    bool first, last, continues; // of the item's tokens; continues: S is not zeros before the first
    bool more;                   // the group has another item and head after this
    int64_t out;                 // elements from DeltaArguments::out on
    int64_t to;                  // where S goes: bytes from DeltaArguments::states on
    int64_t next;                // where what will be in the same stage is; -1: zeros, or nothing
};

// ---- mbarriers, on 8.0 too ------------------------------------------------------------------------

__device__ __forceinline__ void expect_arrivals(uint64_t *barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals));
}
__device__ __forceinline__ void arrive(uint64_t *barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(
                     shared_address(barrier))
                 : "memory");
}
// Until the barrier's phase `use` is over.
__device__ __forceinline__ void await(uint64_t *barrier, uint32_t use) {
#if __CUDA_ARCH__ >= 900
    barrier_wait(shared_address(barrier), use & 1);
#else
    uint32_t over = 0;
    while (over == 0) {
        asm volatile("{\n.reg .pred over;\n"
                     "mbarrier.test_wait.parity.shared.b64 over, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, over;\n}"
                     : "=r"(over)
                     : "r"(shared_address(barrier)), "r"(use & 1)
                     : "memory");
    }
#endif
}

// What is loaded only so that it is in L1 must go somewhere: else ptxas drops the load.
__device__ __forceinline__ void discard(float x, float *somewhere) {
    asm volatile("st.relaxed.cta.shared.f32 [%0], %1;" ::"r"(shared_address(somewhere)), "f"(x));
}

// ---- What a block has to do -------------------------------------------------------------------------

// One item and head after another, of which the block has every gridDim-th: its j-th.
struct StepWork {
    const StateItem *items; // of the level, or those of several tokens
    int mine;               // items and heads that the block has
    int value_heads;
    int block, blocks; // here, rather than in registers
    bool one_head;     // all that the block has are of one

    __device__ StepWork(const DeltaArguments &a, const StateLevel &level, bool several)
        : items(a.items + (several ? level.several : level.begin)), value_heads(a.value_heads),
          block(static_cast<int>(blockIdx.x)), blocks(static_cast<int>(gridDim.x)),
          one_head(blocks % value_heads == 0) {
        const int count = level.chunked - (several ? level.several : level.begin);
        mine = (count * value_heads - block + blocks - 1) / blocks;
    }
    __device__ __forceinline__ int at(int j) const { return block + j * blocks; }
    __device__ __forceinline__ const StateItem &item(int j) const {
        return items[at(j) / value_heads];
    }
    __device__ __forceinline__ int head(int j) const { return at(j) % value_heads; }
};

// ---- Stages -----------------------------------------------------------------------------------------

// Stage j % count has the block's j-th S. Its barrier is one of twice as many, so that each is always waited for by
// the same group, which has seen all of its phases before. A group counts j modulo 4 * count, which says both where S
// is and the phase.
template <typename S, bool kWhole> struct Stages {
    unsigned char *memory;
    uint64_t *loaded; // [2 * count]
    uint32_t count, bytes;
    uint32_t used_bytes; // of a stage: S

    __device__ __forceinline__ Stages(const DeltaArguments &a, unsigned char *memory,
                                      uint64_t *loaded, uint32_t count, uint32_t bytes)
        : memory(memory), loaded(loaded), count(count), bytes(bytes) {
        const int elements = kWhole ? kMostDeltaDim * kMostDeltaDim : a.key_dim * a.value_dim;
        used_bytes = static_cast<uint32_t>(elements * sizeof(S));
    }
    // One copy of all of it.
    __device__ __forceinline__ bool bulk() const {
#if __CUDA_ARCH__ >= 900
        return used_bytes % 16 == 0;
#else
        return false;
#endif
    }
    __device__ __forceinline__ void expect() const {
        for (uint32_t i = 0; i < 2 * count; ++i) {
            expect_arrivals(loaded + i, bulk() ? 1 : kGroupThreads);
        }
    }
    __device__ __forceinline__ unsigned char *stage(uint32_t barrier) const {
        return memory + (barrier < count ? barrier : barrier - count) * bytes;
    }
    __device__ __forceinline__ uint32_t barrier(uint32_t j) const {
        return j < 2 * count ? j : j - 2 * count;
    }
    // Of the S that is next in the same stage.
    __device__ __forceinline__ uint32_t next_barrier(uint32_t j) const {
        const uint32_t now = barrier(j);
        return now < count ? now + count : now - count;
    }
    // The group's next S.
    __device__ __forceinline__ uint32_t after(uint32_t j) const {
        return j + kGroups < 4 * count ? j + kGroups : j + kGroups - 4 * count;
    }

    // Starts the copy, by a group's threads. From null: there will be nothing.
    __device__ __forceinline__ void load(uint32_t barrier, const void *from) const {
        const uint32_t to = shared_address(stage(barrier));
        const uint32_t thread = threadIdx.x % kGroupThreads;
        uint64_t *arrivals = loaded + barrier;
#if __CUDA_ARCH__ >= 900
        if (bulk()) {
            if (thread / 32 == 0 && elect_one()) {
                barrier_expect(shared_address(arrivals), from == nullptr ? 0 : used_bytes);
                if (from != nullptr) bulk_copy(to, from, used_bytes, shared_address(arrivals));
            }
            return;
        }
#endif
        const auto *source = static_cast<const unsigned char *>(from);
#pragma unroll 4
        for (uint32_t p = thread * 8; from != nullptr && p < used_bytes; p += kGroupThreads * 8) {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to + p), "l"(source + p)
                         : "memory");
        }
        asm volatile(
            "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(arrivals))
            : "memory");
    }
    // The j-th S, once it is there.
    __device__ __forceinline__ const S *wait(uint32_t j) const {
        await(loaded + barrier(j), j < 2 * count ? 0 : 1);
        return reinterpret_cast<const S *>(stage(barrier(j)));
    }
};

struct StepItem {
    StateItem item;
    int32_t next; // slot of what will be in the same stage, or -1
    int16_t head, key_head, next_head;
    bool keeps_keys; // of the value heads of its key head, this one sees to their rings
    bool more;       // the group has another one after it
};

// What threads seldom read is here too, as S takes two thirds of their registers.
struct StepShared {
    StepWork work;
    float discarded;
    StepToken tokens[kGroups][kTokens];
    StepItem upcoming[kGroups][kMixers][kUpcoming];
    // By every second token, known and found, parts, columns.
    float4 sums[kGroups][2][2][kParts][32];
    uint64_t loaded[2 * kMostStages];
    uint64_t mixed[kGroups][kTokens], used[kGroups][kTokens];
};

} // namespace batchllm::cuda::steps
