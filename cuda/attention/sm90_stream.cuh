// Fused attention, sm_90a: jobs of the stream queue, on mma.sync: up to 16 query rows, bound by
// reading the keys and values.
#pragma once

#include "attention/sm90_matrix.cuh"

namespace batchllm::cuda::sm90 {

// A stream job as one of its warps has it: which rows its lanes have, Q as mma's operand, and the warp's
// part of O, not normalised.
template <int HeadDim, bool Special, typename T, typename Stored> struct StreamWarp {
    using S = Shape<HeadDim>;
    using M = Factor<T, Stored>;
    static constexpr int kHalfBytes = kPageKeys * 64; // e4m3: 64 elements of a page's keys
    int lane, part;                                   // of a slot
    Logits<Special> logits;
    bool valid[2];
    int position[2];
    uint32_t q[HeadDim / 16][4];
    float o[HeadDim / 8][4] = {};
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

    __device__ __forceinline__ StreamWarp(const AttentionArguments &a, const Job &job,
                                          const Ratio &ratio, int lane, int part)
        : lane(lane), part(part), logits(a, key_factor<Stored>(a, job.kv_head)) {
        const int rows = job.item.row_count * ratio.ratio;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int r = lane / 4 + 8 * i;
            valid[i] = r < rows;
            position[i] = valid[i] ? job.position[ratio.token(r)] : 0;
        }
    }

    __device__ __forceinline__ void read_queries(const unsigned char *queries) {
#pragma unroll
        for (int k = 0; k < HeadDim / 16; ++k)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                q[k][e] = valid[e % 2]
                              ? *reinterpret_cast<const uint32_t *>(
                                    queries + (lane / 4 + e % 2 * 8) * S::kStreamQueryStride +
                                    (k * 16 + e / 2 * 8 + lane % 4 * 2) * 2)
                              : 0;
            }
    }

    __device__ __forceinline__ void read_queries_for_bytes(const unsigned char *queries) {
#pragma unroll
        for (int k = 0; k < HeadDim / 16; ++k)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                uint2 four = make_uint2(0, 0);
                if (valid[i]) {
                    four = *reinterpret_cast<const uint2 *>(
                        queries + (lane / 4 + i * 8) * S::kStreamQueryStride +
                        query_column(k, lane) * 2);
                }
                q[k][i] = to_half(four.x, T());
                q[k][i + 2] = to_half(four.y, T());
            }
    }

    // Values past the stretch's end: see clear_rows. The rows are this warp's alone. from: of its 16.
    __device__ __forceinline__ void clear_values(unsigned char *values, int from) const {
        for (int i = lane; i < (16 - from) * 8 * S::kHalves; i += 32) {
            const int half = i / ((16 - from) * 8), at = i % ((16 - from) * 8);
            *reinterpret_cast<uint4 *>(values + half * S::kPairKeys * 128 +
                                       (part * 16 + from) * 128 + at * 16) = make_uint4(0, 0, 0, 0);
        }
        async_proxy_fence();
        __syncwarp();
    }

    __device__ __forceinline__ void scores(uint32_t keys, float (&s)[8]) const {
#pragma unroll
        for (int k = 0; k < HeadDim / 16; ++k) {
            uint32_t b[4];
            const int r = part * 16 + lane / 16 * 8 + lane % 8;
            const int chunk = k % 4 * 2 + lane / 8 % 2;
            load_matrix(b, keys + k / 4 * S::kPairKeys * 128 + r * 128 + ((chunk ^ r % 8) << 4));
            mma_sync(s, q[k], b[0], b[1], T());
            mma_sync(s + 4, q[k], b[2], b[3], T());
        }
    }
    __device__ __forceinline__ void accumulate(uint32_t values, const uint32_t (&p)[4]) {
#pragma unroll
        for (int d = 0; d < HeadDim / 16; ++d) {
            uint32_t b[4];
            const int r = part * 16 + lane / 8 % 2 * 8 + lane % 8;
            const int chunk = d % 4 * 2 + lane / 16;
            load_matrix_transposed(b, values + d / 4 * S::kPairKeys * 128 + r * 128 +
                                          ((chunk ^ r % 8) << 4));
            mma_sync(o[2 * d], p, b[0], b[1], T());
            mma_sync(o[2 * d + 1], p, b[2], b[3], T());
        }
    }

    // The same of e4m3. values: of the warp's 16 keys.
    __device__ __forceinline__ void clear_bytes(unsigned char *values, int from) const {
        for (int i = lane; i < (16 - from) * 4 * S::kHalves; i += 32) {
            const int half = i / ((16 - from) * 4), at = i % ((16 - from) * 4);
            *reinterpret_cast<uint4 *>(values + half * kHalfBytes + from * 64 + at * 16) =
                make_uint4(0, 0, 0, 0);
        }
        async_proxy_fence();
        __syncwarp();
    }

    // The warp's 16 keys of a slot of e4m3, from `key` of the stretch on; there may be none.
    __device__ __forceinline__ void take_bytes(const AttentionArguments &a, const Bounds &bounds,
                                               const KeyStretch &stretch, int key, uint32_t slot,
                                               unsigned char *slot_bytes) {
        if (key >= stretch.keys) return;
        constexpr int kBlock = kPageKeys * HeadDim;
        const int keys = part / 4 * (2 * kBlock) + part % 4 * (16 * 64), values = keys + kBlock;
        if (key + 16 > stretch.keys) clear_bytes(slot_bytes + values, stretch.keys - key);
        const uint32_t lane_offset = lane_in_bytes(lane);
        float s[8] = {}, factor[2];
        scores_of_bytes<HeadDim>(s, q, slot + keys, kHalfBytes, lane_offset);
        uint32_t p[4];
        weigh(a, bounds, stretch, key, s, factor, p);
        accumulate_bytes<HeadDim>(&o[0][0], p, slot + values, kHalfBytes, lane_offset);
        __syncwarp();
    }

    // P of the scores; what was summed so far follows the maxima.
    __device__ __forceinline__ void weigh(const AttentionArguments &a, const Bounds &bounds,
                                          const KeyStretch &stretch, int key, float (&s)[8],
                                          float (&factor)[2], uint32_t (&p)[4]) {
        logits.cap(s);
        if (bounds.hide(stretch, key, 16)) {
            mask(s, position, stretch, key + lane % 4 * 2, a.window);
        }
        if (softmax(s, maximum, sum, factor, logits.c)) {
#pragma unroll
            for (int i = 0; i < HeadDim / 8; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) o[i][e] *= factor[e / 2];
        }
        to_operand(p, s, M());
    }

    // The warp's 16 keys of a slot, from `key` of the stretch on. pair: the slot's K, V half a slot on.
    __device__ __forceinline__ void take(const AttentionArguments &a, const Bounds &bounds,
                                         const KeyStretch &stretch, int key, uint32_t pair,
                                         unsigned char *values) {
        if (key + 16 > stretch.keys) clear_values(values, max(0, stretch.keys - key));
        float s[8] = {}, factor[2];
        scores(pair, s);
        uint32_t p[4];
        weigh(a, bounds, stretch, key, s, factor, p);
        accumulate(pair + S::kSlotBytes / 2, p);
        __syncwarp();
    }
};

