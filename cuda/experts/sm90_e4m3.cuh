// What the grouped products in e4m3 for Hopper share, however W lies: experts/sm90.cuh's tiles with 128 columns a stage,
// which is what a scale of x is of. The sums of a stage are scaled and added up in f32.
//
// A gated tile makes 128 columns of a turn, which have one scale, and each warpgroup half of them. So a warpgroup
// leaves what it made in shared memory, in bf16, with each turn's scale for its half, and writes it as e4m3 with the
// greater of both halves' scales at the end of its next tile, when the other is long done: neither waits. What lies
// beyond the last row of W is 0.
#pragma once

#include <cuda_fp8.h>

#include "experts/sm90_adapters.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kOutTurns = 32;                // at a time, where not gated
constexpr int kHalf = kTileRows * 128;       // bytes of a warpgroup's half of a gated tile
constexpr int kScalesOfX = kOut + 2 * kHalf; // [stages][turns] f32
constexpr int kScalesOfW = kScalesOfX + kStages * kTileRows * 4; // [stages][warpgroups][2] f32
constexpr int kExponents =
    kScalesOfW + kStages * 2 * 8; // [2][warpgroups][turns] of halves, a byte each
constexpr int kBarriers = kExponents + 2 * 2 * kTileRows;
constexpr int kMade = kBarriers + 2 * kStages * 8; // barriers: [2][warpgroups] has made its half
constexpr int kShared = kMade + 2 * 2 * 8;
static_assert(kShared <= kMostShared && out_bytes(kOutTurns) <= kHalf);
using Ring = RingPlace<kBarriers>;

__device__ __forceinline__ int steps_of(const GroupedArguments &a) {
    return static_cast<int>(scale_groups(a.columns));
}

// Global to shared, by way of L1: a row's next scales are near.
template <int Bytes>
__device__ __forceinline__ void copy_async_small(uint32_t destination, const void *source) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(destination), "l"(source),
                 "n"(Bytes)
                 : "memory");
}

// A computing thread's four of sixteen turns, two of each eight, stand beside each other.
__device__ __forceinline__ int place_of_scale(int turn) {
    return turn / 16 * 16 + turn % 8 / 2 * 4 + turn / 8 % 2 * 2 + turn % 2;
}

// The scales of a stage: a feeding thread brings its turn's, and two of them those of W's blocks. Whole: a turn's is the
// same in all stages.
template <bool Blocks, bool Whole = false> struct StageScales {
    static constexpr uint32_t kNone = ~0u;
    const GroupedArguments &a;
    uint32_t to;   // of the turn's, in the first stage
    uint32_t of_x; // of the turn, and of W's blocks (in pairs) or kNone: of the first step
    uint32_t of_w = kNone;

    __device__ StageScales(const GroupedArguments &arguments, uint32_t shared)
        : a(arguments), to(shared + kScalesOfX + place_of_scale(threadIdx.x % 128) * 4), of_x(0) {}
    __device__ void begin(const GroupedWork &work, int thread) {
        const int steps = steps_of(a);
        const int turn = work.begin + min(thread, work.count - 1);
        of_x = (a.row_of != nullptr ? __ldg(a.row_of + turn) : turn) * (Whole ? 1 : steps);
        if constexpr (!Blocks) return;
        const int down = a.rows / static_cast<int>(kScaleBlock);
        const int block = work.column / static_cast<int>(kScaleBlock) + thread;
        of_w = thread < 2 && block < down ? work.expert * steps * down + block : kNone;
    }
    __device__ void load(int step, int slot) const {
        copy_async_small<4>(to + slot * kTileRows * 4, a.scales.x + of_x + (Whole ? 0 : step));
        if constexpr (!Blocks) return;
        if (of_w == kNone) return; // the first two threads have some
        copy_async_small<8>(to - place_of_scale(threadIdx.x % 128) * 4 + kScalesOfW - kScalesOfX +
                                slot * 16 + threadIdx.x % 128 * 8,
                            reinterpret_cast<const float2 *>(a.scales.w) + of_w +
                                step * static_cast<uint32_t>(a.rows / kScaleBlock));
    }
};

