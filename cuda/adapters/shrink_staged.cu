// t = A x where x has 16 bits, for sm_80 and later: a tile of rows, a part of x's columns and up to 48 rows of A an item, 64
// columns of them a stage, some stages a group of cp.async. Four warps have 16 rows each of a tall tile; of a short one they take
// turns with 16 of a stage's columns, and their sums are added in their order. Shared memory is as much as the loaded
// adapters' ranks need, and CTAs as many as fit.
//
// Where t is whole (sm_90), a cluster's CTAs have a part of x's columns each, and each adds up some of the rows' sums of all of
// them, in order. Otherwise the parts are ranges (adapters.h), whose sums expand adds up.
#include <algorithm>

#include "adapters/shrink.h"
#include "adapters/tile.cuh"
#include "attention/mma.cuh"
#include "device/cluster.cuh"
#include "device/early_launch.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kBlocks = 6, kRanks = 8 * kBlocks; // of t's columns, of an item
constexpr int kOfStep = 64;                      // columns of a stage: 128 bytes of a row
constexpr int kCopied = kThreads / 8;            // rows that the threads copy at a time

template <int Tall> constexpr int kGroup = Tall == 1 ? 4 : 2;
constexpr int kGroups = 3, kMostSlices = 8;
template <int Tall> constexpr int kStages = kGroup<Tall> *kGroups;

// The rows of a stage: x's, then A's. A row's chunks of 16 bytes are swizzled.
template <int Tall> constexpr int stage_bytes(int ranks) { return (16 * Tall + ranks) * 128; }

template <int Tall> struct Feed {
    static constexpr int kOfX = std::max(1, 16 * Tall / kCopied), kOfA = kRanks / kCopied;
    const uint4 *x[kOfX]; // the thread's chunk of its rows; null: there is no such row
    const uint4 *a;       // of its first row of A
    int columns, ranks, wide;

    template <typename T>
    __device__ Feed(const AdapterArguments &arguments, const AdapterTile &tile, const T *of_a,
                    int32_t begin, int wide_there, int ranks_there)
        : columns(arguments.columns), ranks(ranks_there), wide(wide_there) {
        const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
#pragma unroll
        for (int i = 0; i < kOfX; ++i) {
            const int place = row + kCopied * i;
            x[i] = nullptr;
            if (place >= tile.count) continue;
            const int64_t from = row_of_x(arguments, tile.begin + place);
            if (from < 0) continue;
            x[i] = reinterpret_cast<const uint4 *>(static_cast<const T *>(arguments.x) +
                                                   from * columns + begin) +
                   chunk;
        }
        a = reinterpret_cast<const uint4 *>(of_a + int64_t{row} * columns + begin) + chunk;
    }

    __device__ void load(int step, uint32_t stage) const {
        const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
        const bool inside = step * kOfStep + chunk * 8 < wide;
        const uint32_t to = stage + row * 128 + (chunk ^ row % 8) * 16;
#pragma unroll
        for (int i = 0; i < kOfX; ++i) {
            const bool valid = inside && x[i] != nullptr;
            copy_async(to + kCopied * i * 128, valid ? x[i] + step * 8 : a, valid);
        }
        const uint32_t of_a = to + 16 * Tall * 128;
#pragma unroll
        for (int i = 0; i < kOfA; ++i) {
            if (row + kCopied * i >= ranks) break;
            copy_async(of_a + kCopied * i * 128,
                       inside ? a + step * 8 + int64_t{kCopied * i} * (columns / 8) : a, inside);
        }
    }
};

// The k-th 16 columns of a stage: the warp's 16 rows by all ranks.
template <typename T> __device__ __forceinline__ void
multiply(uint32_t x, uint32_t a, int k, int blocks, float (&sums)[kBlocks][4]) {
    const int lane = threadIdx.x % 32;
    // All loads before the first product, which would wait for each of them otherwise.
    uint32_t rows[4], b[kBlocks / 2][4];
    load_matrix(rows, x + lane % 16 * 128 + ((2 * k + lane / 16) ^ lane % 8) * 16);
#pragma unroll
    for (int j = 0; j < kBlocks; j += 2) {
        if (j >= blocks) break;
        // Beyond an odd number of blocks the last one is loaded again, and not used.
        const int rank = min(8 * j + lane % 8 + lane / 16 * 8, 8 * blocks - 1);
        load_matrix(b[j / 2], a + rank * 128 + ((2 * k + lane / 8 % 2) ^ rank % 8) * 16);
    }
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
        if (j >= blocks) break;
        mma_sync(sums[j], rows, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T());
    }
}

