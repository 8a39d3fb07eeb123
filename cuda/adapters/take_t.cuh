// t of a tile -> shared memory, from which mma.sync's operands are read.
#pragma once

#include "adapters/adapters.h"
#include "attention/mma.cuh"

namespace batchllm::cuda {

// Elements from a row of t in shared memory to the next: quarter-warps that load operands then have banks of their own.
constexpr int32_t stride_of(int32_t rank) {
    const int32_t whole = (rank + 15) / 16 * 16;
    return whole % 32 == 0 ? whole + 16 : whole;
}

// By all threads of a CTA: the part's columns of t of `tall` sixteens of rows, scaled -> shared memory, [16 tall, stride] of T.
// rows: [16 tall]; those that are not there (-1) are zeros, as are columns beyond the rank. ranges: that t has sums of.
template <typename T> __device__ void take_t(const AdapterArguments &a, const AdapterPart &part,
                                             const int32_t *rows, int tall, int32_t ranges, T *to) {
    const int32_t stride = stride_of(part.rank), threads = static_cast<int32_t>(blockDim.x);
    const int32_t wide = (part.rank + 15) / 16 * 4; // fours of columns
    for (int n = threadIdx.x; n < 16 * tall * wide; n += threads) {
        const int32_t row = n / wide, column = n % wide * 4;
        uint2 narrow{};
        if (rows[row] >= 0 && column < part.rank) {
            const int64_t at = int64_t{rows[row]} * a.t_stride + part.first + column;
            if (a.whole) {
                narrow = *reinterpret_cast<const uint2 *>(static_cast<const T *>(a.t) + at);
            } else {
                float4 sum{};
                const float *from = static_cast<const float *>(a.t) + at;
                for (int32_t r = 0; r < ranges; ++r, from += int64_t{a.t_rows} * a.t_stride) {
                    const float4 v = *reinterpret_cast<const float4 *>(from);
                    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
                }
                narrow = {pack(part.scale * sum.x, part.scale * sum.y, T()),
                          pack(part.scale * sum.z, part.scale * sum.w, T())};
            }
        }
        *reinterpret_cast<uint2 *>(to + row * stride + column) = narrow;
    }
}

} // namespace batchllm::cuda
