// Fused attention, sm_90a: jobs of the matrix queue, on wgmma.
#pragma once

#include "attention_sm90_merge.cuh"

namespace batchllm::cuda {

// What a consumer thread keeps from job to job.
template <int HeadDim> struct Consumer {
    Ratio ratio;
    Ring<Shape<HeadDim>::kSlots> ring;
    Ring<kQueries> queries;
    uint32_t region_phase = 0; // jobs that have used the region, modulo 2
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

// A tile of a job's keys: whichever stretch it is of.
struct Tile {
    KeyStretch stretch;
    int key; // its first, in the stretch
    __device__ Tile(const KeyStretch &s0, const KeyStretch &s1, int n0, int tile, int keys)
        : stretch{0, tile < n0 ? s0.keys : s1.keys, tile < n0 ? s0.start : s1.start},
          key((tile < n0 ? tile : tile - n0) * keys) {}
};

// Values past the stretch's end are whatever the page held before, and 0 x NaN would poison O: rows
// [from, count) of a block of V become zero. Then wgmma may read them once the threads have met.
template <int Halves> __device__ __forceinline__ void
clear_rows(unsigned char *values, int count, int from, int thread, int threads) {
    for (int i = thread; i < (count - from) * 8 * Halves; i += threads) {
        const int half = i / ((count - from) * 8), at = i % ((count - from) * 8);
        *reinterpret_cast<uint4 *>(values + half * count * 128 + from * 128 + at * 16) =
            make_uint4(0, 0, 0, 0);
    }
    async_proxy_fence();
}

// 64 query rows, from row `first` of the job, into shared memory: [half][64 rows][64], swizzled as the
// keys are, by `threads` threads. The loads are under way before the region is known to be free.
template <int HeadDim, typename T, int Threads>
__device__ __forceinline__ void load_queries(const AttentionArguments &a, const Job &job,
                                             const Ratio &ratio, int first, unsigned char *queries,
                                             uint32_t region_free, uint32_t parity, int thread) {
    constexpr int kEach = 64 * HeadDim / 8 / Threads; // chunks of 16 bytes
    uint4 value[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int at = i * Threads + thread;
        const int r = first + at / (HeadDim / 8), chunk = at % (HeadDim / 8);
        value[i] = make_uint4(0, 0, 0, 0);
        if (ratio.token(r) < job.item.row_count) {
            value[i] = __ldg(reinterpret_cast<const uint4 *>(
                static_cast<const T *>(a.q) + job.token[ratio.token(r)] * a.q_stride +
                (job.kv_head * ratio.ratio + ratio.head(r)) * HeadDim + chunk * 8));
        }
    }
    barrier_wait(region_free, parity);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int at = i * Threads + thread;
        const int r = at / (HeadDim / 8), chunk = at % (HeadDim / 8);
        *reinterpret_cast<uint4 *>(queries + chunk / 8 * 8192 + r * 128 +
                                   ((chunk % 8 ^ r % 8) << 4)) = value[i];
    }
    async_proxy_fence();
}

// S = Q K^T of a tile of Keys keys, one group of wgmma.
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
// O += P V of a tile, one group of wgmma.
template <int HeadDim, int Keys, typename T, int Parts, int Outputs> __device__ __forceinline__ void
accumulate(float (&o)[Parts][Outputs], const uint32_t *p, const Operand &values, T type) {
    static_assert(Parts * Outputs == HeadDim / 2);
#pragma unroll
    for (int k = 0; k < Keys / 16; ++k) {
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

// Keeps the softmax before what follows: ptxas would move the wait for the products up over it. The
// value is no less than 0, or NaN.
__device__ __forceinline__ void finish_first(float sum) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.lt.f32 p, %0, 0f00000000;\n"
                 "@!p bra done;\n"
                 "nanosleep.u32 0;\n"
                 "done:\n"
                 "}" ::"f"(sum)
                 : "memory");
}

// 65 to 128 query rows: each warpgroup has 64. S = Q K^T of tile j + 1 and O += P V of tile j are in
// flight together, the softmax of tile j + 1 under the latter.
template <int HeadDim, typename T>
__device__ void wide_job(const AttentionArguments &a, const Job &job, unsigned char *shared,
                         uint32_t slots, Rest *rest, Consumer<HeadDim> &self, int thread) {
    using S = Shape<HeadDim>;
    const int group = thread / 128, lane = thread % 32, warp = thread % 128 / 32;
    const Ratio &ratio = self.ratio;
    const float c = a.scale * kLog2e;
    const Bounds bounds(job.item, a.window);
    const uint32_t region_free = shared_address(&rest->region_free);
    auto &ring = self.ring;

    unsigned char *queries = shared + group * 64 * HeadDim * 2;
    const Operand q(shared_address(queries));
    load_queries<HeadDim, T, 128>(a, job, ratio, group * 64, queries, region_free,
                                  self.region_phase ^ 1, thread % 128);
    named_barrier(kGroup + group, 128);

    int position[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        position[i] = read_row(job, ratio, group * 64 + warp * 16 + lane / 4 + 8 * i).position;
    }
    float o[S::kParts][S::kColumns / 2] = {};
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, factor[2];
    float s[S::kKeys / 2];
    uint32_t p[S::kKeys / 4];

    auto keys_in = [&](const Ring<S::kSlots> &r) {
        return Operand(slots + r.slot * S::kSlotBytes);
    };
    auto values_in = [&](const Ring<S::kSlots> &r) {
        return Operand(slots + r.slot * S::kSlotBytes, S::kKeys * 128);
    };
    auto wait_full = [&](const Ring<S::kSlots> &r) {
        barrier_wait(shared_address(&rest->full[r.slot]), r.phase);
    };
    auto release = [&](const Ring<S::kSlots> &r) {
        if (lane == 0) barrier_arrive(shared_address(&rest->empty[r.slot]));
    };
    const KeyStretch s0 = job.item.stretch[0], s1 = job.item.stretch[1];
    // The same in every lane, and the compiler is to know it: wgmma in a loop that may diverge is
    // serialised (C7520).
    const int n0 = __shfl_sync(~0u, tiles(s0.keys, S::kKeys), 0);
    const int n = n0 + __shfl_sync(~0u, tiles(s1.keys, S::kKeys), 0);
    auto clear_values = [&](int tile, const Ring<S::kSlots> &r) {
        const int keys =
            (tile < n0 ? s0.keys : s1.keys) - (tile < n0 ? tile : tile - n0) * S::kKeys;
        if (keys >= S::kKeys) return;
        clear_rows<S::kHalves>(shared + S::kRegionBytes + r.slot * S::kSlotBytes, S::kKeys, keys,
                               thread, kConsumers);
        named_barrier(kAllConsumers, kConsumers);
    };

    wait_full(ring);
    wgmma_fence();
    scores<HeadDim, S::kKeys>(s, q, keys_in(ring), T());
    wgmma_wait<0>();
    release(ring);
    ring.advance();
    const Tile start(s0, s1, n0, 0, S::kKeys);
    if (bounds.hide(start.stretch, start.key, S::kKeys)) {
        mask(s, position, start.stretch, start.key + lane % 4 * 2, a.window);
    }
    softmax(s, maximum, sum, factor, c);
    to_operand(p, s, T());
    for (int tile = 1; tile < n; ++tile) {
        const auto key_slot = ring;
        ring.advance();
        const auto value_slot = ring;
        ring.advance();
        const Operand keys = keys_in(key_slot), values = values_in(value_slot);
        wait_full(key_slot);
        wait_full(value_slot);
        clear_values(tile - 1, value_slot);
        // The warpgroups take turns: one issues its products while the other is at its softmax.
        named_barrier(kTurn + group, kConsumers);
        wgmma_fence();
        scores<HeadDim, S::kKeys>(s, q, keys, T());
        accumulate<HeadDim, S::kKeys>(o, p, values, T());
        named_barrier_arrive(kTurn + (group ^ 1), kConsumers);
        const Tile at(s0, s1, n0, tile, S::kKeys);
        const bool hidden = bounds.hide(at.stretch, at.key, S::kKeys);
        wgmma_wait<1>();
        release(key_slot);
        if (hidden) mask(s, position, at.stretch, at.key + lane % 4 * 2, a.window);
        const bool grow = softmax(s, maximum, sum, factor, c);
        finish_first(sum[0] + sum[1]);
        wgmma_wait<0>();
        release(value_slot);
        if (grow) rescale(o, factor);
        to_operand(p, s, T());
    }
    if (lane == 0) barrier_arrive(region_free);
    self.region_phase ^= 1;
    wait_full(ring);
    clear_values(n - 1, ring);
    wgmma_fence();
    accumulate<HeadDim, S::kKeys>(o, p, values_in(ring), T());
    wgmma_wait<0>();
    release(ring);
    ring.advance();

#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
        const Row row = read_row(job, ratio, group * 64 + warp * 16 + lane / 4 + 8 * i);
        if (!row.valid) continue;
        const float inverse = sum[i] > 0 ? 1.f / sum[i] : 0.f;
        const Destination<T> out(a, row.token, row.slot, row.head, HeadDim);
#pragma unroll
        for (int h = 0; h < S::kParts; ++h)
#pragma unroll
            for (int j = 0; j < S::kColumns / 8; ++j) {
                out.write(h * S::kColumns + j * 8 + lane % 4 * 2, o[h][j * 4 + i * 2] * inverse,
                          o[h][j * 4 + i * 2 + 1] * inverse);
            }
        if (lane % 4 == 0) write_lse(a, row.slot, row.head, maximum[i] * c, sum[i]);
    }
}

