// Fused attention, sm_90a: jobs of the stream queue, on mma.sync: up to 16 query rows, bound by
// reading the keys and values.
#pragma once

#include "attention/sm90_matrix.cuh"

namespace batchllm::cuda::sm90 {

template <int HeadDim, typename T>
__device__ void stream_job(const AttentionArguments &a, const Job &job, unsigned char *shared,
                           uint32_t slots, Rest *rest, Consumer<HeadDim> &self, int thread) {
    using S = Shape<HeadDim>;
    const int lane = thread % 32, warp = thread / 32;
    const int group = warp / S::kWarpsPerSlot, part = warp % S::kWarpsPerSlot;
    const Ratio &ratio = self.ratio;
    const int rows = job.item.row_count * ratio.ratio;
    const Bounds bounds(job.item, a.window);
    const float c = a.scale * kLog2e;
    auto &ring = self.ring;
    bool valid[2];
    int position[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int r = lane / 4 + 8 * i;
        valid[i] = r < rows;
        position[i] = valid[i] ? job.position[ratio.token(r)] : 0;
    }

    uint32_t q[HeadDim / 16][4];
    const unsigned char *queries =
        shared + S::kStreamQueries + self.queries.slot * S::kStreamQueryBytes;
    barrier_wait(shared_address(&rest->queries_full[self.queries.slot]), self.queries.phase);
#pragma unroll
    for (int k = 0; k < HeadDim / 16; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            q[k][e] = valid[e % 2] ? *reinterpret_cast<const uint32_t *>(
                                         queries + (lane / 4 + e % 2 * 8) * S::kStreamQueryStride +
                                         (k * 16 + e / 2 * 8 + lane % 4 * 2) * 2)
                                   : 0;
        }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&rest->queries_empty[self.queries.slot]));
    self.queries.advance();
    float o[HeadDim / 8][4] = {};
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, factor[2];

    int turn = 0; // slots of the item are dealt to the groups in turn
    for (int which = 0; which < 2; ++which) {
        const KeyStretch stretch = job.item.stretch[which];
        for (int first = 0; first < stretch.keys; first += S::kPairKeys) {
            barrier_wait(shared_address(&rest->full[ring.slot]), ring.phase);
            if (turn == group) {
                const int key = first + part * 16;
                const uint32_t k_base = slots + ring.slot * S::kSlotBytes;
                const uint32_t v_base = k_base + S::kSlotBytes / 2;
                if (key + 16 > stretch.keys) {
                    // Values past the end: see clear_rows. The rows are this warp's alone.
                    const int from = max(0, stretch.keys - key);
                    unsigned char *values =
                        shared + S::kRegionBytes + ring.slot * S::kSlotBytes + S::kSlotBytes / 2;
                    for (int i = lane; i < (16 - from) * 8 * S::kHalves; i += 32) {
                        const int half = i / ((16 - from) * 8), at = i % ((16 - from) * 8);
                        *reinterpret_cast<uint4 *>(values + half * S::kPairKeys * 128 +
                                                   (part * 16 + from) * 128 + at * 16) =
                            make_uint4(0, 0, 0, 0);
                    }
                    async_proxy_fence();
                    __syncwarp();
                }
                float s[8] = {};
#pragma unroll
                for (int k = 0; k < HeadDim / 16; ++k) {
                    uint32_t b[4];
                    const int r = part * 16 + lane / 16 * 8 + lane % 8;
                    const int chunk = k % 4 * 2 + lane / 8 % 2;
                    load_matrix(b, k_base + k / 4 * S::kPairKeys * 128 + r * 128 +
                                       ((chunk ^ r % 8) << 4));
                    mma_sync(s, q[k], b[0], b[1], T());
                    mma_sync(s + 4, q[k], b[2], b[3], T());
                }
                if (bounds.hide(stretch, key, 16)) {
                    mask(s, position, stretch, key + lane % 4 * 2, a.window);
                }
                if (softmax(s, maximum, sum, factor, c)) {
#pragma unroll
                    for (int i = 0; i < HeadDim / 8; ++i)
#pragma unroll
                        for (int e = 0; e < 4; ++e) o[i][e] *= factor[e / 2];
                }
                uint32_t p[4];
                to_operand(p, s, T());
#pragma unroll
                for (int d = 0; d < HeadDim / 16; ++d) {
                    uint32_t b[4];
                    const int r = part * 16 + lane / 8 % 2 * 8 + lane % 8;
                    const int chunk = d % 4 * 2 + lane / 16;
                    load_matrix_transposed(b, v_base + d / 4 * S::kPairKeys * 128 + r * 128 +
                                                  ((chunk ^ r % 8) << 4));
                    mma_sync(o[2 * d], p, b[0], b[1], T());
                    mma_sync(o[2 * d + 1], p, b[2], b[3], T());
                }
                __syncwarp();
            }
            if (lane == 0) barrier_arrive(shared_address(&rest->empty[ring.slot]));
            ring.advance();
            turn = turn + 1 == S::kGroups ? 0 : turn + 1;
        }
    }

    // Merge the eight warps, eight query rows at a time.
    auto *buffer = reinterpret_cast<float *>(shared); // [warp][8 rows][HeadDim], unnormalised
    barrier_wait(shared_address(&rest->region_free), self.region_phase ^ 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
        const int here = min(8, rows - 8 * i); // rows of this pass
        if (here <= 0) break;
        if (i == 1) named_barrier(kAllConsumers, kConsumers); // the first pass has been read
        if (valid[i]) {
            float *out = buffer + (warp * 8 + lane / 4) * HeadDim;
#pragma unroll
            for (int d = 0; d < HeadDim / 8; ++d) {
                *reinterpret_cast<float2 *>(out + d * 8 + lane % 4 * 2) =
                    make_float2(o[d][2 * i], o[d][2 * i + 1]);
            }
            if (lane % 4 == 0) {
                rest->max_sum[warp][lane / 4][0] = maximum[i] * c;
                rest->max_sum[warp][lane / 4][1] = sum[i];
            }
        }
        named_barrier(kAllConsumers, kConsumers);
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
            const float scale = total > 0 ? 1.f / total : 0.f;
            const int index = ratio.token(8 * i + r);
            const int head = job.kv_head * ratio.ratio + ratio.head(8 * i + r);
            Destination<T>(a, job.token[index], job.slot[index], head, HeadDim)
                .write(column, x * scale, y * scale);
            if (column == 0) write_lse(a, job.slot[index], head, top, total);
        }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&rest->region_free));
    self.region_phase ^= 1;
}

} // namespace batchllm::cuda::sm90
