// Fused attention, sm_90a: jobs of the matrix queue of 65 to 128 query rows.
#pragma once

#include "attention/sm90_matrix.cuh"
#include "attention/sm90_softmax.cuh"

namespace batchllm::cuda::sm90 {

// Writes a warp's 16 rows of O to the output, through `staging`, its rows of the space for queries,
// so that it writes whole rows. `row`: the first one's index in the job.
template <int HeadDim, typename T, int Parts, int Outputs> __device__ __forceinline__ void
write_rows(const AttentionArguments &a, const Job &job, const Ratio &ratio, int row,
           const float (&o)[Parts][Outputs], const float (&inverse)[2], unsigned char *staging,
           int lane) {
    auto value = [&](int i) { return o[i / Outputs][i % Outputs]; };
    const int r = lane % 16;
    const uint32_t to = shared_address(staging) + r * 128;
#pragma unroll
    for (int k = 0; k < HeadDim / 16; ++k) {
        uint32_t v[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            v[e] = pack(value(k * 8 + 2 * e) * inverse[e % 2],
                        value(k * 8 + 2 * e + 1) * inverse[e % 2], T());
        }
        store_matrix(to + k / 4 * 8192 + ((k % 4 * 2 + lane / 16 ^ r % 8) << 4), v);
    }
    __syncwarp();
    constexpr int kLanes = HeadDim / 8; // lanes that write a row
#pragma unroll
    for (int i = 0; i < 16 / (32 / kLanes); ++i) {
        const int at = i * (32 / kLanes) + lane / kLanes, chunk = lane % kLanes;
        const Row out = read_row(job, ratio, row + at);
        if (!out.valid || out.slot >= 0) continue;
        *reinterpret_cast<uint4 *>(static_cast<T *>(a.out) + out.token * a.out_stride +
                                   out.head * HeadDim + chunk * 8) =
            *reinterpret_cast<const uint4 *>(staging + chunk / 8 * 8192 + at * 128 +
                                             ((chunk % 8 ^ at % 8) << 4));
    }
}

// Writes this thread's two rows of O to their partials, if they have any.
template <int HeadDim, typename T, int Parts, int Outputs> __device__ __forceinline__ void
write_partials(const AttentionArguments &a, const Job &job, const Ratio &ratio, int first_row,
               const float (&o)[Parts][Outputs], const float (&inverse)[2],
               const RowSoftmax &softmax, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const Row row = read_row(job, ratio, first_row + lane / 4 + 8 * i);
        if (!row.valid || row.slot < 0) continue;
        const Destination<T> out(a, row.token, row.slot, row.head, HeadDim);
#pragma unroll
        for (int h = 0; h < Parts; ++h)
#pragma unroll
            for (int j = 0; j < Outputs / 4; ++j) {
                out.write(h * Outputs * 2 + j * 8 + lane % 4 * 2, o[h][j * 4 + i * 2] * inverse[i],
                          o[h][j * 4 + i * 2 + 1] * inverse[i]);
            }
        if (lane % 4 == 0) {
            write_lse(a, row.slot, row.head, softmax.maximum(i), softmax.sum[i]);
        }
    }
}

// Prefetches the group's queries of the job after this one, if it is known, to L2.
template <int HeadDim, typename T>
__device__ __forceinline__ void prefetch_queries(const AttentionArguments &a, const Rest *rest,
                                                 const Ring<kJobs> &next, const Ratio &ratio,
                                                 int group, int thread) {
    if (!barrier_test(shared_address(&rest->job_full[next.slot]), next.phase)) return;
    const Job &after = rest->jobs[next.slot];
    for (int i = thread % 128; i < HeadDim && after.number >= 0; i += 128) { // 128 bytes each
        const Row row = read_row(after, ratio, group * 64 + i / (HeadDim / 64));
        if (!row.valid) continue;
        prefetch(static_cast<const T *>(a.q) + row.token * a.q_stride + row.head * HeadDim +
                 i % (HeadDim / 64) * 64);
    }
}