// Up to 64 query rows: both warpgroups have all of them, and the slots in turn. Each is at its softmax
// while the other multiplies. At the end they exchange halves of O, each thread with its like in the
// other group, and each writes its half.
template <int HeadDim, typename T>
__device__ void narrow_job(const AttentionArguments &a, const Job &job, unsigned char *shared,
                           uint32_t slots, Rest *rest, Consumer<HeadDim> &self, int thread) {
    using S = Shape<HeadDim>;
    const int group = __shfl_sync(~0u, thread / 128, 0);
    const int lane = thread % 32, row_in_tile = thread % 128 / 32 * 16 + lane / 4;
    const Ratio &ratio = self.ratio;
    const float c = a.scale * kLog2e;
    const Bounds bounds(job.item, a.window);
    const uint32_t region_free = shared_address(&rest->region_free);
    const Operand q(shared_address(shared));
    auto &ring = self.ring;

    load_queries<HeadDim, T, kConsumers>(a, job, ratio, 0, shared, region_free,
                                         self.region_phase ^ 1, thread);
    named_barrier(kAllConsumers, kConsumers);

    int position[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) position[i] = read_row(job, ratio, row_in_tile + 8 * i).position;
    float o[S::kParts][S::kColumns / 2] = {};
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, factor[2];
    float s[S::kPairKeys / 2];
    uint32_t p[S::kPairKeys / 4];

    const KeyStretch s0 = job.item.stretch[0], s1 = job.item.stretch[1];
    const int n0 = __shfl_sync(~0u, tiles(s0.keys, S::kPairKeys), 0); // uniform: see wide_job
    const int n = n0 + __shfl_sync(~0u, tiles(s1.keys, S::kPairKeys), 0);
    auto wait_full = [&] { barrier_wait(shared_address(&rest->full[ring.slot]), ring.phase); };
    auto release = [&] {
        if (lane == 0) barrier_arrive(shared_address(&rest->empty[ring.slot]));
        ring.advance();
    };
    auto pass = [&] { // the other group's slot
        wait_full();
        release();
    };
    if (group == 1 && n > 0) pass();
    for (int tile = group; tile < n; tile += 2) {
        const Tile at(s0, s1, n0, tile, S::kPairKeys);
        const uint32_t address = slots + ring.slot * S::kSlotBytes;
        const Operand keys(address), values(address + S::kSlotBytes / 2, S::kPairKeys * 128);
        wait_full();
        wgmma_fence();
        scores<HeadDim, S::kPairKeys>(s, q, keys, T());
        if (at.key + S::kPairKeys > at.stretch.keys) {
            clear_rows<S::kHalves>(shared + S::kRegionBytes + ring.slot * S::kSlotBytes +
                                       S::kSlotBytes / 2,
                                   S::kPairKeys, at.stretch.keys - at.key, thread % 128, 128);
            named_barrier(kGroup + group, 128);
        }
        wgmma_wait<0>();
        if (bounds.hide(at.stretch, at.key, S::kPairKeys)) {
            mask(s, position, at.stretch, at.key + lane % 4 * 2, a.window);
        }
        if (softmax(s, maximum, sum, factor, c)) rescale(o, factor);
        to_operand(p, s, T());
        wgmma_fence();
        accumulate<HeadDim, S::kPairKeys>(o, p, values, T());
        wgmma_wait<0>();
        release();
        if (tile + 1 < n) pass();
    }

    // The queries are no longer read. Group g keeps the floats [g, g + 1) * kHalf of each thread's O.
    constexpr int kHalf = HeadDim / 4, kOutputs = S::kColumns / 2;
    auto *exchange = reinterpret_cast<float4 *>(shared); // [group][kHalf / 4][128]
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
        if (lane % 4 == 0) {
            rest->row_max_sum[group][row_in_tile + 8 * i] = make_float2(maximum[i] * c, sum[i]);
        }
    }
    named_barrier(kAllConsumers, kConsumers);
    auto value = [&](int i) -> float & { return o[i / kOutputs][i % kOutputs]; };
    auto give = [&](int first) {
#pragma unroll
        for (int i = 0; i < kHalf; i += 4) {
            exchange[(group * (kHalf / 4) + i / 4) * 128 + thread % 128] = make_float4(
                value(first + i), value(first + i + 1), value(first + i + 2), value(first + i + 3));
        }
    };
    if (group == 0) {
        give(kHalf);
    } else {
        give(0);
    }
    named_barrier(kAllConsumers, kConsumers);
    float mine[2], theirs[2], top[2], total[2];
    Row row[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        row[i] = read_row(job, ratio, row_in_tile + 8 * i);
        const float2 other = rest->row_max_sum[group ^ 1][row_in_tile + 8 * i];
        top[i] = fmaxf(maximum[i] * c, other.x);
        const float base = top[i] == -INFINITY ? 0.f : top[i];
        mine[i] = exp2_approximate(maximum[i] * c - base);
        theirs[i] = exp2_approximate(other.x - base);
        total[i] = mine[i] * sum[i] + theirs[i] * other.y;
        const float inverse = total[i] > 0 ? 1.f / total[i] : 0.f;
        mine[i] *= inverse;
        theirs[i] *= inverse;
        if (group == 0 && row[i].valid && lane % 4 == 0) {
            write_lse(a, row[i].slot, row[i].head, top[i], total[i]);
        }
    }
    const Destination<T> out0(a, row[0].token, row[0].slot, row[0].head, HeadDim);
    const Destination<T> out1(a, row[1].token, row[1].slot, row[1].head, HeadDim);
    auto take = [&](int first) {
#pragma unroll
        for (int i = 0; i < kHalf; i += 4) {
            const float4 v = exchange[((group ^ 1) * (kHalf / 4) + i / 4) * 128 + thread % 128];
            const int column = (first + i) / 4 * 8 + lane % 4 * 2;
            if (row[0].valid) {
                out0.write(column, value(first + i) * mine[0] + v.x * theirs[0],
                           value(first + i + 1) * mine[0] + v.y * theirs[0]);
            }
            if (row[1].valid) {
                out1.write(column, value(first + i + 2) * mine[1] + v.z * theirs[1],
                           value(first + i + 3) * mine[1] + v.w * theirs[1]);
            }
        }
    };
    if (group == 0) {
        take(0);
    } else {
        take(kHalf);
    }
    __syncwarp(); // all lanes have read the exchange
    if (lane == 0) barrier_arrive(region_free);
    self.region_phase ^= 1;
}

} // namespace batchllm::cuda
