// Fused attention for every device from sm_80 on: O = softmax(scale Q K^T) V over paged keys and
// values, by mma.sync m16n8k16 and cp.async.
//
// Persistent: one or two CTAs an SM take jobs from the two queues until both are empty. Keys and
// values go through a ring of slots in shared memory, four or, where there is less room, two, each filled
// while those before it are computed on:
//   matrix job  a slot is kKeys keys of K or of V: K0 V0 K1 V1 ... The warps share it; each has
//               16 kRowTiles of the 128 query rows, its scores and its part of O in registers.
//   stream job  each of four warps has every page's 16 keys of its own, a ring of its own for them (a
//               slot is their K or V), all (up to 16) query rows and a running maximum of its own.
//               The warps do not wait for one another before they merge at the end.
// Softmax in base 2: p = 2^((s - max) scale log2 e), log-sum-exp = max scale log2 e + log2 sum p.
//
// On an H200, d128, 32/8 heads (bench/attention --family sm80): 8192 causal 343 TFLOP/s, 2048 causal
// 285; decode 32 x 4096 3.9 TB/s, 128 x 2048 4.4.
#include "attention_common.cuh"

#include <algorithm>
#include <cstddef>

namespace batchllm::cuda {
namespace {

constexpr int kStreamWarps = 4;

template <int HeadDim> struct Shape {
    // Registers decide: a thread has HeadDim / 2 kRowTiles floats of O, kKeys / 2 kRowTiles scores.
    static constexpr int kWarps = HeadDim <= 128 ? 4 : 8;
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kRowTiles = kMatrixRows / (16 * kWarps);
    static constexpr int kKeys = HeadDim <= 128 ? 64 : 32;
    static constexpr int kMostCtas = HeadDim <= 128 ? 2 : 1;
    static constexpr int kSlotBytes = kKeys * HeadDim * 2;
    static constexpr int kQueryBytes = kMatrixRows * HeadDim * 2;
    static constexpr int kStreamSlotBytes = 16 * HeadDim * 2;
    static constexpr int kResultStride = HeadDim + 8;           // floats; few bank conflicts
    static constexpr int kBlockBytes = kPageKeys * HeadDim * 2; // one page's K or V of a head
    static constexpr int kHalfBlock = kPageKeys * 128;
    static constexpr int bytes(int slots) { return kQueryBytes + slots * kSlotBytes; }
    static constexpr int stream_slots(int slots) {
        return bytes(slots) / (kStreamWarps * kStreamSlotBytes);
    }
};

struct Rest {
    int number; // of the job; -1: no more
    AttentionItem item;
    alignas(16) AttentionRow rows[kMatrixRows]; // its query tokens
    float max_sum[kStreamWarps][kStreamRows][2];
    uint8_t merge_list[kMatrixRows]; // of rows
    int merge_count;
};
constexpr int kRestBytes = 3072; // with the alignment of what follows
static_assert(sizeof(Rest) <= kRestBytes);

// Draws jobs from the queue that this CTA prefers, then from the other. The next stream job is drawn
// while the caller works on the last; matrix jobs are long, and one drawn early would be missed
// elsewhere.
struct JobSource {
    const AttentionArguments &a;
    int queue;
    int exhausted = 0;
    int ticket = -1; // -1: not drawn yet

