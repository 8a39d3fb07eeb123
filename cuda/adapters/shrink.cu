// t = A x where x is in e4m3 with its scales, for sm_80 and later; and of f32, a plain kernel. An item of work is a tile of
// rows, a range of x's columns and up to 48 rows of A. Eight warps share the range, 32 columns in turn, and each has
// mma.sync's operands straight from memory: since a sum's order is free, a lane takes 8 columns that follow one another,
// where the instructions expect four times two. The warps' sums are added in their order.
#include <algorithm>

#include "adapters/shrink.h"
#include "adapters/tile.cuh"
#include "attention/mma.cuh"

#include <cuda_fp8.h>

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kBlocks = 6, kRanks = 8 * kBlocks; // of t's columns, of an item
constexpr int kStep = 32;                        // columns of x a warp takes at a time

template <typename T> __device__ __forceinline__ uint32_t narrowed(float2 v) {
    return pack(v.x, v.y, T());
}

// Eight elements of e4m3 with their scale, rounded to T.
template <typename T> __device__ __forceinline__ uint4 widened(uint2 bytes, float scale) {
    uint32_t out[4];
    const uint32_t words[2] = {bytes.x, bytes.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (i % 2 * 16));
        const __half2 half(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3));
        float2 v = __half22float2(half);
        v.x *= scale, v.y *= scale;
        out[i] = narrowed<T>(v);
    }
    return {out[0], out[1], out[2], out[3]};
}

// Tall: sixteens of rows of a tile.
template <typename T, int Tall> struct Shrink {
    const AdapterArguments &a;

    __device__ uint4 x_of(int32_t row, int32_t column) const {
        const auto *from = static_cast<const uint8_t *>(a.x) + int64_t{row} * a.columns;
        const int64_t scale =
            a.x_scaling == Scaling::blocks ? column / kScaleBlock * a.x_scale_stride + row : row;
        return widened<T>(__ldg(reinterpret_cast<const uint2 *>(from + column)),
                          __ldg(a.x_scales + scale));
    }

    // The warp's part of the sums of rows and of `blocks` eights of A's rows, over its columns of the range.
    __device__ void add(const T *of_a, const int32_t (&rows)[2 * Tall], int blocks, int32_t begin,
                        int32_t end, float (&sums)[Tall][kBlocks][4]) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const T *from = of_a + int64_t{lane / 4} * a.columns;
        for (int32_t k = begin + warp * kStep + lane % 4 * 8; k - lane % 4 * 8 < end;
             k += kWarps * kStep) {
            const bool inside = k < end;
            uint4 w[kBlocks], x[2 * Tall];
#pragma unroll
            for (int i = 0; i < kBlocks; ++i) {
                w[i] = {};
                if (i < blocks && inside) {
                    w[i] = __ldg(
                        reinterpret_cast<const uint4 *>(from + int64_t{8 * i} * a.columns + k));
                }
            }
#pragma unroll
            for (int i = 0; i < 2 * Tall; ++i) {
                x[i] = {};
                if (rows[i] >= 0 && inside) x[i] = x_of(rows[i], k);
            }
#pragma unroll
            for (int i = 0; i < Tall; ++i) {
                const uint4 &low = x[2 * i], &high = x[2 * i + 1];
                const uint32_t first[4] = {low.x, high.x, low.y, high.y};
                const uint32_t second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
                for (int j = 0; j < kBlocks; ++j) {
                    if (j >= blocks) break;
                    mma_sync(sums[i][j], first, w[j].x, w[j].y, T());
                    mma_sync(sums[i][j], second, w[j].z, w[j].w, T());
                }
            }
        }
    }

    // Adds the warps' sums up and writes them.
    __device__ void store(const AdapterTile &tile, int32_t range, int32_t first, int blocks,
                          const float (&sums)[Tall][kBlocks][4],
                          float (*shared)[16][kRanks]) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float *t = static_cast<float *>(a.t) + int64_t{range} * a.t_rows * a.t_stride + first;
#pragma unroll
        for (int i = 0; i < Tall; ++i) {
            if (16 * i >= tile.count) break;
            __syncthreads(); // what was there has been read
#pragma unroll
            for (int j = 0; j < kBlocks; ++j) {
                const int column = 8 * j + lane % 4 * 2;
                shared[warp][lane / 4][column] = sums[i][j][0];
                shared[warp][lane / 4][column + 1] = sums[i][j][1];
                shared[warp][lane / 4 + 8][column] = sums[i][j][2];
                shared[warp][lane / 4 + 8][column + 1] = sums[i][j][3];
            }
            __syncthreads();
            const int wide = 8 * blocks, rows = min(16, tile.count - 16 * i);
            for (int n = threadIdx.x; n < rows * wide; n += kThreads) {
                const int row = n / wide, column = n % wide;
                float sum = 0;
#pragma unroll
                for (int w = 0; w < kWarps; ++w) sum += shared[w][row][column];
                const int32_t own = row_at(a, tile.begin + 16 * i + row);
                if (own >= 0) t[int64_t{own} * a.t_stride + column] = sum;
            }
        }
    }
};