// What a stage's sums are scaled with.
template <bool Blocks> struct StageSums {
    const float4 *of_x; // this thread's first four turns'
    const float2 *of_w;

    __device__ __forceinline__ StageSums(int slot, int group, const unsigned char *shared)
        : of_x(reinterpret_cast<const float4 *>(shared + kScalesOfX) + slot * (kTileRows / 4) +
               threadIdx.x % 4),
          of_w(reinterpret_cast<const float2 *>(shared + kScalesOfW) + slot * 2 + group) {}
    // The scales that add() begins with, loaded while the products are under way.
    struct First {
        float2 of_w;
        float4 of_x[2]; // of the first 32 turns
    };
    template <int N> __device__ __forceinline__ First first() const {
        return {Blocks ? *of_w : float2{1, 1}, {of_x[0], N > 8 ? of_x[4] : float4{}}};
    }
    // sums += made * scales.
    template <bool Gated, int N> __device__ __forceinline__ void
    add(const First &first, float (&made)[N], float (&sums)[N]) const {
#pragma unroll
        for (int i = 0; i < N; ++i) asm volatile("" : "+f"(made[i])::"memory"); // it is there now
#pragma unroll
        for (int j = 0; j < N / 4; j += 2) {
            const float4 of = j < 4 ? first.of_x[j / 2] : of_x[2 * j];
            add_eight<Gated>(made + 4 * j, {of.x, of.y}, first.of_w, sums + 4 * j);
            add_eight<Gated>(made + 4 * j + 4, {of.z, of.w}, first.of_w, sums + 4 * j + 4);
        }
    }

  private:
    // Of eight turns, of which this thread has two.
    template <bool Gated> static __device__ __forceinline__ void
    add_eight(const float *made, float2 of, float2 by, float *sums) {
        float2 low = of, high = of; // of rows lane / 4, and of those eight on
        if constexpr (Blocks) {
            low = {of.x * by.x, of.y * by.x};
            high = Gated ? float2{of.x * by.y, of.y * by.y} : low;
        }
        sums[0] += made[0] * low.x;
        sums[1] += made[1] * low.y;
        sums[2] += made[2] * high.x;
        sums[3] += made[3] * high.y;
    }
};

__device__ __forceinline__ void await_stage(const Ring &place) {
    barrier_wait(place.full(), place.phase);
    async_proxy_fence(); // cp.async's bytes, which the barrier has shown, to wgmma
}

// By the scales of W's rows.
template <int Turns> __device__ __forceinline__ void scale_rows(const GroupedArguments &a,
                                                                const GroupedWork &work, int group,
                                                                float (&sums)[2][Turns / 2]) {
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    const int first = work.column + group * 128 + warp * 16 + lane / 4;
    const float *of_w = a.scales.w + int64_t{work.expert} * a.rows;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
        const int row = first + b * 64;
        const float low = row < a.rows ? __ldg(of_w + row) : 0;
        const float high = row + 8 < a.rows ? __ldg(of_w + row + 8) : 0;
#pragma unroll
        for (int i = 0; i < Turns / 2; ++i) sums[b][i] *= i % 4 < 2 ? low : high;
    }
}

// ---- Gated: quantised on the way out ----

// The exponent, as f32 has it, of the least power of two that takes `most` to e4m3's greatest, 448, or below; of what
// is not finite 255.
__device__ __forceinline__ uint32_t scale_exponent(float most) {
    const uint32_t bits = __float_as_uint(most);
    if (bits >= 0x7f800000) return 255;
    return static_cast<uint32_t>(max(static_cast<int>((bits + 0x1fffff) >> 23) - 8, 1));
}

