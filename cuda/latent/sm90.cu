// Attention over latents of 512 + 64 elements, sm_90a: softmax(scale Q K^T) V, where V is the first 512 elements of K.
//
// A CTA has 64 query rows, heads of tokens; an item of more is several tiles (split_into_tiles). Queries (72 KB) and two
// pages of 64 keys (72 KB each) fill shared memory. Two warpgroups share the work on each pair of pages:
//   scores   warpgroup g of page g, 64 x 64 x 576
//   results  warpgroup g of columns [256 g, 256 g + 256), of both pages: 64 x 256 f32 are 128 registers a thread
// A page's weights P go to the other warpgroup through shared memory, where the page's turned part was, which is no value.
// Both raise a row's maximum in the order of pages, so that results and sums of both are relative to the same one:
//   group 0: S0, P0, m0      O += P0 V0          O += P1 V1
//   group 1: S1              O += P0 V0, P1, m1  O += P1 V1
// A page has three parts, columns of values of either group and the rest. Each has barriers of its own, so that it is
// fetched again as soon as its reader is done with it.
//   warps 0-7   consumers
//   warp 8      fetches pages with bulk copies
//   warps 9-11  draw jobs, and fetch their rows and queries
// In e4m3 (Stored) a part lands in the second half of its place, and warps 9-11 widen it to f16 from there; queries, too, become
// f16 (attention/e4m3.cuh).
#include "attention/common.cuh"
#include "attention/e4m3.cuh"
#include "attention/hopper.cuh"
#include "device/launch.cuh"
#include "latent/latent.h"
#include "latent/quad.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kRows = kLatentTileRows, kKeyDim = 576, kValueDim = 512;
constexpr int kConsumers = 256, kThreads = 384, kFetchers = 96;
constexpr uint32_t kBlock = kPageKeys * 64 * 2; // [64 rows or keys][64 elements]
constexpr uint32_t kPage = kKeyDim / 64 * kBlock, kHalf = 4 * kBlock, kTurned = 2 * kHalf;
enum Barrier {
    kAll = 1,
    kGroup = 2,
    kFirstReady = 4,
    kSecondReady = 5,
    kFetching = 6
}; // kGroup: one a warpgroup

struct Row {
    int index;    // token * heads + head; negative: none
    int partial;  // slot * heads + head, or negative
    int position; // -1 for none
};
struct Job {
    KeyStretch stretch[2]; // up to what its last row sees
    int pages[2];          // of each; -1: no more jobs
    int min_position;
    Row rows[kRows];
};
struct Rest {
    float maximum[2][kRows]; // after a warpgroup's page
    float sum[2][2][kRows];  // [job % 2][warpgroup]
    int drawn;
    float c; // in e4m3, scaled, which needs no register here
    Job jobs[2];
    alignas(8) uint64_t job_full[2], job_empty[2], queries_full, queries_empty, draw;
    // [page of a pair][part]; landed: in e4m3
    uint64_t full[2][3], empty[2][3], landed[2][3];
};
constexpr uint32_t kRest = 3 * kPage; // queries, pages
constexpr int kSharedBytes = kRest + sizeof(Rest);
static_assert(kSharedBytes <= 232448);

// d[64 x 256] += A[64 x 16] B[16 x 256], B N-major; A in registers, or in shared memory, K-major.
#define WGMMA_VALUES(TYPE, CPP)                                                                    \
    __device__ __forceinline__ void add_values(float(&d)[128], const uint32_t *a, uint64_t b,      \
                                               CPP) {                                              \
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {" LIST128     \
                     "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 1;"                                 \
                     : R32(d, 0), R32(d, 32), R32(d, 64), R32(d, 96)                               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }                                                                                              \
    __device__ __forceinline__ void add_values(float(&d)[128], uint64_t a, uint64_t b, CPP) {      \
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {" LIST128     \
                     "}, %128, %129, 1, 1, 1, 0, 1;"                                               \
                     : R32(d, 0), R32(d, 32), R32(d, 64), R32(d, 96)                               \
                     : "l"(a), "l"(b));                                                            \
    }
WGMMA_VALUES("bf16", __nv_bfloat16)
WGMMA_VALUES("f16", __half)
#undef WGMMA_VALUES

// ---- Jobs, queries, pages ----

