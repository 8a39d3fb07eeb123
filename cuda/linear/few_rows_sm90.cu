// Products of few rows for Hopper, by persistent clusters of two CTAs. A CTA's tile is 128 rows of W by up to 160 rows of x; those
// of a cluster have the same rows of x. A stage has 128 bytes of each row: a CTA loads its rows of W, and half of the rows of x
// for both. One thread of a CTA loads; two warpgroups multiply, 64 rows of W each, and W is wgmma's first operand. A stage's
// sums are added to those before them in f32, while the other warpgroup multiplies.
//
// Each cluster keeps its rows of x, and those with others go through the same rows of W at the same time, so that these come from
// memory once. Tiles rarely divide evenly among clusters. Then they divide all stages of all tiles, one after another: a cluster
// begins and ends anywhere in a tile. Who has a tile's first stages stores it. Whoever has others, with which a cluster begins,
// leaves its sums in memory, and the first adds them, in the order of the stages. They are nearly always there by then, since it
// ends with its part of the tile. It waits for clusters of lower numbers alone, so that fewer clusters at once, beside other
// kernels, end too.
//
// Results leave through shared memory, so that they are written a row of y at a time.
#include <algorithm>
#include <array>
#include <atomic>

#include <cuda_fp8.h>

#include "attention/hopper.cuh"
#include "device/cluster.cuh"
#include "device/copies.cuh"
#include "device/stage_ring.cuh"
#include "device/tensor_map.h"
#include "device/tma.cuh"
#include "linear/few_rows.h"

namespace batchllm::cuda {
namespace {

WGMMA_SS("e4m3", __nv_fp8_e4m3, 32, "", 80, LIST40, 40, 41, 42, R32(d, 0), R8(d, 32))
WGMMA_SS("e4m3", __nv_fp8_e4m3, 32, "", 96, LIST48, 48, 49, 50, R32(d, 0), R8(d, 32), R8(d, 40))
WGMMA_SS("e4m3", __nv_fp8_e4m3, 32, "", 112, LIST56, 56, 57, 58, R32(d, 0), R8(d, 32), R8(d, 40),
         R8(d, 48))
WGMMA_SS("e4m3", __nv_fp8_e4m3, 32, "", 128, LIST64, 64, 65, 66, R32(d, 0), R32(d, 32))
WGMMA_SS("e4m3", __nv_fp8_e4m3, 32, "", 144, LIST72, 72, 73, 74, R32(d, 0), R32(d, 32), R8(d, 64))
WGMMA_SS("e4m3", __nv_fp8_e4m3, 32, "", 160, LIST80, 80, 81, 82, R32(d, 0), R32(d, 32), R8(d, 64),
         R8(d, 72))

constexpr int kOfW = 128;    // rows of W in a CTA's tile
constexpr int kOfStep = 128; // elements of a row in a stage
constexpr int kCtas = 2;     // of a cluster
constexpr int kConsumers = 256, kThreads = kConsumers + 128;
constexpr int kMostShared = 232448, kMostTile = 160, kLeastTile = 80, kStepOfTile = 16;
constexpr int kLeastPart = 4; // stages: a tile is not cut nearer to its ends
static_assert(kFewRowsPartials >= int64_t{kFewRowsFlags} * kOfW / 2 * kMostTile * 4);

// N: rows of x in a CTA's tile. Bytes.
template <int N> struct Layout {
    static constexpr int kW = kOfW * kOfStep, kX = N * kOfStep, kStage = kW + kX;
    static constexpr int kOut = kOfW * N * 2; // results of a tile
    static constexpr int kScales = 2 * N * 4; // of the rows of x, for each warpgroup
    static constexpr int kStages = (kMostShared - kOut - kScales - 256) / kStage;
    static constexpr int kOfX = kStages * kStage + kOut; // where the scales are
    static constexpr int kBarriers = kOfX + kScales;
    static constexpr int kShared = kBarriers + 2 * kStages * 8;
    static_assert(kShared <= kMostShared && kStages >= 4 && N % kStepOfTile == 0);
    using Ring = StageRing<kStages, kStage, kBarriers>;
};

struct Shape {
    int32_t rows, width;
    int32_t across;  // tiles of the rows of x
    int32_t tiles;   // of the rows of W, a cluster's each
    int32_t steps;   // stages of a tile
    int32_t sharers; // clusters with the same rows of x; the last ones have the first stages
    int32_t whole;   // tiles of a cluster; 0: the stages are divided