// What a warpgroup made of its last tile and has not written yet. Halves and exponents: of its own and the other's.
struct Unwritten {
    int begin = 0, count = 0, column = 0; // its turns, none at first; its first row of W
    int side = 0;                         // which of the two sets of exponents and barriers are its
    uint32_t phase = 0;                   // of these barriers

    __device__ uint32_t made(uint32_t base, int group) const {
        return base + kMade + (side * 2 + group) * 8;
    }
    __device__ unsigned char *exponents(unsigned char *shared, int group) const {
        return shared + kExponents + (side * 2 + group) * kTileRows;
    }
    __device__ void advance() {
        side ^= 1;
        phase ^= side == 0 ? 1 : 0;
    }
};

__device__ __forceinline__ void write(const GroupedArguments &a, const Unwritten &tile, int group,
                                      unsigned char *shared) {
    if (tile.count == 0) return;
    const int thread = threadIdx.x % 128, chunk = thread % 8;
    const uint32_t base = shared_address(shared);
    barrier_wait(tile.made(base, 0), tile.phase);
    barrier_wait(tile.made(base, 1), tile.phase);
    const unsigned char *first = tile.exponents(shared, 0), *second = tile.exponents(shared, 1);
    const int width = a.rows / 2, column = tile.column / 2 + group * 64 + chunk * 8;
    if (column >= width) return;
    const auto groups = static_cast<int>(scale_groups(width));
    auto *y = static_cast<std::byte *>(a.y) + int64_t{tile.begin} * width + column;
    float *scales = a.scales.y + int64_t{tile.begin} * groups + tile.column / kColumns;
    for (int turn = thread / 8; turn < tile.count; turn += 16) {
        const uint32_t exponent = max(first[turn], second[turn]);
        const float inverse = __uint_as_float((254 - exponent) << 23);
        const uint4 eight = *reinterpret_cast<const uint4 *>(shared + kOut + group * kHalf +
                                                             turn * 128 + (chunk ^ turn % 8) * 16);
        const auto *pairs = reinterpret_cast<const __nv_bfloat162 *>(&eight);
        uint32_t words[2];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float2 two = __bfloat1622float2(pairs[i]);
            two = {two.x * inverse, two.y * inverse};
            const uint32_t bytes = __nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3);
            words[i / 2] = i % 2 == 0 ? bytes : words[i / 2] | bytes << 16;
        }
        *reinterpret_cast<uint2 *>(y + int64_t{turn} * width) = {words[0], words[1]};
        if (group == 0 && chunk == 0) {
            scales[int64_t{turn} * groups] = __uint_as_float(exponent << 23);
        }
    }
}

// The activated half of a tile -> shared memory: [turns][64] bf16, chunk c (16 bytes) of a row at c ^ row % 8; then a
// thread finds the scale of a turn.
template <Activation Kind, int Turns> __device__ __forceinline__ void
keep(const float (&sums)[2][Turns / 2], const Unwritten &tile, int group, unsigned char *shared) {
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    unsigned char *half = shared + kOut + group * kHalf;
    named_barrier(1 + group, 128); // what was there has been written
#pragma unroll
    for (int b = 0; b < 2; ++b) {
        const uint32_t at = shared_address(half) + (lane / 8 % 2 * 8 + lane % 8) * 128 +
                            ((b * 4 + warp) ^ lane % 8) * 16;
#pragma unroll
        for (int j = 0; j < Turns / 8; j += 2) {
            uint32_t r[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float *d = sums[b] + 4 * (j + i);
                r[i] = pack(quickly_gated<Kind>(d[0], d[2]), quickly_gated<Kind>(d[1], d[3]),
                            __nv_bfloat16());
            }
            store_matrix_transposed(at + j * 8 * 128, r);
        }
    }
    named_barrier(1 + group, 128);
    if (thread < Turns) {
        __nv_bfloat162 most = {0, 0};
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            const uint4 eight =
                *reinterpret_cast<const uint4 *>(half + thread * 128 + (c ^ thread % 8) * 16);
            const auto *pairs = reinterpret_cast<const __nv_bfloat162 *>(&eight);
#pragma unroll
            for (int i = 0; i < 4; ++i) most = __hmax2(most, __habs2(pairs[i]));
        }
        const float greatest = fmaxf(__low2float(most), __high2float(most));
        tile.exponents(shared, group)[thread] =
            static_cast<unsigned char>(scale_exponent(greatest));
    }
    release(tile.made(shared_address(shared), group));
}

