// Fused attention, sm_90a: what all jobs of the matrix queue share: rows, tiles of keys, and the
// products on wgmma.
#pragma once

#include "attention/sm90_merge.cuh"

namespace batchllm::cuda::sm90 {

// The state that a consumer thread keeps from job to job.
template <int HeadDim> struct Consumer {
    Ratio ratio;
    Ring<Shape<HeadDim>::kSlots> ring;
    Ring<Shape<HeadDim>::kQueries> queries;
    uint32_t region_phase = 0; // jobs that have used the region, modulo 2
    bool after_wide = false;   // whether the last of them was wide
    int next_alone = 0;        // the warpgroup that does the next single-warpgroup job
    bool apart = false;        // the other warpgroup may still be doing a job alone

    // Before a job for both warpgroups: waits until neither is doing a job alone.
    __device__ __forceinline__ void meet() {
        if (apart) named_barrier(kAllConsumers, kConsumers);
        apart = false;
    }
};

// A query row as its thread sees it.
struct Row {
    int token = 0, slot = -1, head = 0, position = 0;
    bool valid = false;
};

__device__ __forceinline__ Row read_row(const Job &job, const Ratio &ratio, int r) {
    Row row;
    const int index = ratio.token(r);
    if (index < job.item.row_count) {
        row.token = job.token[index];
        row.slot = job.slot[index];
        row.head = job.kv_head * ratio.ratio + ratio.head(r);
        row.position = job.position[index];
        row.valid = true;
    }
    return row;
}

// For a thread's two rows of mma's accumulators: `first` and `first` + 8.
__device__ __forceinline__ void read_positions(const Job &job, const Ratio &ratio, int first,
                                               int (&position)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) position[i] = read_row(job, ratio, first + 8 * i).position;
}

// A tile of a job's keys, in either stretch.
struct Tile {
    KeyStretch stretch;
    int key; // its first key, in the stretch
    __device__ Tile(const KeyStretch &s0, const KeyStretch &s1, int n0, int tile, int keys)
        : stretch{0, tile < n0 ? s0.keys : s1.keys, tile < n0 ? s0.start : s1.start},
          key((tile < n0 ? tile : tile - n0) * keys) {}
};

// Masks scores of a tile's keys that a row must not see.
template <int Keys, int Count>
__device__ __forceinline__ void hide_keys(const Tile &at, const Bounds &bounds,
                                          const int (&position)[2], int lane, int window,
                                          float (&s)[Count]) {
    if (bounds.hide(at.stretch, at.key, Keys)) {
        mask(s, position, at.stretch, at.key + lane % 4 * 2, window);
    }
}

// How many tiles a job has, and where they end. The same in every lane, in a form that the compiler
// can see: it serialises wgmma in a loop that may diverge (C7520).
template <int Keys> struct Tiles {
    int n0, n; // of the first stretch, of both
    __device__ __forceinline__ Tiles(const KeyStretch &s0, const KeyStretch &s1)
        : n0(__shfl_sync(~0u, tiles(s0.keys, Keys), 0)),
          n(n0 + __shfl_sync(~0u, tiles(s1.keys, Keys), 0)) {}
    __device__ __forceinline__ int last_keys(const KeyStretch &s0, const KeyStretch &s1) const {
        return __shfl_sync(~0u, n > n0 ? s1.keys - (n - n0 - 1) * Keys : s0.keys - (n - 1) * Keys,
                           0);
    }
};

// The ring of slots, as used by a consumer thread of a matrix job.
template <int HeadDim> struct Slots {
    using S = Shape<HeadDim>;
    using Place = Ring<S::kSlots>;
    uint32_t first; // address of the first slot
    Rest *rest;
    int lane;

    __device__ __forceinline__ uint32_t address(const Place &at) const {
        return first + at.slot * S::kSlotBytes;
    }
    __device__ __forceinline__ bool full(const Place &at) const {
        return barrier_test(shared_address(&rest->full[0][at.slot]), at.phase);
    }
    __device__ __forceinline__ void wait(const Place &at) const {
        barrier_wait(shared_address(&rest->full[0][at.slot]), at.phase);
    }
    __device__ __forceinline__ void release(const Place &at) const {
        if (lane == 0) barrier_arrive(shared_address(&rest->empty[at.slot]));
    }
};

