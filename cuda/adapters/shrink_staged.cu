// t = A x where x has 16 bits, for sm_80 and later: a tile of rows, a range of x's columns and up to 48 rows of A an item, 64
// columns of them a stage of cp.async, many stages. Four warps have 16 rows each of a tall tile; of a short one they take
// turns with 16 of a stage's columns, and their sums are added in their order. Shared memory is as much as the loaded
// adapters' ranks need, and CTAs as many as fit.
#include <algorithm>

#include "adapters/shrink.h"
#include "adapters/tile.cuh"
#include "attention/mma.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kBlocks = 6, kRanks = 8 * kBlocks; // of t's columns, of an item
constexpr int kOfStep = 64;                      // columns of a stage: 128 bytes of a row
constexpr int kCopied = kThreads / 8;            // rows that the threads copy at a time

template <int Tall> constexpr int kStages = Tall == 1 ? 12 : 8;

// The rows of a stage: x's, then A's. A row's chunks of 16 bytes are swizzled.
template <int Tall> constexpr int stage_bytes(int ranks) { return (16 * Tall + ranks) * 128; }

template <int Tall> struct Feed {
    static constexpr int kOfX = std::max(1, 16 * Tall / kCopied), kOfA = kRanks / kCopied;
    const uint4 *x[kOfX]; // the thread's chunk of its rows; null: there is no such row
    const uint4 *a;       // of its first row of A
    int columns, ranks;

    template <typename T>
    __device__ Feed(const AdapterArguments &arguments, const AdapterTile &tile, const T *of_a,
                    int32_t begin, int ranks_there)
        : columns(arguments.columns), ranks(ranks_there) {
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

    // left: columns of the range from this step on.
    __device__ void load(int step, int left, uint32_t stage) const {
        const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
        const bool inside = chunk * 8 < left;
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

template <typename T, int Tall> __global__ void __launch_bounds__(kThreads)
    shrink_staged(const __grid_constant__ AdapterArguments a) {
    constexpr int stages = kStages<Tall>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = shared_address(shared);
    const int stage = stage_bytes<Tall>(min(a.most_ranks, kRanks));
    const int32_t ranges = adapter_ranges(a.columns);
    const int32_t chunks = (a.most_ranks + kRanks - 1) / kRanks;
    const int32_t total = __ldg(a.work.tile_count) * ranges * chunks;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int32_t number = blockIdx.x; number < total; number += gridDim.x) {
        const AdapterTile tile = load_tile(a.work.tiles + number / (ranges * chunks));
        const int32_t range = number / chunks % ranges, first = number % chunks * kRanks;
        const AdapterEntry &entry = tile.entries[a.product];
        const int32_t left = __ldg(&entry.ranks) - first;
        if (left <= 0) continue;
        const int blocks = min(kBlocks, left / 8);
        const int32_t begin = range * kAdapterRange;
        const int wide = min(kAdapterRange, a.columns - begin);
        const int steps = (wide + kOfStep - 1) / kOfStep;
        const auto *of_a = reinterpret_cast<const T *>(
            __ldg(reinterpret_cast<const unsigned long long *>(&entry.a)));
        const Feed<Tall> feed(a, tile, of_a + int64_t{first} * a.columns, begin, 8 * blocks);
        float sums[kBlocks][4] = {};
        __syncthreads(); // what was there has been read
#pragma unroll 1
        for (int s = 0; s < stages - 1; ++s) {
            if (s < steps) feed.load(s, wide - s * kOfStep, base + s * stage);
            copy_async_commit();
        }
        int from = 0, to = stages - 1;
#pragma unroll 1
        for (int s = 0; s < steps; ++s) {
            copy_async_wait<stages - 2>();
            __syncthreads();
            const int next = s + stages - 1;
            if (next < steps) feed.load(next, wide - next * kOfStep, base + to * stage);
            copy_async_commit();
            const uint32_t x = base + from * stage, w = x + 16 * Tall * 128;
            if constexpr (Tall == 1) {
                multiply<T>(x, w, warp, blocks, sums);
            } else if (16 * warp < tile.count) {
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    multiply<T>(x + warp * 16 * 128, w, k, blocks, sums);
                }
            }
            from = from + 1 == stages ? 0 : from + 1;
            to = to + 1 == stages ? 0 : to + 1;
        }
        copy_async_wait<0>();
        float *t = a.t + int64_t{range} * a.t_rows * a.t_stride + first;
        if constexpr (Tall == 1) {
            __syncthreads(); // the stages have been read
            auto *all = reinterpret_cast<float(*)[16][kRanks]>(shared);
#pragma unroll
            for (int j = 0; j < kBlocks; ++j) {
                if (j >= blocks) break;
                const int column = 8 * j + lane % 4 * 2;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    *reinterpret_cast<float2 *>(&all[warp][lane / 4 + 8 * half][column]) =
                        make_float2(sums[j][2 * half], sums[j][2 * half + 1]);
                }
            }
            __syncthreads();
            for (int n = threadIdx.x; n < tile.count * 8 * blocks; n += kThreads) {
                const int row = n / (8 * blocks), column = n % (8 * blocks);
                float sum = 0;
#pragma unroll
                for (int w = 0; w < kWarps; ++w) sum += all[w][row][column];
                const int32_t own = row_at(a, tile.begin + row);
                if (own >= 0) t[int64_t{own} * a.t_stride + column] = sum;
            }
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int place = 16 * warp + lane / 4 + 8 * half;
                const int32_t own = place < tile.count ? row_at(a, tile.begin + place) : -1;
                if (own < 0) continue;
                float *row = t + int64_t{own} * a.t_stride;
#pragma unroll
                for (int j = 0; j < kBlocks; ++j) {
                    if (j >= blocks) break;
                    *reinterpret_cast<float2 *>(row + 8 * j + lane % 4 * 2) =
                        make_float2(sums[j][2 * half], sums[j][2 * half + 1]);
                }
            }
        }
    }
}

template <typename T, int Tall>
cudaError_t launch(const AdapterArguments &a, int sms, cudaStream_t stream) {
    const auto kernel = shrink_staged<T, Tall>;
    // Of short tiles the stages are also where the warps' sums are.
    constexpr int of_sums = Tall == 1 ? kWarps * 16 * kRanks * 4 : 0;
    const int shared =
        std::max(kStages<Tall> * stage_bytes<Tall>(std::min(a.most_ranks, kRanks)), of_sums);
    cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    int fit = 0;
    if (status == cudaSuccess) {
        status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, kThreads,
                                                               static_cast<size_t>(shared));
    }
    if (status != cudaSuccess) return status;
    const auto ctas = static_cast<unsigned>(sms * std::max(1, fit));
    kernel<<<ctas, kThreads, static_cast<size_t>(shared), stream>>>(a);
    return cudaGetLastError();
}

} // namespace

cudaError_t launch_shrink_staged(const AdapterArguments &a, int sms, cudaStream_t stream) {
    if (a.element == DType::bf16) {
        return a.work.tall ? launch<__nv_bfloat16, kTallTile / 16>(a, sms, stream)
                           : launch<__nv_bfloat16, kShortTile / 16>(a, sms, stream);
    }
    if (a.element != DType::f16) return cudaErrorInvalidValue;
    return a.work.tall ? launch<__half, kTallTile / 16>(a, sms, stream)
                       : launch<__half, kShortTile / 16>(a, sms, stream);
}

} // namespace batchllm::cuda