// Stores the group's 64 query rows in its half of the region.
template <int HeadDim, typename T>
__device__ __forceinline__ void place_queries(const AttentionArguments &a, const Job &job,
                                              const Consumer<HeadDim> &self, unsigned char *queries,
                                              uint32_t region_free, int group, int thread) {
    uint4 chunks[HeadDim / 16];
    read_queries<HeadDim, T, 128>(a, job, self.ratio, group * 64, thread % 128, chunks);
    // A group only touches its own half of the region: after a wide job it need not wait for the
    // other.
    if (self.after_wide) {
        named_barrier(kGroup + group, 128);
    } else {
        barrier_wait(region_free, self.region_phase ^ 1);
    }
    store_queries<HeadDim, 128>(chunks, queries, thread % 128);
    named_barrier(kGroup + group, 128);
}

// Clears rows [keys, all) of V in the slot. Each group does so itself; both write the same zeros.
template <int HeadDim> __device__ __forceinline__ void
clear_wide(unsigned char *shared, int slot, int keys, int all, int group, int thread) {
    using S = Shape<HeadDim>;
    clear_rows<S::kHalves>(shared + S::kRegionBytes + slot * S::kSlotBytes, S::kKeys, keys, all,
                           thread % 128, 128);
    named_barrier(kGroup + group, 128);
}

// The sums of whole rows from those of the thread's columns, and the factor for O.
template <bool Special>
__device__ __forceinline__ void sum_rows(const Logits<Special> &logits, const Job &job,
                                         const Ratio &ratio, int first, float value_factor,
                                         RowSoftmax *softmax, float (&inverse)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float &sum = softmax->sum[i];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        float total = sum;
        if constexpr (Special) {
            const Row row = read_row(job, ratio, first + 8 * i);
            total = logits.with_sink(sum, softmax->maximum(i), row.slot, row.head);
        }
        inverse[i] = total > 0 ? __fdividef(value_factor, total) : 0.f;
    }
}

// The end of a wide job: writes its rows to their destinations.
template <int HeadDim, typename T, int Parts, int Outputs> __device__ __forceinline__ void
write_wide(const AttentionArguments &a, const Job &job, Consumer<HeadDim> &self,
           const float (&o)[Parts][Outputs], const float (&inverse)[2], const RowSoftmax &softmax,
           unsigned char *queries, uint32_t region_free, int thread) {
    const int group = __shfl_sync(~0u, thread / 128, 0), lane = thread % 32;
    const int warp = thread % 128 / 32, first_row = group * 64 + warp * 16;
    const Ratio &ratio = self.ratio;
    if (job.item.partial) {
        write_partials<HeadDim, T>(a, job, ratio, first_row, o, inverse, softmax, lane);
    }
    named_barrier(kGroup + group, 128); // the queries are no longer read
    write_rows<HeadDim, T>(a, job, ratio, first_row, o, inverse, queries + warp * 16 * 128, lane);
    // The other group may still be in its last job; no group may arrive twice in a phase.
    if (self.after_wide) barrier_wait(region_free, self.region_phase ^ 1);
    __syncwarp();
    if (lane == 0) barrier_arrive(region_free);
    self.region_phase ^= 1;
}

