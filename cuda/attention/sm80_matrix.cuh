// Fused attention from sm_80 on: jobs of the matrix queue.
#pragma once

#include "attention/sm80.cuh"

namespace batchllm::cuda::sm80 {

template <int HeadDim, int Slots, typename T>
__device__ void matrix_job(const AttentionArguments &a, int kv_head, uint32_t queries, Rest &rest) {
    using S = Shape<HeadDim>;
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int ratio = a.heads / a.kv_heads;
    const float c = a.scale * kLog2e;
    const uint32_t ring = queries + S::kQueryBytes;

    // Queries: [half][128 rows][64], swizzled as the keys are. In the first slot's group.
    for (int i = thread; i < kMatrixRows * HeadDim / 8; i += S::kThreads) {
        const int r = i / (HeadDim / 8), chunk = i % (HeadDim / 8);
        const int index = r / ratio;
        const bool valid = index < rest.item.row_count;
        const int token = valid ? rest.rows[index].token : 0;
        copy_async(queries + chunk / 8 * (kMatrixRows * 128) + r * 128 + ((chunk % 8 ^ r % 8) << 4),
                   static_cast<const T *>(a.q) + token * a.q_stride +
                       (kv_head * ratio + r % ratio) * HeadDim + chunk * 8,
                   valid);
    }

    const int n0 = tiles(rest.item.stretch[0].keys, S::kKeys);
    const int n = n0 + tiles(rest.item.stretch[1].keys, S::kKeys);
    int issued = 0; // slots filled: K and V of each tile in turn
    uint32_t into = ring;
    const auto page_of = [&](int tile) {
        const KeyStretch &stretch = rest.item.stretch[tile < n0 ? 0 : 1];
        return __ldg(a.pages + stretch.page_begin +
                     (tile < n0 ? tile : tile - n0) * S::kKeys / kPageKeys);
    };
    int page = n > 0 ? page_of(0) : 0, next_page = 0;
    const auto issue = [&] {
        if (issued < 2 * n) {
            const int tile = issued / 2, which = issued % 2;
            if (which == 0) {
                if (tile > 0) page = next_page;
                if (tile + 1 < n) next_page = page_of(tile + 1); // needed two slots later
            }
            const int keys = rest.item.stretch[tile < n0 ? 0 : 1].keys;
            const int key = (tile < n0 ? tile : tile - n0) * S::kKeys;
            const auto *from =
                static_cast<const unsigned char *>(a.kv) +
                ((static_cast<int64_t>(page) * a.kv_heads + kv_head) * 2 + which) * S::kBlockBytes +
                key % kPageKeys * 128;
#pragma unroll
            for (int i = 0; i < S::kSlotBytes / 16 / S::kThreads; ++i) {
                constexpr int kHalfChunks = S::kKeys * 8;
                const int half = i * S::kThreads / kHalfChunks;
                const int chunk = thread + i * S::kThreads % kHalfChunks;
                copy_async(into + (half * kHalfChunks + chunk) * 16,
                           from + half * S::kHalfBlock + chunk * 16, key + chunk / 8 < keys);
            }
            into =
                into + S::kSlotBytes == ring + Slots * S::kSlotBytes ? ring : into + S::kSlotBytes;
        }
        ++issued;
        copy_async_commit(); // an empty group too: the waits count them
    };
#pragma unroll 1
    for (int i = 0; i + 1 < Slots; ++i) issue();

    float o[S::kRowTiles][HeadDim / 2];
    float maximum[S::kRowTiles][2], sum[S::kRowTiles][2];
#pragma unroll
    for (int t = 0; t < S::kRowTiles; ++t) {
#pragma unroll
        for (int i = 0; i < HeadDim / 2; ++i) o[t][i] = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            maximum[t][i] = -INFINITY;
            sum[t][i] = 0;
        }
    }
    const int first_row = warp * 16 * S::kRowTiles;
    // Lanes' rows and chunks of ldmatrix's 8 x 8 matrices; the chunk within 128 bytes is exclusive-or'd
    // with the row and with the step's own.
    const uint32_t q_lane = queries + (first_row + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
    const uint32_t k_lane = (lane / 16 * 8 + lane % 8) * 128 + ((lane / 8 % 2 ^ lane % 8) << 4);
    const uint32_t v_lane = (lane / 8 % 2 * 8 + lane % 8) * 128 + ((lane / 16 ^ lane % 8) << 4);

    uint32_t slot = ring;
    const auto next_slot = [&] {
        copy_async_wait<Slots - 2>();
        __syncthreads(); // the slot is full; all are done with the one before, which is filled anew
        issue();
    };
    const auto leave_slot = [&] {
        slot = slot + S::kSlotBytes == ring + Slots * S::kSlotBytes ? ring : slot + S::kSlotBytes;
    };
    const Bounds bounds(rest.item, a.window);
    for (int tile = 0; tile < n; ++tile) {
        float s[S::kRowTiles][S::kKeys / 2];
        next_slot();
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
            for (int i = 0; i < S::kKeys / 2; ++i) s[t][i] = 0;
        // Fragments are loaded a step of 16 elements early.
        uint32_t q[2][S::kRowTiles][4], kb[2][S::kKeys / 16][4];
        const auto load_step = [&](int k) {
#pragma unroll
            for (int t = 0; t < S::kRowTiles; ++t) {
                load_matrix(q[k % 2][t],
                            (q_lane ^ k % 4 * 32) + k / 4 * (kMatrixRows * 128) + t * 2048);
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
                    mma_sync(&s[t][j * 8], q[k % 2][t], kb[k % 2][j][0], kb[k % 2][j][1], T());
                    mma_sync(&s[t][j * 8 + 4], q[k % 2][t], kb[k % 2][j][2], kb[k % 2][j][3], T());
                }
            }
        }
        leave_slot();

        const KeyStretch stretch = rest.item.stretch[tile < n0 ? 0 : 1];
        const int key = (tile < n0 ? tile : tile - n0) * S::kKeys;
        if (bounds.hide(stretch, key, S::kKeys)) {
#pragma unroll
            for (int t = 0; t < S::kRowTiles; ++t) {
                int position[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int index = (first_row + t * 16 + lane / 4 + 8 * i) / ratio;
                    position[i] = index < rest.item.row_count ? rest.rows[index].position : 0;
                }
                mask(s[t], position, stretch, key + lane % 4 * 2, a.window);
            }
        }
        uint32_t p[S::kRowTiles][S::kKeys / 4];
        float factor[S::kRowTiles][2];
        bool rescale = false;
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t) {
            rescale |= softmax<S::kKeys / 2, 1>(s[t], maximum[t], sum[t], factor[t], c);
        }
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
            for (int i = 0; i < S::kKeys / 4; ++i) {
                p[t][i] = pack(s[t][2 * i], s[t][2 * i + 1], T());
            }
        if (rescale) {
#pragma unroll
            for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
                for (int i = 0; i < HeadDim / 2; ++i) o[t][i] *= factor[t][i / 2 % 2];
        }