// Of: how W lies. feed: its FeedW, and scales of blocks, kBlocks; kWholeTurns: x of gated products has a scale a row;
// kQueue: its tiles; with_turns: what numbers of turns products have; multiply: all stages of a tile.
// Adapted: adapters of bf16 add to the scaled sums.
template <typename Of, bool Gated, Activation Kind, bool Adapted>
__device__ __forceinline__ void compute(const GroupedArguments &a, const typename Of::Queue &queue,
                                        Ring place, unsigned char *shared) {
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    unsigned char *out = shared + kOut + group * kHalf;
    Unwritten before; // the last tile, if gated; side and phase: of the next
    for_each_tile(queue, [&](const GroupedWork &work) {
        Of::with_turns(work, [&](auto turns) {
            constexpr int Turns = decltype(turns)::value;
            float sums[2][Turns / 2] = {}; // so that it does not live on from tile to tile
            Of::template multiply<Gated, Turns>(a, &place, group, shared, sums);
            if constexpr (!Of::kBlocks) scale_rows<Turns>(a, work, group, sums);
            if constexpr (Adapted) {
                AddAdapters<Gated> adapters(a, work);
                adapters.template add_all<__nv_bfloat16, Turns>(a, group, &place, shared, sums);
            }
            if constexpr (Of::kBiased) {
                if (a.bias != nullptr) add_bias<Turns>(a, work, group, sums);
            }
            if constexpr (Gated) {
                write(a, before, group, shared);
                if (before.count != 0) before.advance();
                before.begin = work.begin, before.count = work.count, before.column = work.column;
                keep<Kind, Turns>(sums, before, group, shared);
            } else if (Of::kBfloatAlone || Adapted || a.scales.y_type == DType::bf16) {
                store_all<__nv_bfloat16, Epilogue::plain, kOutTurns, Turns>(a, work, group, sums,
                                                                            out);
            } else {
                store_all<__half, Epilogue::plain, kOutTurns, Turns>(a, work, group, sums, out);
            }
        });
    });
    if constexpr (Gated) write(a, before, group, shared);
}

template <typename Of, bool Gated, Activation Kind, bool Adapted = false>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_e4m3(const __grid_constant__ GroupedArguments a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = shared_address(shared);
    const Ring place(base);
    if (threadIdx.x == 0) {
        init_barriers(place);
        for (int i = 0; i < 4; ++i) barrier_init(base + kMade + i * 8, 4); // a warp each
        barrier_init_fence();
    }
    Of::prepare(shared);
    __syncthreads();
    const typename Of::Queue queue(a);
    if (threadIdx.x >= kConsumers) {
        registers_fewer<Of::kFeeders>();
        using Scales = StageScales<Of::kBlocks, (Gated && Of::kWholeTurns)>;
        if constexpr (Adapted) {
            feed<1>(a, queue, place, typename Of::FeedW(a), Scales(a, base),
                    FeedAdapters<Gated>(a));
        } else {
            feed<1>(a, queue, place, typename Of::FeedW(a), Scales(a, base));
        }
    } else {
        registers_more<Of::kRegisters>();
        compute<Of, Gated, Kind, Adapted>(a, queue, place, shared);
    }
}

} // namespace
} // namespace batchllm::cuda