template <typename T, int Tall> __global__ void __launch_bounds__(kThreads, Tall == 1 ? 3 : 1)
    shrink(const __grid_constant__ AdapterArguments a) {
    __shared__ float shared[kWarps][16][kRanks];
    const int32_t ranges = adapter_ranges(a.columns);
    const int32_t chunks = (a.most_ranks + kRanks - 1) / kRanks;
    const int32_t total = __ldg(a.work.tile_count) * ranges * chunks;
    const int lane = threadIdx.x % 32;
    const Shrink<T, Tall> each{a};
    for (int32_t number = blockIdx.x; number < total; number += gridDim.x) {
        const AdapterTile tile = load_tile(a.work.tiles + number / (ranges * chunks));
        const int32_t range = number / chunks % ranges, first = number % chunks * kRanks;
        const AdapterEntry &entry = tile.entries[a.product];
        const int32_t left = __ldg(&entry.ranks) - first;
        if (left <= 0) continue;
        const int blocks = min(kBlocks, left / 8);
        int32_t rows[2 * Tall];
#pragma unroll
        for (int i = 0; i < 2 * Tall; ++i) {
            const int place = 8 * i + lane / 4;
            rows[i] = place < tile.count ? row_of_x(a, tile.begin + place) : -1;
        }
        const T *of_a = static_cast<const T *>(entry.a) + int64_t{first} * a.columns;
        const int32_t begin = range * kAdapterRange;
        float sums[Tall][kBlocks][4] = {};
        each.add(of_a, rows, blocks, begin, min(begin + kAdapterRange, a.columns), sums);
        each.store(tile, range, first, blocks, sums, shared);
    }
}

// f32: a warp has a sum. The lanes' columns are 32 apart.
__global__ void shrink_plain(const __grid_constant__ AdapterArguments a) {
    const int lane = threadIdx.x % 32;
    const int32_t ranges = adapter_ranges(a.columns);
    const int32_t tiles = __ldg(a.work.tile_count) * ranges;
    const int warps = static_cast<int>(blockDim.x) / 32, warp = threadIdx.x / 32;
    for (int32_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        const AdapterTile tile = load_tile(a.work.tiles + number / ranges);
        const AdapterEntry &entry = tile.entries[a.product];
        const int32_t range = number % ranges, begin = range * kAdapterRange;
        const int32_t end = min(begin + kAdapterRange, a.columns);
        for (int32_t n = warp; n < tile.count * entry.ranks; n += warps) {
            const int32_t place = tile.begin + n / entry.ranks, rank = n % entry.ranks;
            const int32_t row = row_at(a, place);
            if (row < 0) continue;
            const float *x =
                static_cast<const float *>(a.x) + int64_t{row_of_x(a, place)} * a.columns;
            const float *w = static_cast<const float *>(entry.a) + int64_t{rank} * a.columns;
            float sum = 0;
            for (int32_t k = begin + lane; k < end; k += 32) sum = fmaf(x[k], w[k], sum);
#pragma unroll
            for (int apart = 16; apart > 0; apart /= 2) {
                sum += __shfl_xor_sync(~0u, sum, apart);
            }
            if (lane != 0) continue;
            static_cast<float *>(a.t)[(int64_t{range} * a.t_rows + row) * a.t_stride + rank] = sum;
        }
    }
}

template <typename T, int Tall>
cudaError_t launch(const AdapterArguments &a, int sms, cudaStream_t stream) {
    const auto ctas = static_cast<unsigned>(sms * (Tall == 1 ? 3 : 1));
    shrink<T, Tall><<<ctas, kThreads, 0, stream>>>(a);
    return cudaGetLastError();
}
template <typename T>
cudaError_t launch_of(const AdapterArguments &a, int sms, cudaStream_t stream) {
    return a.work.tall ? launch<T, kTallTile / 16>(a, sms, stream)
                       : launch<T, kShortTile / 16>(a, sms, stream);
}

} // namespace

cudaError_t launch_adapter_shrink(const AdapterArguments &a, int sms, cudaStream_t stream) {
    if (a.columns % 8 != 0 || a.most_ranks % 8 != 0 || a.most_ranks > a.t_stride) {
        return cudaErrorInvalidValue;
    }
    if (a.element != DType::f32 && a.x_scaling == Scaling::none) {
        return launch_shrink_staged(a, sms, stream);
    }
    switch (a.element) {
    case DType::bf16:
        return launch_of<__nv_bfloat16>(a, sms, stream);
    case DType::f16:
        return launch_of<__half>(a, sms, stream);
    case DType::f32:
        if (a.x_scaling != Scaling::none) break;
        shrink_plain<<<static_cast<unsigned>(4 * sms), 256, 0, stream>>>(a);
        return cudaGetLastError();
    default:
        break;
    }
    return cudaErrorInvalidValue;
}

} // namespace batchllm::cuda
