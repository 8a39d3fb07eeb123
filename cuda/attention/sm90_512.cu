// Fused attention for Hopper, heads of 512: O = softmax(scale Q K^T) V over paged keys and values.
//
// One CTA per SM, persistent. A job has up to 64 query rows, which are in shared memory (64 KB). K and V of a page, 64 KB
// each, pass through a ring of five slots of 32 KB, each of them 256 elements of the page's 64 keys: K, K, V, V. Two
// warpgroups have all the rows and 256 columns of O each (64 x 256 f32: 128 registers a thread). Both compute all scores, so
// that they exchange nothing: a page then takes 3,072 cycles of products instead of 2,048, but its 128 KB take longer from
// L2 (some 5,000 cycles when all SMs read).
//   warps 0-7   consumers
//   warp 8      feeder: keys and values, by bulk copies
//   warps 9-11  draw jobs, and fetch their rows and queries
// The job that writes the last partial of a token merges them. In e4m3 (Stored) a slot arrives as bytes, in its second half,
// which the consumers widen in place: a warpgroup one of K's two slots, and that of its own columns of V.
// Softmax in base 2, as in attention/sm90.cuh.
#include "attention/sm80_merge.cuh"
#include "attention/sm90_feed.cuh"
#include "attention/sm90_fetch.cuh"
#include "attention/sm90_softmax.cuh"
#include "device/launch.cuh"