template <typename T, typename Stored> class Fetcher {
  public:
    __device__ Fetcher(const AttentionArguments &a, uint32_t shared, Rest *rest)
        : a_(a), shared_(shared), rest_(rest) {}

    // By warps 9-11.
    __device__ void fetch_jobs() {
        bool more = draw(0);
        for (int n = 0; more; ++n) {
            const Job &job = rest_->jobs[n % 2];
            named_barrier(kFetching, kFetchers); // the rows are there
            const int pages = kInBytes<Stored> ? job.pages[0] + job.pages[1] : 0;
            int p = 0;
            // Two, which need none of this job's queries; the rest, when scores read the first ones. The last two when the next
            // job is known.
            for (; p < min(2, pages); ++p) widen_page(p % 2);
            fetch_queries(job, n);
            for (; p < pages - 2; ++p) widen_page(p % 2);
            more = draw(n + 1);
            for (; p < pages; ++p) widen_page(p % 2);
        }
    }

    // By warp 8.
    __device__ void fetch_pages() {
        const int lane = threadIdx.x % 32;
        for (int n = 0;; ++n) {
            const Job &job = rest_->jobs[n % 2];
            barrier_wait(shared_address(&rest_->job_full[n % 2]), n / 2 % 2);
            const int first = __shfl_sync(~0u, job.pages[0], 0);
            if (first < 0) return;
            const int pages = first + __shfl_sync(~0u, job.pages[1], 0);
            const int begin = job.stretch[0].page_begin, after = job.stretch[1].page_begin - first;
            __syncwarp();
            if (lane == 0) barrier_arrive(shared_address(&rest_->job_empty[n % 2]));
            int numbers = 0; // of 32 pages, one a lane
            for (int p = 0; p < pages; ++p) {
                if (p % 32 == 0 && p + lane < pages) {
                    numbers = a_.pages[(p + lane < first ? begin : after) + p + lane];
                }
                const int64_t number = __shfl_sync(~0u, numbers, p % 32);
                const int b = p % 2;
                if (elect_one()) {
                    if (p == max(0, pages - 3)) barrier_arrive(shared_address(&rest_->draw));
                    fetch_page(static_cast<const char *>(a_.kv) + number * (kPage / kSmaller), b);
                }
                __syncwarp();
                phases_ ^= 1u << b;
            }
        }
    }

  private:
    static constexpr uint32_t kSmaller = kInBytes<Stored> ? 2 : 1; // a page, where it comes from

    // The next job; false: there are no more.
    __device__ bool draw(int n) const {
        const int thread = threadIdx.x - (kThreads - kFetchers);
        Job &job = rest_->jobs[n % 2];
        barrier_wait(shared_address(&rest_->job_empty[n % 2]), (n / 2 + 1) % 2);
        // Late, so that the job is not missing elsewhere.
        if (n > 0) barrier_wait(shared_address(&rest_->draw), (n - 1) % 2);
        if (thread == 0) rest_->drawn = atomicAdd(a_.queues, 1);
        named_barrier(kFetching, kFetchers);
        const int drawn = rest_->drawn;
        const bool over = drawn >= a_.matrix_items + a_.stream_items;
        const AttentionItem item = over ? AttentionItem{} : a_.items[drawn];
        if (thread == 0) {
            job.min_position = item.min_position;
            for (int s = 0; s < 2; ++s) {
                job.stretch[s] = item.stretch[s];
                job.stretch[s].keys = max(
                    0, min(item.stretch[s].keys, item.max_position - item.stretch[s].start + 1));
                job.pages[s] = over ? -1 : tiles(job.stretch[s].keys, kPageKeys);
            }
        }
        if (thread < kRows) {
            const int row = item.once + thread, token = row / a_.heads,
                      head = row - token * a_.heads;
            Row of{-1, -1, -1};
            if (token < item.row_count) {
                const AttentionRow &from = a_.rows[item.row_begin + token];
                of = {from.token * a_.heads + head,
                      from.slot < 0 ? -1 : from.slot * a_.heads + head, from.position};
            }
            job.rows[thread] = of;
        }
        barrier_arrive(shared_address(&rest_->job_full[n % 2]));
        return !over;
    }

    __device__ void fetch_queries(const Job &job, int n) const {
        constexpr int chunks = kKeyDim / 8;
        const int thread = threadIdx.x - (kThreads - kFetchers);
        const auto place = [&](int row, int c) {
            return shared_ + c / 8 * kBlock + row * 128 + ((c % 8 ^ row % 8) << 4);
        };
        barrier_wait(shared_address(&rest_->queries_empty), (n + 1) % 2);
        for (int i = thread; i < kRows * chunks; i += kFetchers) {
            const int row = i / chunks, c = i % chunks, index = job.rows[row].index;
            copy_async(place(row, c),
                       static_cast<const T *>(a_.q) + int64_t{max(index, 0)} * kKeyDim + c * 8,
                       index >= 0);
        }
        copy_async_commit();
        copy_async_wait<0>();
        if constexpr (!std::is_same_v<T, Factor<T, Stored>>) {
#pragma unroll 1
            for (int i = thread; i < kRows * chunks;
                 i += kFetchers) { // what the thread has fetched
                const int row = i / chunks;
                if (job.rows[row].index < 0) break; // none follows
                const uint32_t at = place(row, i % chunks);
                store_shared(at, to_half(load_shared(at), T()));
            }
        }
        async_proxy_fence();
        barrier_arrive(shared_address(&rest_->queries_full));
    }

    __device__ void fetch_page(const char *from, int b) const {
        for (int part = 0; part < 3; ++part) {
            const uint32_t wide = part < 2 ? kHalf : kBlock, bytes = wide / kSmaller;
            const uint32_t full =
                shared_address(&(kInBytes<Stored> ? rest_->landed : rest_->full)[b][part]);
            barrier_wait(shared_address(&rest_->empty[b][part]), (phases_ >> b & 1) ^ 1);
            barrier_expect(full, bytes);
            bulk_copy(shared_ + (1 + b) * kPage + part * kHalf + wide - bytes,
                      from + part * (kHalf / kSmaller), bytes, full);
        }
    }

    // In place: what is still to be read is in the second half of a part.
    __device__ void widen_page(int b) {
        constexpr int kChunks = kBlock / 2 / 16, kEach = (kChunks + kFetchers - 1) / kFetchers;
        const int thread = threadIdx.x - (kThreads - kFetchers);
        uint32_t places[2]; // kFetchers chunks on, these are 24 rows further down
        widened_places(thread, places);
        for (uint32_t block = 0; block < kKeyDim / 64; ++block) {
            const uint32_t part = block / 4, of_part = block % 4 * kBlock;
            const uint32_t wide = part < 2 ? kHalf : kBlock;
            const uint32_t to = shared_ + (1 + b) * kPage + part * kHalf;
            if (of_part == 0) {
                barrier_wait(shared_address(&rest_->landed[b][part]), phases_ >> b & 1);
            }
            uint4 bytes[kEach];
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                const int chunk = i * kFetchers + thread;
                if (chunk < kChunks) bytes[i] = load_shared(to + (wide + of_part) / 2 + chunk * 16);
            }
            // All have read what lies where they write.
            if (of_part >= wide / 2 || part == 2) named_barrier(kFetching, kFetchers);
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                if (i * kFetchers + thread >= kChunks) break;
                uint4 two[2];
                widen(bytes[i], two);
                const uint32_t rows = to + of_part + i * (kFetchers / 4 * 128);
                store_shared(rows + places[0], two[0]);
                store_shared(rows + places[1], two[1]);
            }
            if (of_part + kBlock < wide) continue;
            async_proxy_fence();
            barrier_arrive(shared_address(&rest_->full[b][part]));
        }
        phases_ ^= 1u << b;
    }

    const AttentionArguments &a_;
    const uint32_t shared_;
    Rest *const rest_;
    uint32_t phases_ = 0; // bit b: of page b of a pair
};