    __device__ int take() { // -1: both are empty
        const int matrix_jobs = a.matrix_items * a.kv_heads;
        while (true) {
            if (ticket < 0) ticket = atomicAdd(&a.queues[queue], 1);
            if (ticket < (queue == 0 ? matrix_jobs : a.stream_items * a.kv_heads)) break;
            exhausted |= 1 << queue;
            if (exhausted == 3) return -1;
            queue ^= 1;
            ticket = -1;
        }
        const int job = queue == 0 ? ticket : matrix_jobs + ticket;
        ticket = queue == 0 ? -1 : atomicAdd(&a.queues[1], 1);
        return job;
    }
};

// Once by each CTA that found the queues empty: the last resets them for the next launch.
__device__ __forceinline__ void leave_queues(const AttentionArguments &a) {
    if (atomicAdd(&a.queues[2], 1) != static_cast<int>(gridDim.x) - 1) return;
    a.queues[0] = 0;
    a.queues[1] = 0;
    a.queues[2] = 0;
}

// True when this was the token's last partial; the count is left zero for the next launch.
__device__ __forceinline__ bool last_partial(const AttentionArguments &a, int token, int kv_head) {
    int *arrivals = a.arrivals + static_cast<int64_t>(token) * a.kv_heads + kv_head;
    if (atomicAdd(arrivals, 1) != a.partials[token].count - 1) return false;
    *arrivals = 0;
    return true;
}

constexpr int kTogether = 4; // rows that a warp merges at once

// A warp merges the partials of kTogether tokens' heads, in slot order, with two partials of each in
// flight.
template <int HeadDim, typename T>
__device__ void merge_rows(const AttentionArguments &a, const int (&token)[kTogether],
                           const int (&head)[kTogether], int lane) {
    constexpr int kEach = HeadDim / 32;
    PartialRange range[kTogether];
    float top[kTogether], total[kTogether], o[kTogether][kEach];
    int most = 0;
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
        range[r] = a.partials[token[r]];
        most = max(most, range[r].count);
        top[r] = -INFINITY;
        total[r] = 0;
#pragma unroll
        for (int e = 0; e < kEach; ++e) o[r][e] = 0;
    }
    for (int base = 0; base < most; base += 2) {
        float lse[kTogether][2], part[kTogether][2][kEach];
#pragma unroll
        for (int r = 0; r < kTogether; ++r)
#pragma unroll
            for (int p = 0; p < 2; ++p) {
                const int slot = range[r].begin + min(base + p, range[r].count - 1);
                const int64_t index = static_cast<int64_t>(slot) * a.heads + head[r];
                lse[r][p] = base + p < range[r].count ? __ldcg(a.partial_lse + index) : -INFINITY;
                const float *from = a.partial_out + index * HeadDim + lane * kEach;
#pragma unroll
                for (int e = 0; e < kEach; e += 2) {
                    const float2 pair = __ldcg(reinterpret_cast<const float2 *>(from + e));
                    part[r][p][e] = pair.x;
                    part[r][p][e + 1] = pair.y;
                }
            }
#pragma unroll
        for (int r = 0; r < kTogether; ++r) {
            const float higher = fmaxf(fmaxf(lse[r][0], lse[r][1]), top[r]);
            if (higher == -INFINITY) continue;
            const float old = exp2_approximate(top[r] - higher);
            top[r] = higher;
            total[r] *= old;
#pragma unroll
            for (int e = 0; e < kEach; ++e) o[r][e] *= old;
#pragma unroll
            for (int p = 0; p < 2; ++p) {
                const float weight = exp2_approximate(lse[r][p] - higher);
                total[r] += weight;
#pragma unroll
                for (int e = 0; e < kEach; ++e) o[r][e] += weight * part[r][p][e];
            }
        }
    }
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
        const float scale = total[r] > 0 ? 1.f / total[r] : 0.f;
        auto *out =
            static_cast<T *>(a.out) + token[r] * a.out_stride + head[r] * HeadDim + lane * kEach;
#pragma unroll
        for (int e = 0; e < kEach; e += 2) {
            *reinterpret_cast<uint32_t *>(out + e) =
                pack(o[r][e] * scale, o[r][e + 1] * scale, T());
        }
    }
}

// After all rows of a job are written: merges what this job completed.
template <int HeadDim, typename T>
__device__ void merge_partials(const AttentionArguments &a, int kv_head, int ratio, Rest &rest) {
    using S = Shape<HeadDim>;
    __threadfence();
    if (threadIdx.x == 0) rest.merge_count = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < rest.item.row_count; i += S::kThreads) {
        const AttentionRow row = rest.rows[i];
        if (row.slot >= 0 && last_partial(a, row.token, kv_head)) {
            rest.merge_list[atomicAdd(&rest.merge_count, 1)] = static_cast<uint8_t>(i);
        }
    }
    __threadfence();
    __syncthreads();
    const int count = rest.merge_count * ratio;
    for (int i = threadIdx.x / 32 * kTogether; i < count; i += S::kWarps * kTogether) {
        int token[kTogether], head[kTogether];
#pragma unroll
        for (int r = 0; r < kTogether; ++r) {
            const int at = min(i + r, count - 1); // the last row again: the same result
            token[r] = rest.rows[rest.merge_list[at / ratio]].token;
            head[r] = kv_head * ratio + at % ratio;
        }
        merge_rows<HeadDim, T>(a, token, head, threadIdx.x % 32);
    }
}