namespace batchllm::cuda {
namespace {

using sm90::JobPlace;
using sm90::kShrink;
using sm90::Ratio;

constexpr int kHeadDim = 512, kRows = kNarrowRows, kSlots = 5, kParts = 4; // slots of a page
constexpr int kConsumers = 256, kThreads = 384, kFetchers = 96;
constexpr uint32_t kBlock = kPageKeys * 128; // [64 keys or rows][64 elements]
constexpr uint32_t kSlot = 4 * kBlock, kQueries = kHeadDim / 64 * kBlock;
enum Barrier { kAll = 1, kGroup = 2, kFetching = 4 }; // kGroup: one a warpgroup

struct Job {
    int kv_head;
    int pages[2]; // of each stretch; -1: no more jobs
    AttentionItem item;
    int token[kRows], slot[kRows], position[kRows]; // of its query tokens
};
struct Rest {
    int drawn;
    struct {
        int count;
        uint8_t row[kRows]; // of the job's tokens
    } merged[2];            // in turn
    Job jobs[2];
    alignas(8) uint64_t job_full[2], job_empty[2], queries_full, queries_empty, draw;
    uint64_t full[kSlots], empty[kSlots];
};
constexpr uint32_t kRest = kQueries + kSlots * kSlot;
constexpr int kSharedBytes = kRest + sizeof(Rest);
static_assert(kSharedBytes <= 232448);

// ---- Jobs, queries, pages ----

template <typename T, typename Stored>
__device__ void fetch_jobs(const AttentionArguments &a, uint32_t shared, Rest *rest) {
    const int thread = threadIdx.x - (kThreads - kFetchers);
    const Ratio ratio(a);
    sm90::JobSource source(a); // only one thread draws
    for (int n = 0;; ++n) {
        Job &job = rest->jobs[n % 2];
        const uint32_t full = shared_address(&rest->job_full[n % 2]);
        barrier_wait(shared_address(&rest->job_empty[n % 2]), (n / 2 + 1) % 2);
        if (n > 0) barrier_wait(shared_address(&rest->draw), (n - 1) % 2);
        if (thread == 0) rest->drawn = source.take();
        named_barrier(kFetching, kFetchers);
        const int number = rest->drawn;
        if (number < 0) {
            if (thread == 0) job.pages[0] = -1;
            barrier_arrive(full);
            break;
        }
        const JobPlace place(a, number);
        const AttentionItem item = a.items[place.item];
        if (thread == 0) {
            job.kv_head = place.kv_head;
            job.item = item;
            for (int s = 0; s < 2; ++s) job.pages[s] = tiles(item.stretch[s].keys, kPageKeys);
        }
        if (thread < item.row_count) {
            const AttentionRow row = a.rows[item.row_begin + thread];
            job.token[thread] = row.token;
            job.slot[thread] = row.slot;
            job.position[thread] = row.position;
        }
        barrier_arrive(full);
        named_barrier(kFetching, kFetchers); // the rows are there
        barrier_wait(shared_address(&rest->queries_empty), (n + 1) % 2);
        // Rows without a token that share a warp with others become zeros: their scores, too, may raise what is subtracted.
        const int rows = item.row_count * ratio.ratio, some = (rows + 15) / 16 * 16;
        for (int i = thread; i < some * (kHeadDim / 8); i += kFetchers) {
            const int row = i / (kHeadDim / 8), c = i % (kHeadDim / 8);
            const bool there = row < rows;
            const T *from = static_cast<const T *>(a.q);
            if (there) {
                from += job.token[ratio.token(row)] * a.q_stride +
                        (place.kv_head * ratio.ratio + ratio.head(row)) * kHeadDim + c * 8;
            }
            const uint32_t to = shared + c / 8 * kBlock + row * 128 + ((c % 8 ^ row % 8) << 4);
            if constexpr (std::is_same_v<T, Factor<T, Stored>>) {
                copy_async(to, from, there);
            } else {
                const uint4 x = there ? __ldg(reinterpret_cast<const uint4 *>(from)) : uint4();
                store_shared(to, to_half(x, T()));
            }
        }
        copy_async_commit();
        copy_async_wait<0>();
        async_proxy_fence();
        barrier_arrive(shared_address(&rest->queries_full));
    }
    // The last CTA to find the queues empty resets them for the next launch.
    if (thread == 0 && atomicAdd(&a.queues[2], 1) == static_cast<int>(gridDim.x) - 1) {
        a.queues[0] = 0;
        a.queues[1] = 0;
        a.queues[2] = 0;
    }
}

template <typename Stored>
__device__ void feed(const AttentionArguments &a, uint32_t shared, Rest *rest) {
    constexpr uint32_t kBytes = kSlot / kShrink<Stored>; // of a page that a slot holds
    const int lane = threadIdx.x % 32;
    const uint64_t normal = evict_normal(), soon = evict_first();
    sm90::Ring<kSlots> ring;
    for (int n = 0;; ++n) {
        const Job &job = rest->jobs[n % 2];
        barrier_wait(shared_address(&rest->job_full[n % 2]), n / 2 % 2);
        const int first = __shfl_sync(~0u, job.pages[0], 0);
        if (first < 0) return;
        const int pages = first + __shfl_sync(~0u, job.pages[1], 0);
        const KeyStretch s0 = job.item.stretch[0], s1 = job.item.stretch[1];
        const int kv_head = job.kv_head, once = job.item.once;
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&rest->job_empty[n % 2]));
        int numbers = 0; // of 32 pages, one a lane
        for (int p = 0; p < pages; ++p) {
            if (p % 32 == 0 && p + lane < pages) {
                const int at = p + lane;
                numbers =
                    __ldg(a.pages + (at < first ? s0.page_begin + at : s1.page_begin + at - first));
            }
            const int64_t number = __shfl_sync(~0u, numbers, p % 32);
            if (elect_one()) {
                if (p == max(0, pages - 3)) barrier_arrive(shared_address(&rest->draw));
                const char *from = static_cast<const char *>(a.kv) +
                                   (number * a.kv_heads + kv_head) * (kParts * kBytes);
                const int keys = min(kPageKeys, p < first ? s0.keys - p * kPageKeys
                                                          : s1.keys - (p - first) * kPageKeys);
                const uint64_t policy = once >> (p < first ? 0 : 1) & 1 ? soon : normal;
                auto at = ring;
                for (int part = 0; part < kParts; ++part) {
                    const uint32_t full = shared_address(&rest->full[at.slot]);
                    const uint32_t to = shared + kQueries + at.slot * kSlot + kSlot - kBytes;
                    barrier_wait(shared_address(&rest->empty[at.slot]), at.phase ^ 1);
                    barrier_expect(full, keys * (kBytes / kPageKeys));
                    if (keys == kPageKeys) {
                        bulk_copy(to, from + part * kBytes, kBytes, full, policy);
                    } else { // what nobody has written is not read
                        for (int b = 0; b < 4; ++b) {
                            const uint32_t skipped = b * (kBytes / 4);
                            bulk_copy(to + skipped, from + part * kBytes + skipped,
                                      keys * (kBytes / 4 / kPageKeys), full, policy);
                        }
                    }
                    at.advance();
                }
            }
            __syncwarp();
            ring.advance(kParts);
        }
    }
}

