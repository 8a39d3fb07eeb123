// Shared by the attention kernels of all devices: the online softmax of a tile of scores in mma's
// accumulator layout, masks, and the destination of a row's result.
#pragma once

#include <cmath>

#include "attention/attention.h"
#include "attention/mma.cuh"

namespace batchllm::cuda {

__device__ __forceinline__ int tiles(int keys, int per_tile) {
    return (keys + per_tile - 1) / per_tile;
}

// Online softmax of one tile of scores: s holds row 0 at 4 j, 4 j + 1 and row 1 at 4 j + 2, 4 j + 3.
// True if the sums so far must be multiplied by factor: the maximum that is subtracted from scores
// follows their true maximum in steps of at least 8 (in base 2), so that most tiles need no
// rescaling. It does so for all of a warp's rows at once, or with by_row for each row that needs
// it.
template <int Count, int kChains = (Count / 4 < 4 ? Count / 4 : 4)>
__device__ __forceinline__ bool softmax(float (&s)[Count], float (&maximum)[2], float (&sum)[2],
                                        float (&factor)[2], float c, bool by_row = false) {
    // Several chains at once, if registers allow: with a single chain, each step would wait for the
    // previous one.
    float top[2][kChains], base[2], total[2][2 * kChains] = {};
#pragma unroll
    for (int j = 0; j < Count / 4; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float pair = fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]);
            top[i][j % kChains] = fmaxf(j < kChains ? maximum[i] : top[i][j % kChains], pair);
        }
    }
#pragma unroll
    for (int n = 1; n < kChains; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) top[i][0] = fmaxf(top[i][0], top[i][n]);
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            top[i][0] = fmaxf(top[i][0], __shfl_xor_sync(~0u, top[i][0], offset));
        }
    }
    const bool grow = __any_sync(~0u, (top[0][0] - maximum[0]) * c > 8 || //
                                          (top[1][0] - maximum[1]) * c > 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const bool raised = by_row ? (top[i][0] - maximum[i]) * c > 8 : grow;
        if (!raised) top[i][0] = maximum[i];
        base[i] = top[i][0] == -INFINITY ? 0.f : top[i][0] * c;
        factor[i] = raised ? exp2_approximate(maximum[i] * c - base[i]) : 1.f;
        maximum[i] = top[i][0];
    }
#pragma unroll
    for (int j = 0; j < Count / 4; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float &p = s[4 * j + 2 * i + e];
                p = exp2_approximate(p * c - base[i]);
                total[i][j % kChains * 2 + e] += p;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float all = 0;
#pragma unroll
        for (int n = 0; n < 2 * kChains; ++n) all += total[i][n];
        sum[i] = sum[i] * factor[i] + all;
    }
    return grow;
}

// Scores of keys that the row must not see become -inf. key: index in the stretch of the key of
// s[0]'s column.
template <int Count> __device__ __forceinline__ void
mask(float (&s)[Count], const int (&position)[2], const KeyStretch &stretch, int key, int window) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        // Visible keys of the stretch: [low, high).
        const int high = min(stretch.keys, position[i] - stretch.start + 1);
        const int low = window > 0 ? position[i] - window + 1 - stretch.start : 0;
#pragma unroll
        for (int j = 0; j < Count / 4; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int k = key + j * 8 + e;
                if (k >= high || k < low) s[4 * j + 2 * i + e] = -INFINITY;
            }
        }
    }
}

// How a launch turns scores into logits. Launches with a softcap or with sinks have separate
// kernels (Special), so that the other kernels contain nothing of either.
template <bool Special> struct Logits {
    float c; // factor from a score to a logit in base 2
    // key_factor: the scale of the KV head's keys.
    __device__ __forceinline__ explicit Logits(const AttentionArguments &a, float key_factor = 1)
        : c(a.scale * kLog2e * key_factor) {}
    // Turns scores into what c is multiplied by.
    template <int Count> __device__ __forceinline__ void cap(float (&)[Count]) const {}
    // A row's sum relative to `maximum`, with the head's sink if the row is written to the output.
    // The merge adds the sink to a row of partials, so that it counts once.
    __device__ __forceinline__ float with_sink(float sum, float, int, int) const { return sum; }
};

template <> struct Logits<true> {
    float c;
    float inner = 0; // factor from a score to twice tanh's argument, in base 2; 0: no cap
    const float *sinks;
    __device__ __forceinline__ explicit Logits(const AttentionArguments &a, float key_factor = 1)
        : c(a.scale * kLog2e * key_factor), sinks(a.sinks) {
        if (a.softcap > 0) {
            inner = 2 * c / a.softcap;
            c = a.softcap * kLog2e;
        }
    }
    // tanh x = 1 - 2 / (1 + 2^(2 x log2 e)), accurate to 5e-7 for any x: tanh.approx is wrong by up
    // to 2^-11, which with a cap of 50 is 0.02 of a logit.
    template <int Count> __device__ __forceinline__ void cap(float (&s)[Count]) const {
        if (inner == 0) return;
#pragma unroll
        for (int i = 0; i < Count; ++i) {
            s[i] = fmaf(-2, reciprocal_approximate(1 + exp2_approximate(s[i] * inner)), 1);
        }
    }
    __device__ __forceinline__ float with_sink(float sum, float maximum, int slot, int head) const {
        if (sinks == nullptr || slot >= 0) return sum;
        return sum + exp2_approximate(__ldg(sinks + head) * kLog2e - maximum);
    }
};

// Which of the current keys some query of an item must not see.
struct Bounds {
    int first, last; // positions that every query sees
    __device__ Bounds(const AttentionItem &item, int window)
        : first(window > 0 ? item.max_position - window + 1 : 0), last(item.min_position) {}
    // Whether keys [key, key + count) of the stretch need a mask.
    __device__ bool hide(const KeyStretch &stretch, int key, int count) const {
        return key + count > stretch.keys || stretch.start + key + count - 1 > last ||
               stretch.start + key < first;
    }
};

// Where a query row's result goes: to the output, or to its partial.
template <typename T> struct Destination {
    char *at;
    bool partial;
    __device__ Destination(const AttentionArguments &a, int token, int slot, int head, int head_dim)
        : partial(slot >= 0) {
        at = partial ? reinterpret_cast<char *>(
                           a.partial_out + (static_cast<int64_t>(slot) * a.heads + head) * head_dim)
                     : reinterpret_cast<char *>(static_cast<T *>(a.out) + token * a.out_stride +
                                                head * head_dim);
    }
    // Writes two neighbouring columns.
    __device__ __forceinline__ void write(int column, float x, float y) const {
        if (partial) {
            *reinterpret_cast<float2 *>(at + column * 4) = make_float2(x, y);
        } else {
            *reinterpret_cast<uint32_t *>(at + column * 2) = pack(x, y, T());
        }
    }
};
__device__ __forceinline__ void write_lse(const AttentionArguments &a, int slot, int head,
                                          float maximum, float sum) {
    if (slot < 0) return;
    a.partial_lse[static_cast<int64_t>(slot) * a.heads + head] =
        sum > 0 ? maximum + log2f(sum) : -INFINITY;
}

} // namespace batchllm::cuda