template <int HeadDim, int Slots, typename T>
__device__ void matrix_job(const AttentionArguments &a, int kv_head, uint32_t queries, Rest &rest) {
    using S = Shape<HeadDim>;
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int ratio = a.heads / a.kv_heads;
    const float c = a.scale * kLog2e;
    // Weights up to 2^8 are as exact as those up to 1, and O is hardly ever rescaled.
    const float slack = a.scale > 0 ? 8 / c : 0;
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
    int page = page_of(0), next_page = 0;
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
            softmax<S::kKeys / 2, 1>(s[t], maximum[t], sum[t], factor[t], c, slack);
            rescale |= factor[t][0] != 1.f || factor[t][1] != 1.f;
        }
#pragma unroll
        for (int t = 0; t < S::kRowTiles; ++t)
#pragma unroll
            for (int i = 0; i < S::kKeys / 4; ++i) {
                p[t][i] = pack(s[t][2 * i], s[t][2 * i + 1], T());
            }
        if (__any_sync(~0u, rescale)) {
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
#pragma unroll
            for (int j = 0; j < HeadDim / 8; ++j) {
                write_pair<T>(a, row.token, row.slot, head, HeadDim, j * 8 + lane % 4 * 2,
                              o[t][j * 4 + i * 2] * inverse, o[t][j * 4 + i * 2 + 1] * inverse);
            }
            if (lane % 4 == 0) write_lse(a, row.slot, head, maximum[t][i] * c, total);
        }
}

// One of a stream job's warps: its keys of every page against all query rows; the result, not
// normalised, in o.
template <int HeadDim, int Slots, typename T>
__device__ void stream_keys(const AttentionArguments &a, int kv_head, uint32_t ring,
                            const Rest &rest, float (&o)[HeadDim / 2], float (&maximum)[2],
                            float (&sum)[2]) {
    using S = Shape<HeadDim>;
    constexpr int kSlots = S::stream_slots(Slots);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int ratio = a.heads / a.kv_heads;
    const int rows = rest.item.row_count * ratio;
    const float c = a.scale * kLog2e;

    // Pages in which this warp has keys, both stretches in a row; their numbers in the lanes, 32 at
    // once, one batch early.
    const int n0 = tiles(max(0, rest.item.stretch[0].keys - warp * 16), kPageKeys);
    const int n = n0 + tiles(max(0, rest.item.stretch[1].keys - warp * 16), kPageKeys);
    const auto pages_from = [&](int base) {
        const int i = base + lane;
        if (i >= n) return 0;
        return __ldg(a.pages + (i < n0 ? rest.item.stretch[0].page_begin + i
                                       : rest.item.stretch[1].page_begin + i - n0));
    };
    int pages = pages_from(0), next_pages = pages_from(32);
    int issued = 0; // slots filled: this warp's K and V of each page in turn
    uint32_t into = ring;
    const auto issue = [&] {
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
                    S::kBlockBytes +
                warp * 2048 + lane * 16;
#pragma unroll
            for (int i = 0; i < S::kStreamSlotBytes / 512; ++i) {
                copy_async(into + i * 512 + lane * 16, from + i / 4 * S::kHalfBlock + i % 4 * 512,
                           warp * 16 + i % 4 * 4 + lane / 8 < keys);
            }
            into = into + S::kStreamSlotBytes == ring + kSlots * S::kStreamSlotBytes
                       ? ring
                       : into + S::kStreamSlotBytes;
        }
        ++issued;
        copy_async_commit();
    };
    for (int i = 0; i + 1 < kSlots; ++i) issue();

    int position[2];
    uint32_t q[HeadDim / 16][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int r = lane / 4 + 8 * i;
        const bool valid = r < rows;
        const AttentionRow row = rest.rows[valid ? r / ratio : 0];
        position[i] = row.position;
        const T *from = static_cast<const T *>(a.q) + row.token * a.q_stride +
                        (kv_head * ratio + r % ratio) * HeadDim + lane % 4 * 2;
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
#pragma unroll
    for (int i = 0; i < HeadDim / 2; ++i) o[i] = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        maximum[i] = -INFINITY;
        sum[i] = 0;
    }

    const uint32_t k_lane = (lane / 16 * 8 + lane % 8) * 128 + ((lane / 8 % 2 ^ lane % 8) << 4);
    const uint32_t v_lane = (lane / 8 % 2 * 8 + lane % 8) * 128 + ((lane / 16 ^ lane % 8) << 4);
    uint32_t slot = ring;
    const auto next_slot = [&] {
        copy_async_wait<kSlots - 2>();
        __syncwarp(); // the slot is full; all lanes are done with the one before
        issue();
    };
    const auto leave_slot = [&] {
        slot = slot + S::kStreamSlotBytes == ring + kSlots * S::kStreamSlotBytes
                   ? ring
                   : slot + S::kStreamSlotBytes;
    };
    const Bounds bounds(rest.item, a.window);
    for (int at = 0; at < n; ++at) {
        next_slot();
        float s[8] = {};
#pragma unroll
        for (int k = 0; k < HeadDim / 16; ++k) {
            uint32_t b[4];
            load_matrix(b, (slot + (k_lane ^ k % 4 * 32)) + k / 4 * 2048);
            mma_sync(s, q[k], b[0], b[1], T());
            mma_sync(s + 4, q[k], b[2], b[3], T());
        }
        leave_slot();
        const KeyStretch stretch = rest.item.stretch[at < n0 ? 0 : 1];
        const int key = (at < n0 ? at : at - n0) * kPageKeys + warp * 16;
        if (bounds.hide(stretch, key, 16)) {
            mask(s, position, stretch, key + lane % 4 * 2, a.window);
        }
        float factor[2];
        softmax(s, maximum, sum, factor, c);
        uint32_t p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) p[i] = pack(s[2 * i], s[2 * i + 1], T());
