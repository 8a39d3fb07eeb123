// Fused attention for Hopper: O = softmax(scale Q K^T) V over paged keys and values.
//
// One CTA an SM, persistent: a producer warp takes jobs and streams K and V blocks into a ring of
// shared-memory slots with bulk copies; two consumer warpgroups compute. The slots' order is the
// contract between them:
//   matrix job  a slot is kKeys keys of K or of V: K0 K1 V0 K2 V1 ... V(n-1). Each warpgroup has 64 of
//               the 128 query rows; S = Q K^T of tile j + 1 runs while the softmax of tile j waits for
//               nothing, O += P V of tile j while the softmax of tile j + 1 does.
//   stream job  a slot is kStreamKeys keys, K then V. Each warp has 16 keys of every kGroups-th slot, all
//               (up to 16) query rows, and its own running maximum; the warps merge at the end.
// Softmax in base 2: p = 2^((s - max) scale log2 e), log-sum-exp = max scale log2 e + log2 sum p.
#include "attention.h"
#include "hopper.cuh"

#include <cmath>

namespace batchllm::cuda {
namespace {

constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 128;
constexpr float kLog2e = 1.4426950408889634f;

template <int HeadDim> struct Shape {
    static constexpr int kHalves = HeadDim / 64;
    static constexpr int kKeys = HeadDim <= 128 ? 128 : 64;
    static constexpr int kSlotBytes = kKeys * HeadDim * 2;
    static constexpr int kSlots = HeadDim == 64 ? 8 : 5;
    static constexpr int kStreamKeys = kSlotBytes / (4 * HeadDim);
    static constexpr int kWarpsPerSlot = kStreamKeys / 16;
    static constexpr int kGroups = 8 / kWarpsPerSlot;
    static constexpr int kQueryBytes = kMatrixRows * HeadDim * 2;
    // Dynamic shared memory, from a 1024-byte boundary: queries (or the stream merge), slots, the rest.
    static constexpr int kRest = kQueryBytes + kSlots * kSlotBytes;
    static constexpr int kBytes = kRest + 3072 + 1024;
};

struct Rest {
    float max_sum[8][16][2]; // stream merge: [warp][row] running maximum and sum
    int merge_list[kMatrixRows];
    int merge_count;
    int jobs[2];
    alignas(8) uint64_t job_full[2], job_empty[2];
    uint64_t full[8], empty[8];
};
static_assert(sizeof(Rest) <= 3072);

// Place in the ring; producer and consumers step through the same sequence.
template <int Slots> struct Ring {
    int slot = 0;
    uint32_t phase = 0;
    __device__ void advance() {
        if (++slot == Slots) {
            slot = 0;
            phase ^= 1;
        }
    }
};

__device__ __forceinline__ int tiles(int keys, int per_tile) {
    return (keys + per_tile - 1) / per_tile;
}

// ---- Producer -------------------------------------------------------------------------------------

__device__ int take_job(const AttentionArguments &a, int &first_queue, int &exhausted) {
    const int matrix_jobs = a.matrix_items * a.kv_heads;
    const int stream_jobs = a.stream_items * a.kv_heads;
    for (int attempt = 0; attempt < 2; ++attempt) {
        const int queue = first_queue ^ attempt;
        if (exhausted >> queue & 1) continue;
        const int job = atomicAdd(&a.queues[queue], 1);
        if (job < (queue == 0 ? matrix_jobs : stream_jobs)) return queue == 0 ? job : matrix_jobs + job;
        exhausted |= 1 << queue;
    }
    return -1;
}

template <int HeadDim>
__device__ void produce(const AttentionArguments &a, uint32_t slots, Rest *rest) {
    using S = Shape<HeadDim>;
    const int lane = threadIdx.x % 32;
    constexpr int kBlock = kPageKeys * HeadDim * 2; // bytes of one page's K or V of a head
    constexpr int kHalfBlock = kPageKeys * 128;
    Ring<S::kSlots> ring;
    int first_queue = blockIdx.x & 1;
    int exhausted = 0;
    const auto *kv = static_cast<const unsigned char *>(a.kv);

    auto open_slot = [&](uint32_t bytes) -> uint32_t {
        barrier_wait(shared_address(&rest->empty[ring.slot]), ring.phase ^ 1);
        const uint32_t full = shared_address(&rest->full[ring.slot]);
        barrier_expect(full, bytes);
        return full;
    };

    for (int turn = 0;; ++turn) {
        int job = 0;
        if (lane == 0) job = take_job(a, first_queue, exhausted);
        job = __shfl_sync(~0u, job, 0);
        if (lane == 0) {
            const int b = turn & 1;
            barrier_wait(shared_address(&rest->job_empty[b]), (turn >> 1 & 1) ^ 1);
            rest->jobs[b] = job;
            barrier_arrive(shared_address(&rest->job_full[b]));
        }
        if (job < 0) break;
        const AttentionItem &item = a.items[job / a.kv_heads];
        const int kv_head = job % a.kv_heads;
        const KeyStretch s0 = item.stretch[0], s1 = item.stretch[1];
        auto block = [&](int page, int which) {
            return kv + ((static_cast<int64_t>(page) * a.kv_heads + kv_head) * 2 + which) * kBlock;
        };
        if (job < a.matrix_items * a.kv_heads) {
            if (lane == 0) {
                const int n0 = tiles(s0.keys, S::kKeys);
                const int n = n0 + tiles(s1.keys, S::kKeys);
                auto emit = [&](int tile, int which) {
                    const KeyStretch &s = tile < n0 ? s0 : s1;
                    const int index = tile < n0 ? tile : tile - n0;
                    const int pages = min(S::kKeys / kPageKeys,
                                          tiles(s.keys - index * S::kKeys, kPageKeys));
                    const uint32_t full = open_slot(pages * kBlock);
                    for (int p = 0; p < pages; ++p) {
                        const int page =
                            __ldg(a.pages + s.page_begin + index * (S::kKeys / kPageKeys) + p);
                        for (int h = 0; h < S::kHalves; ++h) {
                            bulk_copy(slots + ring.slot * S::kSlotBytes + h * S::kKeys * 128 +
                                          p * kHalfBlock,
                                      block(page, which) + h * kHalfBlock, kHalfBlock, full);
                        }
                    }
                    ring.advance();
                };
                for (int tile = 0; tile <= n; ++tile) {
                    if (tile < n) emit(tile, 0);
                    if (tile > 0) emit(tile - 1, 1);
                }
            }
            // Lane 0 alone knows where the ring stands.
            ring.slot = __shfl_sync(~0u, ring.slot, 0);
            ring.phase = __shfl_sync(~0u, ring.phase, 0);
        } else {
            for (int which = 0; which < 2; ++which) {
                const KeyStretch &s = which == 0 ? s0 : s1;
                const int pages = tiles(s.keys, kPageKeys);
                // Page numbers are read 32 at once, one batch early.
                int next = lane < pages ? __ldg(a.pages + s.page_begin + lane) : 0;
                for (int base = 0; base < pages; base += 32) {
                    const int current = next;
                    const int ahead = base + 32 + lane;
                    next = ahead < pages ? __ldg(a.pages + s.page_begin + ahead) : 0;
                    for (int p = 0; p < min(32, pages - base); ++p) {
                        const int page = __shfl_sync(~0u, current, p);
                        for (int part = 0; part < kPageKeys / S::kStreamKeys; ++part) {
                            if ((base + p) * kPageKeys + part * S::kStreamKeys >= s.keys) break;
                            if (lane == 0) {
                                const uint32_t full = open_slot(S::kSlotBytes);
                                for (int kind = 0; kind < 2; ++kind) {
                                    for (int h = 0; h < S::kHalves; ++h) {
                                        bulk_copy(slots + ring.slot * S::kSlotBytes +
                                                      kind * (S::kSlotBytes / 2) +
                                                      h * S::kStreamKeys * 128,
                                                  block(page, kind) + h * kHalfBlock +
                                                      part * S::kStreamKeys * 128,
                                                  S::kStreamKeys * 128, full);
                                    }
                                }
                            }
                            ring.advance();
                        }
                    }
                }
            }
        }
    }
    // The last CTA to find the queues empty resets them for the next launch.
    if (lane == 0 && atomicAdd(&a.queues[2], 1) == static_cast<int>(gridDim.x) - 1) {
        a.queues[0] = 0;
        a.queues[1] = 0;
        a.queues[2] = 0;
    }
}

// ---- Consumers ------------------------------------------------------------------------------------

// A query row as its thread sees it.
struct Row {
    int token = 0, slot = -1, head = 0, position = 0;
    bool valid = false;
};

__device__ __forceinline__ Row read_row(const AttentionArguments &a, const AttentionItem &item,
                                        int kv_head, int ratio, int r) {
    Row row;
    const int index = r / ratio;
    if (index < item.row_count) {
        const AttentionRow entry = a.rows[item.row_begin + index];
        row.token = entry.token;
        row.slot = entry.slot;
        row.head = kv_head * ratio + r % ratio;
        row.position = a.positions[entry.token];
        row.valid = true;
    }
    return row;
}

// Online softmax of one tile of scores: s holds row 0 at 4 j, 4 j + 1 and row 1 at 4 j + 2, 4 j + 3.
template <int Count>
__device__ __forceinline__ void softmax(float (&s)[Count], float (&maximum)[2], float (&sum)[2],
                                        float (&factor)[2], float c) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        float top = maximum[i];
#pragma unroll
        for (int j = 0; j < Count / 4; ++j) {
            top = fmaxf(top, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float base = top == -INFINITY ? 0.f : top * c;
        factor[i] = exp2_approximate(maximum[i] * c - base);
        maximum[i] = top;
        float total = 0;
#pragma unroll
        for (int j = 0; j < Count / 4; ++j) {
            s[4 * j + 2 * i] = exp2_approximate(s[4 * j + 2 * i] * c - base);
            s[4 * j + 2 * i + 1] = exp2_approximate(s[4 * j + 2 * i + 1] * c - base);
            total += s[4 * j + 2 * i] + s[4 * j + 2 * i + 1];
        }
        sum[i] = sum[i] * factor[i] + total;
    }
}

// Scores of keys that the row must not see become -inf. key: index in the stretch of s[0]'s column.
template <int Count>
__device__ __forceinline__ void mask(float (&s)[Count], const Row (&row)[2], const KeyStretch &stretch,
                                     int key, int window) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        // Visible keys of the stretch: [low, high).
        const int high = min(stretch.keys, row[i].position - stretch.start + 1);
        const int low = window > 0 ? row[i].position - window + 1 - stretch.start : 0;
#pragma unroll
        for (int j = 0; j < Count / 4; ++j) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int k = key + j * 8 + e;
                if (k >= high || k < low) s[4 * j + 2 * i + e] = -INFINITY;
            }
        }
    }
}

