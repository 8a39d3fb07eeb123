// The products for Hopper: y^T = W x^T, 256 rows of W by up to 128 turns (or tokens: rows of x) a tile, 128 columns a
// stage, four stages.
//
//     a stage   x: two panels of 64 columns, [128 turns][128 bytes] each, swizzled     32 KB
//               W: four cells (layout.h), as they lie in memory                         17 to 20 KB
//
// One warpgroup feeds: W by one bulk copy, x by TMA, or of experts by cp.async from wherever row_of says. Two compute, 128
// rows of W each: a thread reads its codes from shared memory (16 bytes for each 64 columns), widens those of sixteen
// columns of 64 rows to four registers, and gives them to wgmma as A; x is B. Registers are in pairs: while a product
// reads one, the next is widened to the other.
//
// By count, at 128 turns a product takes 64 cycles, and its registers some 16 to 25 instructions of each of the four
// schedulers; two warpgroups take turns. With 16 turns a product takes 8 cycles, and instructions allow 5 to 7 TB/s of W.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attention/hopper.cuh"
#include "device/cluster.cuh"
#include "device/copies.cuh"
#include "device/launch.cuh"
#include "device/stage_ring.cuh"
#include "device/tensor_map.h"
#include "device/tma.cuh"
#include "device/wgmma_registers.cuh"
#include "experts/results.cuh"
#include "experts/work.cuh"
#include "four_bits/product.h"
#include "four_bits/widen.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kStep = 16; // turns by so many
constexpr int kMostShared = 232448;
constexpr int kCells = kFourBitTile / kCellRows;
// Tiles of tokens that are computed against all of W one after another.
constexpr int kTogether = 16;
constexpr int kOutTurns = 32; // results on their way out at a time

// The kernels of a form.
template <PackedForm Of> struct Setup {
    static constexpr PackedForm kForm = Of;
    static constexpr int kBlocks = 2,
                         kGroups = kCells / kBlocks; // blocks of 64 rows of a warpgroup
    static constexpr int kConsumers = 128 * kGroups, kThreads = kConsumers + 128;
    // Of a thread. What computing warps take more must have been allotted at launch: they would wait for it forever.
    static constexpr int kRegisters = 224, kFeeders = 56;
    static constexpr int kAtLaunch = 65536 / kThreads / 8 * 8;
    static_assert(kRegisters * kConsumers + kFeeders * 128 <= kAtLaunch * kThreads);
    static constexpr int kPanel = kTileRows * 128, kX = 2 * kPanel; // bytes
    static constexpr int kStage = kX + kCells * cell_bytes(Of);
    // Of a warpgroup; of f32 for half as many turns.
    static constexpr int kOutBytes = kOutTurns * (64 * kBlocks * 2 + 16);
    static_assert(kOutTurns / 2 * (64 * kBlocks * 4 + 16) <= kOutBytes);
    static constexpr int kStages = 4;
    static constexpr int kOut = kStages * kStage, kBarriers = kOut + kGroups * kOutBytes;
    static constexpr int kShared = kBarriers + 2 * kStages * 8;
    static_assert(kShared <= kMostShared && kStage % 1024 == 0);
    using Ring = StageRing<kStages, kStage, kBarriers>;
};

// ---- Work ---------------------------------------------------------------------------------------

// A tile has 16 turns, or 32, 64, 96 or 128. With all multiples of 16, ptxas finds no registers for the products' operands,
// which it does not share between them.
constexpr int next_turns(int turns) { return turns < 32 ? turns + 16 : turns + 32; }
__host__ __device__ constexpr int32_t whole_turns(int32_t turns) {
    return turns <= kStep ? kStep : (turns + 31) / 32 * 32;
}

// What a launch's kernel is given; what follows from the arguments is computed once, so that it takes no registers.
struct Plan {
    FourBitArguments a;
    int32_t across;          // tiles of W's rows
    int32_t of_tokens, size; // dense: tiles of tokens, tokens of each but the last
};

__host__ __device__ inline int32_t parts_of(int32_t whole, int32_t part) {
    return (whole + part - 1) / part;
}