// 65 to 128 query rows: each warpgroup has 64. S = Q K^T of tile j + 1 and O += P V of tile j are in
// flight together; a warpgroup's softmax overlaps with the other's products. `next`: the job after
// this one.
template <int HeadDim, bool Special, typename T, typename Stored>
__device__ void wide_job(const AttentionArguments &a, const Job &job, unsigned char *shared,
                         uint32_t slots, Rest *rest, Consumer<HeadDim> &self, Ring<kJobs> next,
                         int thread) {
    using S = Shape<HeadDim>;
    const int group = __shfl_sync(~0u, thread / 128, 0); // known to be the same in all lanes
    const int lane = thread % 32, warp = thread % 128 / 32;
    const Bounds bounds(job.item, a.window);
    const uint32_t region_free = shared_address(&rest->region_free);
    unsigned char *queries = shared + group * 64 * HeadDim * 2;
    const Operand q(shared_address(queries));
    place_queries<HeadDim, T>(a, job, self, queries, region_free, group, thread);

    int position[2];
    read_positions(job, self.ratio, group * 64 + warp * 16 + lane / 4, position);
    float o[S::kParts][S::kColumns / 2] = {};
    const Logits<Special> logits(a, key_factor<Stored>(a, rest, job.kv_head));
    RowSoftmax softmax{logits.c};
    float s[S::kKeys / 2], top[2], factor[2], inverse[2];
    uint32_t p[S::kKeys / 4];

    const Slots<HeadDim> ring{slots, rest, lane};
    using Place = typename Slots<HeadDim>::Place;
    auto keys_in = [&](const Place &at) { return Operand(ring.address(at)); };
    auto values_in = [&](const Place &at) { return Operand(ring.address(at), S::kKeys * 128); };
    const KeyStretch s0 = job.item.stretch[0], s1 = job.item.stretch[1];
    const Tiles<S::kKeys> count(s0, s1);
    const int last_keys = count.last_keys(s0, s1);
    auto clear_values = [&](int keys, int all, const Place &at) {
        if (keys != all) clear_wide<HeadDim>(shared, at.slot, keys, all, group, thread);
    };

    auto after = [](Place at) { return at.advance(), at; };
    Place key_slot = self.ring;
    ring.wait(key_slot);
    wgmma_fence();
    scores<HeadDim, S::kKeys>(s, q, keys_in(key_slot), T());
    wgmma_wait<0>();
    ring.release(key_slot);
    key_slot.advance();
    Place value_slot = after(key_slot);
    logits.cap(s);
    const Tile start(s0, s1, count.n0, 0, S::kKeys);
    hide_keys<S::kKeys>(start, bounds, position, lane, a.window, s);
    softmax.grew(s, top);
    softmax.raise(top, factor);
    softmax.exponentials(s, p, T());
    bool there = false; // whether both slots of the next tile are full
    Operand keys = keys_in(key_slot), values = values_in(value_slot);
    for (int tile = 1; tile < count.n; ++tile) {
        if (!there) {
            ring.wait(key_slot);
            ring.wait(value_slot);
        }
        if (tile == count.n0) {
            clear_values(s0.keys - (count.n0 - 1) * S::kKeys, S::kKeys, value_slot);
        }
        // The warpgroups take turns: one issues its products while the other computes its softmax.
        named_barrier(kTurn + group, kConsumers);
        wgmma_fence();
        scores<HeadDim, S::kKeys>(s, q, keys, T());
        accumulate<HeadDim, S::kKeys>(o, p, values, T());
        named_barrier_arrive(kTurn + (group ^ 1), kConsumers);
        const Tile at(s0, s1, count.n0, tile, S::kKeys);
        const bool hidden = bounds.hide(at.stretch, at.key, S::kKeys);
        const auto old_keys = key_slot, old_values = value_slot;
        key_slot = after(value_slot);
        value_slot = after(key_slot);
        there = ring.full(key_slot) && ring.full(value_slot);
        keys = keys_in(key_slot);
        values = values_in(value_slot);
        wgmma_wait<1>();
        ring.release(old_keys);
        logits.cap(s);
        if (hidden) mask(s, position, at.stretch, at.key + lane % 4 * 2, a.window);
        // In each branch, since ptxas would otherwise move the wait above the maxima.
        if (softmax.grew(s, top)) {
            softmax.raise(top, factor);
            wgmma_wait<0>();
            rescale(o, factor);
        }
        wgmma_wait<0>(); // P's registers are free, for P of this tile
        ring.release(old_values);
        softmax.exponentials(s, p, T());
    }
    // The last V is in the slot where the next K would be.
    ring.wait(key_slot);
    clear_values(last_keys, (last_keys + 15) / 16 * 16, key_slot);
    wgmma_fence();
    accumulate<HeadDim, S::kKeys>(o, p, values_in(key_slot), T(), (last_keys + 15) / 16);
    prefetch_queries<HeadDim, T>(a, rest, next, self.ratio, group, thread); // while O is written
    sum_rows(logits, job, self.ratio, group * 64 + warp * 16 + lane / 4,
             value_factor<Stored>(a, rest, job.kv_head), &softmax, inverse);
    wgmma_wait<0>();
    ring.release(key_slot);
    key_slot.advance();
    self.ring = key_slot;

    write_wide<HeadDim, T>(a, job, self, o, inverse, softmax, queries, region_free, thread);
}

} // namespace batchllm::cuda::sm90
