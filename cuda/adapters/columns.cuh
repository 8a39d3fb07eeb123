// Columns of y: which of them an item of work has, where they are in a row, and eight neighbours in a lane's registers.
#pragma once

#include "adapters/adapters.h"
#include "attention/mma.cuh"

namespace batchllm::cuda {

// Where an item's slice of y is. The parts' slices are numbered one after another.
struct Slice {
    int32_t part, begin, end; // columns of y

    __device__ Slice(const AdapterArguments &a, int32_t wide, int32_t number) : part(0) {
        for (; part + 1 < a.parts; ++part) {
            const int32_t of_part = (a.first[part + 1] - a.first[part] + wide - 1) / wide;
            if (number < of_part) break;
            number -= of_part;
        }
        begin = a.first[part] + number * wide;
        end = min(begin + wide, a.first[part + 1]);
    }
};

// Where the 8 columns of y from `column` on are in a row, and those so many further; columns count as if parts followed one
// another.
__device__ __forceinline__ int32_t place_of(const AdapterArguments &a, int32_t part,
                                            int32_t column) {
    return a.turns ? 2 * (column - a.first[part]) + part * kPartTurn : column;
}
__device__ __forceinline__ int32_t further(const AdapterArguments &a, int32_t columns) {
    return a.turns ? 2 * columns : columns;
}

// Eight columns of y: of two bytes each, or of four.
template <typename Y> struct Eight {
    static constexpr int kWords = sizeof(Y) / 2;
    uint4 words[kWords];

    __device__ __forceinline__ void load(const Y *from) {
#pragma unroll
        for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const uint4 *>(from)[i];
    }
    // sums[j]: of columns 2 j and 2 j + 1; scaled before they are added.
    __device__ __forceinline__ void add(const float *const (&sums)[4], float alpha) {
        uint32_t *at = &words[0].x;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if constexpr (sizeof(Y) == 4) {
                at[2 * j] = __float_as_uint(fmaf(alpha, sums[j][0], __uint_as_float(at[2 * j])));
                at[2 * j + 1] =
                    __float_as_uint(fmaf(alpha, sums[j][1], __uint_as_float(at[2 * j + 1])));
            } else {
                const float2 v = unpack(at[j], Y());
                at[j] = pack(fmaf(alpha, sums[j][0], v.x), fmaf(alpha, sums[j][1], v.y), Y());
            }
        }
    }
    __device__ __forceinline__ void store(Y *to) const {
#pragma unroll
        for (int i = 0; i < kWords; ++i) reinterpret_cast<uint4 *>(to)[i] = words[i];
    }
};

} // namespace batchllm::cuda
