// Fused attention, sm_90a: jobs of the stream queue, on mma.sync: up to 16 query rows, bound by
// reading the keys and values.
#pragma once

#include "attention/sm90_matrix.cuh"

namespace batchllm::cuda::sm90 {

// A stream job in one of its warps: the rows of its lanes, Q as mma's operand, and the warp's part
// of O, not normalised.
template <int HeadDim, bool Special, typename T, typename Stored> struct StreamWarp {
    using S = Shape<HeadDim>;
    using M = Factor<T, Stored>;
    static constexpr int kHalfBytes = kPageKeys * 64; // e4m3: 64 elements of each of a page's keys
    static constexpr bool kRegistersLeft = HeadDim <= 128;
    int lane, part = 0; // part of a slot
    Logits<Special> logits;
    bool valid[2];
    int position[2];
    uint32_t q[HeadDim / 16][4];
    float o[HeadDim / 8][4] = {};
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};

    __device__ __forceinline__ StreamWarp(const AttentionArguments &a, const Job &job,
                                          const Ratio &ratio, const Rest *rest, int lane)
        : lane(lane), logits(a, key_factor<Stored>(a, rest, job.kv_head)) {
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

    // Clears values past the stretch's end; see clear_rows. The rows belong to this warp alone.
    // from: index among its 16.
    __device__ __forceinline__ void clear_values(unsigned char *values, int from) const {
        constexpr int kChunks = 8 * S::kHalves; // per row
        for (int i = from * kChunks + lane; i < 16 * kChunks; i += 32) {
            const int row = part * 16 + i / kChunks, chunk = i % kChunks;
            *reinterpret_cast<uint4 *>(values + chunk / 8 * S::kPairKeys * 128 + row * 128 +
                                       chunk % 8 * 16) = make_uint4(0, 0, 0, 0);
        }
        async_proxy_fence();
        __syncwarp();
    }

    __device__ __forceinline__ void scores(uint32_t keys, float (&s)[8]) const {
        float odd[8] = {}; // a second chain of products, since each waits for the previous one
#pragma unroll
        for (int k = 0; k < HeadDim / 16; ++k) {
            uint32_t b[4];
            const int r = part * 16 + lane / 16 * 8 + lane % 8;
            const int chunk = k % 4 * 2 + lane / 8 % 2;
            load_matrix(b, keys + k / 4 * S::kPairKeys * 128 + r * 128 + ((chunk ^ r % 8) << 4));
            float *sum = k % 2 == 0 || !kRegistersLeft ? s : odd;
            mma_sync(sum, q[k], b[0], b[1], T());
            mma_sync(sum + 4, q[k], b[2], b[3], T());
        }
#pragma unroll
        for (int i = 0; i < 8 && kRegistersLeft; ++i) s[i] += odd[i];
    }
    // Loads 16 columns of the values, as mma's operand.
    __device__ __forceinline__ void load_values(uint32_t values, int d, uint32_t (&b)[4]) const {
        const int r = part * 16 + lane / 8 % 2 * 8 + lane % 8;
        const int chunk = d % 4 * 2 + lane / 16;
        load_matrix_transposed(b, values + d / 4 * S::kPairKeys * 128 + r * 128 +
                                      ((chunk ^ r % 8) << 4));
    }

    // The same for e4m3. values: those of the warp's 16 keys.
    __device__ __forceinline__ void clear_bytes(unsigned char *values, int from) const {
        constexpr int kChunks = 4 * S::kHalves; // per row
        for (int i = from * kChunks + lane; i < 16 * kChunks; i += 32) {
            const int row = i / kChunks, chunk = i % kChunks;
            *reinterpret_cast<uint4 *>(values + chunk / 4 * kHalfBytes + row * 64 +
                                       chunk % 4 * 16) = make_uint4(0, 0, 0, 0);
        }
        async_proxy_fence();
        __syncwarp();
    }

    // Adds the warp's 16 keys of a slot of e4m3, from `key` of the stretch on; there may be none.
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

    // Turns scores into P; rescales the sums so far when the maxima grow.
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

    // Adds the warp's 16 keys of a slot, from `key` of the stretch on; there may be none. pair: the
    // slot's K; V is half a slot further on.
    __device__ __forceinline__ void take(const AttentionArguments &a, const Bounds &bounds,
                                         const KeyStretch &stretch, int key, uint32_t pair,
                                         unsigned char *values) {
        if (key >= stretch.keys) return;
        if (key + 16 > stretch.keys) clear_values(values, stretch.keys - key);
        float s[8] = {}, factor[2];
        scores(pair, s);
        // Values arrive during the softmax.
        constexpr int kHeld = kRegistersLeft ? HeadDim / 16 : 1;
        const uint32_t value_address = pair + S::kSlotBytes / 2;
        uint32_t p[4], v[kHeld][4];
#pragma unroll
        for (int d = 0; d < kHeld; ++d) load_values(value_address, d, v[d]);
        weigh(a, bounds, stretch, key, s, factor, p);
#pragma unroll
        for (int d = 0; d < HeadDim / 16; ++d) {
            if (d >= kHeld) load_values(value_address, d, v[d % kHeld]);
            mma_sync(o[2 * d], p, v[d % kHeld][0], v[d % kHeld][1], T());
            mma_sync(o[2 * d + 1], p, v[d % kHeld][2], v[d % kHeld][3], T());
        }
        __syncwarp();
    }
};

// Where a column is in its row of the merge buffer; in neighbouring rows it is in different banks.
__device__ __forceinline__ int merge_place(int row, int column) {
    return column ^ (row % 2 * 16 + row / 2 % 2 * 8);
}

// The end of a stream job: the parts of its Warps, from the CTA's warp `first` on, are merged,
// eight query rows at a time.
template <int HeadDim, int Warps, typename T, typename Stored> struct StreamMerge {
    static constexpr int kThreads = Warps * 32;
    const AttentionArguments &a;
    const Job &job;
    const Ratio &ratio;
    Rest *rest;
    float *buffer; // [warp][8 rows][HeadDim], not normalised
    int first, thread;

    // Stores this warp's rows [8 i, 8 i + 8).
    template <typename Warp> __device__ __forceinline__ void give(const Warp &mine, int i) const {
        const int lane = mine.lane, warp = thread / 32 + first, row = lane / 4;
        if (!mine.valid[i]) return;
        float *out = buffer + (warp * 8 + row) * HeadDim;
        if constexpr (kInBytes<Stored>) {
#pragma unroll
            for (int d = 0; d < HeadDim / 16; ++d) {
                const float(&even)[4] = mine.o[2 * d], (&odd)[4] = mine.o[2 * d + 1];
                *reinterpret_cast<float4 *>(out + merge_place(row, output_column(d, lane))) =
                    make_float4(even[2 * i], odd[2 * i], even[2 * i + 1], odd[2 * i + 1]);
            }
        } else {
#pragma unroll
            for (int d = 0; d < HeadDim / 8; ++d) {
                *reinterpret_cast<float2 *>(out + merge_place(row, d * 8 + lane % 4 * 2)) =
                    make_float2(mine.o[d][2 * i], mine.o[d][2 * i + 1]);
            }
        }
        if (lane % 4 == 0) {
            rest->max_sum[warp][row][0] = mine.maximum[i] * mine.logits.c;
            rest->max_sum[warp][row][1] = mine.sum[i];
        }
    }

    // Writes rows [8 i, 8 i + here) to their destinations.
    template <bool Special>
    __device__ __forceinline__ void write(const Logits<Special> &logits, int i, int here) const {
        for (int e = thread; e < here * HeadDim / 4; e += kThreads) {
            const int r = e / (HeadDim / 4), column = e % (HeadDim / 4) * 4;
            float top = -INFINITY;
#pragma unroll
            for (int w = 0; w < Warps; ++w) top = fmaxf(top, rest->max_sum[first + w][r][0]);
            const float base = top == -INFINITY ? 0.f : top;
            const float *part = buffer + (first * 8 + r) * HeadDim + merge_place(r, column);
            float total = 0, o[4] = {};
#pragma unroll
            for (int w = 0; w < Warps; ++w) {
                const float weight = exp2_approximate(rest->max_sum[first + w][r][0] - base);
                const auto v = *reinterpret_cast<const float4 *>(part + w * 8 * HeadDim);
                total += weight * rest->max_sum[first + w][r][1];
                o[0] += weight * v.x;
                o[1] += weight * v.y;
                o[2] += weight * v.z;
                o[3] += weight * v.w;
            }
            const int index = ratio.token(8 * i + r);
            const int head = job.kv_head * ratio.ratio + ratio.head(8 * i + r);
            total = logits.with_sink(total, top, job.slot[index], head);
            const float scale =
                total > 0 ? value_factor<Stored>(a, rest, job.kv_head) / total : 0.f;
            const Destination<T> out(a, job.token[index], job.slot[index], head, HeadDim);
            out.write(column, o[0] * scale, o[1] * scale);
            out.write(column + 2, o[2] * scale, o[3] * scale);
            if (column == 0) write_lse(a, job.slot[index], head, top, total);
        }
    }

    // barrier: a named barrier for these threads.
    template <typename Warp>
    __device__ __forceinline__ void merge(Warp *mine, int rows, int barrier) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int here = min(8, rows - 8 * i); // rows in this pass
            if (here <= 0) break;
            float &sum = mine->sum[i];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (i == 1) named_barrier(barrier, kThreads); // the first pass has been read
            give(*mine, i);
            named_barrier(barrier, kThreads);
            write(mine->logits, i, here);
        }
    }
};

