// The gated product for Hopper, by persistent CTAs. A CTA's tile is 128 rows of x by 128 columns of
// y, that is, 128 rows of G and 128 of U; a stage has 128 bytes of each of these rows. The two CTAs
// of a cluster have the same columns, and each loads half of W's rows for both: one loads G's, the
// other U's. One thread of a CTA loads; two warpgroups multiply, 64 rows of x each. The same thread
// has the gate and the up value of an element of y. Results are stored by TMA while the next tile
// begins. The two warpgroups drift apart as far as the stages allow, so that one multiplies while
// the other computes activations.
//
// What adapters add to both products comes after a tile's stages, in stages of its own, which have t of the CTA's rows and B
// of as many adapters as fit. The CTAs of a cluster have as many of these, though each loads its own rows' adapters.
//
// If the last turn has tiles for half of the clusters or fewer, these tiles are cut in half: 64
// rows per CTA.
#include <algorithm>

#include "adapters/registers.cuh"
#include "adapters/tile.cuh"
#include "attention/hopper.cuh"
#include "device/cluster.cuh"
#include "device/launch.cuh"
#include "device/stage_ring.cuh"
#include "device/tensor_map.h"
#include "device/tma.cuh"
#include "elementwise/activation.cuh"
#include "gated/gated.h"

namespace batchllm::cuda {
namespace {

constexpr int kRows = 128, kColumns = 128; // of a tile of y
constexpr int kOfStep = 64;                // elements of a row in a stage
constexpr int kTogether = 8; // pairs of row tiles computed in sequence for the same columns
constexpr int kStages = 4, kConsumers = 256, kThreads = kConsumers + 128;
constexpr int kX = kRows * 128, kHalfOfW = kColumns * 128, kStage = kX + 2 * kHalfOfW; // bytes
constexpr int kOut = kStages * kStage, kHalfOut = 64 * 128; // results of 64 rows, 64 columns
constexpr int kBarriers = kOut + 4 * kHalfOut;
constexpr int kShared = kBarriers + 2 * kStages * 8;
static_assert(kShared <= 232448);

// The kernel's parameters apart from the maps.
struct Shape {
    int32_t pairs;  // pairs of row tiles
    int32_t across; // column tiles
    int32_t whole;  // tiles that are not cut
    int32_t turns;  // those plus the halves of the others
    int32_t steps;  // stages per tile
    int32_t width;  // of y
    int32_t rows;
};

// What rows' adapters add.
struct Adapted {
    AdapterWork work;
    int32_t product;
    const void *t; // [t_rows, t_stride] of the element's type
    int32_t t_rows, t_stride;
    int32_t parts; // of a stage: both, or one after the other
    int32_t each;  // adapters of a stage, a power of two
    int32_t apart; // bytes from an adapter's B to the next

    static constexpr int32_t kMostRanks = 64; // of t where a stage has both
};

struct Tile {
    int32_t row, column; // in y: this CTA's first
    bool half;           // the second warpgroup has no rows
};

// Calls act for each of this CTA's tiles.
template <typename Act>
__device__ __forceinline__ void for_each_tile(const Shape &s, const Act &act) {
    const auto rank = static_cast<int32_t>(cluster_rank());
    const int32_t of_group = kTogether * s.across;
    for (int32_t turn = blockIdx.x / 2; turn < s.turns; turn += gridDim.x / 2) {
        const bool half = turn >= s.whole;
        const int32_t number = half ? s.whole + (turn - s.whole) / 2 : turn;
        const int32_t group = number / of_group, place = number % of_group;
        const int32_t pairs = min(kTogether, s.pairs - group * kTogether);
        const int32_t first = (group * kTogether + place % pairs) * 2 * kRows;
        const int32_t row =
            half ? first + (turn - s.whole) % 2 * kRows + rank * (kRows / 2) : first + rank * kRows;
        act(Tile{row, place / pairs * kColumns, half});
    }
}

using Ring = StageRing<kStages, kStage, kBarriers>;

// How many adapters there are to add.
struct Adapters {
    int32_t own = 0, all = 0; // of this CTA's rows; stages' worth: of either CTA's
    const AdapterEntry *const *first = nullptr;

    __device__ Adapters(const Adapted &a, const Shape &s, const Tile &tile) {
        const int32_t blocks = (s.rows + kAdapterBlock - 1) / kAdapterBlock;
        const int32_t block = tile.row / kAdapterBlock, other = tile.half ? block : block ^ 1;
        if (block < blocks) own = __ldg(a.work.block_counts + block);
        all = own;
        if (other < blocks) all = max(all, __ldg(a.work.block_counts + other));
        if (tile.row >= a.t_rows) own = 0; // as of half tiles beyond the last row
        first = a.work.block_entries + int64_t{block} * kAdapterBlock;
    }
};
static_assert(kAdapterBlock == kRows);

// Of 32 of them, one a lane.
struct LaneAdapter {
    const AdapterEntry *entry = nullptr; // of the adapter; null: there is none
    const unsigned char *b = nullptr;
    AdapterPart parts[2] = {};

