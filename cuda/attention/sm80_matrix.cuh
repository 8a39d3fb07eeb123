// Fused attention from sm_80 on: jobs of the matrix queue.
#pragma once

#include "attention/sm80.cuh"

namespace batchllm::cuda::sm80 {

// Copies queries, from row `first` of the job on, into shared memory: [half][kRows][64], swizzled
// like the keys. Part of the first slot's group of copies.
template <int HeadDim, typename T, typename Stored>
__device__ __forceinline__ void copy_queries(const AttentionArguments &a, int kv_head, int ratio,
                                             uint32_t queries, const Rest &rest, int first) {
    using S = Shape<HeadDim>;
    for (int i = threadIdx.x; i < S::kRows * HeadDim / 8; i += S::kThreads) {
        const int at = i / (HeadDim / 8), chunk = i % (HeadDim / 8), r = first + at;
        const int index = r / ratio;
        const bool valid = index < rest.item.row_count;
        const int token = valid ? rest.rows[index].token : 0;
        const uint32_t to =
            queries + chunk / 8 * (S::kRows * 128) + at * 128 + ((chunk % 8 ^ at % 8) << 4);
        const T *from = static_cast<const T *>(a.q) + token * a.q_stride +
                        (kv_head * ratio + r % ratio) * HeadDim + chunk * 8;
        if constexpr (std::is_same_v<T, Factor<T, Stored>>) {
            copy_async(to, from, valid);
        } else {
            uint4 value = make_uint4(0, 0, 0, 0);
            if (valid) value = to_half(__ldg(reinterpret_cast<const uint4 *>(from)), T());
            store_shared(to, value);
        }
    }
}

// A job's tiles of keys, both stretches in sequence, passing through the ring: K and V of each tile
// in turn, one slot each.
template <int HeadDim, int Slots, typename Stored> struct TileRing {
    using S = Shape<HeadDim>;
    // For e4m3: 16-byte chunks of a slot that a thread copies and widens.
    static constexpr int kByteChunks = S::kSlotBytes / 2 / 16 / S::kThreads;
    const AttentionArguments &a;
    const Rest &rest;
    const int kv_head;
    const uint32_t ring;
    const int n0, n; // tiles of the first stretch, of both
    int issued = 0;  // slots filled
    uint32_t into;   // the next one to fill
    uint32_t slot;   // the one computed on
    int page, next_page = 0;

    __device__ __forceinline__ TileRing(const AttentionArguments &a, const Rest &rest, int kv_head,
                                        uint32_t ring)
        : a(a), rest(rest), kv_head(kv_head), ring(ring),
          n0(tiles(rest.item.stretch[0].keys, S::kKeys)),
          n(n0 + tiles(rest.item.stretch[1].keys, S::kKeys)), into(ring), slot(ring) {
        page = n > 0 ? page_of(0) : 0;
    }
    __device__ __forceinline__ const KeyStretch &stretch(int tile) const {
        return rest.item.stretch[tile < n0 ? 0 : 1];
    }
    __device__ __forceinline__ int first_key(int tile) const { // index in its stretch
        return (tile < n0 ? tile : tile - n0) * S::kKeys;
    }
    __device__ __forceinline__ int page_of(int tile) const {
        return __ldg(a.pages + stretch(tile).page_begin + first_key(tile) / kPageKeys);
    }
    __device__ __forceinline__ uint32_t after(uint32_t at) const {
        return at + S::kSlotBytes == ring + Slots * S::kSlotBytes ? ring : at + S::kSlotBytes;
    }
    // Issues the next slot's copies, if there are more.
    __device__ __forceinline__ void issue() {
        if (issued < 2 * n) {
            const int tile = issued / 2, which = issued % 2;
            if (which == 0) {
                if (tile > 0) page = next_page;
                if (tile + 1 < n) next_page = page_of(tile + 1); // needed two slots later
            }
            const int keys = stretch(tile).keys, key = first_key(tile);
            if constexpr (kInBytes<Stored>) {
                issue_bytes(which, key, keys);
            } else {
                issue_elements(which, key, keys);
            }
            into = after(into);
        }
        ++issued;
        copy_async_commit(); // also an empty group, since the waits count groups
    }
    __device__ __forceinline__ void issue_elements(int which, int key, int keys) const {
        const auto *from =
            static_cast<const unsigned char *>(a.kv) +
            ((static_cast<int64_t>(page) * a.kv_heads + kv_head) * 2 + which) * S::kBlockBytes +
            key % kPageKeys * 128;
#pragma unroll
        for (int i = 0; i < S::kSlotBytes / 16 / S::kThreads; ++i) {
            constexpr int kHalfChunks = S::kKeys * 8;
            int half = i * S::kThreads / kHalfChunks;
            int chunk = threadIdx.x + i * S::kThreads % kHalfChunks;
            if constexpr (S::kThreads > kHalfChunks) { // several halves at once
                half += threadIdx.x / kHalfChunks;
                chunk = threadIdx.x % kHalfChunks;
            }
            copy_async(into + (half * kHalfChunks + chunk) * 16,
                       from + half * S::kHalfBlock + chunk * 16, key + chunk / 8 < keys);
        }
    }
    // Copies into the slot's second half.
    __device__ __forceinline__ void issue_bytes(int which, int key, int keys) const {
        const auto *from = static_cast<const unsigned char *>(a.kv) +
                           ((static_cast<int64_t>(page) * a.kv_heads + kv_head) * 2 + which) *
                               (S::kBlockBytes / 2) +
                           key % kPageKeys * 64;
#pragma unroll
        for (int i = 0; i < kByteChunks; ++i) {
            constexpr int kHalfChunks = S::kKeys * 4;
            const int at = i * S::kThreads + static_cast<int>(threadIdx.x);
            const int half = at / kHalfChunks, chunk = at % kHalfChunks;
            copy_async(into + S::kSlotBytes / 2 + at * 16,
                       from + half * (S::kHalfBlock / 2) + chunk * 16, key + chunk / 4 < keys);
        }
    }
    // Waits until `slot` is full.
    __device__ __forceinline__ void wait() {
        copy_async_wait<Slots - 2>();
        if constexpr (kInBytes<Stored>) return widen_slot();
        __syncthreads(); // the slot is full; all are done with the previous one, which is refilled
        issue();
    }
    // A thread sees what it has copied itself without a barrier.
    __device__ __forceinline__ void widen_slot() {
        uint4 bytes[kByteChunks];
#pragma unroll
        for (int i = 0; i < kByteChunks; ++i) {
            bytes[i] = load_shared(slot + S::kSlotBytes / 2 +
                                   (i * S::kThreads + static_cast<int>(threadIdx.x)) * 16);
        }
        __syncthreads(); // all have read theirs, and are done with the previous slot
        issue();
#pragma unroll
        for (int i = 0; i < kByteChunks; ++i) {
            uint32_t place[2];
            uint4 chunks[2];
            widened_places(i * S::kThreads + static_cast<int>(threadIdx.x), place);
            widen(bytes[i], chunks);
            store_shared(slot + place[0], chunks[0]);
            store_shared(slot + place[1], chunks[1]);
        }
        __syncthreads();
    }
    __device__ __forceinline__ void leave() { slot = after(slot); }
};

// A warp's part of a job: 16 kRowTiles query rows, its part of O, and where its lanes read.
template <int HeadDim, bool Special, typename T, typename Stored> struct WarpRows {
    using S = Shape<HeadDim>;
    using M = Factor<T, Stored>;
    float o[S::kRowTiles][S::kColumns / 2];
    float maximum[S::kRowTiles][2], sum[S::kRowTiles][2];
    int lane, part, first_row; // part: of the columns
    // Each lane's row and chunk of ldmatrix's 8 x 8 matrices; the chunk within 128 bytes is XORed
    // with the row and with the step's chunk.
    uint32_t q_lane, k_lane, v_lane;

    __device__ __forceinline__ explicit WarpRows(uint32_t queries)
        : lane(threadIdx.x % 32),
          part(S::kParts == 1 ? 0 : threadIdx.x / 32 / (S::kWarps / S::kParts)),
          first_row((threadIdx.x / 32 - part * (S::kWarps / S::kParts)) * 16 * S::kRowTiles),
          q_lane(queries + (first_row + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4)),
          k_lane((lane / 16 * 8 + lane % 8) * 128 + ((lane / 8 % 2 ^ lane % 8) << 4)),
          v_lane((lane / 8 % 2 * 8 + lane % 8) * 128 + ((lane / 16 ^ lane % 8) << 4) +
                 part * (S::kColumns / 64) * (S::kKeys * 128)) {
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t) {
#pragma unroll
            for (int i = 0; i < S::kColumns / 2; ++i) o[t][i] = 0;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                maximum[t][i] = -INFINITY;
                sum[t][i] = 0;
            }
        }
    }

    // S = Q K^T for the slot's keys. Fragments are loaded one step of 16 elements ahead.
    __device__ __forceinline__ void scores(uint32_t slot,
                                           float (&s)[S::kRowTiles][S::kKeys / 2]) const {
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
            for (int i = 0; i < S::kKeys / 2; ++i) s[t][i] = 0;
        uint32_t q[2][S::kRowTiles][4], kb[2][S::kKeys / 16][4];
        const auto load_step = [&](int k) {
#pragma unroll
            for (int t = 0; t < S::kRowTiles; ++t) {
                load_matrix(q[k % 2][t],
                            (q_lane ^ k % 4 * 32) + k / 4 * (S::kRows * 128) + t * 2048);
            }
#pragma unroll
            for (int j = 0; j < S::kKeys / 16; ++j) {
                load_matrix(kb[k % 2][j],
                            (slot + (k_lane ^ k % 4 * 32)) + k / 4 * (S::kKeys * 128) + j * 2048);
            }
        };
        load_step(0);
#pragma unroll
        for (int k = 0; k < HeadDim / 16; ++k) {
            if (k + 1 < HeadDim / 16) load_step(k + 1);
#pragma unroll
            for (int j = 0; j < S::kKeys / 16; ++j) {
#pragma unroll
                for (int t = 0; t < S::kRowTiles; ++t) {
                    mma_sync(&s[t][j * 8], q[k % 2][t], kb[k % 2][j][0], kb[k % 2][j][1], M());
                    mma_sync(&s[t][j * 8 + 4], q[k % 2][t], kb[k % 2][j][2], kb[k % 2][j][3], M());
                }
            }
        }
    }

    // Masks scores of keys that a row must not see. key: the tile's first key in the stretch;
    // first: the pass's first row.
    __device__ __forceinline__ void hide(const Rest &rest, const KeyStretch &stretch, int key,
                                         int first, int ratio, int window,
                                         float (&s)[S::kRowTiles][S::kKeys / 2]) const {
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t) {
            int position[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int index = (first + first_row + t * 16 + lane / 4 + 8 * i) / ratio;
                position[i] = index < rest.item.row_count ? rest.rows[index].position : 0;
            }
            mask(s[t], position, stretch, key + lane % 4 * 2, window);
        }
    }

    // Turns scores into P, as mma's operand; rescales the sums so far when the rows' maxima grow.
    __device__ __forceinline__ void weigh(float (&s)[S::kRowTiles][S::kKeys / 2],
                                          uint32_t (&p)[S::kRowTiles][S::kKeys / 4], float c,
                                          bool by_row) {
        float factor[S::kRowTiles][2];
        bool rescale = false;
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t) {
            rescale |= softmax<S::kKeys / 2, 1>(s[t], maximum[t], sum[t], factor[t], c, by_row);
        }
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
            for (int i = 0; i < S::kKeys / 4; ++i) {
                p[t][i] = pack(s[t][2 * i], s[t][2 * i + 1], M());
            }
        if (rescale) {
#pragma unroll
            for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
                for (int i = 0; i < S::kColumns / 2; ++i) o[t][i] *= factor[t][i / 2 % 2];
        }
    }

    // O += P V for the slot's values. Fragments of V are loaded kAhead products ahead.
    __device__ __forceinline__ void accumulate(uint32_t slot,
                                               const uint32_t (&p)[S::kRowTiles][S::kKeys / 4]) {
        constexpr int kAhead = 4, kEach = S::kColumns / 16, kSteps = S::kKeys / 16 * kEach;
        uint32_t b[kAhead][4];
        const auto load_values = [&](int step) {
            const int j = step / kEach, d = step % kEach;
            load_matrix_transposed(b[step % kAhead], (slot + (v_lane ^ d % 4 * 32)) +
                                                         d / 4 * (S::kKeys * 128) + j * 2048);
        };
#pragma unroll
        for (int i = 0; i < kAhead - 1; ++i) load_values(i);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
            if (i + kAhead - 1 < kSteps) load_values(i + kAhead - 1);
            const int j = i / kEach, d = i % kEach;
            const uint32_t(&v)[4] = b[i % kAhead];
#pragma unroll
            for (int t = 0; t < S::kRowTiles; ++t) {
                mma_sync(&o[t][d * 8], &p[t][j * 4], v[0], v[1], M());
                mma_sync(&o[t][d * 8 + 4], &p[t][j * 4], v[2], v[3], M());
            }
        }
    }

    // Writes the rows' results to their destinations.
    __device__ __forceinline__ void write(const AttentionArguments &a, int kv_head, Rest &rest,
                                          int ratio, const Logits<Special> &logits, int first) {
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float total = sum[t][i];
                total += __shfl_xor_sync(~0u, total, 1);
                total += __shfl_xor_sync(~0u, total, 2);
                const int r = first + first_row + t * 16 + lane / 4 + 8 * i;
                if (r / ratio >= rest.item.row_count) continue;
                const AttentionRow row = rest.rows[r / ratio];
                const int head = kv_head * ratio + r % ratio;
                // By row, the product is rounded before anything is added to it. If this were left
                // to the compiler, it would be rounded for some of a thread's rows and not for
                // others.
                const float top = __fmul_rn(maximum[t][i], logits.c);
                total = a.by_row
                            ? logits.with_sink(total, top, row.slot, head)
                            : logits.with_sink(total, maximum[t][i] * logits.c, row.slot, head);
                const float inverse = total > 0 ? value_factor<Stored>(a, kv_head) / total : 0.f;
                const Destination<T> to(a, row.token, row.slot, head, HeadDim);
#pragma unroll
                for (int j = 0; j < S::kColumns / 8; ++j) {
                    to.write(part * S::kColumns + j * 8 + lane % 4 * 2,
                             o[t][j * 4 + i * 2] * inverse, o[t][j * 4 + i * 2 + 1] * inverse);
                }
                if (lane % 4 != 0 || part != 0) continue;
                if (a.by_row) {
                    write_lse(a, row.slot, head, top, total);
                } else {
                    write_lse(a, row.slot, head, maximum[t][i] * logits.c, total);
                }
            }
    }
};

