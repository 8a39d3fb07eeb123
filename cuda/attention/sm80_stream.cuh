// Fused attention from sm_80 on: jobs of the stream queue.
#pragma once

#include "attention/sm80.cuh"

namespace batchllm::cuda::sm80 {

// A warp's keys of a job, both stretches in sequence, passing through the warp's ring: its 16 keys
// of every page, K and V in turn, one slot each.
template <int HeadDim, int Slots, typename Stored> struct WarpRing {
    using S = Shape<HeadDim>;
    static constexpr int kShrink =
        kInBytes<Stored> ? 2 : 1; // 2-byte elements take this many times as many bytes
    static constexpr int kSlotBytes = S::kStreamSlotBytes / kShrink;
    static constexpr int kSlots = S::stream_slots(Slots, kSlotBytes);
    static constexpr int kRowBytes = 128 / kShrink;          // for 64 elements of a key
    static constexpr int kHalfCopies = 16 * kRowBytes / 512; // for 64 elements, 16 bytes per lane
    const AttentionArguments &a;
    const Rest &rest;
    const int kv_head, lane, warp;
    const uint32_t ring;
    const int n0, n;       // pages in which this warp has keys: in the first stretch, in both
    int pages, next_pages; // their numbers, one per lane, 32 at a time, one batch ahead
    int issued = 0;        // slots filled
    uint32_t into;         // the next one to fill
    uint32_t slot;         // the one computed on

    __device__ __forceinline__ WarpRing(const AttentionArguments &a, const Rest &rest, int kv_head,
                                        uint32_t ring)
        : a(a), rest(rest), kv_head(kv_head), lane(threadIdx.x % 32), warp(threadIdx.x / 32),
          ring(ring), n0(tiles(max(0, rest.item.stretch[0].keys - warp * 16), kPageKeys)),
          n(n0 + tiles(max(0, rest.item.stretch[1].keys - warp * 16), kPageKeys)),
          pages(pages_from(0)), next_pages(pages_from(32)), into(ring), slot(ring) {}
    __device__ __forceinline__ int pages_from(int base) const {
        const int i = base + lane;
        if (i >= n) return 0;
        return __ldg(a.pages + (i < n0 ? rest.item.stretch[0].page_begin + i
                                       : rest.item.stretch[1].page_begin + i - n0));
    }
    __device__ __forceinline__ uint32_t after(uint32_t at) const {
        return at + kSlotBytes == ring + kSlots * kSlotBytes ? ring : at + kSlotBytes;
    }
    // Issues the next slot's copies, if there are more.
    __device__ __forceinline__ void issue() {
        const int at = issued / 2;
        if (at < n) {
            if (issued % 64 == 0 && issued > 0) {
                pages = next_pages;
                next_pages = pages_from(at + 32);
            }
            const int page = __shfl_sync(~0u, pages, at % 32);
            const int keys = at < n0 ? rest.item.stretch[0].keys - at * kPageKeys
                                     : rest.item.stretch[1].keys - (at - n0) * kPageKeys;
            const auto *from =
                static_cast<const unsigned char *>(a.kv) +
                ((static_cast<int64_t>(page) * a.kv_heads + kv_head) * 2 + issued % 2) *
                    (S::kBlockBytes / kShrink) +
                warp * (16 * kRowBytes) + lane * 16;
            constexpr int kRows = 512 / kRowBytes; // rows of a copy
#pragma unroll
            for (int i = 0; i < kSlotBytes / 512; ++i) {
                copy_async(into + i * 512 + lane * 16,
                           from + i / kHalfCopies * (S::kHalfBlock / kShrink) +
                               i % kHalfCopies * 512,
                           warp * 16 + i % kHalfCopies * kRows + lane / (kRowBytes / 16) < keys);
            }
            into = after(into);
        }
        ++issued;
        copy_async_commit();
    }
    // Waits until `slot` is full.
    __device__ __forceinline__ void wait() {
        copy_async_wait<kSlots - 2>();
        __syncwarp(); // the slot is full; all lanes are done with the previous one
        issue();
    }
    __device__ __forceinline__ void leave() { slot = after(slot); }
};

// A stream job's query rows, as mma's operand, and their positions.
template <int HeadDim, typename T, typename Stored>
__device__ __forceinline__ void read_queries(const AttentionArguments &a, const Rest &rest,
                                             int kv_head, uint32_t (&q)[HeadDim / 16][4],
                                             int (&position)[2]) {
    const int lane = threadIdx.x % 32;
    const int ratio = a.heads / a.kv_heads, rows = rest.item.row_count * ratio;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int r = lane / 4 + 8 * i;
        const bool valid = r < rows;
        const AttentionRow row = rest.rows[valid ? r / ratio : 0];
        position[i] = row.position;
        const T *head = static_cast<const T *>(a.q) + row.token * a.q_stride +
                        (kv_head * ratio + r % ratio) * HeadDim;
        if constexpr (kInBytes<Stored>) {
#pragma unroll
            for (int k = 0; k < HeadDim / 16; ++k) {
                uint2 four = make_uint2(0, 0);
                if (valid) {
                    four = __ldg(reinterpret_cast<const uint2 *>(head + query_column(k, lane)));
                }
                q[k][i] = to_half(four.x, T());
                q[k][i + 2] = to_half(four.y, T());
            }
            continue;
        }
        const T *from = head + lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < HeadDim / 16; ++k) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                q[k][i + 2 * e] =
                    valid ? __ldg(reinterpret_cast<const unsigned int *>(from + k * 16 + e * 8))
                          : 0;
            }
        }
    }
}