    // The first stage of a sharer's, counted over all tiles.
    __device__ __forceinline__ int32_t first_of(int32_t sharer) const {
        if (whole > 0) return min(sharer * whole, tiles) * steps;
        const auto all = static_cast<uint64_t>(tiles) * static_cast<uint32_t>(steps);
        const auto first = static_cast<int32_t>(all * static_cast<uint32_t>(sharer) /
                                                static_cast<uint32_t>(sharers));
        const int32_t in_tile = first % steps;
        if (in_tile < kLeastPart) return first - in_tile;
        return steps - in_tile < kLeastPart ? first - in_tile + steps : first;
    }
};

struct Epilogue {
    void *y;
    const float *x_scales, *w_scales;
    float alpha;
    bool add;
    float4 *partials; // [clusters, CTAs, warpgroups, N / 8, 128]
    uint32_t *flags;  // [clusters, CTAs, warpgroups]
};

// A CTA's first rows, and the part of the tile's stages that is its.
struct Tile {
    int32_t of_w, of_x;
    int32_t begin, end;
};

// Calls act for each of this CTA's tiles.
template <int N, typename Act>
__device__ __forceinline__ void for_each_tile(const Shape &s, const Act &act) {
    const auto cluster = static_cast<int32_t>(blockIdx.x / kCtas),
               rank = static_cast<int32_t>(blockIdx.x % kCtas);
    const int32_t sharer = s.sharers - 1 - cluster / s.across, of_x = cluster % s.across * N;
    const int32_t end = s.first_of(sharer + 1);
    for (int32_t at = s.first_of(sharer); at < end;) {
        const int32_t tile = at / s.steps, begin = at % s.steps;
        const int32_t last = min(s.steps, begin + end - at);
        act(Tile{(tile * kCtas + rank) * kOfW, of_x, begin, last});
        at += last - begin;
    }
}

// Run by one thread. A stage must be free in both CTAs before half of the rows of x is loaded to both.
template <int N> __device__ void feed(const CUtensorMap &x, const CUtensorMap &w, const Shape &s,
                                      typename Layout<N>::Ring place) {
    using L = Layout<N>;
    const uint32_t rank = cluster_rank();
    for_each_tile<N>(s, [&](const Tile &tile) {
        const auto of_x = static_cast<int32_t>(tile.of_x + rank * (N / 2));
        for (int32_t step = tile.begin; step < tile.end; ++step) {
            barrier_wait(place.empty(), place.phase ^ 1);
            barrier_expect(place.full(), L::kStage);
            load_box(place.stage(), w, step * kOfStep, tile.of_w, place.full());
            load_box_to(3, place.stage() + L::kW + rank * (L::kX / 2), x, step * kOfStep, of_x,
                        place.full());
            place.advance();
        }
    });
}

template <int N> __device__ __forceinline__ void
multiply(typename Layout<N>::Ring *place, int steps, int group, float (&sums)[N / 2]) {
    float made[N / 2];
    for (int s = 0; s < steps; ++s) {
        barrier_wait(place->full(), place->phase);
        const Operand w(place->stage() + group * (Layout<N>::kW / 2)),
            x(place->stage() + Layout<N>::kW);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            wgmma_ss(made, w.at(k * 32), x.at(k * 32), k > 0, __nv_fp8_e4m3());
        }
        wgmma_commit();
        wgmma_wait<0>();
        release_in_all<kCtas>(place->empty());
        place->advance();
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            asm volatile("" : "+f"(made[i])::"memory"); // it is there now
            sums[i] += made[i];
        }
    }
}

// Where a warpgroup of a cluster's CTA of this rank leaves its sums.
__device__ __forceinline__ int64_t number_of(int32_t cluster, int group) {
    return (cluster * kCtas + blockIdx.x % kCtas) * 2 + group;
}

template <int N>
__device__ __forceinline__ void leave(const Epilogue &e, int group, const float (&sums)[N / 2]) {
    const int64_t number = number_of(blockIdx.x / kCtas, group);
    float4 *to = e.partials + number * (N / 8) * 128 + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
        to[i * 128] = {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
    }
    __threadfence();
    named_barrier(1 + group, 128);
    if (threadIdx.x % 128 == 0) {
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(e.flags + number), "r"(1u)
                     : "memory");
    }
}

// Adds what others have made of the tile whose first stages are this cluster's last.
template <int N> __device__ __forceinline__ void
take(const Epilogue &e, const Shape &s, int32_t left, int group, float (&sums)[N / 2]) {
    const auto cluster = static_cast<int32_t>(blockIdx.x / kCtas);
    for (int32_t i = 1; left > 0; ++i) {
        const int32_t sharer = s.sharers - 1 - cluster / s.across + i;
        const int32_t its = s.first_of(sharer + 1) - s.first_of(sharer);
        if (its == 0) continue; // it has left nothing
        left -= its;
        const int64_t number = number_of(cluster - i * s.across, group);
        if (threadIdx.x % 128 == 0) {
            uint32_t there = 0;
            while (there == 0) {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                             : "=r"(there)
                             : "l"(e.flags + number)
                             : "memory");
            }
            e.flags[number] = 0; // for the next launch
        }
        named_barrier(1 + group, 128);
        const float4 *from = e.partials + number * (N / 8) * 128 + threadIdx.x % 128;
#pragma unroll
        for (int j = 0; j < N / 8; ++j) {
            const float4 four = __ldcg(from + j * 128);
            sums[4 * j] += four.x;
            sums[4 * j + 1] += four.y;
            sums[4 * j + 2] += four.z;
            sums[4 * j + 3] += four.w;
        }
    }
}