// Computes the job's rows from `first` on, as many as a pass has.
template <int HeadDim, int Slots, bool Special, typename T, typename Stored> __device__ void
matrix_rows(const AttentionArguments &a, int kv_head, uint32_t queries, Rest &rest, int first) {
    using S = Shape<HeadDim>;
    const int ratio = a.heads / a.kv_heads;
    const Logits<Special> logits(a, key_factor<Stored>(a, kv_head));
    copy_queries<HeadDim, T, Stored>(a, kv_head, ratio, queries, rest, first);
    TileRing<HeadDim, Slots, Stored> ring(a, rest, kv_head, queries + S::kQueryBytes);
#pragma unroll 1
    for (int i = 0; i + 1 < Slots; ++i) ring.issue();
    WarpRows<HeadDim, Special, T, Stored> rows(queries);
    // If stream jobs run here, most warps only copy.
    const bool works = S::kStreams || first + rows.first_row < rest.item.row_count * ratio;
    const Bounds bounds(rest.item, a.window);
    for (int tile = 0; tile < ring.n; ++tile) {
        float s[S::kRowTiles][S::kKeys / 2];
        uint32_t p[S::kRowTiles][S::kKeys / 4];
        ring.wait();
        if (works) rows.scores(ring.slot, s);
        ring.leave();
        if (works) {
#pragma unroll
            for (int t = 0; t < S::kRowTiles; ++t) logits.cap(s[t]);
            const KeyStretch stretch = ring.stretch(tile);
            const int key = ring.first_key(tile);
            if (bounds.hide(stretch, key, S::kKeys)) {
                rows.hide(rest, stretch, key, first, ratio, a.window, s);
            }
            rows.weigh(s, p, logits.c, a.by_row != 0);
        }
        ring.wait();
        if (works) rows.accumulate(ring.slot, p);
        ring.leave();
    }
    rows.write(a, kv_head, rest, ratio, logits, first);
}

template <int HeadDim, int Slots, bool Special, typename T, typename Stored>
__device__ void matrix_job(const AttentionArguments &a, int kv_head, uint32_t queries, Rest &rest) {
    using S = Shape<HeadDim>;
    if constexpr (S::kRows == kMatrixRows) {
        matrix_rows<HeadDim, Slots, Special, T, Stored>(a, kv_head, queries, rest, 0);
    } else {
        const int rows = rest.item.row_count * (a.heads / a.kv_heads);
#pragma unroll 1
        for (int first = 0; first < rows; first += S::kRows) {
            if (first > 0) __syncthreads(); // all are done with the queries and the ring
            matrix_rows<HeadDim, Slots, Special, T, Stored>(a, kv_head, queries, rest, first);
        }
    }
}

} // namespace batchllm::cuda::sm80
