// Fused attention, sm_90a: jobs of the matrix queue of up to 64 query rows.
#pragma once

#include "attention/sm90_matrix.cuh"
#include "attention/sm90_softmax.cuh"

namespace batchllm::cuda::sm90 {

// A thread's maximum (scaled) and sum of its two rows.
struct Sums {
    float maximum[2], sum[2];
};

// The sums of the thread's rows, also written for the other group.
__device__ __forceinline__ Sums give_sums(Rest *rest, const RowSoftmax &softmax, int group,
                                          int row_in_tile, int lane) {
    Sums own;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        own.maximum[i] = softmax.maximum(i);
        own.sum[i] = softmax.sum[i];
        own.sum[i] += __shfl_xor_sync(~0u, own.sum[i], 1);
        own.sum[i] += __shfl_xor_sync(~0u, own.sum[i], 2);
        if (lane % 4 == 0) {
            rest->row_max_sum[group][row_in_tile + 8 * i] = make_float2(own.maximum[i], own.sum[i]);
        }
    }
    return own;
}

// The end of a narrow job: the groups exchange halves of O, each thread with its counterpart in the
// other group, and each group writes its half: group g the floats [g, g + 1) * kHalf of each
// thread's O.
template <int HeadDim, typename T> struct NarrowMerge {
    using S = Shape<HeadDim>;
    static constexpr int kHalf = HeadDim / 4, kOutputs = S::kColumns / 2;
    using Output = float[S::kParts][kOutputs];
    float4 *exchange; // [group][kHalf / 4][128]
    int group, lane, thread;

    static __device__ __forceinline__ float &value(Output &o, int i) {
        return o[i / kOutputs][i % kOutputs];
    }
    // Stores floats of O, from `first` on, for the other group.
    __device__ __forceinline__ void give(Output &o, int first) const {
#pragma unroll
        for (int i = 0; i < kHalf; i += 4) {
            exchange[(group * (kHalf / 4) + i / 4) * 128 + thread % 128] =
                make_float4(value(o, first + i), value(o, first + i + 1), value(o, first + i + 2),
                            value(o, first + i + 3));
        }
    }
    // Adds the other group's part to floats of O, from `first` on, and writes the rows' results.
    __device__ __forceinline__ void take(Output &o, int first, const Row (&row)[2],
                                         const Destination<T> (&out)[2], const float (&mine)[2],
                                         const float (&theirs)[2]) const {
#pragma unroll
        for (int i = 0; i < kHalf; i += 4) {
            const float4 v = exchange[((group ^ 1) * (kHalf / 4) + i / 4) * 128 + thread % 128];
            const int column = (first + i) / 4 * 8 + lane % 4 * 2;
            if (row[0].valid) {
                out[0].write(column, value(o, first + i) * mine[0] + v.x * theirs[0],
                             value(o, first + i + 1) * mine[0] + v.y * theirs[0]);
            }
            if (row[1].valid) {
                out[1].write(column, value(o, first + i + 2) * mine[1] + v.z * theirs[1],
                             value(o, first + i + 3) * mine[1] + v.w * theirs[1]);
            }
        }
    }
};

// The weight of each group's part in a row's result.
template <bool Special> __device__ __forceinline__ void
weigh_groups(const AttentionArguments &a, const Logits<Special> &logits, const Rest *rest,
             const Sums &own, const Row (&row)[2], int group, int row_in_tile, int lane,
             float value_factor, float (&mine)[2], float (&theirs)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float2 other = rest->row_max_sum[group ^ 1][row_in_tile + 8 * i];
        const float top = fmaxf(own.maximum[i], other.x);
        const float base = top == -INFINITY ? 0.f : top;
        mine[i] = exp2_approximate(own.maximum[i] - base);
        theirs[i] = exp2_approximate(other.x - base);
        const float total = logits.with_sink(mine[i] * own.sum[i] + theirs[i] * other.y, top,
                                             row[i].slot, row[i].head);
        const float inverse = total > 0 ? value_factor / total : 0.f;
        mine[i] *= inverse;
        theirs[i] *= inverse;
        if (group == 0 && row[i].valid && lane % 4 == 0) {
            write_lse(a, row[i].slot, row[i].head, top, total);
        }
    }
}

