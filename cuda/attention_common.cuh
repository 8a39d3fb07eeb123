// What the attention kernels of every device share: the queues of jobs, the online softmax of a tile
// of scores in mma's accumulator layout, masks, and the merge of partials by the item that arrives
// last.
#pragma once

#include "attention.h"
#include "mma.cuh"

#include <cmath>

namespace batchllm::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ int tiles(int keys, int per_tile) {
    return (keys + per_tile - 1) / per_tile;
}

// ---- Jobs -----------------------------------------------------------------------------------------

// Draws jobs from the queue that this CTA prefers, then from the other. The next stream job is drawn
// while the caller works on the last; matrix jobs are long, and one drawn early would be missed
// elsewhere.
struct JobSource {
    const AttentionArguments &a;
    int queue;
    int exhausted = 0;
    int ticket = -1; // -1: not drawn yet

    __device__ int take() { // -1: both are empty
        const int matrix_jobs = a.matrix_items * a.kv_heads;
        while (true) {
            if (ticket < 0) ticket = atomicAdd(&a.queues[queue], 1);
            if (ticket < (queue == 0 ? matrix_jobs : a.stream_items * a.kv_heads)) break;
            exhausted |= 1 << queue;
            if (exhausted == 3) return -1;
            queue ^= 1;
            ticket = -1;
        }
        const int job = queue == 0 ? ticket : matrix_jobs + ticket;
        ticket = queue == 0 ? -1 : atomicAdd(&a.queues[1], 1);
        return job;
    }
};

// Once by each CTA that found the queues empty: the last resets them for the next launch.
__device__ __forceinline__ void leave_queues(const AttentionArguments &a) {
    if (atomicAdd(&a.queues[2], 1) != static_cast<int>(gridDim.x) - 1) return;
    a.queues[0] = 0;
    a.queues[1] = 0;
    a.queues[2] = 0;
}

// ---- A tile of scores -----------------------------------------------------------------------------

// A query row as its thread sees it.
struct Row {
    int token = 0, slot = -1, head = 0, position = 0;
    bool valid = false;
};

__device__ __forceinline__ Row read_row(const AttentionArguments &a, const AttentionItem &item,
                                        int kv_head, int ratio, int r) {
    Row row;
    const int index = r / ratio;
    if (index < item.row_count) {
        const AttentionRow entry = a.rows[item.row_begin + index];
        row.token = entry.token;
        row.slot = entry.slot;
        row.head = kv_head * ratio + r % ratio;
        row.position = entry.position;
        row.valid = true;
    }
    return row;
}

// Online softmax of one tile of scores: s holds row 0 at 4 j, 4 j + 1 and row 1 at 4 j + 2, 4 j + 3.
// A maximum is left as it is while the scores are at most `slack` above it: the factor is then 1.
template <int Count> __device__ __forceinline__ void softmax(float (&s)[Count], float (&maximum)[2],
                                                             float (&sum)[2], float (&factor)[2],
                                                             float c, float slack = 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float top = maximum[i];
#pragma unroll
        for (int j = 0; j < Count / 4; ++j) {
            top = fmaxf(top, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        if (top - maximum[i] <= slack) top = maximum[i];
        const float base = top == -INFINITY ? 0.f : top * c;
        factor[i] = exp2_approximate(maximum[i] * c - base);
        maximum[i] = top;
        float total = 0;
#pragma unroll
        for (int j = 0; j < Count / 4; ++j) {
            s[4 * j + 2 * i] = exp2_approximate(s[4 * j + 2 * i] * c - base);
            s[4 * j + 2 * i + 1] = exp2_approximate(s[4 * j + 2 * i + 1] * c - base);
            total += s[4 * j + 2 * i] + s[4 * j + 2 * i + 1];
        }
        sum[i] = sum[i] * factor[i] + total;
    }
}

// Scores of keys that the row must not see become -inf. key: index in the stretch of s[0]'s column.
template <int Count> __device__ __forceinline__ void
mask(float (&s)[Count], const Row (&row)[2], const KeyStretch &stretch, int key, int window) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        // Visible keys of the stretch: [low, high).
        const int high = min(stretch.keys, row[i].position - stretch.start + 1);
        const int low = window > 0 ? row[i].position - window + 1 - stretch.start : 0;
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

template <typename T> __device__ __forceinline__ void write_pair(const AttentionArguments &a,
                                                                 const Row &row, int head_dim,
                                                                 int column, float x, float y) {
    if (row.slot < 0) {
        auto *out =
            static_cast<T *>(a.out) + row.token * a.out_stride + row.head * head_dim + column;
        *reinterpret_cast<uint32_t *>(out) = pack(x, y, T());
    } else {
        float *out = a.partial_out +
                     (static_cast<int64_t>(row.slot) * a.heads + row.head) * head_dim + column;
        *reinterpret_cast<float2 *>(out) = make_float2(x, y);
    }
}

// A warp merges the partials of one token's head, in slot order.
template <int HeadDim, typename T>
__device__ void merge_row(const AttentionArguments &a, int token, int head, int lane) {
    constexpr int kEach = HeadDim / 32;
    const PartialRange range = a.partials[token];
    const int64_t first = static_cast<int64_t>(range.begin) * a.heads + head;
    float top = -INFINITY, total = 0, o[kEach] = {};
    for (int base = 0; base < range.count; base += 4) {
        // Loads of four partials are in flight at once.
        float lse[4], part[4][kEach];
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            const int64_t index =
                first + static_cast<int64_t>(min(base + p, range.count - 1)) * a.heads;
            lse[p] = base + p < range.count ? __ldcg(a.partial_lse + index) : -INFINITY;
            const float *from = a.partial_out + index * HeadDim + lane * kEach;
#pragma unroll
            for (int e = 0; e < kEach; e += 2) {
                const float2 pair = __ldcg(reinterpret_cast<const float2 *>(from + e));
                part[p][e] = pair.x;
                part[p][e + 1] = pair.y;
            }
        }
        const float higher = fmaxf(fmaxf(fmaxf(lse[0], lse[1]), fmaxf(lse[2], lse[3])), top);
        if (higher == -INFINITY) continue;
        const float old = exp2_approximate(top - higher);
        top = higher;
        total *= old;
#pragma unroll
        for (int e = 0; e < kEach; ++e) o[e] *= old;
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            const float weight = exp2_approximate(lse[p] - top);
            total += weight;
#pragma unroll
            for (int e = 0; e < kEach; ++e) o[e] += weight * part[p][e];
        }
    }
    const float scale = total > 0 ? 1.f / total : 0.f;
    auto *out = static_cast<T *>(a.out) + token * a.out_stride + head * HeadDim + lane * kEach;
#pragma unroll
    for (int e = 0; e < kEach; e += 2) {
        *reinterpret_cast<uint32_t *>(out + e) = pack(o[e] * scale, o[e + 1] * scale, T());
    }
}

// True when this was the token's last partial; the count is left zero for the next launch.
__device__ __forceinline__ bool last_partial(const AttentionArguments &a, int token, int kv_head) {
    int *arrivals = a.arrivals + static_cast<int64_t>(token) * a.kv_heads + kv_head;
    if (atomicAdd(arrivals, 1) != a.partials[token].count - 1) return false;
    *arrivals = 0;
    return true;
}

} // namespace batchllm::cuda