inline Plan plan_of(const FourBitArguments &a) {
    Plan plan{a, parts_of(a.w_shape.rows, kFourBitTile), parts_of(a.tokens, kTileRows), 0};
    plan.size = std::min(kTileRows, whole_turns(a.tokens));
    return plan;
}

// The tiles of a launch. Dense: kTogether tiles of tokens with all of W, then the next; those that read the same part of W
// are next to each other. All tiles but the last of the tokens, or of an expert's turns, are full: this way the fewest turns
// are computed in vain.
__device__ __forceinline__ int32_t total_of(const Plan &p) {
    return (p.a.tiles != nullptr ? __ldg(p.a.tile_count) : p.of_tokens) * p.across;
}
__device__ __forceinline__ int4 load_tile(const Plan &p, int32_t number, int32_t total) {
    if (p.a.tiles == nullptr || number >= total) return {};
    return __ldg(reinterpret_cast<const int4 *>(p.a.tiles + number / p.across));
}
__device__ __forceinline__ GroupedWork work_at(const Plan &p, int32_t number, const int4 &t) {
    if (p.a.tiles == nullptr) {
        const int32_t of_group = kTogether * p.across;
        const int32_t group = number / of_group, place = number % of_group;
        const int32_t many = min(kTogether, p.of_tokens - group * kTogether);
        const int32_t begin = (group * kTogether + place % many) * p.size;
        return {0, begin, min(p.size, p.a.tokens - begin), place / many * kFourBitTile};
    }
    const int32_t of_expert = parts_of(t.z - t.y, kTileRows);
    const int32_t place = number - t.w * p.across;
    const int32_t row = t.y + place % of_expert * kTileRows;
    return {t.x, row, min(kTileRows, t.z - row), place / of_expert * kFourBitTile};
}

// Calls act with each tile of this CTA; the next one's description is on its way meanwhile.
template <typename Act>
__device__ __forceinline__ void for_each_tile(const Plan &p, const Act &act) {
    const int32_t total = total_of(p);
    int4 tile = load_tile(p, blockIdx.x, total);
    for (int number = blockIdx.x; number < total; number += gridDim.x) {
        const GroupedWork work = work_at(p, number, tile);
        tile = load_tile(p, number + gridDim.x, total);
        act(work);
    }
}

// Calls act with the tile's turns, rounded up, as a constant.
template <int Turns = kStep, typename Act>
__device__ __forceinline__ void with_turns(int count, const Act &act) {
    if constexpr (Turns < kTileRows) {
        if (count > Turns) return with_turns<next_turns(Turns)>(count, act);
    }
    act(std::integral_constant<int, Turns>());
}

// The columns of cells that a CTA adds up.
struct Range {
    int32_t begin, end;
};

// ---- Feeding ------------------------------------------------------------------------------------

// One thread: W's cells of a stage; x_bytes are expected too.
template <typename S> __device__ __forceinline__ void load_w(const FourBitArguments &a,
                                                             const GroupedWork &work, int c,
                                                             typename S::Ring place, int x_bytes) {
    const PackedShape shape{S::kForm, a.w_shape.rows, a.w_shape.columns};
    const int block = work.column / kCellRows;
    const int cells = min(kCells, shape.row_blocks() - block);
    const uint32_t bytes = cells * cell_bytes(S::kForm, shape.halves_of(c));
    barrier_expect(place.full(), bytes + x_bytes);
    bulk_copy(place.stage() + S::kX, a.w + work.expert * shape.bytes() + shape.cell(c, block),
              bytes, place.full());
}

// x by TMA. Run by one thread.
template <typename S>
__device__ __forceinline__ void feed_dense(const FourBitArguments &a, const CUtensorMap &x,
                                           const GroupedWork &work, int size, Range range,
                                           typename S::Ring *place) {
    for (int c = range.begin; c < range.end; ++c) {
        const int halves = a.w_shape.halves_of(c);
        barrier_wait(place->empty(), place->phase ^ 1);
        load_w<S>(a, work, c, *place, halves * size * 128);
        for (int half = 0; half < halves; ++half) {
            load_box(place->stage() + half * S::kPanel, x, c * kCellColumns + half * kHalfColumns,
                     work.begin, place->full());
        }
        place->advance();
    }
}