#pragma unroll
        for (int i = 0; i < HeadDim / 2; ++i) o[i] *= factor[i / 2 % 2];
        next_slot();
#pragma unroll
        for (int d = 0; d < HeadDim / 16; ++d) {
            uint32_t b[4];
            load_matrix_transposed(b, (slot + (v_lane ^ d % 4 * 32)) + d / 4 * 2048);
            mma_sync(&o[d * 8], p, b[0], b[1], T());
            mma_sync(&o[d * 8 + 4], p, b[2], b[3], T());
        }
        leave_slot();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
    }
}

template <int HeadDim, int Slots, typename T> __device__ void
stream_job(const AttentionArguments &a, int kv_head, unsigned char *shared, Rest &rest) {
    using S = Shape<HeadDim>;
    constexpr int kSlots = S::stream_slots(Slots);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int ratio = a.heads / a.kv_heads;
    const int rows = rest.item.row_count * ratio;
    const float c = a.scale * kLog2e;
    const bool works = S::kWarps == kStreamWarps || warp < kStreamWarps;

    float o[HeadDim / 2], maximum[2], sum[2];
    if (works) {
        stream_keys<HeadDim, Slots, T>(a, kv_head,
                                       shared_address(shared) + warp * kSlots * S::kStreamSlotBytes,
                                       rest, o, maximum, sum);
    }
    // The rings become [warp][row][kResultStride], not normalised.
    auto *results = reinterpret_cast<float *>(shared);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int r = lane / 4 + 8 * i;
        if (!works || r >= rows) continue;
        float *to = results + (warp * kStreamRows + r) * S::kResultStride + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < HeadDim / 8; ++j) {
            *reinterpret_cast<float2 *>(to + j * 8) =
                make_float2(o[j * 4 + i * 2], o[j * 4 + i * 2 + 1]);
        }
        if (lane % 4 == 0) {
            rest.max_sum[warp][r][0] = maximum[i] * c;
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
        const float inverse = total > 0 ? 1.f / total : 0.f;
        const AttentionRow row = rest.rows[r / ratio];
        const int head = kv_head * ratio + r % ratio;
        write_pair<T>(a, row.token, row.slot, head, HeadDim, column, x.x * inverse, x.y * inverse);
        write_pair<T>(a, row.token, row.slot, head, HeadDim, column + 2, x.z * inverse,
                      x.w * inverse);
        if (column == 0) write_lse(a, row.slot, head, top, total);
    }
}