    __device__ LaneAdapter(const Adapted &a, const Adapters &adapters, int32_t begin) {
        const int32_t own = begin + static_cast<int32_t>(threadIdx.x % 32);
        if (own >= adapters.own) return;
        entry = load_entry(adapters.first + own);
        const AdapterEntry *const of_product = entry + a.product;
        b = reinterpret_cast<const unsigned char *>(
            __ldg(reinterpret_cast<const unsigned long long *>(&of_product->b)));
        parts[0] = load_part(of_product, 0);
        parts[1] = load_part(of_product, 1);
    }
};

// Parts as their stage has them: t's rows, then where W's halves are in other stages the adapters' B of gate and of up. Where t is
// too wide for that, B of one of the two comes right after it.
__device__ __forceinline__ uint32_t place_of_b(const Adapted &a, int part, int32_t adapter) {
    return (a.parts == 1 ? 2 * kX : kX + part * kHalfOfW) + adapter % a.each * a.apart;
}

// How many rows of t the CTA has.
__device__ __forceinline__ uint32_t rows_of_t(const Adapted &a, const Tile &tile) {
    return min(tile.half ? kRows / 2 : kRows, a.t_rows - tile.row);
}

// Run by a warp; one thread waits and announces, and the thread of an adapter loads its B.
__device__ void feed_adapters(const Adapted &a, const Tile &tile, const Adapters &adapters,
                              Ring *place) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    for (int32_t begin = 0; begin < adapters.all; begin += 32) {
        const LaneAdapter own(a, adapters, begin);
        for (int32_t turn = 0; turn < min(adapters.all - begin, 32); turn += a.each) {
            const bool now = lane >= turn && lane < turn + a.each;
            for (int first = 0; first < 2; first += a.parts) {
                uint32_t bytes = 0;
#pragma unroll
                for (int p = 0; p < 2; ++p) {
                    const bool loads = now && p >= first && p < first + a.parts;
                    if (loads) bytes += own.parts[p].rank * kColumns * 2;
                }
                const uint32_t all = __reduce_add_sync(~0u, bytes);
                if (elect_one()) {
                    barrier_wait(place->empty(), place->phase ^ 1);
                    if (all == 0) { // its rows have no such adapters
                        barrier_arrive(place->full());
                    } else {
                        const uint32_t of_t = rows_of_t(a, tile) * a.t_stride * 2;
                        barrier_expect(place->full(), of_t + all);
                        bulk_copy(place->stage(),
                                  static_cast<const unsigned char *>(a.t) +
                                      int64_t{tile.row} * a.t_stride * 2,
                                  of_t, place->full());
                    }
                }
                __syncwarp();
#pragma unroll
                for (int p = 0; p < 2; ++p) {
                    const int32_t rank = own.parts[p].rank;
                    if (!now || p < first || p >= first + a.parts || rank == 0) continue;
                    bulk_copy(place->stage() + place_of_b(a, p, lane),
                              own.b + int64_t{16} * own.parts[p].b_units +
                                  int64_t{tile.column} * rank * 2,
                              rank * kColumns * 2, place->full());
                }
                place->advance();
            }
        }
    }
}

// Run by one thread, or with adapters by a warp. A stage must be free in both CTAs before its half of W is loaded to both.
template <bool WithAdapters> __device__ void feed(const CUtensorMap &x, const CUtensorMap &w,
                                                  const Shape &s, const Adapted &a, Ring place) {
    const auto rank = static_cast<int32_t>(cluster_rank());
    for_each_tile(s, [&](const Tile &tile) {
        const int32_t of_w = tile.column + rank * s.width;
        for (int32_t step = 0; step < s.steps; ++step) {
            if (!WithAdapters || elect_one()) {
                barrier_wait(place.empty(), place.phase ^ 1);
                barrier_expect(place.full(), kStage);
                load_box(place.stage(), x, step * kOfStep, tile.row, place.full());
                load_box_to(3, place.stage() + kX + rank * kHalfOfW, w, step * kOfStep, of_w,
                            place.full());
            }
            place.advance();
        }
        if constexpr (WithAdapters) feed_adapters(a, tile, Adapters(a, s, tile), &place);
    });
}

// Passes over a tile's stages without using them.
__device__ __forceinline__ void pass(Ring *place, int steps) {
    for (int s = 0; s < steps; ++s) {
        barrier_wait(place->full(), place->phase);
        release_in_all<2>(place->empty());
        place->advance();
    }
}

// sums: for the warpgroup's 64 rows, 128 columns of gate, then 128 of up.
template <typename T> __device__ __forceinline__ void multiply(Ring *place, int steps, int group,
                                                               float (&sums)[kColumns]) {
    uint32_t before = 0;
    for (int s = 0; s < steps; ++s) {
        barrier_wait(place->full(), place->phase);
        wgmma_fence();
        const Operand x(place->stage() + group * 64 * 128), w(place->stage() + kX);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            wgmma_ss(sums, x.at(k * 32), w.at(k * 32), s > 0 || k > 0, T());
        }
        wgmma_commit();
        if (s > 0) {
            wgmma_wait<1>();
            release_in_all<2>(before);
        }
        before = place->empty();
        place->advance();
    }
    wgmma_wait<0>();
    release_in_all<2>(before);
}