// Runs one of a stream job's warps: its keys of every page against all query rows. The result is in
// o, not normalised.
template <int HeadDim, int Slots, bool Special, typename T, typename Stored>
__device__ void stream_keys(const AttentionArguments &a, int kv_head, uint32_t slots,
                            const Rest &rest, float (&o)[HeadDim / 2], float (&maximum)[2],
                            float (&sum)[2]) {
    using M = Factor<T, Stored>;
    const Logits<Special> logits(a, key_factor<Stored>(a, kv_head));
    WarpRing<HeadDim, Slots, Stored> ring(a, rest, kv_head, slots);
    const int lane = ring.lane;
#pragma unroll 1
    for (int i = 0; i + 1 < ring.kSlots; ++i) ring.issue();
    int position[2];
    uint32_t q[HeadDim / 16][4];
    read_queries<HeadDim, T, Stored>(a, rest, kv_head, q, position);
#pragma unroll
    for (int i = 0; i < HeadDim / 2; ++i) o[i] = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        maximum[i] = -INFINITY;
        sum[i] = 0;
    }

    const uint32_t k_lane = (lane / 16 * 8 + lane % 8) * 128 + ((lane / 8 % 2 ^ lane % 8) << 4);
    const uint32_t v_lane = (lane / 8 % 2 * 8 + lane % 8) * 128 + ((lane / 16 ^ lane % 8) << 4);
    const Bounds bounds(rest.item, a.window);
    for (int at = 0; at < ring.n; ++at) {
        ring.wait();
        float s[8] = {};
        if constexpr (kInBytes<Stored>) {
            scores_of_bytes<HeadDim>(s, q, ring.slot, 16 * ring.kRowBytes, lane_in_bytes(lane));
        } else {
#pragma unroll
            for (int k = 0; k < HeadDim / 16; ++k) {
                uint32_t b[4];
                load_matrix(b, (ring.slot + (k_lane ^ k % 4 * 32)) + k / 4 * 2048);
                mma_sync(s, q[k], b[0], b[1], T());
                mma_sync(s + 4, q[k], b[2], b[3], T());
            }
        }
        ring.leave();
        logits.cap(s);
        const KeyStretch stretch = rest.item.stretch[at < ring.n0 ? 0 : 1];
        const int key = (at < ring.n0 ? at : at - ring.n0) * kPageKeys + ring.warp * 16;
        if (bounds.hide(stretch, key, 16)) {
            mask(s, position, stretch, key + lane % 4 * 2, a.window);
        }
        float factor[2];
        const bool rescale = softmax(s, maximum, sum, factor, logits.c);
        uint32_t p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) p[i] = pack(s[2 * i], s[2 * i + 1], M());
        if (rescale) {
#pragma unroll
            for (int i = 0; i < HeadDim / 2; ++i) o[i] *= factor[i / 2 % 2];
        }
        ring.wait();
        if constexpr (kInBytes<Stored>) {
            accumulate_bytes<HeadDim>(o, p, ring.slot, 16 * ring.kRowBytes, lane_in_bytes(lane));
        } else {
#pragma unroll
            for (int d = 0; d < HeadDim / 16; ++d) {
                uint32_t b[4];
                load_matrix_transposed(b, (ring.slot + (v_lane ^ d % 4 * 32)) + d / 4 * 2048);
                mma_sync(&o[d * 8], p, b[0], b[1], T());
                mma_sync(&o[d * 8 + 4], p, b[2], b[3], T());
            }
        }
        ring.leave();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
    }
}