// A CTA's sums of a tile, [rows][kRanks] f32; of a short one each warp's.
constexpr int of_sums(int tall) { return std::max(tall, kWarps) * 16 * kRanks * 4; }

template <int Tall> __device__ __forceinline__ void put_sums(float (*to)[kRanks], int blocks,
                                                             const float (&sums)[kBlocks][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
        if (j >= blocks) break;
        const int column = 8 * j + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            *reinterpret_cast<float2 *>(&to[16 * warp + lane / 4 + 8 * half][column]) =
                make_float2(sums[j][2 * half], sums[j][2 * half + 1]);
        }
    }
    if constexpr (Tall > 1) return;
    __syncthreads();
    for (int n = threadIdx.x; n < 16 * 8 * blocks; n += kThreads) {
        float &sum = to[n / (8 * blocks)][n % (8 * blocks)];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) sum += to[16 * w + n / (8 * blocks)][n % (8 * blocks)];
    }
}

// What t's column is multiplied with.
__device__ __forceinline__ float scale_of(const AdapterEntry &entry, int parts, int32_t column) {
    for (int p = 0; p < parts; ++p) {
        const AdapterPart part = load_part(&entry, p);
        if (static_cast<uint32_t>(column - part.first) < static_cast<uint32_t>(part.rank)) {
            return part.scale;
        }
    }
    return 0;
}

#if __CUDA_ARCH__ >= 900
// t of some of the tile's rows: a warp has a row at a time, a lane two of its columns.
template <typename T> __device__ __forceinline__ void
add_up(const AdapterArguments &a, const AdapterTile &tile, const float (*own_sums)[kRanks],
       const float *scales, const int32_t *rows, int32_t first, int blocks, int slice, int slices) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = 2 * lane;
    if (column >= 8 * blocks) return;
    for (int row = slice + slices * warp; row < tile.count; row += slices * kWarps) {
        const int32_t own = rows[row];
        if (own < 0) continue;
        const uint32_t at = shared_address(&own_sums[row][column]);
        float2 v[kMostSlices] = {};
#pragma unroll
        for (int s = 0; s < kMostSlices; ++s) {
            if (s < slices) v[s] = load_pair(address_in(at, static_cast<uint32_t>(s)));
        }
        float2 sum = v[0];
#pragma unroll
        for (int s = 1; s < kMostSlices; ++s) sum.x += v[s].x, sum.y += v[s].y;
        const float scale = scales[column / 8];
        T *const t = static_cast<T *>(a.t) + int64_t{own} * a.t_stride + first + column;
        *reinterpret_cast<uint32_t *>(t) = pack(scale * sum.x, scale * sum.y, T());
    }
}
#endif