// Rows [8 i, 8 i + here) of a stream job out of its eight warps' parts.
template <int HeadDim, typename T, typename Stored, bool Special>
__device__ __forceinline__ void merge_warps(const AttentionArguments &a,
                                            const Logits<Special> &logits, const Job &job,
                                            const Ratio &ratio, const Rest *rest,
                                            const float *buffer, int i, int here, int thread) {
    for (int e = thread; e < here * HeadDim / 2; e += kConsumers) {
        const int r = e / (HeadDim / 2), column = e % (HeadDim / 2) * 2;
        float top = -INFINITY;
#pragma unroll
        for (int w = 0; w < 8; ++w) top = fmaxf(top, rest->max_sum[w][r][0]);
        const float base = top == -INFINITY ? 0.f : top;
        float total = 0, x = 0, y = 0;
#pragma unroll
        for (int w = 0; w < 8; ++w) {
            const float weight = exp2_approximate(rest->max_sum[w][r][0] - base);
            const float2 pair =
                *reinterpret_cast<const float2 *>(buffer + (w * 8 + r) * HeadDim + column);
            total += weight * rest->max_sum[w][r][1];
            x += weight * pair.x;
            y += weight * pair.y;
        }
        const int index = ratio.token(8 * i + r);
        const int head = job.kv_head * ratio.ratio + ratio.head(8 * i + r);
        total = logits.with_sink(total, top, job.slot[index], head);
        const float scale = total > 0 ? value_factor<Stored>(a, job.kv_head) / total : 0.f;
        Destination<T>(a, job.token[index], job.slot[index], head, HeadDim)
            .write(column, x * scale, y * scale);
        if (column == 0) write_lse(a, job.slot[index], head, top, total);
    }
}

