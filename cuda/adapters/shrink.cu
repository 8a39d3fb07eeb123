// t = A x: of 16 bits by the launches of few.cu and shrink_staged.cu; of f32 by a plain kernel.
#include "adapters/few.h"
#include "adapters/shrink.h"
#include "adapters/tile.cuh"

namespace batchllm::cuda {
namespace {

// A warp has a sum. The lanes' columns are 32 apart.
__global__ void shrink_plain(const __grid_constant__ AdapterArguments a) {
    const int lane = threadIdx.x % 32;
    const int32_t ranges = a.ranges();
    const int32_t tiles = __ldg(a.work.tile_count) * ranges;
    const int warps = static_cast<int>(blockDim.x) / 32, warp = threadIdx.x / 32;
    for (int32_t number = blockIdx.x; number < tiles; number += gridDim.x) {
        const AdapterTile tile = load_tile(tiles_after_few(a.work) + number / ranges);
        const AdapterEntry &entry = tile.entries[a.product];
        const int32_t range = number % ranges, begin = range * a.range;
        const int32_t end = min(begin + a.range, a.columns);
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

} // namespace

cudaError_t launch_adapter_shrink(const AdapterArguments &a, int sms, cudaStream_t stream) {
    // 16 bytes of x and A at a time, and of blocks whole ones.
    const int32_t whole = a.x_scales == nullptr   ? 8
                          : a.x_group_stride != 0 ? int32_t{kScaleBlock}
                                                  : 16;
    if (a.columns % whole != 0 || a.most_ranks % 8 != 0 || a.most_ranks > a.t_stride) {
        return cudaErrorInvalidValue;
    }
    if (a.work.has_few) {
        const cudaError_t status = launch_shrink_few(a, sms, stream);
        if (status != cudaSuccess || !a.work.has_others) return status;
    }
    if (a.element != DType::f32) return launch_shrink_staged(a, sms, stream);
    if (a.x_scales != nullptr) return cudaErrorInvalidValue;
    shrink_plain<<<static_cast<unsigned>(4 * sms), 256, 0, stream>>>(a);
    return cudaGetLastError();
}

} // namespace batchllm::cuda