// ---- Products ----

template <typename T, typename Stored> class Consumer {
    using M = Factor<T, Stored>;

  public:
    __device__ Consumer(const AttentionArguments &a, unsigned char *shared, Rest *rest)
        : a_(a), shared_(shared), rest_(rest), ratio_(a), queries_(shared_address(shared)),
          group_(__shfl_sync(~0u, threadIdx.x / 128, 0)), lane_(threadIdx.x % 32),
          warp_(__shfl_sync(~0u, threadIdx.x % 128 / 32, 0)) {}

    __device__ void run() {
        for (int n = 0;; ++n) {
            const Job &job = rest_->jobs[n % 2];
            barrier_wait(shared_address(&rest_->job_full[n % 2]), n / 2 % 2);
            const int first = __shfl_sync(~0u, job.pages[0], 0);
            if (first < 0) return;
            const int pages = first + __shfl_sync(~0u, job.pages[1], 0);
            const int rows = __shfl_sync(~0u, job.item.row_count * ratio_.ratio, 0);
            const Bounds bounds(job.item, a_.window);
            const bool works = warp_ * 16 < rows;
            int position[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int r = row(i);
                position[i] = r < rows ? job.position[ratio_.token(r)] : -1;
            }
            float o[128] = {};
            const int kv_head = job.kv_head;
            sm90::RowSoftmax softmax{a_.scale * kLog2e * key_factor<Stored>(a_, kv_head)};
            barrier_wait(shared_address(&rest_->queries_full), n % 2);
            for (int p = 0; p < pages; ++p) {
                const int s = p < first ? 0 : 1, key = (p < first ? p : p - first) * kPageKeys;
                const KeyStretch stretch = job.item.stretch[s];
                const int left = __shfl_sync(~0u, min(kPageKeys, stretch.keys - key), 0);
                float scores[32];
                uint32_t weights[16] = {};
                if constexpr (kInBytes<Stored>) {
                    auto own = ring_;
                    own.advance(group_);
                    widen_slot(own, kPageKeys);
                    named_barrier(kAll, kConsumers);
                }
                score(scores);
                if (p + 1 == pages && lane_ == 0) {
                    barrier_arrive(shared_address(&rest_->queries_empty));
                }
                if (works) {
                    float top[2], factor[2];
                    if (bounds.hide(stretch, key, kPageKeys)) {
                        mask(scores, position, stretch, key + lane_ % 4 * 2, a_.window);
                    }
                    if (softmax.grew(scores, top)) {
                        softmax.raise(top, factor);
#pragma unroll
                        for (int i = 0; i < 128; ++i) o[i] *= factor[i / 2 % 2];
                    }
                    softmax.exponentials(scores, weights, M());
                }
                if (group_ == 1) pass();
                add(o, weights, left);
                if (group_ == 0) pass();
            }
            write(job, rows, o, softmax);
            if (job.item.partial) merge(job);
            __syncwarp();
            if (lane_ == 0) barrier_arrive(shared_address(&rest_->job_empty[n % 2]));
        }
    }

  private:
    // The thread's rows of accumulators.
    __device__ int row(int i) const { return warp_ * 16 + lane_ / 4 + 8 * i; }
    __device__ uint32_t address() const {
        return shared_address(shared_) + kQueries + ring_.slot * kSlot;
    }
    __device__ void wait() const {
        barrier_wait(shared_address(&rest_->full[ring_.slot]), ring_.phase);
    }
    __device__ void release(int slot) const {
        if (lane_ == 0) barrier_arrive(shared_address(&rest_->empty[slot]));
    }
    __device__ void pass() { // the other group's values
        wait();
        release(ring_.slot);
        ring_.advance();
    }

    // Widens a slot, once it is full; from key `keys` on it becomes zeros. A barrier must follow.
    __device__ __forceinline__ void widen_slot(const sm90::Ring<kSlots> &at, int keys) const {
        constexpr int kChunks = kSlot / 2 / 16 / 128;
        const int thread = threadIdx.x % 128;
        unsigned char *to = shared_ + kQueries + at.slot * kSlot;
        barrier_wait(shared_address(&rest_->full[at.slot]), at.phase);
        uint4 bytes[kChunks];
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            bytes[i] = reinterpret_cast<const uint4 *>(to + kSlot / 2)[i * 128 + thread];
        }
        named_barrier(kGroup + group_, 128); // all bytes have been read
        uint32_t place[2];
        widened_places(thread, place);
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            uint4 chunks[2];
            widen(bytes[i], chunks);
            const bool there = (thread / 4 + i * 32) % kPageKeys < keys;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                *reinterpret_cast<uint4 *>(to + i * 4096 + place[e]) =
                    there ? chunks[e] : make_uint4(0, 0, 0, 0);
            }
        }
        async_proxy_fence();
    }
    // S of a page.
    __device__ __forceinline__ void score(float (&s)[32]) {
        const int slot = ring_.slot;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if constexpr (!kInBytes<Stored>) wait();
            const Operand keys(address());
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 16; ++k) {
                wgmma_ss(s, queries_.at((half * 4 + k / 4) * kBlock + k % 4 * 32),
                         keys.at(k / 4 * kBlock + k % 4 * 32), half + k > 0, M());
            }
            ring_.advance();
        }
        wgmma_commit();
        wgmma_wait<0>();
        release(slot);
        release(slot + 1 == kSlots ? 0 : slot + 1);
    }
    // O += P V of a page's first `keys` keys.
    __device__ __forceinline__ void add(float (&o)[128], const uint32_t (&p)[16], int keys) {
        if constexpr (kInBytes<Stored>) {
            widen_slot(ring_, keys);
            named_barrier(kGroup + group_, 128);
        } else {
            wait();
        }
        if (!kInBytes<Stored> && keys < kPageKeys) { // behind them may be a NaN
            unsigned char *to = shared_ + kQueries + ring_.slot * kSlot;
            for (int i = keys * 32 + threadIdx.x % 128; i < kPageKeys * 32; i += 128) {
                *reinterpret_cast<uint4 *>(to + i % 32 / 8 * kBlock + i / 32 * 128 + i % 8 * 16) =
                    make_uint4(0, 0, 0, 0);
            }
            async_proxy_fence();
            named_barrier(kGroup + group_, 128);
        }
        const Operand values(address(), kBlock);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) wgmma_rs(o, p + 4 * k, values.at(k * 2048), M());
        wgmma_commit();
        wgmma_wait<0>();
        release(ring_.slot);
        ring_.advance();
    }

    // ---- The end of a job ----

    __device__ __forceinline__ void write(const Job &job, int rows, const float (&o)[128],
                                          sm90::RowSoftmax &softmax) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float sum = softmax.sum[i];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const int r = row(i);
            if (r >= rows) continue;
            const int token = job.token[ratio_.token(r)], slot = job.slot[ratio_.token(r)];
            const int head = job.kv_head * ratio_.ratio + ratio_.head(r);
            const float scale = sum > 0 ? value_factor<Stored>(a_, job.kv_head) / sum : 0.0f;
            const Destination<T> to(a_, token, slot, head, kHeadDim);