        next_slot();
        // Fragments of V are loaded kAhead products early.
        constexpr int kAhead = 4, kSteps = S::kKeys / 16 * (HeadDim / 16);
        uint32_t b[kAhead][4];
        const auto load_values = [&](int step) {
            const int j = step / (HeadDim / 16), d = step % (HeadDim / 16);
            load_matrix_transposed(b[step % kAhead], (slot + (v_lane ^ d % 4 * 32)) +
                                                         d / 4 * (S::kKeys * 128) + j * 2048);
        };
#pragma unroll
        for (int i = 0; i < kAhead - 1; ++i) load_values(i);
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
            if (i + kAhead - 1 < kSteps) load_values(i + kAhead - 1);
            const int j = i / (HeadDim / 16), d = i % (HeadDim / 16);
            const uint32_t(&v)[4] = b[i % kAhead];
#pragma unroll
            for (int t = 0; t < S::kRowTiles; ++t) {
                mma_sync(&o[t][d * 8], &p[t][j * 4], v[0], v[1], T());
                mma_sync(&o[t][d * 8 + 4], &p[t][j * 4], v[2], v[3], T());
            }
        }
        leave_slot();
    }

#pragma unroll
    for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float total = sum[t][i];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            const int r = first_row + t * 16 + lane / 4 + 8 * i;
            if (r / ratio >= rest.item.row_count) continue;
            const AttentionRow row = rest.rows[r / ratio];
            const int head = kv_head * ratio + r % ratio;
            const float inverse = total > 0 ? 1.f / total : 0.f;
            const Destination<T> to(a, row.token, row.slot, head, HeadDim);
#pragma unroll
            for (int j = 0; j < HeadDim / 8; ++j) {
                to.write(j * 8 + lane % 4 * 2, o[t][j * 4 + i * 2] * inverse,
                         o[t][j * 4 + i * 2 + 1] * inverse);
            }
            if (lane % 4 == 0) write_lse(a, row.slot, head, maximum[t][i] * c, total);
        }
}

} // namespace batchllm::cuda::sm80