// Computes the slots of a stream job, by one warpgroup or by both. The two cases have separate
// loops: in a common one, the addresses of a part would be recomputed for each slot.
template <bool Alone, int HeadDim, typename T, typename Stored, typename Warp>
__device__ __forceinline__ void
take_slots(const AttentionArguments &a, const Job &job, const Bounds &bounds, unsigned char *shared,
           uint32_t slots, Rest *rest, int thread, Ring<Shape<HeadDim>::kSlots> &ring, Warp *mine) {
    using S = Shape<HeadDim>;
    using Stream = StreamShape<HeadDim, Stored>;
    constexpr int kWarps = Alone ? 4 : 8;
    constexpr int kGroups =
        kWarps > Stream::kParts ? kWarps / Stream::kParts : 1; // groups that take turns
    constexpr int kTimes = Stream::kParts * kGroups / kWarps;  // parts of a slot per warp
    const int warp = thread / 32 % kWarps, group = warp / Stream::kParts;
    const int reader = Alone ? 1 + thread / 128 : 0; // index in Rest::full
    int turn = 0;
    for (int which = 0; which < 2; ++which) {
        const KeyStretch stretch = job.item.stretch[which];
        for (int first = 0; first < stretch.keys; first += Stream::kKeys) {
            const uint32_t empty = shared_address(&rest->empty[ring.slot]);
            barrier_wait(shared_address(&rest->full[reader][ring.slot]), ring.phase);
            if (turn == group) {
                const int offset = ring.slot * S::kSlotBytes;
                unsigned char *const slot = shared + S::kRegionBytes + offset;
#pragma unroll 1
                for (int i = 0; i < kTimes; ++i) {
                    mine->part = warp % Stream::kParts + i * kWarps;
                    const int key = first + mine->part * 16;
                    if constexpr (kInBytes<Stored>) {
                        mine->take_bytes(a, bounds, stretch, key, slots + offset, slot);
                    } else {
                        mine->take(a, bounds, stretch, key, slots + offset,
                                   slot + S::kSlotBytes / 2);
                    }
                }
            }
            if (mine->lane < 8 / kWarps) barrier_arrive(empty); // eight arrivals in all
            ring.advance();
            turn = turn + 1 == kGroups ? 0 : turn + 1;
        }
    }
}