template <int HeadDim, int Slots, bool Special, typename T, typename Stored> __device__ void
stream_job(const AttentionArguments &a, int kv_head, unsigned char *shared, Rest &rest) {
    using S = Shape<HeadDim>;
    using Ring = WarpRing<HeadDim, Slots, Stored>;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int ratio = a.heads / a.kv_heads;
    const int rows = rest.item.row_count * ratio;
    const Logits<Special> logits(a, key_factor<Stored>(a, kv_head));
    const bool works = S::kWarps == kStreamWarps || warp < kStreamWarps;

    float o[HeadDim / 2], maximum[2], sum[2];
    if (works) {
        stream_keys<HeadDim, Slots, Special, T, Stored>(
            a, kv_head, shared_address(shared) + warp * Ring::kSlots * Ring::kSlotBytes, rest, o,
            maximum, sum);
    }
    // The rings become [warp][row][kResultStride], not normalised.
    auto *results = reinterpret_cast<float *>(shared);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int r = lane / 4 + 8 * i;
        if (!works || r >= rows) continue;
        float *row = results + (warp * kStreamRows + r) * S::kResultStride;
        if constexpr (kInBytes<Stored>) {
#pragma unroll
            for (int d = 0; d < HeadDim / 16; ++d) {
                const float *even = o + d * 8 + i * 2, *odd = even + 4;
                *reinterpret_cast<float4 *>(row + output_column(d, lane)) =
                    make_float4(even[0], odd[0], even[1], odd[1]);
            }
        } else {
            float *to = row + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < HeadDim / 8; ++j) {
                *reinterpret_cast<float2 *>(to + j * 8) =
                    make_float2(o[j * 4 + i * 2], o[j * 4 + i * 2 + 1]);
            }
        }
        if (lane % 4 == 0) {
            rest.max_sum[warp][r][0] = maximum[i] * logits.c;
            rest.max_sum[warp][r][1] = sum[i];
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < rows * (HeadDim / 4); e += S::kThreads) {
        const int r = e / (HeadDim / 4), column = e % (HeadDim / 4) * 4;
        float top = -INFINITY;
#pragma unroll
        for (int w = 0; w < kStreamWarps; ++w) top = fmaxf(top, rest.max_sum[w][r][0]);
        const float base = top == -INFINITY ? 0.f : top;
        float total = 0;
        float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < kStreamWarps; ++w) {
            const float weight = exp2_approximate(rest.max_sum[w][r][0] - base);
            const float4 part = *reinterpret_cast<const float4 *>(
                results + (w * kStreamRows + r) * S::kResultStride + column);
            total += weight * rest.max_sum[w][r][1];
            x.x += weight * part.x;
            x.y += weight * part.y;
            x.z += weight * part.z;
            x.w += weight * part.w;
        }
        const AttentionRow row = rest.rows[r / ratio];
        const int head = kv_head * ratio + r % ratio;
        total = logits.with_sink(total, top, row.slot, head);
        const float inverse = total > 0 ? value_factor<Stored>(a, kv_head) / total : 0.f;
        const Destination<T> to(a, row.token, row.slot, head, HeadDim);
        to.write(column, x.x * inverse, x.y * inverse);
        to.write(column + 2, x.z * inverse, x.w * inverse);
        if (column == 0) write_lse(a, row.slot, head, top, total);
    }
}

} // namespace batchllm::cuda::sm80