// x by cp.async, from anywhere. Run by 128 threads.
template <typename S> __device__ __forceinline__ void
feed_gathered(const FourBitArguments &a, const GroupedWork &work, typename S::Ring *place) {
    const int thread = static_cast<int>(threadIdx.x) - S::kConsumers;
    const int chunk = thread % 8, row = thread / 8; // and every 16th row after it
    const uint32_t to = row * 128 + (chunk ^ row % 8) * 16;
    const int columns = a.w_shape.columns, cells = a.w_shape.cell_columns();
    with_turns(__shfl_sync(~0u, work.count, 0), [&](auto turns) {
        constexpr int kEach = decltype(turns)::value / kStep;
        uint32_t from[kEach]; // in chunks
#pragma unroll
        for (int i = 0; i < kEach; ++i) { // where there are no more turns, the last one again
            const int turn = work.begin + min(row + kStep * i, work.count - 1);
            const uint32_t source = a.row_of != nullptr ? __ldg(a.row_of + turn) : turn;
            from[i] = source * static_cast<uint32_t>(columns / 8) + chunk;
        }
        const auto *x = static_cast<const uint4 *>(a.x);
#pragma unroll 1
        for (int c = 0; c < cells; ++c, x += 16) {
            barrier_wait(place->empty(), place->phase ^ 1);
            if (thread < 32 && elect_one()) load_w<S>(a, work, c, *place, 0);
            const uint32_t stage = place->stage() + to;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int column = c * kCellColumns + half * kHalfColumns;
                if (column >= columns) break;
                const bool inside = column + chunk * 8 < columns;
#pragma unroll
                for (int i = 0; i < kEach; ++i) {
                    copy_async(stage + half * S::kPanel + i * kStep * 128, x + from[i] + half * 8,
                               inside);
                }
            }
            copy_async_arrive(place->full());
            place->advance();
        }
    });
}

// ---- Computing ----------------------------------------------------------------------------------

// A warp is done with the stage.
__device__ __forceinline__ void release(uint32_t barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// threadIdx.x, not known to the compiler to be the same as elsewhere: what is computed from it is computed where it is
// used, and takes no registers while products run.
__device__ __forceinline__ uint32_t own_thread() {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
// A computing thread's place: in its warpgroup, and the warpgroup's number.
struct Place {
    int thread, group;
    __device__ __forceinline__ Place() {
        const uint32_t own = own_thread();
        thread = static_cast<int>(own % 128);
        group = static_cast<int>(own / 128);
    }
    __device__ __forceinline__ int warp() const { return thread / 32; }
    __device__ __forceinline__ int lane() const { return thread % 32; }
};

// sums[b]: of 64 of the warpgroup's rows of W; a thread's are of rows 16 warp + lane / 4 and + 8, of turns
// 8 i + lane % 4 * 2 and + 1: sums[b][4 i ..] in the order (row, turn), (row, turn + 1), (row + 8, turn), ..
template <typename T, typename S, bool Split, int Turns>
__device__ __forceinline__ void multiply(const PackedShape &shape, Range range,
                                         typename S::Ring *place,
                                         float (&sums)[S::kBlocks][Turns / 2]) {
    constexpr std::integral_constant<int, Turns> kTurns{};
    const Place own_place;
    const int thread = own_place.thread, group = own_place.group, pair = thread / 4;
    constexpr PackedForm Form = S::kForm;
    constexpr int kBlocks = S::kBlocks;
    uint32_t a[2][kBlocks][4]; // [sixteen columns, by turns][block of 64 rows][]
    typename S::Ring before = *place;
    for (int c = range.begin; c < range.end; ++c) {
        const bool whole = shape.halves_of(c) == 2;
        barrier_wait(place->full(), place->phase);
        async_proxy_fence(); // cp.async's bytes, which the barrier has shown, to wgmma
        const Operand x(place->stage());
        const uint32_t size = whole ? cell_bytes(Form) : cell_bytes(Form, 1);
        const uint32_t cell = place->stage() + S::kX + group * kBlocks * size;
        Widener<T, Form, Split> own[kBlocks];
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) own[b].begin_cell(cell + b * size, pair);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (half == 1 && !whole) break;
            const uint32_t codes = cell + shared_scales(Form) + half * half_bytes(Form);
            uint32_t words[kBlocks][4];
#pragma unroll
            for (int b = 0; b < kBlocks; ++b) {
                const uint4 four = load_shared(codes + b * size + thread * 16);
                words[b][0] = four.x, words[b][1] = four.y;
                words[b][2] = four.z, words[b][3] = four.w;
                own[b].begin_half(codes + b * size + kHalfCodes, pair);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
#pragma unroll
                for (int b = 0; b < kBlocks; ++b) {
                    own[b].begin_columns(codes + b * size + kHalfCodes, pair, j);
                    own[b].widen(words[b][j], a[j % 2][b]);
                }
                const bool sum = c > range.begin || half > 0 || j > 0;
                wgmma_fence();
#pragma unroll
                for (int b = 0; b < kBlocks; ++b) {
                    wgmma_rs(sums[b], a[j % 2][b], x.at(half * S::kPanel + j * 32), sum, kTurns,
                             T());
                }
                wgmma_commit();
                wgmma_wait<1>();
                if (half == 0 && j == 0 && c > range.begin) release(before.empty());
            }
        }
        before = *place;
        place->advance();
    }
    wgmma_wait<0>();
    if (range.begin < range.end) release(before.empty());
}

