// Of the kernel that goes token by token (steps.cu): what its warps share, the barriers that they wait at, and the
// ring of stages through which S comes.
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

// What a token needs beside S. q and k are not normed. Zeros beyond a head's dims.
struct alignas(16) StepToken {
    float mixed[3][kMostDeltaDim]; // q, k and v
    float gain[kMostDeltaDim];     // of the normed result
    float decay, forget, learn;    // forget and learn: decay and rate over k's length
    float of_query, overlap;       // 1 / (q's length times the root of key_dim); q . k
    bool first, last, continues; // of the item's tokens; continues: S is not zeros before the first
    int64_t out;                 // elements from DeltaArguments::out on
    int32_t slot;                // where S goes
    int32_t head;
    int32_t next; // what will be in the same stage: where it comes from
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

// ---- What a block has to do -------------------------------------------------------------------------

// One item and head after another, of which the block has every gridDim-th: its j-th.
struct StepWork {
    const DeltaItem *items; // of the level
    int count;              // items and heads of the level
    int value_heads;
    int block, blocks; // here, rather than in registers

    __device__ explicit StepWork(const DeltaArguments &a)
        : items(a.items + a.level->begin),
          count((a.level->chunked - a.level->begin) * a.value_heads), value_heads(a.value_heads),
          block(static_cast<int>(blockIdx.x)), blocks(static_cast<int>(gridDim.x)) {}
    __device__ int at(int j) const { return block + j * blocks; }
    __device__ bool has(int j) const { return at(j) < count; }
    __device__ const DeltaItem &item(int j) const { return items[at(j) / value_heads]; }
    __device__ int head(int j) const { return at(j) % value_heads; }
    __device__ int from(int j) const { return has(j) ? item(j).from : -1; }
};

// ---- Stages -----------------------------------------------------------------------------------------

// Place j % count has the block's j-th S. Its barrier is one of twice as many, so that each is always waited for by
// the same group, which has seen all of its phases before.
struct Stages {
    unsigned char *memory;
    uint64_t *loaded; // [2 * count]
    uint32_t count, bytes;
    uint32_t used_bytes; // of a stage: S
    bool bulk;           // one copy of all of it

    __device__ Stages(unsigned char *memory, uint64_t *loaded, uint32_t count, uint32_t bytes,
                      uint32_t used_bytes)
        : memory(memory), loaded(loaded), count(count), bytes(bytes), used_bytes(used_bytes) {
#if __CUDA_ARCH__ >= 900
        bulk = used_bytes % 16 == 0;
#else
        bulk = false;
#endif
        for (uint32_t i = 0; i < 2 * count; ++i) {
            expect_arrivals(loaded + i, bulk ? 1 : kGroupThreads);
        }
    }

    // Starts the copy, by a group's threads. From null: there will be nothing.
    __device__ __forceinline__ void load(uint32_t j, const void *from) const {
        const uint32_t to = shared_address(memory + j % count * bytes);
        const uint32_t thread = threadIdx.x % kGroupThreads;
        uint64_t *barrier = loaded + j % (2 * count);
#if __CUDA_ARCH__ >= 900
        if (bulk) {
            if (thread / 32 == 0 && elect_one()) {
                barrier_expect(shared_address(barrier), from == nullptr ? 0 : used_bytes);
                if (from != nullptr) bulk_copy(to, from, used_bytes, shared_address(barrier));
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
            "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
            : "memory");
    }
    // The j-th S, once it is there.
    __device__ __forceinline__ const unsigned char *wait(uint32_t j) const {
        await(loaded + j % (2 * count), j / (2 * count));
        return memory + j % count * bytes;
    }
};

struct StepItem {
    DeltaItem item;
    int32_t next; // StepToken::next of its tokens
};

// What threads seldom read is here too, as S takes two thirds of their registers.
struct StepShared {
    StepWork work;
    Stages stages;
    StepToken tokens[kGroups][kTokens];
    StepItem upcoming[kGroups][kMixers][kUpcoming];
    // By every second token, known and found, parts, columns.
    float4 sums[kGroups][2][2][kParts][32];
    uint64_t loaded[2 * kMostStages];
    uint64_t mixed[kGroups][kTokens], used[kGroups][kTokens];
};

} // namespace batchllm::cuda::steps
