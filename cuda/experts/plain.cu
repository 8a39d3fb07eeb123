// The grouped products in f32, for checks: a CTA computes 64 x 64 at a time, a thread 4 x 4 of it, its columns two
// of each half of a group of 16, so that it holds gate and up of the same.
#include <algorithm>

#include "experts/work.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kSide = 64, kDepth = 16, kThreads = 256;

struct Tiles {
    float x[kDepth][kSide + 4], w[kDepth][kSide + 4];
};

// The tile's elements of columns [k, k + kDepth) to shared memory; zero beyond the ends.
__device__ void load(const GroupedArguments &a, const GroupedWork &work, int row, int k,
                     Tiles *to) {
    const float *w = static_cast<const float *>(a.w) + int64_t{work.expert} * a.rows * a.columns;
    for (int i = threadIdx.x; i < kSide * kDepth; i += kThreads) {
        const int r = i / kDepth, c = i % kDepth;
        const bool inside = k + c < a.columns;
        float value = 0;
        if (inside && row + r < work.count) {
            const int turn = work.begin + row + r;
            const int64_t from = a.row_of != nullptr ? a.row_of[turn] : turn;
            value = static_cast<const float *>(a.x)[from * a.columns + k + c];
        }
        to->x[c][r] = value;
        const int column = work.column + r;
        to->w[c][r] = inside && column < a.rows ? w[int64_t{column} * a.columns + k + c] : 0.0f;
    }
}

// column: the first of sum's, which has two, and those eight further.
__device__ void add_bias(const GroupedArguments &a, const GroupedWork &work, int column,
                         float (&sum)[4]) {
    for (int i = 0; i < 4; ++i) {
        const int row = column + i % 2 + i / 2 * 8; // of W
        if (row < a.rows) sum[i] += a.bias[int64_t{work.expert} * a.rows + row];
    }
}

template <bool Squared> __device__ void store(const GroupedArguments &a, const GroupedWork &work,
                                              int row, int column, const float (&sum)[4]) {
    if (row >= work.count) return;
    const int64_t turn = work.begin + row;
    auto *y = static_cast<float *>(a.y);
    for (int i = 0; i < 2; ++i) {
        if (a.gated) {
            if (column + kGateRows >= a.rows) return;
            y[turn * (a.rows / 2) + column / 16 * 8 + column % 8 + i] =
                gated(a.activation, sum[i], sum[2 + i]);
        } else {
            if (column < a.rows) y[turn * a.rows + column + i] = ungated<Squared>(sum[i]);
            if (column + 8 < a.rows) {
                y[turn * a.rows + column + 8 + i] = ungated<Squared>(sum[2 + i]);
            }
        }
    }
}

template <bool Squared> __global__ void __launch_bounds__(kThreads)
    grouped(const __grid_constant__ GroupedArguments a) {
    __shared__ Tiles tiles;
    const GroupedQueue<kSide> queue(a);
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const int own = tx / 4 * 16 + tx % 4 * 2; // its first column, of own + {0, 1, 8, 9}
    for (int number = blockIdx.x; number < queue.total; number += gridDim.x) {
        const GroupedWork work = queue.at(number);
        for (int row = 0; row < work.count; row += kSide) {
            float sums[4][4] = {};
            for (int k = 0; k < a.columns; k += kDepth) {
                __syncthreads();
                load(a, work, row, k, &tiles);
                __syncthreads();
                for (int c = 0; c < kDepth; ++c) {
                    const float w[] = {tiles.w[c][own], tiles.w[c][own + 1], tiles.w[c][own + 8],
                                       tiles.w[c][own + 9]};
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
#pragma unroll
                        for (int j = 0; j < 4; ++j) sums[i][j] += tiles.x[c][ty * 4 + i] * w[j];
                    }
                }
            }
            for (int i = 0; i < 4; ++i) {
                if (a.bias != nullptr) add_bias(a, work, work.column + own, sums[i]);
                store<Squared>(a, work, row + ty * 4 + i, work.column + own, sums[i]);
            }
        }
    }
}

} // namespace

cudaError_t launch_grouped_f32(const GroupedArguments &a, int sms, cudaStream_t stream) {
    const auto kernel = squares(a) ? grouped<true> : grouped<false>;
    kernel<<<static_cast<unsigned>(4 * sms), kThreads, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_grouped(GroupedKernel kernel, const GroupedArguments &a, int sms,
                           cudaStream_t stream) {
    const bool adds = kernel == GroupedKernel::sm90 && a.element != DType::f32;
    if (a.adapters.tiles != nullptr && !adds) return cudaErrorInvalidValue;
    if (a.element == DType::f32) return launch_grouped_f32(a, sms, stream);
    if (a.element == DType::e4m3) {
        return kernel == GroupedKernel::sm90 ? launch_grouped_e4m3(a, sms, stream)
                                             : cudaErrorInvalidValue;
    }
    return kernel == GroupedKernel::sm90 ? launch_grouped_sm90(a, sms, stream)
                                         : launch_grouped_sm80(a, sms, stream);
}

} // namespace batchllm::cuda