// Widens a slot of e4m3 in place, by one warpgroup. At first the second half has the bytes of K and
// then those of V; at the end the first half has the wide K and the second half the wide V. A
// thread has every 128th chunk.
template <int HeadDim> struct SlotWidener {
    using S = Shape<HeadDim>;
    static constexpr int kChunks = S::kSlotBytes / 4 / 16 / 128; // each of K and of V
    unsigned char *wide_keys, *wide_values;
    int row; // row of the thread's first chunk
    uint32_t place[2];
    uint4 values[kChunks]; // bytes

    __device__ __forceinline__ SlotWidener(unsigned char *slot, int thread)
        : wide_keys(slot), wide_values(slot + S::kSlotBytes / 2), row(thread / 4) {
        widened_places(thread, place);
        const auto *bytes = reinterpret_cast<const uint4 *>(wide_values) + thread;
#pragma unroll
        for (int i = 0; i < kChunks; ++i) write(wide_keys, i, bytes[i * 128]);
#pragma unroll
        for (int i = 0; i < kChunks; ++i) values[i] = bytes[(kChunks + i) * 128];
        async_proxy_fence();
    }
    // Called after a barrier of all threads. Values from row `keys` on become zero; see clear_rows.
    __device__ __forceinline__ void write_values(int keys) {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            const bool there = (row + i * 32) % S::kPairKeys < keys;
            write(wide_values, i, there ? values[i] : make_uint4(0, 0, 0, 0));
        }
        async_proxy_fence();
    }

  private:
    __device__ __forceinline__ void write(unsigned char *block, int i, const uint4 &bytes) const {
        uint4 chunks[2];
        widen(bytes, chunks);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            *reinterpret_cast<uint4 *>(block + i * 4096 + place[e]) = chunks[e];
        }
    }
};

// Turns the scores of a tile's keys into weights P, and rescales O for them.
template <int HeadDim, typename M, bool Special, int Parts, int Outputs, int Scores, int Weights>
__device__ __forceinline__ void
narrow_weights(const AttentionArguments &a, const Logits<Special> &logits, const Bounds &bounds,
               const Tile &at, const int (&position)[2], int lane, RowSoftmax &softmax,
               float (&s)[Scores], float (&o)[Parts][Outputs], uint32_t (&p)[Weights]) {
    float top[2], factor[2];
    logits.cap(s);
    hide_keys<Shape<HeadDim>::kPairKeys>(at, bounds, position, lane, a.window, s);
    if (softmax.grew(s, top)) {
        softmax.raise(top, factor);
        rescale(o, factor);
    }
    softmax.exponentials(s, p, M());
}

// Converts queries to the type for products with these keys.
template <typename T, typename Stored, int Count>
__device__ __forceinline__ void as_factors(uint4 (&chunks)[Count]) {
    if constexpr (kInBytes<Stored>) {
#pragma unroll
        for (uint4 &chunk : chunks) chunk = to_half(chunk, T());
    }
}

// A group's slots of e4m3, from `slot` on; its own and the other group's alternate. Each of its own
// is widened during P V of the previous one.
template <int HeadDim, bool Special, int Parts, int Outputs> __device__ __forceinline__ void
narrow_bytes(const AttentionArguments &a, const Logits<Special> &logits, const Bounds &bounds,
             const KeyStretch &s0, const KeyStretch &s1, int own, const Operand &q,
             const int (&position)[2], const Slots<HeadDim> &ring, unsigned char *shared,
             int thread, Ring<Shape<HeadDim>::kSlots> &slot, RowSoftmax &softmax,
             float (&o)[Parts][Outputs]) {
    using S = Shape<HeadDim>;
    const Tiles<S::kPairKeys> count(s0, s1);
    const int barrier = kGroup + __shfl_sync(~0u, thread / 128, 0);
    // Chunks of other threads are only visible after another barrier.
    auto widen_slot = [&](int tile) {
        const Tile at(s0, s1, count.n0, tile, S::kPairKeys);
        ring.wait(slot);
        SlotWidener<HeadDim> widener(shared + S::kRegionBytes + slot.slot * S::kSlotBytes,
                                     thread % 128);
        named_barrier(barrier, 128); // all bytes of V have been read
        widener.write_values(at.stretch.keys - at.key);
    };
    if (own < count.n) {
        widen_slot(own);
        named_barrier(barrier, 128);
    }
    float s[S::kPairKeys / 2];
    uint32_t p[S::kPairKeys / 4];
    for (int tile = own; tile < count.n; tile += 2) {
        const Tile at(s0, s1, count.n0, tile, S::kPairKeys);
        const uint32_t address = ring.address(slot);
        const Operand keys(address), values(address + S::kSlotBytes / 2, S::kPairKeys * 128);
        wgmma_fence();
        scores<HeadDim, S::kPairKeys>(s, q, keys, __half());
        wgmma_wait<0>();
        narrow_weights<HeadDim, __half>(a, logits, bounds, at, position, thread % 32, softmax, s, o,
                                        p);
        wgmma_fence();
        accumulate<HeadDim, S::kPairKeys>(o, p, values, __half());
        const auto done = slot;
        slot.advance();
        if (tile + 1 < count.n) { // the other group's
            ring.wait(slot);
            ring.release(slot);
            slot.advance();
        }
        if (tile + 2 < count.n) widen_slot(tile + 2);
        wgmma_wait<0>();
        ring.release(done);
        if (tile + 2 < count.n) named_barrier(barrier, 128);
    }
}