// Factors and biases of a thread's rows.
template <typename S, int Turns> __device__ __forceinline__ void
finish(const FourBitArguments &a, const GroupedWork &work, float (&sums)[S::kBlocks][Turns / 2]) {
    if (a.factors == nullptr && a.bias == nullptr && a.scale == 1) return;
    const Place own;
    const int rows = a.w_shape.rows;
    const int64_t of_expert = int64_t{work.expert} * rows;
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
        float factor[2], bias[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = work.column + own.group * 64 * S::kBlocks + b * 64 + own.warp() * 16 +
                            own.lane() / 4 + i * 8;
            const bool there = row < rows;
            factor[i] = a.scale;
            if (there && a.factors != nullptr) factor[i] *= __ldg(a.factors + of_expert + row);
            bias[i] = there && a.bias != nullptr ? __ldg(a.bias + of_expert + row) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < Turns / 2; ++i) {
            sums[b][i] = fmaf(sums[b][i], factor[i % 4 / 2], bias[i % 4 / 2]);
        }
    }
}

// ---- Results ------------------------------------------------------------------------------------

// Eight neighbouring columns of a row of y, which are sums already finished: written or added.
template <typename T>
__device__ __forceinline__ void put_eight(const FourBitArguments &a, int64_t at, float (&v)[8]) {
    if (a.y_type == DType::f32) {
        auto *y = reinterpret_cast<float4 *>(static_cast<float *>(a.y) + at);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float4 four = a.add ? y[i] : float4{};
            four.x += v[4 * i], four.y += v[4 * i + 1], four.z += v[4 * i + 2];
            four.w += v[4 * i + 3];
            y[i] = four;
        }
        return;
    }
    auto *y = reinterpret_cast<uint4 *>(static_cast<T *>(a.y) + at);
    if (a.add) {
        const uint4 before = *y;
        const uint32_t pairs[4] = {before.x, before.y, before.z, before.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const auto two = as_pair<T>(pairs[i]);
            v[2 * i] += static_cast<float>(two.x);
            v[2 * i + 1] += static_cast<float>(two.y);
        }
    }
    *y = make_uint4(pack(v[0], v[1], T()), pack(v[2], v[3], T()), pack(v[4], v[5], T()),
                    pack(v[6], v[7], T()));
}

