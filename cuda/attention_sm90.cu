// Fused attention for Hopper: O = softmax(scale Q K^T) V over paged keys and values.
//
// One CTA an SM, persistent, with five roles that overlap from job to job:
//   warps 0-7   consumers: two warpgroups that compute
//   warp 8      streams K and V blocks into a ring of shared-memory slots with bulk copies
//   warp 9      fetches jobs ahead: item, rows, first page numbers, and a stream job's queries
//   warps 10-11 write a stream job's result and merge partials while the next job computes
// The order of the slots is the contract between producer and consumers:
//   matrix job  a slot is kKeys keys of K or of V: K0 K1 V0 K2 V1 ... V(n-1). Each warpgroup has 64 of
//               the 128 query rows; S = Q K^T of tile j + 1 and O += P V of tile j are in flight
//               together, the softmax of tile j + 1 under the latter.
//   stream job  a slot is kStreamKeys keys, K then V. Each warp has 16 keys of every kGroups-th slot, all
//               (up to 16) query rows, and its own running maximum; the warps merge at the end.
// Softmax in base 2: p = 2^((s - max) scale log2 e), log-sum-exp = max scale log2 e + log2 sum p.
#include "attention_common.cuh"
#include "hopper.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 128;

constexpr int kJobs = 2; // jobs fetched ahead

template <int HeadDim> struct Shape {
    static constexpr int kHalves = HeadDim / 64;
    static constexpr int kKeys = HeadDim <= 128 ? 128 : 64;
    static constexpr int kSlotBytes = kKeys * HeadDim * 2;
    static constexpr int kSlots = HeadDim == 64 ? 8 : HeadDim == 128 ? 5 : 3;
    static constexpr int kStreamKeys = kSlotBytes / (4 * HeadDim);
    static constexpr int kWarpsPerSlot = kStreamKeys / 16;
    static constexpr int kGroups = 8 / kWarpsPerSlot;
    static constexpr int kQueryBytes = kMatrixRows * HeadDim * 2;
    static constexpr int kStreamQueryStride = HeadDim * 2 + 16; // bytes; no bank conflicts
    static constexpr int kStreamQueryBytes = kStreamRows * kStreamQueryStride;
    static constexpr int kResultBytes = kStreamRows * HeadDim * 4;
    // Dynamic shared memory, from a 1024-byte boundary: matrix queries (or the stream merge), slots,
    // stream queries of each job fetched, stream results of the last two jobs, the rest.
    static constexpr int kStreamQueries = kQueryBytes + kSlots * kSlotBytes;
    static constexpr int kResults = kStreamQueries + kJobs * kStreamQueryBytes;
    static constexpr int kRest = kResults + 2 * kResultBytes;
    static constexpr int kBytes = kRest + 4096;
};
static_assert(Shape<64>::kBytes <= 232448 && Shape<128>::kBytes <= 232448 &&
              Shape<256>::kBytes <= 232448);

struct Job {
    int number; // -1: no more
    int kv_head;
    AttentionItem item;
    int pages[2][32]; // first page numbers of each stretch
    int token[kStreamRows], slot[kStreamRows],
        position[kStreamRows]; // stream jobs: per query token
};

struct Rest {
    float max_sum[8][8][2]; // stream merge: [warp][row] running maximum and sum
    float lse[2][kStreamRows];
    int merge_list[kMatrixRows];
    int merge_count;
    int stream_merge_list[kStreamRows];
    int stream_merge_count;
    Job jobs[kJobs];
    alignas(8) uint64_t job_full[kJobs], job_empty[kJobs];
    uint64_t result_full[2], result_empty[2];
    uint64_t full[8], empty[8];
};
static_assert(sizeof(Rest) <= 4096);

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

// ---- Producer -------------------------------------------------------------------------------------