// Up to 64 query rows: both warpgroups have all of them, and take the slots in turn. One computes
// its softmax while the other multiplies.
template <int HeadDim, bool Special, typename T, typename Stored>
__device__ void narrow_job(const AttentionArguments &a, const Job &job, unsigned char *shared,
                           uint32_t slots, Rest *rest, Consumer<HeadDim> &self, int thread) {
    using S = Shape<HeadDim>;
    const int group = __shfl_sync(~0u, thread / 128, 0);
    const int lane = thread % 32, row_in_tile = thread % 128 / 32 * 16 + lane / 4;
    const Ratio &ratio = self.ratio;
    const Bounds bounds(job.item, a.window);
    const uint32_t region_free = shared_address(&rest->region_free);
    const Operand q(shared_address(shared));

    uint4 chunks[HeadDim / 32];
    read_queries<HeadDim, T, kConsumers>(a, job, ratio, 0, thread, chunks);
    as_factors<T, Stored>(chunks);
    barrier_wait(region_free, self.region_phase ^ 1);
    store_queries<HeadDim, kConsumers>(chunks, shared, thread);
    named_barrier(kAllConsumers, kConsumers);

    int position[2];
    read_positions(job, ratio, row_in_tile, position);
    float o[S::kParts][S::kColumns / 2] = {};
    const Logits<Special> logits(a, key_factor<Stored>(a, rest, job.kv_head));
    RowSoftmax softmax{logits.c, a.by_row != 0};
    float s[S::kPairKeys / 2];
    uint32_t p[S::kPairKeys / 4];

    const KeyStretch s0 = job.item.stretch[0], s1 = job.item.stretch[1];
    const Tiles<S::kPairKeys> count(s0, s1);
    const Slots<HeadDim> ring{slots, rest, lane};
    auto &slot = self.ring;
    auto release = [&] {
        ring.release(slot);
        slot.advance();
    };
    auto pass = [&] { // the other group's slot
        ring.wait(slot);
        release();
    };
    // Pages with odd indices belong to group 1, wherever the item begins.
    constexpr bool page_a_slot = S::kPairKeys == kPageKeys;
    const int odd = page_a_slot ? __shfl_sync(~0u, job.item.once >> 2 & 1, 0) : 0;
    const int own = group ^ odd;
    if (own == 1 && count.n > 0) pass();
    if constexpr (kInBytes<Stored>) {
        narrow_bytes<HeadDim>(a, logits, bounds, s0, s1, own, q, position, ring, shared, thread,
                              slot, softmax, o);
    } else {
        for (int tile = own; tile < count.n; tile += 2) {
            const Tile at(s0, s1, count.n0, tile, S::kPairKeys);
            const uint32_t address = ring.address(slot);
            const Operand keys(address), values(address + S::kSlotBytes / 2, S::kPairKeys * 128);
            ring.wait(slot);
            wgmma_fence();
            scores<HeadDim, S::kPairKeys>(s, q, keys, T());
            if (at.key + S::kPairKeys > at.stretch.keys) {
                clear_rows<S::kHalves>(
                    shared + S::kRegionBytes + slot.slot * S::kSlotBytes + S::kSlotBytes / 2,
                    S::kPairKeys, at.stretch.keys - at.key, S::kPairKeys, thread % 128, 128);
                named_barrier(kGroup + group, 128);
            }
            wgmma_wait<0>();
            narrow_weights<HeadDim, T>(a, logits, bounds, at, position, lane, softmax, s, o, p);
            wgmma_fence();
            accumulate<HeadDim, S::kPairKeys>(o, p, values, T());
            wgmma_wait<0>();
            release();
            if (tile + 1 < count.n) pass();
        }
    }

    const Sums sums = give_sums(rest, softmax, group, row_in_tile, lane);
    named_barrier(kAllConsumers, kConsumers); // the queries are no longer read
    const NarrowMerge<HeadDim, T> merge{reinterpret_cast<float4 *>(shared), group, lane, thread};
    // In branches, so that O's registers have constant indices.
    if (group == 0) {
        merge.give(o, merge.kHalf);
    } else {
        merge.give(o, 0);
    }
    named_barrier(kAllConsumers, kConsumers);
    Row row[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) row[i] = read_row(job, ratio, row_in_tile + 8 * i);
    float mine[2], theirs[2];
    weigh_groups(a, logits, rest, sums, row, group, row_in_tile, lane,
                 value_factor<Stored>(a, rest, job.kv_head), mine, theirs);
    const Destination<T> out[2] = {{a, row[0].token, row[0].slot, row[0].head, HeadDim},
                                   {a, row[1].token, row[1].slot, row[1].head, HeadDim}};
    if (group == 0) {
        merge.take(o, 0, row, out, mine, theirs);
    } else {
        merge.take(o, merge.kHalf, row, out, mine, theirs);
    }
    __syncwarp(); // all lanes have read the exchange
    if (lane == 0) barrier_arrive(region_free);
    self.region_phase ^= 1;
}

} // namespace batchllm::cuda::sm90