#pragma unroll
            for (int j = 0; j < 32; ++j) {
                to.write(group_ * 256 + j * 8 + lane_ % 4 * 2, o[4 * j + 2 * i] * scale,
                         o[4 * j + 2 * i + 1] * scale);
            }
            if (group_ == 0 && lane_ % 4 == 0) {
                write_lse(a_, slot, head, softmax.maximum(i), sum);
            }
        }
    }

    // Merges what this job has completed.
    __device__ void merge(const Job &job) {
        constexpr int kTogether = sm80::kTogether<kHeadDim>;
        const int thread = threadIdx.x;
        auto &done = rest_->merged[turn_];
        turn_ ^= 1;
        __threadfence();
        if (thread == 0) done.count = 0;
        named_barrier(kAll, kConsumers);
        if (thread < job.item.row_count && job.slot[thread] >= 0 &&
            sm80::last_partial(a_, job.token[thread], job.kv_head)) {
            done.row[atomicAdd(&done.count, 1)] = static_cast<uint8_t>(thread);
        }
        __threadfence();
        named_barrier(kAll, kConsumers);
        const int count = done.count * ratio_.ratio;
        for (int i = thread / 32 * kTogether; i < count; i += kConsumers / 32 * kTogether) {
            int token[kTogether], head[kTogether];
#pragma unroll
            for (int r = 0; r < kTogether; ++r) {
                const int at = min(i + r, count - 1); // the last row again: the same result
                const int of = at / ratio_.ratio;
                token[r] = job.token[done.row[of]];
                head[r] = job.kv_head * ratio_.ratio + at - of * ratio_.ratio;
            }
            sm80::merge_rows<kHeadDim, false, T>(a_, token, head, lane_);
        }
    }

    const AttentionArguments &a_;
    unsigned char *const shared_;
    Rest *const rest_;
    const Ratio ratio_;
    const Operand queries_;
    const int group_, lane_, warp_;
    sm90::Ring<kSlots> ring_;
    int turn_ = 0;
};