template <int HeadDim, typename T>
__device__ void fetch_jobs(const AttentionArguments &a, unsigned char *shared, Rest *rest) {
    using S = Shape<HeadDim>;
    const int lane = threadIdx.x % 32;
    const int ratio = a.heads / a.kv_heads;
    JobSource source{a, static_cast<int>(blockIdx.x & 1)}; // lane 0 alone draws
    Ring<kJobs> ring;
    while (true) {
        int number = 0;
        if (lane == 0) number = source.take();
        number = __shfl_sync(~0u, number, 0);
        barrier_wait(shared_address(&rest->job_empty[ring.slot]), ring.phase ^ 1);
        Job &job = rest->jobs[ring.slot];
        const uint32_t full = shared_address(&rest->job_full[ring.slot]);
        if (number < 0) {
            if (lane == 0) {
                job.number = -1;
                barrier_arrive(full);
            }
            break;
        }
        const AttentionItem &item = a.items[number / a.kv_heads];
        const int kv_head = number % a.kv_heads;
        constexpr int kWords = sizeof(AttentionItem) / 4;
        if (lane < kWords) {
            reinterpret_cast<int *>(&job.item)[lane] = reinterpret_cast<const int *>(&item)[lane];
        }
        for (int s = 0; s < 2; ++s) {
            const KeyStretch stretch = item.stretch[s];
            if (lane < tiles(stretch.keys, kPageKeys)) {
                job.pages[s][lane] = __ldg(a.pages + stretch.page_begin + lane);
            }
        }
        uint32_t bytes = 0;
        if (number >= a.matrix_items * a.kv_heads) {
            const int tokens = item.row_count;
            AttentionRow row{};
            if (lane < tokens) {
                row = a.rows[item.row_begin + lane];
                job.token[lane] = row.token;
                job.slot[lane] = row.slot;
                job.position[lane] = row.position;
            }
            bytes = static_cast<uint32_t>(tokens * ratio * HeadDim * 2);
            __syncwarp();
            if (lane == 0) {
                job.number = number;
                job.kv_head = kv_head;
                barrier_expect(full, bytes);
            }
            __syncwarp();
            const int token = __shfl_sync(~0u, row.token, min(31, lane / ratio));
            if (lane < tokens * ratio) {
                bulk_copy(shared_address(shared) + S::kStreamQueries +
                              ring.slot * S::kStreamQueryBytes + lane * S::kStreamQueryStride,
                          static_cast<const T *>(a.q) + token * a.q_stride +
                              (kv_head * ratio + lane % ratio) * HeadDim,
                          HeadDim * 2, full);
            }
        } else {
            __syncwarp();
            if (lane == 0) {
                job.number = number;
                job.kv_head = kv_head;
                barrier_arrive(full);
            }
        }
        ring.advance();
    }
    if (lane == 0) leave_queues(a);
}