template <typename T, Activation F>
__device__ __forceinline__ void store(const CUtensorMap &y, const Tile &tile, int group,
                                      uint32_t out, const float (&sums)[kColumns]) {
    const int thread = threadIdx.x % 128, lane = thread % 32;
    const bool stores = thread < 32 && elect_one();
    if (stores) store_wait_read();
    named_barrier(1 + group, 128); // the previous contents have been read
    const uint32_t row = thread / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < kColumns / 8; i += 2) { // eight columns each
        uint32_t r[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float *gate = sums + 4 * i + 2 * j, *up = gate + kColumns / 2;
            r[j] = pack(quickly_activated<F>(gate[0]) * up[0],
                        quickly_activated<F>(gate[1]) * up[1], T());
        }
        const uint32_t chunk = (i % 8 + lane / 16) ^ lane % 8;
        store_matrix(out + i / 8 * kHalfOut + row * 128 + chunk * 16, r);
    }
    async_proxy_fence();
    named_barrier(1 + group, 128);
    if (stores) {
        store_box(y, tile.column, tile.row + group * 64, out);
        store_box(y, tile.column + 64, tile.row + group * 64, out + kHalfOut);
        store_commit();
    }
}

// What their adapters add to the warpgroup's rows of gate and up. entry: of the row lane % 16 of the warp's, or null. next: of the
// first 32 adapters.
template <typename T>
__device__ __forceinline__ void add_adapters(const Adapted &a, const Adapters &adapters,
                                             LaneAdapter next, const AdapterEntry *entry, int group,
                                             Ring *place, float (&sums)[kColumns]) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const int32_t row = group * 64 + static_cast<int32_t>(threadIdx.x % 128 / 32) * 16;
    const auto mine = reinterpret_cast<unsigned long long>(entry);
    for (int32_t i = 0; i < adapters.all; i += a.each) {
        if (i > 0 && i % 32 == 0) next = LaneAdapter(a, adapters, i);
        for (int first = 0; first < 2; first += a.parts) {
            barrier_wait(place->full(), place->phase);
            const unsigned char *const stage = shared + (place->stage() - place->base);
            for (int32_t j = i; j < min(i + a.each, adapters.own); ++j) {
                const auto other =
                    __shfl_sync(~0u, reinterpret_cast<unsigned long long>(next.entry), j % 32);
                const uint32_t members = __ballot_sync(~0u, mine == other) & 0xffff;
                if (members == 0) continue;
#pragma unroll
                for (int p = 0; p < 2; ++p) {
                    const int32_t rank = __shfl_sync(~0u, next.parts[p].rank, j % 32);
                    const int32_t column = __shfl_sync(~0u, next.parts[p].first, j % 32);
                    if (p < first || p >= first + a.parts || rank == 0) continue;
                    const T *t = reinterpret_cast<const T *>(stage) + row * a.t_stride;
                    add_adapted<T, kColumns / 8>(t + column, a.t_stride,
                                                 stage + place_of_b(a, p, j), rank, members,
                                                 sums + p * (kColumns / 2));
                }
            }
            release_in_all<2>(place->empty());
            place->advance();
        }
    }
}

template <typename T, Activation F, bool WithAdapters>
__device__ void compute(const CUtensorMap &y, const Shape &s, const Adapted &a, Ring place) {
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const uint32_t out = place.base + kOut + group * 2 * kHalfOut;
    for_each_tile(s, [&](const Tile &tile) {
        if (tile.half && group == 1) {
            pass(&place, s.steps);
            if constexpr (WithAdapters) {
                pass(&place, (Adapters(a, s, tile).all + a.each - 1) / a.each * (2 / a.parts));
            }
            return;
        }
        float sums[kColumns];
        if constexpr (WithAdapters) {
            const Adapters adapters(a, s, tile);
            const int32_t row =
                tile.row + group * 64 +
                static_cast<int32_t>(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 16);
            // Read ahead.
            const AdapterEntry *entry = row < s.rows ? load_entry(a.work.entries + row) : nullptr;
            const LaneAdapter next(a, adapters, 0);
            multiply<T>(&place, s.steps, group, sums);
            add_adapters<T>(a, adapters, next, entry, group, &place, sums);
        } else {
            multiply<T>(&place, s.steps, group, sums);
        }
        store<T, F>(y, tile, group, out, sums);
    });
    store_wait(); // by the thread that stored
}