// Turns [16 Chunk, 16 Chunk + 16) of the warpgroup's rows of W, by way of f32 in shared memory.
template <typename T, typename S, int Turns, int Chunk>
__device__ __forceinline__ void store_added(const FourBitArguments &a, const GroupedWork &work,
                                            const float (&sums)[S::kBlocks][Turns / 2],
                                            unsigned char *room) {
    constexpr int columns = 64 * S::kBlocks, stride = columns + 4; // floats
    const Place own;
    const int thread = own.thread, lane = own.lane(), group = own.group;
    auto *floats = reinterpret_cast<float *>(room + group * S::kOutBytes);
    named_barrier(1 + group, 128); // what was there has been read
#pragma unroll
    for (int b = 0; b < S::kBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int turn = i / 4 * 8 + lane % 4 * 2 + i % 2;
            const int row = b * 64 + thread / 32 * 16 + lane / 4 + i % 4 / 2 * 8;
            floats[turn * stride + row] = sums[b][Chunk * 8 + i];
        }
    }
    named_barrier(1 + group, 128);
    constexpr int across = columns / 8; // threads of a turn
    const int column = thread % across * 8, rows = a.w_shape.rows;
    const int row = work.column + group * columns + column;
#pragma unroll
    for (int i = 0; i < 16 * across / 128; ++i) {
        const int turn = thread / across + i * (128 / across);
        if (row >= rows || Chunk * 16 + turn >= work.count) continue;
        float v[8];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float4 four =
                *reinterpret_cast<const float4 *>(floats + turn * stride + column + 4 * j);
            v[4 * j] = four.x, v[4 * j + 1] = four.y, v[4 * j + 2] = four.z, v[4 * j + 3] = four.w;
        }
        put_eight<T>(a, int64_t{work.begin + Chunk * 16 + turn} * rows + row, v);
    }
}

template <typename T, typename S, Epilogue E, int Turns, int Chunk = 0>
__device__ __forceinline__ void store_all(const FourBitArguments &a, const GroupedWork &work,
                                          const float (&sums)[S::kBlocks][Turns / 2],
                                          unsigned char *room) {
    constexpr int each = E == Epilogue::added ? 16 : kOutTurns;
    if constexpr (E == Epilogue::added) {
        store_added<T, S, Turns, Chunk>(a, work, sums, room);
    } else {
        const Place own;
        const ResultPlace place{a.y, a.w_shape.rows, own.group, own.thread};
        store_chunk<T, E, kOutTurns, Turns, Chunk>(place, work, sums,
                                                   room + own.group * S::kOutBytes);
    }
    if constexpr (each * (Chunk + 1) < Turns) {
        store_all<T, S, E, Turns, Chunk + 1>(a, work, sums, room);
    }
}

// ---- Kernels ------------------------------------------------------------------------------------

template <typename S>
__device__ __forceinline__ void init_ring(const FourBitArguments &a, typename S::Ring each) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::kStages; ++i) {
            // The one that expects copies; the 128 that gather x.
            barrier_init(each.full(), a.tiles != nullptr ? 128 + 1 : 1);
            barrier_init(each.empty(), S::kConsumers / 32);
            each.advance();
        }
        barrier_init_fence();
    }
}

template <typename T, typename S, bool Split, Epilogue E>
__global__ void __launch_bounds__(S::kThreads, 1)
    four_bit_product(const __grid_constant__ Plan plan, const __grid_constant__ CUtensorMap x) {
    const FourBitArguments &a = plan.a;
    extern __shared__ __align__(1024) unsigned char shared[];
    typename S::Ring place(shared_address(shared));
    init_ring<S>(a, place);
    __syncthreads();
    const Range all{0, a.w_shape.cell_columns()};
    if (threadIdx.x >= S::kConsumers) {
        registers_fewer<S::kFeeders>();
        if (a.tiles != nullptr) {
            for_each_tile(plan,
                          [&](const GroupedWork &work) { feed_gathered<S>(a, work, &place); });
            copy_async_wait<0>();
        } else if (threadIdx.x < S::kConsumers + 32 && elect_one()) {
            for_each_tile(plan, [&](const GroupedWork &work) {
                feed_dense<S>(a, x, work, plan.size, all, &place);
            });
        }
    } else {
        registers_more<S::kRegisters>();
        for_each_tile(
            plan, [&](const GroupedWork &work) __attribute__((always_inline)) {
                with_turns(
                    __shfl_sync(~0u, work.count, 0), [&](auto turns) __attribute__((
                                                         always_inline)) {
                        constexpr int Turns = decltype(turns)::value;
                        float sums[S::kBlocks][Turns / 2] =
                            {}; // so that it does not live on from tile to tile
                        multiply<T, S, Split, Turns>(a.w_shape, all, &place, sums);
                        finish<S, Turns>(a, work, sums);
                        store_all<T, S, E, Turns>(a, work, sums, shared + S::kOut);
                    });
            });
    }
}