// ---- Products ----

// A page of a pair.
struct Page {
    KeyStretch stretch;
    int key; // its first, in the stretch
    __device__ Page(const Job &job, int first, int p)
        : stretch(job.stretch[p < first ? 0 : 1]), key((p < first ? p : p - first) * kPageKeys) {}
    __device__ int left() const { return __shfl_sync(~0u, stretch.keys - key, 0); }
};

template <typename T, typename Stored, int Group> class Consumer {
    using F = Factor<T, Stored>;

  public:
    __device__ Consumer(const AttentionArguments &a, unsigned char *shared, Rest *rest)
        : a_(a), shared_(shared), rest_(rest), queries_(shared_address(shared)) {}

    __device__ void run() {
        for (int n = 0;; ++n) {
            const Job &job = rest_->jobs[n % 2];
            barrier_wait(shared_address(&rest_->job_full[n % 2]), n / 2 % 2);
            const int first = __shfl_sync(~0u, job.pages[0], 0);
            if (first < 0) return;
            const int pages = first + __shfl_sync(~0u, job.pages[1], 0);
            float o[128] = {};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                position_[i] = job.rows[row(i)].position;
                maximum_[i] = -INFINITY;
                sum_[i] = 0;
            }
            barrier_wait(shared_address(&rest_->queries_full), n % 2);
            int p = 0;
            for (; p + 1 < pages; p += 2) {
                const Page zero(job, first, p), one(job, first, p + 1);
                if constexpr (Group == 0) {
                    weigh_first(job, zero, p + 2 >= pages, o);
                    take_second(one, o);
                } else {
                    both_pages(job, zero, one, p + 2 == pages, o);
                }
                phase_[0] ^= 1;
                phase_[1] ^= 1;
            }
            if (p < pages) {
                const Page zero(job, first, p);
                if constexpr (Group == 0) {
                    weigh_first(job, zero, true, o);
                } else {
                    take_first(zero, o);
                }
                phase_[0] ^= 1;
            }
            write(job, n, o);
            __syncwarp();
            if (lane() == 0) barrier_arrive(shared_address(&rest_->job_empty[n % 2]));
        }
    }

  private:
    __device__ static int lane() { return threadIdx.x % 32; }
    __device__ static int warp() { return threadIdx.x % 128 / 32; }
    // From a score to a logit, in base 2.
    __device__ float c() const { return kInBytes<Stored> ? rest_->c : a_.scale * kLog2e; }
    // The thread's rows of accumulators.
    __device__ static int row(int i) { return warp() * 16 + lane() / 4 + 8 * i; }
    __device__ uint32_t page(int b) const { return shared_address(shared_) + (1 + b) * kPage; }
    // A group's columns of values, and weights.
    __device__ Operand values(int b) const { return Operand(page(b) + Group * kHalf, kBlock); }
    __device__ Operand weights(int b) const { return Operand(page(b) + kTurned); }
    __device__ void wait(int b, int part) const {
        barrier_wait(shared_address(&rest_->full[b][part]), phase_[b]);
    }
    __device__ void release(int b, int part) const {
        if (lane() == 0) barrier_arrive(shared_address(&rest_->empty[b][part]));
    }

    // One group of wgmma: S of a page.
    __device__ __forceinline__ void scores(int b, float (&s)[32]) const {
        const Operand keys(page(b));
        wait(b, 0);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < kKeyDim / 16; ++k) {
            if (k == 16 || k == 32) {
                wait(b, k / 16);
                wgmma_fence();
            }
            wgmma_ss(s, queries_.at(k / 4 * kBlock + k % 4 * 32),
                     keys.at(k / 4 * kBlock + k % 4 * 32), k > 0, F());
        }
        wgmma_commit();
    }
    // O += P V of a page, in one group; `p` in registers, or in shared memory.
    __device__ __forceinline__ void add(float (&o)[128], const uint32_t *p, int b) const {
        const Operand v = values(b);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) add_values(o, p + 4 * k, v.at(k * 2048), F());
        wgmma_commit();
    }
    __device__ __forceinline__ void add(float (&o)[128], int b) const {
        const Operand v = values(b), p = weights(b);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) add_values(o, p.at(k * 32), v.at(k * 2048), F());
        wgmma_commit();
    }

    // The group's values past the stretch's end become zeros: a page's last owner may have left a NaN there. A barrier of
    // the group must follow.
    __device__ __forceinline__ void clear(const Page &of, int b) const {
        const int left = of.left();
        if (left >= kPageKeys) return;
        unsigned char *to = shared_ + (1 + b) * kPage + Group * kHalf;
        for (int i = left * 32 + threadIdx.x % 128; i < kPageKeys * 32; i += 128) {
            *reinterpret_cast<uint4 *>(to + i % 32 / 8 * kBlock + i / 32 * 128 + i % 8 * 16) =
                make_uint4(0, 0, 0, 0);
        }
        async_proxy_fence();
    }
    __device__ __forceinline__ void clear_alone(const Page &of, int b) const {
        clear(of, b);
        if (of.left() < kPageKeys) named_barrier(kGroup + Group, 128);
    }

    // The page's scores -> its weights, in registers and in shared memory, and the rows' maxima.
    __device__ __forceinline__ bool weigh(const Job &job, const Page &of, int b, float (&s)[32],
                                          uint32_t (&p)[16], float (&factor)[2]) {
        const KeyStretch &stretch = of.stretch;
        if (of.left() < kPageKeys || stretch.start + of.key + kPageKeys - 1 > job.min_position) {
            mask(s, position_, stretch, of.key + lane() % 4 * 2, 0);
        }
        const bool grew = softmax(s, maximum_, sum_, factor, c());
#pragma unroll
        for (int i = 0; i < 16; ++i) p[i] = pack(s[2 * i], s[2 * i + 1], F());
        clear(of, b);
        named_barrier(kGroup + Group, 128); // the page's turned part has been read
        const int r = lane() % 16;
        const uint32_t to = page(b) + kTurned + (warp() * 16 + r) * 128;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const uint32_t part[4] = {p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3]};
            store_matrix(to + ((k * 2 + lane() / 16 ^ r % 8) << 4), part);
        }
        if (lane() % 4 == 0) {
            rest_->maximum[Group][row(0)] = maximum_[0];
            rest_->maximum[Group][row(1)] = maximum_[1];
        }
        async_proxy_fence();
        return grew;
    }
    // Takes the maxima that the other group's page has raised.
    __device__ __forceinline__ void follow(float (&o)[128]) {
        float factor[2];
        bool raised = false;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float next = rest_->maximum[1 - Group][row(i)];
            factor[i] = next == maximum_[i] ? 1.0f : exp2_approximate((maximum_[i] - next) * c());
            raised |= next != maximum_[i];
            maximum_[i] = next;
            sum_[i] *= factor[i];
        }
        if (__any_sync(~0u, raised)) {
            wgmma_wait<0>(); // ptxas serialises wgmma if results change while scores are in flight
            rescale(o, factor);
        }
    }
    __device__ __forceinline__ static void rescale(float (&o)[128], const float (&factor)[2]) {
#pragma unroll
        for (int i = 0; i < 128; ++i) o[i] *= factor[i / 2 % 2];
    }
    __device__ __forceinline__ void queries_read() const {
        if (lane() == 0) barrier_arrive(shared_address(&rest_->queries_empty));
    }

    // Group 0: page 0's weights and results; of page 1 the results. last: no page of the job follows that it scores.
    __device__ __forceinline__ void weigh_first(const Job &job, const Page &zero, bool last,
                                                float (&o)[128]) {
        float s[32], factor[2];
        uint32_t p[16];
        scores(0, s);
        wgmma_wait<0>();
        if (last) queries_read();
        const bool grew = weigh(job, zero, 0, s, p, factor);
        named_barrier_arrive(kFirstReady, kConsumers);
        if (grew) rescale(o, factor);
        add(o, p, 0);
        wgmma_wait<0>();
        release(0, 0);
    }
    __device__ __forceinline__ void take_second(const Page &one, float (&o)[128]) {
        named_barrier(kSecondReady, kConsumers);
        follow(o);
        wait(1, 0);
        clear_alone(one, 1);
        add(o, 1);
        wgmma_wait<0>();
        release(1, 0);
        release(1, 2);
    }
    // Group 1.
    __device__ __forceinline__ void both_pages(const Job &job, const Page &zero, const Page &one,
                                               bool last, float (&o)[128]) {
        float s[32], factor[2];
        uint32_t p[16];
        scores(1, s);
        named_barrier(kFirstReady, kConsumers);
        follow(o);
        wait(0, 1);
        clear_alone(zero, 0);
        add(o, 0);
        wgmma_wait<1>();
        if (last) queries_read();
        const bool grew = weigh(job, one, 1, s, p, factor);
        named_barrier_arrive(kSecondReady, kConsumers);
        wgmma_wait<0>();
        release(0, 1);
        release(0, 2);
        if (grew) rescale(o, factor);
        add(o, p, 1);
        wgmma_wait<0>();
        release(1, 1);
    }
    __device__ __forceinline__ void take_first(const Page &zero, float (&o)[128]) {
        queries_read();
        named_barrier(kFirstReady, kConsumers);
        follow(o);
        wait(0, 1);
        clear_alone(zero, 0);
        add(o, 0);
        wgmma_wait<0>();
        release(0, 1);
        release(0, 2);
    }

    // ---- The end of a job ----

    __device__ __forceinline__ void write(const Job &job, int n, const float (&o)[128]) {
        float(&sums)[2][kRows] = rest_->sum[n % 2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            sum_[i] += __shfl_xor_sync(~0u, sum_[i], 1);
            sum_[i] += __shfl_xor_sync(~0u, sum_[i], 2);
            if (lane() % 4 == 0) sums[Group][row(i)] = sum_[i];
        }
        named_barrier(kAll, kConsumers);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float sum = sums[0][row(i)] + sums[1][row(i)];
            const float scale = sum > 0 ? value_factor<Stored>(a_, 0) / sum : 0.0f;
            const Row of = job.rows[row(i)];
            // Of a row's four threads each has pairs of columns; each writes 8 neighbouring ones of every fourth block of 8.
            T *out = static_cast<T *>(a_.out) + int64_t{max(of.index, 0)} * kValueDim + Group * 256;
            float *partial = a_.partial_out + int64_t{max(of.partial, 0)} * kValueDim + Group * 256;
#pragma unroll
            for (int j = 0; j < 32; j += 4) {
                uint32_t x[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float low = o[4 * (j + e) + 2 * i] * scale;
                    const float high = o[4 * (j + e) + 2 * i + 1] * scale;
                    x[e] = pack(low, high, T());
                    if (of.partial < 0) continue;
                    *reinterpret_cast<float2 *>(partial + (j + e) * 8 + lane() % 4 * 2) =
                        make_float2(low, high);
                }
                transpose_in_quad(x);
                if (of.index < 0 || of.partial >= 0) continue;
                *reinterpret_cast<uint4 *>(out + (j + lane() % 4) * 8) =
                    make_uint4(x[0], x[1], x[2], x[3]);
            }
            if (Group == 1 && of.partial >= 0 && lane() % 4 == 0) {
                a_.partial_lse[of.partial] = sum > 0 ? maximum_[i] * c() + log2f(sum) : -INFINITY;
            }
        }
    }

    const AttentionArguments &a_;
    unsigned char *const shared_;
    Rest *const rest_;
    const Operand queries_;
    uint32_t phase_[2] = {0, 0};
    int position_[2];
    float maximum_[2], sum_[2];
};