// The scales of the warpgroup's tile, read before its stages are multiplied: of the thread's two rows of W, by alpha; those of x
// to shared memory, [N], where they are after the next barrier of the warpgroup.
template <int N> __device__ __forceinline__ float2 read_scales(const Epilogue &e, const Shape &s,
                                                               const Tile &tile, int group,
                                                               float *of_x) {
    const int thread = threadIdx.x % 128;
    for (int row = thread; row < N; row += 128) {
        of_x[row] = tile.of_x + row < s.rows ? __ldg(e.x_scales + tile.of_x + row) : 0;
    }
    const int first = tile.of_w + group * 64 + thread / 32 * 16 + thread % 32 / 4;
    return {first < s.width ? e.alpha * __ldg(e.w_scales + first) : 0,
            first + 8 < s.width ? e.alpha * __ldg(e.w_scales + first + 8) : 0};
}

// out: the warpgroup's [N][64] of T, chunk c (16 bytes) of a row at c ^ row % 8.
template <typename T, int N>
__device__ __forceinline__ void store(const Epilogue &e, const Shape &s, const Tile &tile,
                                      int group, float2 of_w, const float *of_x, unsigned char *out,
                                      const float (&sums)[N / 2]) {
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const int chunk = thread % 8, column = tile.of_w + group * 64 + chunk * 8;
    T *const y = static_cast<T *>(e.y) + int64_t{tile.of_x} * s.width + column;
    const int count = column < s.width ? min(N, s.rows - tile.of_x) : 0;
    const auto each = [&](const auto &act) { // of this thread's chunks
        for (int row = thread / 8; row < count; row += 16) {
            act(reinterpret_cast<uint4 *>(y + int64_t{row} * s.width),
                reinterpret_cast<uint4 *>(out + row * 128 + (chunk ^ row % 8) * 16));
        }
    };
    named_barrier(1 + group, 128); // the previous contents have been read
    if (e.add) {
        each([](const uint4 *there, uint4 *here) { *here = *there; });
        named_barrier(1 + group, 128);
    }
    const auto *pairs = reinterpret_cast<const float2 *>(of_x) + lane % 4;
    const uint32_t at = shared_address(out) + (lane / 16 * 8 + lane % 8) * 128 +
                        ((warp * 2 + lane / 8 % 2) ^ lane % 8) * 16;
#pragma unroll
    for (int j = 0; j < N / 8; j += 2) { // eight rows of x each
        uint32_t r[4];
        if (e.add) load_matrix_transposed(r, at + j * 8 * 128);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float *d = sums + 4 * j + 2 * i;
            const float by = i % 2 == 0 ? of_w.x : of_w.y;
            const float2 of = pairs[(j + i / 2) * 4];
            float2 two{d[0] * (by * of.x), d[1] * (by * of.y)};
            if (e.add) {
                const float2 there = unpack(r[i], T());
                two = {two.x + there.x, two.y + there.y};
            }
            r[i] = pack(two.x, two.y, T());
        }
        store_matrix_transposed(at + j * 8 * 128, r);
    }
    named_barrier(1 + group, 128);
    each([](uint4 *there, const uint4 *here) { *there = *here; });
}

template <typename T, int N> __global__ void __cluster_dims__(kCtas) __launch_bounds__(kThreads, 1)
    few_rows_product(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w,
                     const __grid_constant__ Shape shape,
                     const __grid_constant__ Epilogue epilogue) {
    using L = Layout<N>;
    extern __shared__ __align__(1024) unsigned char shared[];
    typename L::Ring place(shared_address(shared));
    if (threadIdx.x == 0) {
        typename L::Ring each = place;
        for (int i = 0; i < L::kStages; ++i) {
            barrier_init(each.full(), 1);
            barrier_init(each.empty(),
                         kCtas * kConsumers / 32); // one arrival per warp of both CTAs
            each.advance();
        }
        barrier_init_fence();
    }
    cluster_sync();
    if (threadIdx.x >= kConsumers) {
        registers_fewer<40>();
        if (threadIdx.x < kConsumers + 32 && elect_one()) feed<N>(x, w, shape, place);
        __syncwarp();
    } else {
        registers_more<232>();
        const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
        unsigned char *out = shared + L::kStages * L::kStage + group * (L::kOut / 2);
        float *of_x = reinterpret_cast<float *>(shared + L::kOfX) + group * N;
        for_each_tile<N>(shape, [&](const Tile &tile) {
            float2 of_w{};
            if (tile.begin == 0) of_w = read_scales<N>(epilogue, shape, tile, group, of_x);
            float sums[N / 2] = {};
            multiply<N>(&place, tile.end - tile.begin, group, sums);
            if (tile.begin > 0) return leave<N>(epilogue, group, sums);
            take<N>(epilogue, shape, shape.steps - tile.end, group, sums);
            store<T, N>(epilogue, shape, tile, group, of_w, of_x, out, sums);
        });
    }
    cluster_sync(); // until it is done, the other CTA writes to this one's memory
}