template <int HeadDim, bool Special, typename T, typename Stored>
__device__ void stream_job(const AttentionArguments &a, const Job &job, unsigned char *shared,
                           uint32_t slots, Rest *rest, Consumer<HeadDim> &self, int thread) {
    using S = Shape<HeadDim>;
    const int lane = thread % 32, warp = thread / 32;
    using Stream = StreamShape<HeadDim, Stored>;
    const int group = warp / Stream::kWarps;
    const Ratio &ratio = self.ratio;
    const int rows = job.item.row_count * ratio.ratio;
    const Bounds bounds(job.item, a.window);
    auto &ring = self.ring;
    StreamWarp<HeadDim, Special, T, Stored> mine(a, job, ratio, lane, warp % Stream::kWarps);
    barrier_wait(shared_address(&rest->queries_full[self.queries.slot]), self.queries.phase);
    const unsigned char *queries =
        shared + S::kStreamQueries + self.queries.slot * S::kStreamQueryBytes;
    if constexpr (kInBytes<Stored>) {
        mine.read_queries_for_bytes(queries);
    } else {
        mine.read_queries(queries);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&rest->queries_empty[self.queries.slot]));
    self.queries.advance();

    int turn = 0; // slots of the item are dealt to the groups in turn
    for (int which = 0; which < 2; ++which) {
        const KeyStretch stretch = job.item.stretch[which];
        for (int first = 0; first < stretch.keys; first += Stream::kKeys) {
            barrier_wait(shared_address(&rest->full[ring.slot]), ring.phase);
            if (turn == group) {
                const int offset = ring.slot * S::kSlotBytes;
                const int key = first + mine.part * 16;
                unsigned char *const slot = shared + S::kRegionBytes + offset;
                if constexpr (kInBytes<Stored>) {
                    mine.take_bytes(a, bounds, stretch, key, slots + offset, slot);
                } else {
                    mine.take(a, bounds, stretch, key, slots + offset, slot + S::kSlotBytes / 2);
                }
            }
            if (lane == 0) barrier_arrive(shared_address(&rest->empty[ring.slot]));
            ring.advance();
            turn = turn + 1 == Stream::kGroups ? 0 : turn + 1;
        }
    }

    // Merge the eight warps, eight query rows at a time.
    auto *buffer = reinterpret_cast<float *>(shared); // [warp][8 rows][HeadDim], not normalised
    barrier_wait(shared_address(&rest->region_free), self.region_phase ^ 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float &sum = mine.sum[i];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const int here = min(8, rows - 8 * i); // rows of this pass
        if (here <= 0) break;
        if (i == 1) named_barrier(kAllConsumers, kConsumers); // the first pass has been read
        if (mine.valid[i]) {
            float *out = buffer + (warp * 8 + lane / 4) * HeadDim;
            if constexpr (kInBytes<Stored>) {
#pragma unroll
                for (int d = 0; d < HeadDim / 16; ++d) {
                    const float(&even)[4] = mine.o[2 * d], (&odd)[4] = mine.o[2 * d + 1];
                    *reinterpret_cast<float4 *>(out + output_column(d, lane)) =
                        make_float4(even[2 * i], odd[2 * i], even[2 * i + 1], odd[2 * i + 1]);
                }
            } else {
#pragma unroll
                for (int d = 0; d < HeadDim / 8; ++d) {
                    *reinterpret_cast<float2 *>(out + d * 8 + lane % 4 * 2) =
                        make_float2(mine.o[d][2 * i], mine.o[d][2 * i + 1]);
                }
            }
            if (lane % 4 == 0) {
                rest->max_sum[warp][lane / 4][0] = mine.maximum[i] * mine.logits.c;
                rest->max_sum[warp][lane / 4][1] = sum;
            }
        }
        named_barrier(kAllConsumers, kConsumers);
        merge_warps<HeadDim, T, Stored>(a, mine.logits, job, ratio, rest, buffer, i, here, thread);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&rest->region_free));
    self.region_phase ^= 1;
}

} // namespace batchllm::cuda::sm90