// Clears rows [from, count) of a block of `rows` rows of V: values past the stretch's end are stale
// data of the page, and 0 x NaN would poison O. wgmma may read the block after a barrier of these
// threads.
template <int Halves> __device__ __forceinline__ void
clear_rows(unsigned char *values, int rows, int from, int count, int thread, int threads) {
    constexpr int kChunks = 8 * Halves; // per row
    for (int i = from * kChunks + thread; i < count * kChunks; i += threads) {
        const int row = i / kChunks, chunk = i % kChunks;
        *reinterpret_cast<uint4 *>(values + chunk / 8 * rows * 128 + row * 128 + chunk % 8 * 16) =
            make_uint4(0, 0, 0, 0);
    }
    async_proxy_fence();
}

// 64 query rows, from row `first` of the job, handled by `Threads` threads: read, and stored in
// shared memory as [half][64 rows][64], swizzled like the keys.
template <int HeadDim, typename T, int Threads, int Count>
__device__ __forceinline__ void read_queries(const AttentionArguments &a, const Job &job,
                                             const Ratio &ratio, int first, int thread,
                                             uint4 (&value)[Count]) {
    static_assert(Count == 64 * HeadDim / 8 / Threads); // chunks of 16 bytes
#pragma unroll
    for (int i = 0; i < Count; ++i) {
        const int at = i * Threads + thread;
        const int r = first + at / (HeadDim / 8), chunk = at % (HeadDim / 8);
        value[i] = make_uint4(0, 0, 0, 0);
        if (ratio.token(r) < job.item.row_count) {
            value[i] = __ldg(reinterpret_cast<const uint4 *>(
                static_cast<const T *>(a.q) + job.token[ratio.token(r)] * a.q_stride +
                (job.kv_head * ratio.ratio + ratio.head(r)) * HeadDim + chunk * 8));
        }
    }
}
template <int HeadDim, int Threads, int Count> __device__ __forceinline__ void
store_queries(const uint4 (&value)[Count], unsigned char *queries, int thread) {
#pragma unroll
    for (int i = 0; i < Count; ++i) {
        const int at = i * Threads + thread;
        const int r = at / (HeadDim / 8), chunk = at % (HeadDim / 8);
        *reinterpret_cast<uint4 *>(queries + chunk / 8 * 8192 + r * 128 +
                                   ((chunk % 8 ^ r % 8) << 4)) = value[i];
    }
    async_proxy_fence();
}

// S = Q K^T for a tile of Keys keys, one wgmma group.
template <int HeadDim, int Keys, typename T, int Count> __device__ __forceinline__ void
scores(float (&s)[Count], const Operand &queries, const Operand &keys, T type) {
    static_assert(Count == Keys / 2);
#pragma unroll
    for (int k = 0; k < HeadDim / 16; ++k) {
        wgmma_ss(s, queries.at(k / 4 * 8192 + k % 4 * 32), keys.at(k / 4 * Keys * 128 + k % 4 * 32),
                 k > 0, type);
    }
    wgmma_commit();
}
// O += P V for a tile's first 16 `steps` keys, one wgmma group.
template <int HeadDim, int Keys, typename T, int Parts, int Outputs>
__device__ __forceinline__ void accumulate(float (&o)[Parts][Outputs], const uint32_t *p,
                                           const Operand &values, T type, int steps = Keys / 16) {
    static_assert(Parts * Outputs == HeadDim / 2);
#pragma unroll
    for (int k = 0; k < Keys / 16; ++k) {
        if (k >= steps) break;
#pragma unroll
        for (int h = 0; h < Parts; ++h) {
            wgmma_rs(o[h], &p[k * 4], values.at(h * (Outputs / 32) * Keys * 128 + k * 2048), type);
        }
    }
    wgmma_commit();
}
template <typename T, int Count>
__device__ __forceinline__ void to_operand(uint32_t (&p)[Count], const float (&s)[2 * Count], T) {
#pragma unroll
    for (int i = 0; i < Count; ++i) p[i] = pack(s[2 * i], s[2 * i + 1], T());
}
template <int Parts, int Outputs>
__device__ __forceinline__ void rescale(float (&o)[Parts][Outputs], const float (&factor)[2]) {
#pragma unroll
    for (int h = 0; h < Parts; ++h)
#pragma unroll
        for (int i = 0; i < Outputs; ++i) o[h][i] *= factor[i / 2 % 2];
}

} // namespace batchllm::cuda::sm90