template <typename T, typename Stored> __global__ void __launch_bounds__(kThreads, 1)
    attention_512(const __grid_constant__ AttentionArguments a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Rest *rest = reinterpret_cast<Rest *>(shared + kRest);
    if (threadIdx.x == 0) {
        constexpr int kWarps = kConsumers / 32;
        for (int i = 0; i < 2; ++i) {
            barrier_init(shared_address(&rest->job_full[i]), kFetchers);
            barrier_init(shared_address(&rest->job_empty[i]), kWarps + 1);
        }
        for (int i = 0; i < kSlots; ++i) {
            barrier_init(shared_address(&rest->full[i]), 1);
            barrier_init(shared_address(&rest->empty[i]), kWarps);
        }
        barrier_init(shared_address(&rest->queries_full), kFetchers);
        barrier_init(shared_address(&rest->queries_empty), kWarps);
        barrier_init(shared_address(&rest->draw), 1);
        barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x >= kConsumers) {
        registers_fewer<40>();
        if (threadIdx.x < kConsumers + 32) {
            feed<Stored>(a, shared_address(shared), rest);
        } else {
            fetch_jobs<T, Stored>(a, shared_address(shared), rest);
        }
    } else {
        registers_more<232>();
        Consumer<T, Stored>(a, shared, rest).run();
    }
}

} // namespace

cudaError_t launch_attention_512_sm90(const AttentionArguments &a, int sms, cudaStream_t stream) {
    if (a.matrix_items + a.stream_items == 0) return cudaSuccess;
    const auto of_type = [&](auto type) {
        using T = decltype(type);
        const auto kernel = a.kv_e4m3 ? attention_512<T, E4m3> : attention_512<T, T>;
        return launch_with_shared(kernel, static_cast<unsigned>(sms), kThreads, kSharedBytes,
                                  stream, a);
    };
    return a.type == AttentionType::bf16 ? of_type(__nv_bfloat16()) : of_type(__half());
}

} // namespace batchllm::cuda