// How many clusters run at once on this device; 0: that cannot be told.
template <typename T, int N> int most_clusters() {
    constexpr int kDevices = 64;
    static std::array<std::atomic<int>, kDevices> known{};
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return 0;
    if (device < kDevices && known[device] > 0) return known[device];
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(kCtas);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = Layout<N>::kShared;
    cudaLaunchAttribute of_cluster{};
    of_cluster.id = cudaLaunchAttributeClusterDimension;
    of_cluster.val.clusterDim = {kCtas, 1, 1};
    config.attrs = &of_cluster;
    config.numAttrs = 1;
    int clusters = 0;
    const auto kernel = few_rows_product<T, N>;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             Layout<N>::kShared) != cudaSuccess ||
        cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) {
        cudaGetLastError(); // nobody else's
        return 0;
    }
    clusters = std::min(clusters, kFewRowsFlags / (2 * kCtas));
    if (device < kDevices) known[device] = clusters;
    return clusters;
}

template <typename T, int N>
cudaError_t launch(const FewRowsArguments &a, int32_t across, cudaStream_t stream) {
    using L = Layout<N>;
    CUtensorMap x, w;
    cudaError_t status = make_tensor_map(a.x, DType::e4m3, a.rows, a.columns, N / 2, &x);
    if (status == cudaSuccess) {
        status = make_tensor_map(a.w, DType::e4m3, a.width, a.columns, kOfW, &w);
    }
    if (status != cudaSuccess) return status;
    const int32_t most = most_clusters<T, N>();
    if (most < across) return cudaErrorNotSupported;
    const int32_t tiles = (a.width + kCtas * kOfW - 1) / (kCtas * kOfW);
    const int32_t steps = (a.columns + kOfStep - 1) / kOfStep;
    // No cluster has less than the least part, or a tile.
    const int64_t parts = std::max<int64_t>(int64_t{tiles} * steps / kLeastPart, tiles);
    const auto sharers = static_cast<int32_t>(std::min<int64_t>(parts, most / across));
    const int32_t turns = (tiles + sharers - 1) / sharers;
    // To divide stages pays where a twelfth of the clusters' time would be lost.
    const bool whole = 12 * tiles > 11 * turns * sharers;
    const Shape shape{a.rows,
                      a.width,
                      across,
                      tiles,
                      steps,
                      whole ? (tiles + turns - 1) / turns : sharers,
                      whole ? turns : 0};
    const Epilogue epilogue{
        a.y, a.x_scales, a.w_scales, a.alpha, a.add, static_cast<float4 *>(a.partials), a.flags};
    const auto kernel = few_rows_product<T, N>;
    kernel<<<static_cast<unsigned>(kCtas * across * shape.sharers), kThreads, L::kShared, stream>>>(
        x, w, shape, epilogue);
    return cudaGetLastError();
}

template <typename T, int N = kLeastTile>
cudaError_t launch_of(const FewRowsArguments &a, int32_t across, cudaStream_t stream) {
    if constexpr (N < kMostTile) {
        if (a.rows > across * N) return launch_of<T, N + kStepOfTile>(a, across, stream);
    }
    return launch<T, N>(a, across, stream);
}

} // namespace

bool few_rows_run_sm90(const void *somewhere) {
    CUtensorMap map;
    return make_tensor_map(somewhere, DType::e4m3, 16, 128, 16, &map) == cudaSuccess &&
           most_clusters<__nv_bfloat16, kMostTile>() >= kMostFewRows / kMostTile;
}

cudaError_t launch_few_rows_sm90(const FewRowsArguments &a, cudaStream_t stream) {
    if (!takes_few_rows(a.rows, a.columns, a.width, a.y_type)) return cudaErrorInvalidValue;
    const int32_t across = (a.rows + kMostTile - 1) / kMostTile;
    return a.y_type == DType::bf16 ? launch_of<__nv_bfloat16>(a, across, stream)
                                   : launch_of<__half>(a, across, stream);
}

} // namespace batchllm::cuda