template <typename T, typename Stored> __global__ void __launch_bounds__(kThreads, 1)
    latent_attention_sm90(const __grid_constant__ AttentionArguments a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Rest *rest = reinterpret_cast<Rest *>(shared + kRest);
    if (threadIdx.x == 0) {
        rest->c = a.scale * kLog2e * key_factor<Stored>(a, 0);
        constexpr int kWarps = kConsumers / 32;
        for (int i = 0; i < 2; ++i) {
            barrier_init(shared_address(&rest->job_full[i]), kFetchers);
            barrier_init(shared_address(&rest->job_empty[i]), kWarps + 1);
            for (int part = 0; part < 3; ++part) {
                barrier_init(shared_address(&rest->full[i][part]),
                             kInBytes<Stored> ? kFetchers : 1);
                barrier_init(shared_address(&rest->landed[i][part]), 1);
                barrier_init(shared_address(&rest->empty[i][part]), kWarps / 2);
            }
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
            Fetcher<T, Stored>(a, shared_address(shared), rest).fetch_pages();
        } else {
            Fetcher<T, Stored>(a, shared_address(shared), rest).fetch_jobs();
        }
    } else {
        registers_more<232>();
        if (__shfl_sync(~0u, threadIdx.x, 0) < 128) { // known to be the same in all lanes
            Consumer<T, Stored, 0>(a, shared, rest).run();
        } else {
            Consumer<T, Stored, 1>(a, shared, rest).run();
        }
    }
}

} // namespace

cudaError_t launch_latent_attention_sm90(const AttentionArguments &a, int sms,
                                         cudaStream_t stream) {
    if (a.kv_heads != 1 || a.head_dim != kKeyDim || a.window != 0 || a.softcap > 0 ||
        a.sinks != nullptr || a.q_stride != int64_t{a.heads} * kKeyDim ||
        a.out_stride != int64_t{a.heads} * kValueDim) {
        return cudaErrorInvalidValue;
    }
    const auto launch = [&](auto kernel) {
        return launch_with_shared(kernel, static_cast<unsigned>(sms), kThreads, kSharedBytes,
                                  stream, a);
    };
    if (a.type == AttentionType::bf16) {
        return a.kv_e4m3 ? launch(latent_attention_sm90<__nv_bfloat16, E4m3>)
                         : launch(latent_attention_sm90<__nv_bfloat16, __nv_bfloat16>);
    }
    return a.kv_e4m3 ? launch(latent_attention_sm90<__half, E4m3>)
                     : launch(latent_attention_sm90<__half, __half>);
}

} // namespace batchllm::cuda
