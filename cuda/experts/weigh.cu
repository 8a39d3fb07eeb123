// Bound by memory: reads a token's row for each of its turns, and writes the turn's. A block is a turn.
#include "experts/weigh.h"

#include <algorithm>

#include "elementwise/element.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kMostThreads = 512;

template <typename T> __global__ void __launch_bounds__(kMostThreads)
    weigh(const __grid_constant__ WeighArguments a) {
    const int64_t pair = blockIdx.x, token = pair / a.chosen, turn = a.turn_of[pair];
    const float weight = a.weights[pair];
    const int first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
    if (a.x != nullptr) {
        const T *from = static_cast<const T *>(a.x) + token * a.hidden;
        T *to = static_cast<T *>(a.out) + turn * a.hidden;
        for (int i = first * 8; i < a.hidden; i += step * 8) {
            float x[8];
            load8(from + i, x);
#pragma unroll
            for (int k = 0; k < 8; ++k) x[k] *= weight;
            store8(to + i, x);
        }
    }
    if (a.bytes != nullptr) {
        const auto *from = static_cast<const uint4 *>(a.bytes) + token * (a.hidden / 16);
        auto *to = static_cast<uint4 *>(a.bytes_out) + turn * (a.hidden / 16);
        for (int i = first; i < a.hidden / 16; i += step) to[i] = from[i];
        for (int i = first; i < a.groups; i += step) {
            a.scales_out[turn * a.groups + i] = weight * a.scales[token * a.groups + i];
        }
    }
    __syncthreads(); // all have read the weight
    if (threadIdx.x == 0) a.weights[pair] = 1;
}

} // namespace

cudaError_t launch_weigh(const WeighArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    if (a.hidden % (a.bytes != nullptr ? 16 : 8) != 0) return cudaErrorInvalidValue;
    const auto blocks = static_cast<unsigned>(a.tokens) * static_cast<unsigned>(a.chosen);
    const int threads = std::min(kMostThreads, (a.hidden / 8 + 31) / 32 * 32);
    return with_type(a.element, [&](auto t) {
        weigh<decltype(t)><<<blocks, threads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