template <int HeadDim>
__device__ void produce(const AttentionArguments &a, uint32_t slots, Rest *rest) {
    using S = Shape<HeadDim>;
    const int lane = threadIdx.x % 32;
    constexpr int kBlock = kPageKeys * HeadDim * 2; // bytes of one page's K or V of a head
    constexpr int kHalfBlock = kPageKeys * 128;
    Ring<S::kSlots> ring;
    Ring<kJobs> job_ring;
    const auto *kv = static_cast<const unsigned char *>(a.kv);

    auto open_slot = [&](uint32_t bytes) -> uint32_t {
        barrier_wait(shared_address(&rest->empty[ring.slot]), ring.phase ^ 1);
        const uint32_t full = shared_address(&rest->full[ring.slot]);
        barrier_expect(full, bytes);
        return full;
    };

    while (true) {
        barrier_wait(shared_address(&rest->job_full[job_ring.slot]), job_ring.phase);
        const Job &job = rest->jobs[job_ring.slot];
        if (job.number < 0) break;
        const int kv_head = job.kv_head;
        auto block = [&](int page, int which) {
            return kv + ((static_cast<int64_t>(page) * a.kv_heads + kv_head) * 2 + which) * kBlock;
        };
        if (job.number < a.matrix_items * a.kv_heads) {
            if (lane == 0) {
                const KeyStretch s0 = job.item.stretch[0], s1 = job.item.stretch[1];
                const int n0 = tiles(s0.keys, S::kKeys);
                const int n = n0 + tiles(s1.keys, S::kKeys);
                auto emit = [&](int tile, int which) {
                    const bool first = tile < n0;
                    const int keys = first ? s0.keys : s1.keys;
                    const int page_begin = first ? s0.page_begin : s1.page_begin;
                    const int index = first ? tile : tile - n0;
                    const int pages =
                        min(S::kKeys / kPageKeys, tiles(keys - index * S::kKeys, kPageKeys));
                    const uint32_t full = open_slot(pages * kBlock);
                    for (int p = 0; p < pages; ++p) {
                        const int page =
                            __ldg(a.pages + page_begin + index * (S::kKeys / kPageKeys) + p);
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
                const KeyStretch s = job.item.stretch[which];
                const int pages = tiles(s.keys, kPageKeys);
                // Page numbers are read 32 at once, one batch early.
                int next = lane < pages ? job.pages[which][lane] : 0;
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
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&rest->job_empty[job_ring.slot]));
        job_ring.advance();
    }
}

// ---- Consumers ------------------------------------------------------------------------------------

// After all rows of a matrix job are written: the consumers merge what this job completed.
template <int HeadDim, typename T>
__device__ void merge_partials(const AttentionArguments &a, const AttentionItem &item, int kv_head,
                               int ratio, Rest *rest, int thread) {
    __threadfence();
    if (thread == 0) rest->merge_count = 0;
    named_barrier(1, kConsumers);
    for (int i = thread; i < item.row_count; i += kConsumers) {
        const AttentionRow row = a.rows[item.row_begin + i];
        if (row.slot >= 0 && last_partial(a, row.token, kv_head)) {
            rest->merge_list[atomicAdd(&rest->merge_count, 1)] = row.token;
        }
    }
    __threadfence();
    named_barrier(1, kConsumers);
    for (int i = thread / 32; i < rest->merge_count * ratio; i += kConsumers / 32) {
        merge_row<HeadDim, T>(a, rest->merge_list[i / ratio], kv_head * ratio + i % ratio,
                              thread % 32);
    }
    named_barrier(1, kConsumers);
}

// Warps 10 and 11: writes the results of stream jobs and merges what they complete.
template <int HeadDim, typename T>
__device__ void finish_streams(const AttentionArguments &a, unsigned char *shared, Rest *rest) {
    using S = Shape<HeadDim>;
    const int thread = threadIdx.x % 64, warp = thread / 32, lane = thread % 32;
    const int ratio = a.heads / a.kv_heads;
    Ring<kJobs> job_ring;
    Ring<2> ring;
    while (true) {
        barrier_wait(shared_address(&rest->job_full[job_ring.slot]), job_ring.phase);
        const Job &job = rest->jobs[job_ring.slot];
        if (job.number < 0) break;
        if (job.number >= a.matrix_items * a.kv_heads) {
            barrier_wait(shared_address(&rest->result_full[ring.slot]), ring.phase);
            const float *result =
                reinterpret_cast<const float *>(shared + S::kResults + ring.slot * S::kResultBytes);
            const int rows = job.item.row_count * ratio, kv_head = job.kv_head;
            for (int i = thread; i < rows * HeadDim / 4; i += 64) {
                const int r = i / (HeadDim / 4), column = i % (HeadDim / 4) * 4;
                const float4 value =
                    *reinterpret_cast<const float4 *>(result + r * HeadDim + column);
                const int token = job.token[r / ratio], slot = job.slot[r / ratio];
                const int head = kv_head * ratio + r % ratio;
                if (slot < 0) {
                    auto *out =
                        static_cast<T *>(a.out) + token * a.out_stride + head * HeadDim + column;
                    *reinterpret_cast<uint2 *>(out) =
                        make_uint2(pack(value.x, value.y, T()), pack(value.z, value.w, T()));
                } else {
                    float *out = a.partial_out +
                                 (static_cast<int64_t>(slot) * a.heads + head) * HeadDim + column;
                    *reinterpret_cast<float4 *>(out) = value;
                    if (column == 0) {
                        a.partial_lse[static_cast<int64_t>(slot) * a.heads + head] =
                            rest->lse[ring.slot][r];
                    }
                }
            }
            if (job.item.partial) {
                __threadfence();
                if (thread == 0) rest->stream_merge_count = 0;
                named_barrier(4, 64);
                if (thread < job.item.row_count && job.slot[thread] >= 0 &&
                    last_partial(a, job.token[thread], kv_head)) {
                    rest->stream_merge_list[atomicAdd(&rest->stream_merge_count, 1)] =
                        job.token[thread];
                }
                __threadfence();
                named_barrier(4, 64);
                for (int i = warp; i < rest->stream_merge_count * ratio; i += 2) {
                    merge_row<HeadDim, T>(a, rest->stream_merge_list[i / ratio],
                                          kv_head * ratio + i % ratio, lane);
                }
            }
            named_barrier(4, 64);
            if (thread == 0) barrier_arrive(shared_address(&rest->result_empty[ring.slot]));
            ring.advance();
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&rest->job_empty[job_ring.slot]));
        job_ring.advance();
    }
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
            value = *reinterpret_cast<const uint4 *>(
                static_cast<const T *>(a.q) + token * a.q_stride + head * HeadDim + chunk * 8);
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
        unsigned char *values = queries + S::kQueryBytes + static_cast<int>(r.slot) * S::kSlotBytes;
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
        wait_full(value_slot);
        clear_values(tile - 1, value_slot);
        // The warpgroups take turns: one issues its products while the other is at its softmax.
        named_barrier(5 + group, kConsumers);
        wgmma_fence();
        scores(address(key_slot));
        accumulate(address(value_slot));
        named_barrier_arrive(5 + (group ^ 1), kConsumers);
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
__device__ void stream_job(const AttentionArguments &a, const Job &job, int job_slot,
                           unsigned char *shared, uint32_t slots, Rest *rest,
                           Ring<Shape<HeadDim>::kSlots> &ring, Ring<2> &result_ring, int thread) {
    using S = Shape<HeadDim>;
    const int lane = thread % 32, warp = thread / 32;
    const int group = warp / S::kWarpsPerSlot, part = warp % S::kWarpsPerSlot;
    const int ratio = a.heads / a.kv_heads;
    const AttentionItem &item = job.item;
    const int rows = item.row_count * ratio;
    const float c = a.scale * kLog2e;
    Row row[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int r = lane / 4 + 8 * i;
        row[i].valid = r < rows;
        if (row[i].valid) row[i].position = job.position[r / ratio];
    }

    uint32_t q[HeadDim / 16][4];
    const unsigned char *queries = shared + S::kStreamQueries + job_slot * S::kStreamQueryBytes;
#pragma unroll
    for (int k = 0; k < HeadDim / 16; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            q[k][e] = row[e % 2].valid
                          ? *reinterpret_cast<const uint32_t *>(
                                queries + (lane / 4 + e % 2 * 8) * S::kStreamQueryStride +
                                (k * 16 + e / 2 * 8 + lane % 4 * 2) * 2)
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
                    unsigned char *values =
                        shared + S::kQueryBytes + ring.slot * S::kSlotBytes + S::kSlotBytes / 2;
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
                const bool needed =
                    key + 16 > stretch.keys || stretch.start + key + 15 > item.min_position ||
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

    // Merge the eight warps, eight query rows at a time, and hand the result to finish_streams.
    auto *buffer = reinterpret_cast<float *>(shared); // [warp][8 rows][HeadDim], unnormalised
    auto *result =
        reinterpret_cast<float *>(shared + S::kResults + result_ring.slot * S::kResultBytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
        const int here = min(8, rows - 8 * i); // rows of this pass
        if (here <= 0) break;
        if (row[i].valid) {
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
        if (i == 0) {
            barrier_wait(shared_address(&rest->result_empty[result_ring.slot]),
                         result_ring.phase ^ 1);
        }
        named_barrier(1, kConsumers);
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
            *reinterpret_cast<float2 *>(result + (8 * i + r) * HeadDim + column) =
                make_float2(x * scale, y * scale);
            if (column == 0) {
                rest->lse[result_ring.slot][8 * i + r] = total > 0 ? top + log2f(total) : -INFINITY;
            }
        }
        named_barrier(1, kConsumers);
    }
    if (thread == 0) barrier_arrive(shared_address(&rest->result_full[result_ring.slot]));
    result_ring.advance();
}

template <int HeadDim, typename T> __global__ void __launch_bounds__(kThreads, 1)
    attention(const __grid_constant__ AttentionArguments a) {
    using S = Shape<HeadDim>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t slots = shared_address(shared) + S::kQueryBytes;
    Rest *rest = reinterpret_cast<Rest *>(shared + S::kRest);
    if (threadIdx.x == 0) {
        for (int i = 0; i < kJobs; ++i) {
            barrier_init(shared_address(&rest->job_full[i]), 1);
            barrier_init(shared_address(&rest->job_empty[i]), kConsumers / 32 + 3);
        }
        for (int i = 0; i < 2; ++i) {
            barrier_init(shared_address(&rest->result_full[i]), 1);
            barrier_init(shared_address(&rest->result_empty[i]), 1);
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
        const int warp = threadIdx.x / 32;
        if (warp == 8) {
            produce<HeadDim>(a, slots, rest);
        } else if (warp == 9) {
            fetch_jobs<HeadDim, T>(a, shared, rest);
        } else {
            finish_streams<HeadDim, T>(a, shared, rest);
        }
    } else {
        registers_more<232>();
        const int thread = threadIdx.x;
        if (thread >= 128) named_barrier_arrive(5, kConsumers); // the first turn is warpgroup 0's
        Ring<S::kSlots> ring;
        Ring<kJobs> job_ring;
        Ring<2> result_ring;
        while (true) {
            barrier_wait(shared_address(&rest->job_full[job_ring.slot]), job_ring.phase);
            const Job &job = rest->jobs[job_ring.slot];
            const int number = __shfl_sync(~0u, job.number, 0);
            if (number < 0) break;
            if (number < a.matrix_items * a.kv_heads) {
                matrix_job<HeadDim, T>(a, job.item, job.kv_head, shared, slots, rest, ring, thread);
            } else {
                stream_job<HeadDim, T>(a, job, job_ring.slot, shared, slots, rest, ring,
                                       result_ring, thread);
            }
            __syncwarp();
            if (thread % 32 == 0) barrier_arrive(shared_address(&rest->job_empty[job_ring.slot]));
            job_ring.advance();
        }
    }
}

template <int HeadDim, typename T>
cudaError_t launch(const AttentionArguments &a, int sms, cudaStream_t stream) {
    const auto kernel = attention<HeadDim, T>;
    const int bytes = Shape<HeadDim>::kBytes;
    cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    kernel<<<sms, kThreads, bytes, stream>>>(a);
    return cudaGetLastError();
}

template <typename T>
cudaError_t launch_type(const AttentionArguments &a, int sms, cudaStream_t stream) {
    switch (a.head_dim) {
    case 64:
        return launch<64, T>(a, sms, stream);
    case 128:
        return launch<128, T>(a, sms, stream);
    case 256:
        return launch<256, T>(a, sms, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace

cudaError_t launch_attention_sm90(const AttentionArguments &a, int sms, cudaStream_t stream) {
    if (a.matrix_items + a.stream_items == 0) return cudaSuccess;
    return a.type == AttentionType::bf16 ? launch_type<__nv_bfloat16>(a, sms, stream)
                                         : launch_type<__half>(a, sms, stream);
}

} // namespace batchllm::cuda