template <int HeadDim, int Slots, typename T>
__global__ void __launch_bounds__(Shape<HeadDim>::kThreads, Shape<HeadDim>::kMostCtas)
    attention(const __grid_constant__ AttentionArguments a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ Rest rest;
    const int lane = threadIdx.x % 32;
    JobSource source{a, blockIdx.x < gridDim.x / 2 ? 0 : 1};
    while (true) {
        if (threadIdx.x < 32) { // warp 0 fetches the job; lane 0 alone draws
            int number = 0;
            if (lane == 0) number = source.take();
            number = __shfl_sync(~0u, number, 0);
            if (number >= 0) {
                constexpr int kWords = sizeof(AttentionItem) / 4;
                const auto *item = reinterpret_cast<const int *>(&a.items[number / a.kv_heads]);
                const int word = lane < kWords ? __ldg(item + lane) : 0;
                if (lane < kWords) reinterpret_cast<int *>(&rest.item)[lane] = word;
                const int row_begin =
                    __shfl_sync(~0u, word, offsetof(AttentionItem, row_begin) / 4);
                const int row_count =
                    __shfl_sync(~0u, word, offsetof(AttentionItem, row_count) / 4);
                const auto *rows = reinterpret_cast<const int4 *>(a.rows + row_begin);
                for (int i = lane; i < row_count; i += 32) {
                    reinterpret_cast<int4 *>(rest.rows)[i] = __ldg(rows + i);
                }
            }
            if (lane == 0) rest.number = number;
        }
        __syncthreads();
        const int number = rest.number;
        if (number < 0) break;
        const int kv_head = number % a.kv_heads;
        if (number < a.matrix_items * a.kv_heads) {
            matrix_job<HeadDim, Slots, T>(a, kv_head, shared_address(shared), rest);
        } else {
            stream_job<HeadDim, Slots, T>(a, kv_head, shared, rest);
        }
        if (rest.item.partial) merge_partials<HeadDim, T>(a, kv_head, a.heads / a.kv_heads, rest);
        __syncthreads(); // all are done with the shared memory
    }
    if (threadIdx.x == 0) leave_queues(a);
}

template <int HeadDim, int Slots, typename T>
cudaError_t launch(const AttentionArguments &a, int ctas, cudaStream_t stream) {
    using S = Shape<HeadDim>;
    const auto kernel = attention<HeadDim, Slots, T>;
    const int bytes = S::bytes(Slots);
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    kernel<<<ctas, S::kThreads, bytes, stream>>>(a);
    return cudaGetLastError();
}

// Shared memory of the device.
struct Memory {
    int of_sm = 0, of_block = 0, reserved = 0;
    bool few_slots = false; // even where there is room for more
};

// As many CTAs an SM as registers and memory allow, then as many slots.
template <int HeadDim, typename T> cudaError_t launch(const AttentionArguments &a, int sms,
                                                      const Memory &memory, cudaStream_t stream) {
    using S = Shape<HeadDim>;
    for (int ctas = S::kMostCtas; ctas > 0; --ctas) {
        const int room =
            std::min(memory.of_block, memory.of_sm / ctas - memory.reserved) - kRestBytes;
        if (room >= S::bytes(4) && !memory.few_slots) {
            return launch<HeadDim, 4, T>(a, ctas * sms, stream);
        }
        if (room >= S::bytes(2)) return launch<HeadDim, 2, T>(a, ctas * sms, stream);
    }
    return cudaErrorInvalidConfiguration;
}

template <typename T> cudaError_t launch(const AttentionArguments &a, int sms, const Memory &memory,
                                         cudaStream_t stream) {
    switch (a.head_dim) {
    case 64:
        return launch<64, T>(a, sms, memory, stream);
    case 128:
        return launch<128, T>(a, sms, memory, stream);
    case 256:
        return launch<256, T>(a, sms, memory, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

cudaError_t launch(const AttentionArguments &a, int sms, bool few_slots, cudaStream_t stream) {
    if (a.matrix_items + a.stream_items == 0) return cudaSuccess;
    int device = 0;
    Memory memory;
    memory.few_slots = few_slots;
    cudaError_t status = cudaGetDevice(&device);
    const auto ask = [&](int *value, cudaDeviceAttr what) {
        if (status == cudaSuccess) status = cudaDeviceGetAttribute(value, what, device);
    };
    ask(&memory.of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    ask(&memory.of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    ask(&memory.reserved, cudaDevAttrReservedSharedMemoryPerBlock);
    if (status != cudaSuccess) return status;
    return a.type == AttentionType::bf16 ? launch<__nv_bfloat16>(a, sms, memory, stream)
                                         : launch<__half>(a, sms, memory, stream);
}

// Stream results fit in the least that a launch has, and a warp has two slots there.
template <int HeadDim> constexpr bool fits() {
    using S = Shape<HeadDim>;
    return kStreamWarps * kStreamRows * S::kResultStride * 4 <= S::bytes(2) &&
           S::stream_slots(2) >= 2 && S::bytes(2) + kRestBytes <= 99 * 1024;
}
static_assert(fits<64>() && fits<128>() && fits<256>());

} // namespace

cudaError_t launch_attention_sm80(const AttentionArguments &a, int sms, cudaStream_t stream) {
    return launch(a, sms, false, stream);
}

cudaError_t launch_attention_sm80_small(const AttentionArguments &a, int sms, cudaStream_t stream) {
    return launch(a, sms, true, stream);
}

} // namespace batchllm::cuda
