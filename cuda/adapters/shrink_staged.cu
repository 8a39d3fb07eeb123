// t = A x where A has 16 bits, for sm_80 and later: a tile of rows, a part of x's columns and up to 48 rows of A an item, 128 bytes
// of a row of x a stage, some stages a group of cp.async. Four warps have 16 rows each of a tall tile; of a short one they
// share a stage's columns, and their sums are added in their order. Shared memory is as much as the loaded adapters'
// ranks need, and CTAs as many as fit.
//
// x in e4m3 comes to shared memory as it is. Its elements are exact in 16 bits; a stage's sums are multiplied by their row's scale.
//
// Where t is whole (sm_90), a cluster's CTAs have a part of x's columns each, and each adds up some of the rows' sums of all of
// them, in order. Otherwise the parts are ranges (adapters.h), whose sums expand adds up.
#include <algorithm>
#include <type_traits>

#include "adapters/codes.cuh"
#include "adapters/shrink.h"
#include "adapters/tile.cuh"
#include "attention/mma.cuh"
#include "device/cluster.cuh"
#include "device/early_launch.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kBlocks = 6, kRanks = 8 * kBlocks; // of t's columns, of an item
constexpr int kCopied = kThreads / 8;            // rows that the threads copy at a time
constexpr int kMostSlices = 8;

// Of x in 16 bits, or in e4m3 with scales.
template <int Tall, bool Scaled> struct Stages {
    static constexpr int columns =
        Scaled ? 128 : 64; // of a stage; of A there are 128 bytes or twice as many
    static_assert(!Scaled || columns == kScaleBlock);
    static constexpr int group = Scaled ? (Tall == 1 ? 2 : 1) : (Tall == 1 ? 4 : 2);
    static constexpr int groups = Scaled && Tall > 1 ? 4 : 3;
    // x's rows, then A's, in halves of 64 columns. A row's chunks of 16 bytes are swizzled.
    static constexpr int halves = columns / 64;
    static constexpr int bytes(int ranks) { return (16 * Tall + halves * ranks) * 128; }
    static constexpr int all_bytes(int ranks) { return group * groups * bytes(ranks); }
};
// Of e4m3 a lane has 8 columns that follow one another, of x in 8 bytes and of A in 16: the lanes that read at once have banks
// of their own.
template <bool Scaled>
__device__ __forceinline__ uint32_t place_in_x(uint32_t row, uint32_t chunk) {
    return row * 128 + (Scaled ? chunk ^ row % 4 * 2 : chunk ^ row % 8) * 16;
}
template <bool Scaled>
__device__ __forceinline__ uint32_t place_in_a(uint32_t row, uint32_t chunk) {
    return row * 128 + (Scaled ? chunk ^ row % 2 * 4 : chunk ^ row % 8) * 16;
}

template <typename T, int Tall, bool Scaled> struct Feed {
    using Of = Stages<Tall, Scaled>;
    static constexpr int kOfX = std::max(1, 16 * Tall / kCopied), kOfA = kRanks / kCopied;
    const uint4 *x[kOfX]; // the thread's chunk of its rows; null: there is no such row
    const uint4 *a;       // of its first row of A
    int columns, ranks, wide;
    uint32_t of_half; // bytes of a half of A's stage

    __device__ Feed(const AdapterArguments &arguments, const AdapterTile &tile, const T *of_a,
                    int32_t begin, int wide_there, int ranks_there)
        : columns(arguments.columns), ranks(ranks_there), wide(wide_there),
          of_half(min(arguments.most_ranks, kRanks) * 128) {
        const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
        constexpr int64_t of_element = Scaled ? 1 : sizeof(T);
#pragma unroll
        for (int i = 0; i < kOfX; ++i) {
            const int place = row + kCopied * i;
            x[i] = nullptr;
            if (place >= tile.count) continue;
            const int64_t from = row_of_x(arguments, tile.begin + place);
            if (from < 0) continue;
            x[i] = reinterpret_cast<const uint4 *>(static_cast<const unsigned char *>(arguments.x) +
                                                   (from * columns + begin) * of_element) +
                   chunk;
        }
        a = reinterpret_cast<const uint4 *>(of_a + int64_t{row} * columns + begin) + chunk;
    }

    __device__ void load(int step, uint32_t stage) const {
        const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
        const bool inside = step * Of::columns + chunk * (Of::columns / 8) < wide;
#pragma unroll
        for (int i = 0; i < kOfX; ++i) {
            const bool valid = inside && x[i] != nullptr;
            copy_async(stage + place_in_x<Scaled>(row, chunk) + kCopied * i * 128,
                       valid ? x[i] + step * 8 : a, valid);
        }
        const uint32_t of_a = stage + 16 * Tall * 128 + place_in_a<Scaled>(row, chunk);
#pragma unroll
        for (int half = 0; half < Of::halves; ++half) {
            const int column = step * Of::columns + half * 64;
            const bool there = column + chunk * 8 < wide;
#pragma unroll
            for (int i = 0; i < kOfA; ++i) {
                if (row + kCopied * i >= ranks) break;
                copy_async(of_a + half * of_half + kCopied * i * 128,
                           there ? a + column / 8 + int64_t{kCopied * i} * (columns / 8) : a,
                           there);
            }
        }
    }
};

