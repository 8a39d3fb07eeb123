// Fused attention, sm_90a: jobs of the matrix queue of up to 64 query rows.
#pragma once

#include "attention/sm90_matrix.cuh"
#include "attention/sm90_softmax.cuh"

namespace batchllm::cuda::sm90 {

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
    const Bounds bounds(job.item, a.window);
    const uint32_t region_free = shared_address(&rest->region_free);
    const Operand q(shared_address(shared));
    auto &ring = self.ring;

    uint4 chunks[HeadDim / 32];
    read_queries<HeadDim, T, kConsumers>(a, job, ratio, 0, thread, chunks);
    barrier_wait(region_free, self.region_phase ^ 1);
    store_queries<HeadDim, kConsumers>(chunks, shared, thread);
    named_barrier(kAllConsumers, kConsumers);

    int position[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) position[i] = read_row(job, ratio, row_in_tile + 8 * i).position;
    float o[S::kParts][S::kColumns / 2] = {};
    RowSoftmax softmax{a.scale * kLog2e};
    float s[S::kPairKeys / 2], top[2], factor[2];
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
            clear_rows<S::kHalves>(
                shared + S::kRegionBytes + ring.slot * S::kSlotBytes + S::kSlotBytes / 2,
                S::kPairKeys, at.stretch.keys - at.key, S::kPairKeys, thread % 128, 128);
            named_barrier(kGroup + group, 128);
        }
        wgmma_wait<0>();
        if (bounds.hide(at.stretch, at.key, S::kPairKeys)) {
            mask(s, position, at.stretch, at.key + lane % 4 * 2, a.window);
        }
        if (softmax.grew(s, top)) {
            softmax.raise(top, factor);
            rescale(o, factor);
        }
        softmax.exponentials(s, p, T());
        wgmma_fence();
        accumulate<HeadDim, S::kPairKeys>(o, p, values, T());
        wgmma_wait<0>();
        release();
        if (tile + 1 < n) pass();
    }

    // The queries are no longer read. Group g keeps the floats [g, g + 1) * kHalf of each thread's O.
    constexpr int kHalf = HeadDim / 4, kOutputs = S::kColumns / 2;
    auto *exchange = reinterpret_cast<float4 *>(shared); // [group][kHalf / 4][128]
    float maximum[2], sum[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        maximum[i] = softmax.maximum(i);
        sum[i] = softmax.sum[i];
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
        if (lane % 4 == 0) {
            rest->row_max_sum[group][row_in_tile + 8 * i] = make_float2(maximum[i], sum[i]);
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
    float mine[2], theirs[2], total[2];
    Row row[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        row[i] = read_row(job, ratio, row_in_tile + 8 * i);
        const float2 other = rest->row_max_sum[group ^ 1][row_in_tile + 8 * i];
        top[i] = fmaxf(maximum[i], other.x);
        const float base = top[i] == -INFINITY ? 0.f : top[i];
        mine[i] = exp2_approximate(maximum[i] - base);
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

} // namespace batchllm::cuda::sm90