// A tile for a cluster, whose CTAs add up a part of the columns each; then each CTA adds up all parts of a part of
// the rows of W, in the order of the CTAs, and writes its results.
constexpr int kPartStride = kFourBitTile + 4; // floats, of a turn

__device__ __forceinline__ float4 load_part(uint32_t address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

// Eight sums, finished; row: of W, column: the same within the tile.
__device__ __forceinline__ void add_parts(const FourBitArguments &a, uint32_t parts, int splits,
                                          int turn, int column, int row, float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = 0;
    for (int s = 0; s < splits; ++s) {
        const uint32_t from = address_in(parts + (turn * kPartStride + column) * 4, s);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float4 four = load_part(from + 16 * i);
            v[4 * i] += four.x, v[4 * i + 1] += four.y;
            v[4 * i + 2] += four.z, v[4 * i + 3] += four.w;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float factor = a.factors != nullptr ? a.scale * __ldg(a.factors + row + i) : a.scale;
        v[i] = fmaf(v[i], factor, a.bias != nullptr ? __ldg(a.bias + row + i) : 0.0f);
    }
}

__device__ __forceinline__ float ended(Activation kind, float gate, float up) {
    return kind == Activation::silu        ? quickly_gated<Activation::silu>(gate, up)
           : kind == Activation::gelu_tanh ? quickly_gated<Activation::gelu_tanh>(gate, up)
                                           : quickly_gated<Activation::clamped_swiglu>(gate, up);
}

template <typename T, typename S, bool Split> __global__ void __launch_bounds__(S::kThreads, 1)
    four_bit_product_split(const __grid_constant__ Plan plan,
                           const __grid_constant__ CUtensorMap x) {
    const FourBitArguments &a = plan.a;
    extern __shared__ __align__(1024) unsigned char shared[];
    typename S::Ring place(shared_address(shared));
    init_ring<S>(a, place);
    __syncthreads();
    const int splits = a.splits, rank = static_cast<int>(cluster_rank());
    const int cells = a.w_shape.cell_columns();
    const Range range{cells * rank / splits, cells * (rank + 1) / splits};
    const GroupedWork work = work_at(plan, static_cast<int>(blockIdx.x) / splits, {});
    if (threadIdx.x >= S::kConsumers) {
        registers_fewer<S::kFeeders>();
        if (threadIdx.x < S::kConsumers + 32 && elect_one()) {
            feed_dense<S>(a, x, work, plan.size, range, &place);
        }
        __syncwarp();
    } else {
        registers_more<S::kRegisters>();
        with_turns(__shfl_sync(~0u, work.count, 0), [&](auto turns) {
            constexpr int Turns = decltype(turns)::value;
            float sums[S::kBlocks][Turns / 2] = {};
            multiply<T, S, Split, Turns>(a.w_shape, range, &place, sums);
            named_barrier(1, S::kConsumers); // both are done with the stages
            auto *floats = reinterpret_cast<float *>(shared);
            const Place own;
            const int lane = own.lane();
#pragma unroll
            for (int b = 0; b < S::kBlocks; ++b) {
                const int row = own.group * 64 * S::kBlocks + b * 64 + own.warp() * 16 + lane / 4;
#pragma unroll
                for (int i = 0; i < Turns / 2; ++i) {
                    const int turn = i / 4 * 8 + lane % 4 * 2 + i % 2;
                    floats[turn * kPartStride + row + i % 4 / 2 * 8] = sums[b][i];
                }
            }
        });
    }
    cluster_sync();
    // Of the tile's sixteens of rows this CTA has every splits-th; a thread has eight results of a turn.
    const int rows = a.w_shape.rows, own = (kFourBitTile / 16 - rank + splits - 1) / splits;
    const int eights = a.gated ? 1 : 2, across = own * eights;
    const uint32_t parts = shared_address(shared);
    for (int i = threadIdx.x; i < work.count * across; i += S::kThreads) {
        const int turn = i / across, eight = i % across;
        const int column = (eight / eights * splits + rank) * 16 + eight % eights * 8;
        const int row = work.column + column;
        if (row >= rows) continue;
        float v[8];
        add_parts(a, parts, splits, turn, column, row, v);
        const int64_t token = work.begin + turn;
        if (a.gated) {
            float up[8];
            add_parts(a, parts, splits, turn, column + 8, row + 8, up);
#pragma unroll
            for (int j = 0; j < 8; ++j) v[j] = ended(a.activation, v[j], up[j]);
            put_eight<T>(a, token * (rows / 2) + row / 2, v);
        } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) v[j] = a.squared ? ungated<true>(v[j]) : v[j];
            put_eight<T>(a, token * rows + row, v);
        }
    }
    cluster_sync(); // until then other CTAs read this one's memory
}