template <typename T, Activation F, bool WithAdapters> __global__ void __cluster_dims__(2)
    __launch_bounds__(kThreads, 1)
        gated_product(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w,
                      const __grid_constant__ CUtensorMap y, const __grid_constant__ Shape shape,
                      const __grid_constant__ Adapted adapted) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring place(shared_address(shared));
    if (threadIdx.x == 0) {
        Ring each = place;
        for (int i = 0; i < kStages; ++i) {
            barrier_init(each.full(), 1);
            barrier_init(each.empty(), 2 * kConsumers / 32); // one arrival per warp of both CTAs
            each.advance();
        }
        barrier_init_fence();
    }
    cluster_sync();
    if (threadIdx.x >= kConsumers) {
        registers_fewer<40>();
        if (threadIdx.x < kConsumers + 32 && (WithAdapters || elect_one())) {
            feed<WithAdapters>(x, w, shape, adapted, place);
        }
        __syncwarp();
    } else {
        registers_more<232>();
        compute<T, F, WithAdapters>(y, shape, adapted, place);
    }
    cluster_sync(); // until it is done, the other CTA writes to this one's memory
}

// How many of the tiles are not cut, with this many clusters.
int32_t whole_tiles(int32_t tiles, int32_t clusters) {
    const int32_t last = tiles % clusters;
    return 2 * last <= clusters ? tiles - last : tiles;
}

template <typename T, Activation F>
cudaError_t launch(const GatedArguments &a, int sms, cudaStream_t stream) {
    CUtensorMap x, w, y;
    cudaError_t status = make_tensor_map(a.x, a.element, a.rows, a.columns, kRows, &x);
    if (status == cudaSuccess) {
        status = make_tensor_map(a.w, a.element, 2 * int64_t{a.width}, a.columns, kColumns, &w);
    }
    if (status == cudaSuccess) {
        status = make_tensor_map(a.y, a.element, a.rows, a.width, 64, &y);
    }
    if (status != cudaSuccess) return status;
    const int32_t pairs = (a.rows + 2 * kRows - 1) / (2 * kRows), across = a.width / kColumns;
    const int32_t whole = whole_tiles(pairs * across, sms / 2);
    const Shape shape{pairs,   across, whole, 2 * pairs * across - whole, a.columns / kOfStep,
                      a.width, a.rows};
    const auto ctas = static_cast<unsigned>(sms / 2 * 2);
    const auto kernel =
        a.adapters == nullptr ? gated_product<T, F, false> : gated_product<T, F, true>;
    Adapted adapted{};
    if (const AdapterArguments *of = a.adapters; of != nullptr) {
        const int32_t parts = of->t_stride <= Adapted::kMostRanks ? 2 : 1;
        // With both parts, W's halves have room for some.
        const int32_t apart = std::max(of->most_of_part, 8) * kColumns * 2;
        int32_t each = 1;
        while (parts == 2 && 2 * each * apart <= kHalfOfW) each *= 2;
        adapted = {of->work, of->product, of->t, of->t_rows, of->t_stride, parts, each, apart};
    }
    return launch_with_shared(kernel, ctas, kThreads, kShared, stream, x, w, y, shape, adapted);
}

template <typename T> cudaError_t launch_of(const GatedArguments &a, int sms, cudaStream_t stream) {
    switch (a.kind) {
    case Activation::silu:
        return launch<T, Activation::silu>(a, sms, stream);
    case Activation::gelu:
        return launch<T, Activation::gelu>(a, sms, stream);
    case Activation::gelu_tanh:
        return launch<T, Activation::gelu_tanh>(a, sms, stream);
    case Activation::clamped_swiglu: // takes_gated() allows none of these
    case Activation::relu_squared:
    case Activation::xielu:
        break;
    }
    return cudaErrorInvalidValue;
}

} // namespace

cudaError_t launch_gated_sm90(const GatedArguments &a, int sms, cudaStream_t stream) {
    if (a.rows == 0) return cudaSuccess;
    if (!takes_gated(a.element, a.kind, a.columns, a.width)) return cudaErrorInvalidValue;
    if (a.adapters != nullptr && !takes_gated_adapters(*a.adapters)) return cudaErrorInvalidValue;
    return a.element == DType::bf16 ? launch_of<__nv_bfloat16>(a, sms, stream)
                                    : launch_of<__half>(a, sms, stream);
}

} // namespace batchllm::cuda