// The k-th 16 columns of a stage: the warp's 16 rows by all ranks.
template <typename T> __device__ __forceinline__ void
multiply(uint32_t x, uint32_t a, int k, int blocks, float (&sums)[kBlocks][4]) {
    const int lane = threadIdx.x % 32;
    // All loads before the first product, which would wait for each of them otherwise.
    uint32_t rows[4], b[kBlocks / 2][4];
    load_matrix(rows, x + place_in_x<false>(lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int j = 0; j < kBlocks; j += 2) {
        if (j >= blocks) break;
        // Beyond an odd number of blocks the last one is loaded again, and not used.
        const int rank = min(8 * j + lane % 8 + lane / 16 * 8, 8 * blocks - 1);
        load_matrix(b[j / 2], a + place_in_a<false>(rank, 2 * k + lane / 8 % 2));
    }
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
        if (j >= blocks) break;
        mma_sync(sums[j], rows, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], T());
    }
}

// Of e4m3, the k-th 32 columns. Since a sum's order is free, a lane's 8 columns are what the instructions expect as four times two.
template <typename T>
__device__ __forceinline__ void multiply_scaled(uint32_t x, uint32_t a, uint32_t of_half, int k,
                                                int blocks, float (&sums)[kBlocks][4]) {
    const int lane = threadIdx.x % 32;
    uint4 w[kBlocks];
    const uint2 codes[2] = {
        load_shared_pair(x + place_in_x<true>(lane / 4, 2 * k + lane % 4 / 2) + lane % 2 * 8),
        load_shared_pair(x + place_in_x<true>(lane / 4 + 8, 2 * k + lane % 4 / 2) + lane % 2 * 8)};
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
        if (j >= blocks) break;
        w[j] = load_shared(a + k / 2 * of_half +
                           place_in_a<true>(8 * j + lane / 4, k % 2 * 4 + lane % 4));
    }
    const uint4 low = widened<T>(codes[0]), high = widened<T>(codes[1]);
    const uint32_t first[4] = {low.x, high.x, low.y, high.y};
    const uint32_t second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
        if (j >= blocks) break;
        mma_sync(sums[j], first, w[j].x, w[j].y, T());
        mma_sync(sums[j], second, w[j].z, w[j].w, T());
    }
}

struct Unscaled {
    __device__ Unscaled(const AdapterArguments &, const AdapterTile &, int, int32_t) {}
};
// The scales of a lane's two rows of x in e4m3.
struct RowScale {
    const float *from[2]; // null: there is no such row
    int64_t stride;       // from a stage, kScaleBlock columns, to the next

