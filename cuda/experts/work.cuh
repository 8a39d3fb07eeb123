// What the grouped products share: which turns and rows of W a CTA computes next, and the epilogue's arithmetic.
#pragma once

#include "attention/mma.cuh"
#include "elementwise/activation.cuh"
#include "experts/grouped.h"

namespace batchllm::cuda {

// A tile of turns against a tile of the rows of W.
struct GroupedWork {
    int32_t expert, begin, count; // turns
    int32_t column;               // the first row of W: a column of the product
    int32_t tile;                 // its number
};

// An expert's tiles have so many turns as make them equal, by Steps. Of one of them: -> its first turn, and how many it has.
template <int Steps>
__device__ __forceinline__ int2 turns_of_tile(int32_t begin, int32_t end, int32_t place) {
    const int32_t turns = end - begin, tiles = (turns + kTileRows - 1) / kTileRows;
    const int32_t size = ((turns + tiles - 1) / tiles + Steps - 1) / Steps * Steps;
    const int32_t first = begin + place * size;
    return {first, min(size, end - first)};
}

// CTAs take every gridDim.x-th. Tiles that read the same part of W are next to each other.
// Steps: turns_of_tile()'s; kTileRows: all of an expert's tiles but the last are full.
template <int Columns, int Steps = kTileRows> struct GroupedQueue {
    const ExpertTile *tiles;
    int32_t across, total;

    __device__ explicit GroupedQueue(const GroupedArguments &a)
        : tiles(a.tiles), across((a.rows + Columns - 1) / Columns),
          total(__ldg(a.tile_count) * across) {}

    // Of a number below total; others have nothing.
    __device__ int4 load(int32_t number) const {
        if (number >= total) return {};
        return __ldg(reinterpret_cast<const int4 *>(tiles + number / across));
    }
    // Of what load() gave.
    __device__ GroupedWork at(int32_t number, const int4 &t) const {
        const int32_t of_expert = (t.z - t.y + kTileRows - 1) / kTileRows;
        const int32_t place = number - t.w * across;
        const int2 turns = turns_of_tile<Steps>(t.y, t.z, place % of_expert);
        return {t.x, turns.x, turns.y, place / of_expert * Columns, t.w + place % of_expert};
    }
    __device__ GroupedWork at(int32_t number) const { return at(number, load(number)); }
};

// As quickly_activated: what follows rounds to two bytes.
template <Activation Kind> __device__ __forceinline__ float quickly_gated(float gate, float up) {
    if constexpr (Kind == Activation::clamped_swiglu) {
        const float g = gate > 7.0f ? 7.0f : gate;
        const float u = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
        // 1.702 log2(e)
        return g * reciprocal_approximate(1.0f + exp2_approximate(-2.45546696f * g)) * (u + 1.0f);
    } else if constexpr (Kind == Activation::gelu_tanh) {
        // (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z)); the factor is -2 sqrt(2 / pi) log2(e).
        const float z = -2.3022082f * (gate + 0.044715f * gate * gate * gate);
        return gate * reciprocal_approximate(1.0f + exp2_approximate(z)) * up;
    } else {
        return quickly_activated<Kind>(gate) * up;
    }
}

// Of a sum that is not gated.
template <bool Squared> __device__ __forceinline__ float ungated(float sum) {
    return Squared ? activated<Activation::relu_squared>(sum) : sum;
}

__device__ __forceinline__ float gated(Activation kind, float gate, float up) {
    switch (kind) {
    case Activation::silu:
        return gated<Activation::silu>(gate, up);
    case Activation::gelu:
        return gated<Activation::gelu>(gate, up);
    case Activation::gelu_tanh:
        return gated<Activation::gelu_tanh>(gate, up);
    default:
        return gated<Activation::clamped_swiglu>(gate, up);
    }
}

} // namespace batchllm::cuda