// ---- Launches -----------------------------------------------------------------------------------

template <typename T, typename S, bool Split>
cudaError_t launch_split(const Plan &plan, const CUtensorMap &x, cudaStream_t stream) {
    const auto kernel = four_bit_product_split<T, S, Split>;
    constexpr int kShared = S::kShared;
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (status != cudaSuccess) return status;
    const auto splits = static_cast<unsigned>(plan.a.splits);
    const auto tiles = static_cast<unsigned>(plan.across * plan.of_tokens);
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {splits, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(tiles * splits);
    config.blockDim = dim3(S::kThreads);
    config.dynamicSmemBytes = kShared;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, plan, x);
}

template <typename T, typename S, bool Split, Epilogue E>
cudaError_t launch_whole(const Plan &plan, const CUtensorMap &x, int sms, cudaStream_t stream) {
    return launch_with_shared(four_bit_product<T, S, Split, E>, static_cast<unsigned>(sms),
                              S::kThreads, S::kShared, stream, plan, x);
}

template <typename T, typename S, bool Split>
cudaError_t launch_setup(const FourBitArguments &a, int sms, cudaStream_t stream) {
    const Plan plan = plan_of(a);
    CUtensorMap x{};
    if (a.tiles == nullptr) {
        const cudaError_t status =
            make_tensor_map(a.x, a.element, a.tokens, a.w_shape.columns, plan.size, &x);
        if (status != cudaSuccess) return status;
        if (a.splits > 1) return launch_split<T, S, Split>(plan, x, stream);
    }
    if (a.gated) {
        switch (a.activation) {
        case Activation::silu:
            return launch_whole<T, S, Split, Epilogue::silu>(plan, x, sms, stream);
        case Activation::gelu_tanh:
            return launch_whole<T, S, Split, Epilogue::gelu_tanh>(plan, x, sms, stream);
        case Activation::clamped_swiglu:
            return launch_whole<T, S, Split, Epilogue::clamped_swiglu>(plan, x, sms, stream);
        case Activation::gelu:
        case Activation::relu_squared:
        case Activation::xielu:
            return cudaErrorInvalidValue;
        }
    }
    if (a.squared) return launch_whole<T, S, Split, Epilogue::relu_squared>(plan, x, sms, stream);
    if (a.add || a.y_type == DType::f32) {
        return launch_whole<T, S, Split, Epilogue::added>(plan, x, sms, stream);
    }
    return launch_whole<T, S, Split, Epilogue::plain>(plan, x, sms, stream);
}

template <typename T, PackedForm Form, bool Split>
cudaError_t launch_product(const FourBitArguments &a, int sms, cudaStream_t stream) {
    return launch_setup<T, Setup<Form>, Split>(a, sms, stream);
}

} // namespace
} // namespace batchllm::cuda