    __device__ RowScale(const AdapterArguments &a, const AdapterTile &tile, int first,
                        int32_t begin)
        : stride(a.x_group_stride) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int place = first + static_cast<int>(threadIdx.x % 32 / 4) + 8 * half;
            const int32_t row = place < tile.count ? row_of_x(a, tile.begin + place) : -1;
            from[half] = row >= 0 ? a.x_scales + row * a.x_row_stride + begin / kScaleBlock * stride
                                  : nullptr;
        }
    }
    __device__ void add(int step, int blocks, const float (&of_stage)[kBlocks][4],
                        float (&sums)[kBlocks][4]) const {
        float scales[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            scales[half] = from[half] != nullptr ? __ldg(from[half] + step * stride) : 0;
        }
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
            if (j >= blocks) break;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sums[j][i] = fmaf(scales[i / 2], of_stage[j][i], sums[j][i]);
            }
        }
    }
};

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
template <typename T, int Tall, bool Whole, bool Scaled> __global__ void __launch_bounds__(kThreads)
    shrink_staged(const __grid_constant__ AdapterArguments a, int32_t slices) {
    using Of = Stages<Tall, Scaled>;
    constexpr int group = Of::group, groups = Of::groups;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ float scales[kBlocks];
    __shared__ int32_t rows[16 * Tall];
    auto *const own_sums = reinterpret_cast<float(*)[kRanks]>(shared);
    const uint32_t base = shared_address(shared) + of_sums(Tall);
    const int stage = Of::bytes(min(a.most_ranks, kRanks));
    const int32_t per =
        Whole ? ((a.columns + slices - 1) / slices + Of::columns - 1) / Of::columns * Of::columns
              : a.range;
    const int32_t chunks = (a.most_ranks + kRanks - 1) / kRanks;
    const int32_t total = __ldg(a.work.tile_count) * chunks * slices;
    const AdapterTile *const tiles = tiles_after_few(a.work);
    const int warp = threadIdx.x / 32;
    // The last rows first: what was written last is still in L2, of a wide step some third of x. Slices stay in a cluster.
    for (int32_t turn = blockIdx.x; turn < total; turn += gridDim.x) {
        const int32_t slice = turn % slices, item = (total - 1 - turn) / slices;
        const AdapterTile tile = load_tile(tiles + item / chunks);
        const int32_t first = item % chunks * kRanks;
        const AdapterEntry &entry = tile.entries[a.product];
        const int32_t left = __ldg(&entry.ranks) - first;
        if (left <= 0) continue; // all CTAs of a cluster
        const int blocks = min(kBlocks, left / 8);
        const int32_t begin = min(slice * per, a.columns);
        const int wide = min(per, a.columns - begin);
        const int steps = (wide + Of::columns - 1) / Of::columns;
        const auto *of_a = reinterpret_cast<const T *>(
            __ldg(reinterpret_cast<const unsigned long long *>(&entry.a)));
        const Feed<T, Tall, Scaled> feed(a, tile, of_a + int64_t{first} * a.columns, begin, wide,
                                         8 * blocks);
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
        std::conditional_t<Scaled, RowScale, Unscaled> scale(a, tile, Tall == 1 ? 0 : 16 * warp,
                                                             begin);
        // One stage.
        const auto add = [&](int step, uint32_t x) {
            const uint32_t w = x + 16 * Tall * 128;
            if constexpr (!Scaled && Tall == 1) {
                multiply<T>(x, w, warp, blocks, sums);
            } else if constexpr (!Scaled) {
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    multiply<T>(x + warp * 16 * 128, w, k, blocks, sums);
                }
            } else {
                float of_stage[kBlocks][4] = {};
                if constexpr (Tall == 1) {
                    multiply_scaled<T>(x, w, feed.of_half, warp, blocks, of_stage);
                } else {
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        multiply_scaled<T>(x + warp * 16 * 128, w, feed.of_half, k, blocks,
                                           of_stage);
                    }
                }
                scale.add(step, blocks, of_stage, sums);
            }
        };
#pragma unroll 1
        for (int g = 0; g * group < steps; ++g) {
            copy_async_wait<groups - 2>();
            __syncthreads();
            load(g + groups - 1);
            if (Tall > 1 && 16 * warp >= tile.count) continue;
#pragma unroll
            for (int i = 0; i < group; ++i) {
                if (g * group + i >= steps) break;
                add(g * group + i, base + (g % groups * group + i) * stage);
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

template <typename T, int Tall, bool Whole, bool Scaled>
cudaError_t launch(const AdapterArguments &a, int sms, cudaStream_t stream) {
    const auto kernel = shrink_staged<T, Tall, Whole, Scaled>;
    const int shared =
        of_sums(Tall) + Stages<Tall, Scaled>::all_bytes(std::min(a.most_ranks, kRanks));
    cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    int fit = 0;
    if (status == cudaSuccess) {
        status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, kThreads,
                                                               static_cast<size_t>(shared));
    }
    if (status != cudaSuccess) return status;
    int32_t slices = a.ranges();
    if (Whole) { // a power of two, at most 8; of short tiles more, since few of them are for all CTAs
        constexpr int32_t wide = Tall == 1 ? 1024 : 2048;
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
    if (a.x_scales == nullptr) {
        return a.whole ? launch<T, Tall, true, false>(a, sms, stream)
                       : launch<T, Tall, false, false>(a, sms, stream);
    }
    return a.whole ? launch<T, Tall, true, true>(a, sms, stream)
                   : launch<T, Tall, false, true>(a, sms, stream);
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