// slices: parts of x's columns; of a cluster, its CTAs.
template <typename T, int Tall, bool Whole> __global__ void __launch_bounds__(kThreads)
    shrink_staged(const __grid_constant__ AdapterArguments a, int32_t slices) {
    constexpr int group = kGroup<Tall>, groups = kGroups;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ float scales[kBlocks];
    __shared__ int32_t rows[16 * Tall];
    auto *const own_sums = reinterpret_cast<float(*)[kRanks]>(shared);
    const uint32_t base = shared_address(shared) + of_sums(Tall);
    const int stage = stage_bytes<Tall>(min(a.most_ranks, kRanks));
    const int32_t per = Whole
                            ? ((a.columns + slices - 1) / slices + kOfStep - 1) / kOfStep * kOfStep
                            : kAdapterRange;
    const int32_t chunks = (a.most_ranks + kRanks - 1) / kRanks;
    const int32_t total = __ldg(a.work.tile_count) * chunks * slices;
    // The last rows first: what was written last is still in L2, of a wide step some third of x. Slices stay in a cluster.
    for (int32_t turn = blockIdx.x; turn < total; turn += gridDim.x) {
        const int32_t slice = turn % slices, item = (total - 1 - turn) / slices;
        const AdapterTile tile = load_tile(a.work.tiles + item / chunks);
        const int32_t first = item % chunks * kRanks;
        const AdapterEntry &entry = tile.entries[a.product];
        const int32_t left = __ldg(&entry.ranks) - first;
        if (left <= 0) continue; // all CTAs of a cluster
        const int blocks = min(kBlocks, left / 8);
        const int32_t begin = min(slice * per, a.columns);
        const int wide = min(per, a.columns - begin);
        const int steps = (wide + kOfStep - 1) / kOfStep;
        const auto *of_a = reinterpret_cast<const T *>(
            __ldg(reinterpret_cast<const unsigned long long *>(&entry.a)));
        const Feed<Tall> feed(a, tile, of_a + int64_t{first} * a.columns, begin, wide, 8 * blocks);
        const auto load = [&](int g) {
#pragma unroll
            for (int i = 0; i < group; ++i) {
                const int step = g * group + i;
                if (step < steps) feed.load(step, base + (g % groups * group + i) * stage);
            }
            copy_async_commit();
        };
        float sums[kBlocks][4] = {};
        __syncthreads(); // what was there has been read
        wait_for_launches();
#pragma unroll 1
        for (int g = 0; g < groups - 1; ++g) load(g);
        if (Whole && threadIdx.x < tile.count) {
            rows[threadIdx.x] = row_at(a, tile.begin + static_cast<int32_t>(threadIdx.x));
        }
        if (Whole && threadIdx.x < blocks) {
            scales[threadIdx.x] =
                scale_of(entry, a.parts, first + 8 * static_cast<int32_t>(threadIdx.x));
        }
#pragma unroll 1
        for (int g = 0; g * group < steps; ++g) {
            copy_async_wait<groups - 2>();
            __syncthreads();
            load(g + groups - 1);
#pragma unroll
            for (int i = 0; i < group; ++i) {
                if (g * group + i >= steps) break;
                const uint32_t x = base + (g % groups * group + i) * stage, w = x + 16 * Tall * 128;
                const int warp = threadIdx.x / 32;
                if constexpr (Tall == 1) {
                    multiply<T>(x, w, warp, blocks, sums);
                } else if (16 * warp < tile.count) {
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        multiply<T>(x + warp * 16 * 128, w, k, blocks, sums);
                    }
                }
            }
        }
        copy_async_wait<0>();
        put_sums<Tall>(own_sums, blocks, sums);
        if constexpr (!Whole) {
            __syncthreads();
            float *t = static_cast<float *>(a.t) + int64_t{slice} * a.t_rows * a.t_stride + first;
            for (int n = threadIdx.x; n < tile.count * 8 * blocks; n += kThreads) {
                const int row = n / (8 * blocks), column = n % (8 * blocks);
                const int32_t own = row_at(a, tile.begin + row);
                if (own >= 0) t[int64_t{own} * a.t_stride + column] = own_sums[row][column];
            }
        } else {
#if __CUDA_ARCH__ >= 900
            cluster_sync();
            add_up<T>(a, tile, own_sums, scales, rows, first, blocks, slice, slices);
            cluster_sync(); // the others have read the sums
#endif
        }
    }
    wait_for_launches(); // as expand
}

template <typename T, int Tall, bool Whole>
cudaError_t launch(const AdapterArguments &a, int sms, cudaStream_t stream) {
    const auto kernel = shrink_staged<T, Tall, Whole>;
    const int shared =
        of_sums(Tall) + kStages<Tall> * stage_bytes<Tall>(std::min(a.most_ranks, kRanks));
    cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    int fit = 0;
    if (status == cudaSuccess) {
        status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, kThreads,
                                                               static_cast<size_t>(shared));
    }
    if (status != cudaSuccess) return status;
    int32_t slices = adapter_ranges(a.columns);
    if (Whole) { // a power of two, at most 8; of short tiles more, since few of them are for all CTAs
        const int32_t wide = Tall == 1 ? kAdapterRange / 2 : kAdapterRange;
        slices = 1;
        while (slices < kMostSlices && slices * wide < a.columns) slices *= 2;
    }
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(slices), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(sms * std::max(1, fit) / slices * slices));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = static_cast<size_t>(shared);
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = Whole ? 1 : 0;
    if (Whole) { // fewer may fit: a processor's groups of multiprocessors are of several sizes
        int clusters = 0;
        status = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
        if (status != cudaSuccess) return status;
        config.gridDim.x = static_cast<unsigned>(std::max(1, clusters) * slices);
    }
    return launch_config(kernel, config, a.work.rows != nullptr, a, slices);
}

template <typename T, int Tall>
cudaError_t launch_of(const AdapterArguments &a, int sms, cudaStream_t stream) {
    return a.whole ? launch<T, Tall, true>(a, sms, stream) : launch<T, Tall, false>(a, sms, stream);
}

} // namespace

cudaError_t launch_shrink_staged(const AdapterArguments &a, int sms, cudaStream_t stream) {
    constexpr int tall = kTallTile / 16, low = kShortTile / 16;
    if (a.element == DType::bf16) {
        return a.work.tall ? launch_of<__nv_bfloat16, tall>(a, sms, stream)
                           : launch_of<__nv_bfloat16, low>(a, sms, stream);
    }
    if (a.element != DType::f16) return cudaErrorInvalidValue;
    return a.work.tall ? launch_of<__half, tall>(a, sms, stream)
                       : launch_of<__half, low>(a, sms, stream);
}

} // namespace batchllm::cuda