// place: the job's place.
template <int HeadDim, bool Special, typename T, typename Stored>
__device__ void stream_job(const AttentionArguments &a, const Job &job, unsigned char *shared,
                           uint32_t slots, Rest *rest, Consumer<HeadDim> &self,
                           const Ring<kJobs> &place, int thread) {
    using S = Shape<HeadDim>;
    using Stream = StreamShape<HeadDim, Stored>;
    const int lane = thread % 32, group = thread / 128;
    const KeyStretch s0 = job.item.stretch[0], s1 = job.item.stretch[1];
    const bool alone = is_alone<HeadDim, Stored>(s0, s1);
    if (alone) {
        self.apart = true;
        const bool own = self.next_alone == group;
        self.next_alone ^= 1;
        if (!own) { // parity only tells neighbouring phases apart: skipped ones must be over first
            barrier_wait(shared_address(&rest->job_fed[place.slot]), place.phase);
            self.ring.advance(tiles(s0.keys, Stream::kKeys) + tiles(s1.keys, Stream::kKeys));
            self.queries.advance();
            return;
        }
    } else {
        self.meet();
    }
    const int rows = job.item.row_count * self.ratio.ratio;
    StreamWarp<HeadDim, Special, T, Stored> mine(a, job, self.ratio, rest, lane);
    barrier_wait(shared_address(&rest->queries_full[self.queries.slot]), self.queries.phase);
    const unsigned char *queries =
        shared + S::kStreamQueries + self.queries.slot * S::kStreamQueryBytes;
    if constexpr (kInBytes<Stored>) {
        mine.read_queries_for_bytes(queries);
    } else {
        mine.read_queries(queries);
    }
    __syncwarp();
    if (lane < (alone ? 2 : 1))
        barrier_arrive(shared_address(&rest->queries_empty[self.queries.slot]));
    self.queries.advance();
    const Bounds bounds(job.item, a.window);
    if (alone) {
        take_slots<true, HeadDim, T, Stored>(a, job, bounds, shared, slots, rest, thread, self.ring,
                                             &mine);
    } else {
        take_slots<false, HeadDim, T, Stored>(a, job, bounds, shared, slots, rest, thread,
                                              self.ring, &mine);
    }

    auto *buffer = reinterpret_cast<float *>(shared);
    const uint32_t region_free = shared_address(&rest->region_free);
    barrier_wait(region_free, self.region_phase ^ 1); // after the last job of both groups
    if (alone) {
        named_barrier(kGroup + group, 128); // after the group's last job alone
        StreamMerge<HeadDim, 4, T, Stored>{a,      job,       self.ratio,  rest,
                                           buffer, group * 4, thread % 128}
            .merge(&mine, rows, kGroup + group);
    } else {
        StreamMerge<HeadDim, 8, T, Stored>{a, job, self.ratio, rest, buffer, 0, thread}.merge(
            &mine, rows, kAllConsumers);
        __syncwarp();
        if (lane == 0) barrier_arrive(region_free);
        self.region_phase ^= 1;
    }
}

} // namespace batchllm::cuda::sm90