template <typename T>
__device__ __forceinline__ void write_pair(const AttentionArguments &a, const Row &row, int head_dim,
                                           int column, float x, float y) {
    if (row.slot < 0) {
        auto *out = static_cast<T *>(a.out) + row.token * a.out_stride + row.head * head_dim + column;
        *reinterpret_cast<uint32_t *>(out) = pack(x, y, T());
    } else {
        float *out = a.partial_out +
                     (static_cast<int64_t>(row.slot) * a.heads + row.head) * head_dim + column;
        *reinterpret_cast<float2 *>(out) = make_float2(x, y);
    }
}

// After all rows of the job are written: tokens whose last partial this was are merged.
template <int HeadDim, typename T>
__device__ void merge_partials(const AttentionArguments &a, const AttentionItem &item, int kv_head,
                               int ratio, Rest *rest, int thread) {
    __threadfence();
    if (thread == 0) rest->merge_count = 0;
    named_barrier(1, kConsumers);
    for (int i = thread; i < item.row_count; i += kConsumers) {
        const AttentionRow row = a.rows[item.row_begin + i];
        if (row.slot < 0) continue;
        int *arrivals = a.arrivals + static_cast<int64_t>(row.token) * a.kv_heads + kv_head;
        if (atomicAdd(arrivals, 1) == a.partials[row.token].count - 1) {
            *arrivals = 0;
            rest->merge_list[atomicAdd(&rest->merge_count, 1)] = row.token;
        }
    }
    __threadfence();
    named_barrier(1, kConsumers);
    const int warp = thread / 32, lane = thread % 32;
    const int count = rest->merge_count * ratio;
    constexpr int kEach = HeadDim / 32;
    for (int i = warp; i < count; i += kConsumers / 32) {
        const int token = rest->merge_list[i / ratio];
        const int head = kv_head * ratio + i % ratio;
        const PartialRange range = a.partials[token];
        float top = -INFINITY;
        for (int p = 0; p < range.count; ++p) {
            top = fmaxf(top, __ldcg(a.partial_lse + static_cast<int64_t>(range.begin + p) * a.heads + head));
        }
        float total = 0, o[kEach] = {};
        for (int p = 0; p < range.count; ++p) {
            const int64_t index = static_cast<int64_t>(range.begin + p) * a.heads + head;
            const float lse = __ldcg(a.partial_lse + index);
            const float weight = lse == -INFINITY ? 0.f : exp2_approximate(lse - top);
            total += weight;
            const float *part = a.partial_out + index * HeadDim + lane * kEach;
#pragma unroll
            for (int e = 0; e < kEach; e += 2) {
                const float2 pair = __ldcg(reinterpret_cast<const float2 *>(part + e));
                o[e] += weight * pair.x;
                o[e + 1] += weight * pair.y;
            }
        }
        const float scale = total > 0 ? 1.f / total : 0.f;
        auto *out = static_cast<T *>(a.out) + token * a.out_stride + head * HeadDim + lane * kEach;
#pragma unroll
        for (int e = 0; e < kEach; e += 2) {
            *reinterpret_cast<uint32_t *>(out + e) = pack(o[e] * scale, o[e + 1] * scale, T());
        }
    }
    named_barrier(1, kConsumers);
}

template <int HeadDim, typename T>
__device__ void matrix_job(const AttentionArguments &a, const AttentionItem &item, int kv_head,
                           unsigned char *queries, uint32_t slots, Rest *rest,
                           Ring<Shape<HeadDim>::kSlots> &ring, int thread) {
    using S = Shape<HeadDim>;
    const int group = thread / 128, lane = thread % 32, warp = thread % 128 / 32;
    const int ratio = a.heads / a.kv_heads;
    const float c = a.scale * kLog2e;
    const uint32_t q_base = shared_address(queries) + group * 64 * HeadDim * 2;

    // Queries of this warpgroup: [half][64 rows][64], swizzled as the keys are.
    for (int i = thread % 128; i < 64 * HeadDim / 8; i += 128) {
        const int r = i / (HeadDim / 8), chunk = i % (HeadDim / 8);
        const int index = (group * 64 + r) / ratio;
        uint4 value = make_uint4(0, 0, 0, 0);
        if (index < item.row_count) {
            const int head = kv_head * ratio + (group * 64 + r) % ratio;
            const int token = a.rows[item.row_begin + index].token;
            value = *reinterpret_cast<const uint4 *>(static_cast<const T *>(a.q) + token * a.q_stride +
                                                     head * HeadDim + chunk * 8);
        }
        *reinterpret_cast<uint4 *>(queries + group * 64 * HeadDim * 2 + chunk / 8 * 8192 + r * 128 +
                                   ((chunk % 8 ^ r % 8) << 4)) = value;
    }
    async_proxy_fence();
    named_barrier(2 + group, 128);

    Row row[2];
    row[0] = read_row(a, item, kv_head, ratio, group * 64 + warp * 16 + lane / 4);
    row[1] = read_row(a, item, kv_head, ratio, group * 64 + warp * 16 + lane / 4 + 8);

    float o[S::kHalves][32];
#pragma unroll
    for (int h = 0; h < S::kHalves; ++h)
#pragma unroll
        for (int i = 0; i < 32; ++i) o[h][i] = 0;
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, factor[2];
    float s[S::kKeys / 2];
    uint32_t p[S::kKeys / 4];

    auto scores = [&](uint32_t keys) {
#pragma unroll
        for (int k = 0; k < HeadDim / 16; ++k) {
            wgmma_ss(s, swizzled_descriptor(q_base + k / 4 * 8192 + k % 4 * 32),
                     swizzled_descriptor(keys + k / 4 * S::kKeys * 128 + k % 4 * 32), k > 0, T());
        }
        wgmma_commit();
    };
    auto accumulate = [&](uint32_t values) {
#pragma unroll
        for (int k = 0; k < S::kKeys / 16; ++k) {
#pragma unroll
            for (int h = 0; h < S::kHalves; ++h) {
                wgmma_rs(o[h], &p[k * 4],
                         swizzled_descriptor(values + h * S::kKeys * 128 + k * 2048), T());
            }
        }
        wgmma_commit();
    };
    auto to_p = [&] {
#pragma unroll
        for (int i = 0; i < S::kKeys / 4; ++i) p[i] = pack(s[2 * i], s[2 * i + 1], T());
    };
    auto address = [&](const Ring<S::kSlots> &r) { return slots + r.slot * S::kSlotBytes; };
    auto wait_full = [&](const Ring<S::kSlots> &r) {
        barrier_wait(shared_address(&rest->full[r.slot]), r.phase);
    };
    auto release = [&](const Ring<S::kSlots> &r) {
        if (lane == 0) barrier_arrive(shared_address(&rest->empty[r.slot]));
    };
    const KeyStretch s0 = item.stretch[0], s1 = item.stretch[1];
    // The same in every lane, and the compiler is to know it: wgmma in a loop that may diverge is
    // serialised (C7520).
    const int n0 = __shfl_sync(~0u, tiles(s0.keys, S::kKeys), 0);
    const int n = n0 + __shfl_sync(~0u, tiles(s1.keys, S::kKeys), 0);
    auto mask_tile = [&](int tile) {
        const KeyStretch &stretch = tile < n0 ? s0 : s1;
        const int key = (tile < n0 ? tile : tile - n0) * S::kKeys;
        const bool needed = key + S::kKeys > stretch.keys ||
                            stretch.start + key + S::kKeys - 1 > item.min_position ||
                            (a.window > 0 && stretch.start + key <= item.max_position - a.window);
        if (needed) mask(s, row, stretch, key + lane % 4 * 2, a.window);
    };
    // Values past the stretch's end are whatever the page held before: 0 x NaN would poison O.
    auto clear_values = [&](int tile, const Ring<S::kSlots> &r) {
        const KeyStretch &stretch = tile < n0 ? s0 : s1;
        const int keys = stretch.keys - (tile < n0 ? tile : tile - n0) * S::kKeys;
        if (keys >= S::kKeys) return;
        unsigned char *values =
            queries + S::kQueryBytes + static_cast<int>(r.slot) * S::kSlotBytes;
        for (int i = thread; i < (S::kKeys - keys) * 8 * S::kHalves; i += kConsumers) {
            const int half = i / ((S::kKeys - keys) * 8), rest_of = i % ((S::kKeys - keys) * 8);
            *reinterpret_cast<uint4 *>(values + half * S::kKeys * 128 + keys * 128 + rest_of * 16) =
                make_uint4(0, 0, 0, 0);
        }
        async_proxy_fence();
        named_barrier(1, kConsumers);
    };

    wait_full(ring);
    wgmma_fence();
    scores(address(ring));
    wgmma_wait<0>();
    release(ring);
    ring.advance();
    mask_tile(0);
    softmax(s, maximum, sum, factor, c);
    to_p();
    for (int tile = 1; tile < n; ++tile) {
        const auto key_slot = ring;
        ring.advance();
        const auto value_slot = ring;
        ring.advance();
        wait_full(key_slot);
        wgmma_fence();
        scores(address(key_slot));
        wait_full(value_slot);
        clear_values(tile - 1, value_slot);
        wgmma_fence();
        accumulate(address(value_slot));
        wgmma_wait<1>();
        release(key_slot);
        mask_tile(tile);
        softmax(s, maximum, sum, factor, c);
        wgmma_wait<0>();
        release(value_slot);
#pragma unroll
        for (int h = 0; h < S::kHalves; ++h)
#pragma unroll
            for (int i = 0; i < 32; ++i) o[h][i] *= factor[i / 2 % 2];
        to_p();
    }
    wait_full(ring);
    clear_values(n - 1, ring);
    wgmma_fence();
    accumulate(address(ring));
    wgmma_wait<0>();
    release(ring);
    ring.advance();

#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
        if (!row[i].valid) continue;
        const float inverse = sum[i] > 0 ? 1.f / sum[i] : 0.f;
#pragma unroll
        for (int h = 0; h < S::kHalves; ++h)
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                write_pair<T>(a, row[i], HeadDim, h * 64 + j * 8 + lane % 4 * 2,
                              o[h][j * 4 + i * 2] * inverse, o[h][j * 4 + i * 2 + 1] * inverse);
            }
        if (row[i].slot >= 0 && lane % 4 == 0) {
            a.partial_lse[static_cast<int64_t>(row[i].slot) * a.heads + row[i].head] =
                sum[i] > 0 ? maximum[i] * c + log2f(sum[i]) : -INFINITY;
        }
    }
    if (item.partial) merge_partials<HeadDim, T>(a, item, kv_head, ratio, rest, thread);
}

template <int HeadDim, typename T>
__device__ void stream_job(const AttentionArguments &a, const AttentionItem &item, int kv_head,
                           unsigned char *queries, uint32_t slots, Rest *rest,
                           Ring<Shape<HeadDim>::kSlots> &ring, int thread) {
    using S = Shape<HeadDim>;
    const int lane = thread % 32, warp = thread / 32;
    const int group = warp / S::kWarpsPerSlot, part = warp % S::kWarpsPerSlot;
    const int ratio = a.heads / a.kv_heads;
    const float c = a.scale * kLog2e;
    Row row[2];
    row[0] = read_row(a, item, kv_head, ratio, lane / 4);
    row[1] = read_row(a, item, kv_head, ratio, lane / 4 + 8);

    uint32_t q[HeadDim / 16][4];
#pragma unroll
    for (int k = 0; k < HeadDim / 16; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const Row &r = row[e % 2];
            q[k][e] = r.valid ? *reinterpret_cast<const uint32_t *>(
                                    static_cast<const T *>(a.q) + r.token * a.q_stride +
                                    r.head * HeadDim + k * 16 + e / 2 * 8 + lane % 4 * 2)
                              : 0;
        }
    float o[HeadDim / 8][4];
#pragma unroll
    for (int i = 0; i < HeadDim / 8; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[i][e] = 0;
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, factor[2];

    int turn = 0; // slots of the item are dealt to the groups in turn
    for (int which = 0; which < 2; ++which) {
        const KeyStretch stretch = item.stretch[which];
        for (int first = 0; first < stretch.keys; first += S::kStreamKeys) {
            barrier_wait(shared_address(&rest->full[ring.slot]), ring.phase);
            if (turn == group) {
                const int key = first + part * 16;
                const uint32_t k_base = slots + ring.slot * S::kSlotBytes;
                const uint32_t v_base = k_base + S::kSlotBytes / 2;
                if (key + 16 > stretch.keys) {
                    // Values past the end: see clear_values above. The rows are this warp's alone.
                    const int from = max(0, stretch.keys - key);
                    unsigned char *values = queries + S::kQueryBytes + ring.slot * S::kSlotBytes +
                                            S::kSlotBytes / 2;
                    for (int i = lane; i < (16 - from) * 8 * S::kHalves; i += 32) {
                        const int half = i / ((16 - from) * 8), at = i % ((16 - from) * 8);
                        *reinterpret_cast<uint4 *>(values + half * S::kStreamKeys * 128 +
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
                    load_matrix(b, k_base + k / 4 * S::kStreamKeys * 128 + r * 128 +
                                       ((chunk ^ r % 8) << 4));
                    mma_sync(s, q[k], b[0], b[1], T());
                    mma_sync(s + 4, q[k], b[2], b[3], T());
                }
                const bool needed = key + 16 > stretch.keys ||
                                    stretch.start + key + 15 > item.min_position ||
                                    (a.window > 0 && stretch.start + key <= item.max_position - a.window);
                if (needed) mask(s, row, stretch, key + lane % 4 * 2, a.window);
                softmax(s, maximum, sum, factor, c);
                uint32_t p[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) p[i] = pack(s[2 * i], s[2 * i + 1], T());
#pragma unroll
                for (int i = 0; i < HeadDim / 8; ++i)
#pragma unroll
                    for (int e = 0; e < 4; ++e) o[i][e] *= factor[e / 2];
#pragma unroll
                for (int d = 0; d < HeadDim / 16; ++d) {
                    uint32_t b[4];
                    const int r = part * 16 + lane / 8 % 2 * 8 + lane % 8;
                    const int chunk = d % 4 * 2 + lane / 16;
                    load_matrix_transposed(b, v_base + d / 4 * S::kStreamKeys * 128 + r * 128 +
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

    // Merge the eight warps pairwise; warp 0 ends with the result.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
    }
    auto *buffer = reinterpret_cast<float *>(queries);
    for (int half = 4; half >= 1; half /= 2) {
        named_barrier(1, kConsumers);
        if (warp >= half && warp < 2 * half) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int r = lane / 4 + 8 * i;
                if (!row[i].valid) continue;
                float *out = buffer + ((warp - half) * 16 + r) * HeadDim;
#pragma unroll
                for (int d = 0; d < HeadDim / 8; ++d) {
                    *reinterpret_cast<float2 *>(out + d * 8 + lane % 4 * 2) =
                        make_float2(o[d][2 * i], o[d][2 * i + 1]);
                }
                if (lane % 4 == 0) {
                    rest->max_sum[warp - half][r][0] = maximum[i];
                    rest->max_sum[warp - half][r][1] = sum[i];
                }
            }
        }
        named_barrier(1, kConsumers);
        if (warp < half) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int r = lane / 4 + 8 * i;
                if (!row[i].valid) continue;
                const float other = rest->max_sum[warp][r][0];
                const float top = fmaxf(maximum[i], other);
                const float base = top == -INFINITY ? 0.f : top * c;
                const float mine = exp2_approximate(maximum[i] * c - base);
                const float theirs = exp2_approximate(other * c - base);
                maximum[i] = top;
                sum[i] = sum[i] * mine + rest->max_sum[warp][r][1] * theirs;
                const float *in = buffer + (warp * 16 + r) * HeadDim;
#pragma unroll
                for (int d = 0; d < HeadDim / 8; ++d) {
                    const float2 pair =
                        *reinterpret_cast<const float2 *>(in + d * 8 + lane % 4 * 2);
                    o[d][2 * i] = o[d][2 * i] * mine + pair.x * theirs;
                    o[d][2 * i + 1] = o[d][2 * i + 1] * mine + pair.y * theirs;
                }
            }
        }
    }
    if (warp == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (!row[i].valid) continue;
            const float inverse = sum[i] > 0 ? 1.f / sum[i] : 0.f;
#pragma unroll
            for (int d = 0; d < HeadDim / 8; ++d) {
                write_pair<T>(a, row[i], HeadDim, d * 8 + lane % 4 * 2, o[d][2 * i] * inverse,
                              o[d][2 * i + 1] * inverse);
            }
            if (row[i].slot >= 0 && lane % 4 == 0) {
                a.partial_lse[static_cast<int64_t>(row[i].slot) * a.heads + row[i].head] =
                    sum[i] > 0 ? maximum[i] * c + log2f(sum[i]) : -INFINITY;
            }
        }
    }
    if (item.partial) {
        merge_partials<HeadDim, T>(a, item, kv_head, ratio, rest, thread);
    } else {
        named_barrier(1, kConsumers); // the buffer is the next job's queries
    }
}

template <int HeadDim, typename T>
__global__ void __launch_bounds__(kThreads, 1) attention(const __grid_constant__ AttentionArguments a) {
    using S = Shape<HeadDim>;
    extern __shared__ unsigned char raw[];
    unsigned char *queries = raw + (1024 - shared_address(raw) % 1024) % 1024;
    const uint32_t slots = shared_address(queries) + S::kQueryBytes;
    Rest *rest = reinterpret_cast<Rest *>(queries + S::kRest);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) {
            barrier_init(shared_address(&rest->job_full[i]), 1);
            barrier_init(shared_address(&rest->job_empty[i]), kConsumers / 32);
        }
        for (int i = 0; i < S::kSlots; ++i) {
            barrier_init(shared_address(&rest->full[i]), 1);
            barrier_init(shared_address(&rest->empty[i]), kConsumers / 32);
        }
        barrier_init_fence();
    }
    __syncthreads();

    if (threadIdx.x >= kConsumers) {
        registers_fewer<40>();
        if (threadIdx.x < kConsumers + 32) produce<HeadDim>(a, slots, rest);
    } else {
        registers_more<232>();
        const int thread = threadIdx.x;
        Ring<S::kSlots> ring;
        for (int turn = 0;; ++turn) {
            const int b = turn & 1;
            barrier_wait(shared_address(&rest->job_full[b]), turn >> 1 & 1);
            const int job = __shfl_sync(~0u, rest->jobs[b], 0);
            if (thread % 32 == 0) barrier_arrive(shared_address(&rest->job_empty[b]));
            if (job < 0) break;
            const AttentionItem &item = a.items[job / a.kv_heads];
            const int kv_head = job % a.kv_heads;
            if (job < a.matrix_items * a.kv_heads) {
                matrix_job<HeadDim, T>(a, item, kv_head, queries, slots, rest, ring, thread);
            } else {
                stream_job<HeadDim, T>(a, item, kv_head, queries, slots, rest, ring, thread);
            }
        }
    }
}

template <int HeadDim, typename T>
cudaError_t launch(const AttentionArguments &a, int sms, cudaStream_t stream) {
    const auto kernel = attention<HeadDim, T>;
    const int bytes = Shape<HeadDim>::kBytes;
    cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    kernel<<<sms, kThreads, bytes, stream>>>(a);
    return cudaGetLastError();
}

template <typename T>
cudaError_t launch_type(const AttentionArguments &a, int sms, cudaStream_t stream) {
    switch (a.head_dim) {
    case 64: return launch<64, T>(a, sms, stream);
    case 128: return launch<128, T>(a, sms, stream);
    case 256: return launch<256, T>(a, sms, stream);
    default: return cudaErrorInvalidValue;
    }
}

} // namespace

cudaError_t launch_attention(const AttentionArguments &a, int sms, cudaStream_t stream) {
    if (a.matrix_items + a.stream_items == 0) return cudaSuccess;
    return a.type == AttentionType::bf16 ? launch_type<__nv_bfloat16>(a, sms, stream)
                                         : launch_type<__half>(a, sms, stream);
}

} // namespace batchllm::cuda
