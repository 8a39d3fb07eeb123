// Fused attention, sm_90a: the warp that draws jobs and fetches what they need apart from keys and
// values.
//
// It fetches a short stream job in a microsecond or two, so its latency determines how fast an SM
// does such jobs: an item, its rows and its page numbers come from L2 one after another, each in a
// microsecond while memory is busy. So the next item is loaded while this job is fetched, and the
// next draw is in flight during the loads.
#pragma once

#include "attention/sm90.cuh"

namespace batchllm::cuda::sm90 {

// Draws jobs from the queue that this CTA prefers, then from the other. Every job is drawn, even
// the first: CTAs wait for one another's partials, so if a job belonged to a CTA that has not
// started, it could be waited for by the very CTAs whose place that CTA needs. The next job is
// drawn late, when the keys of the last one are nearly fed: a job drawn early would wait here while
// CTAs elsewhere have nothing left. Only short stream jobs leave no time for that.
class JobSource {
  public:
    __device__ explicit JobSource(const AttentionArguments &a)
        : a_(a), matrix_jobs_(a.matrix_items * a.kv_heads),
          stream_jobs_(a.stream_items * a.kv_heads) {
        // The CTAs of each kind are spread evenly.
        const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
        const int before = cta * a.matrix_ctas / ctas;
        queue_ = before == (cta + 1) * a.matrix_ctas / ctas;
    }

    __device__ int take() { // -1: both queues are empty
        while (true) {
            if (ticket_ < 0) draw();
            if (ticket_ < (queue_ == 0 ? matrix_jobs_ : stream_jobs_)) break;
            exhausted_ |= 1 << queue_;
            if (exhausted_ == 3) return -1;
            queue_ ^= 1;
            ticket_ = -1;
        }
        const int job = queue_ == 0 ? ticket_ : matrix_jobs_ + ticket_;
        ticket_ = -1;
        return job;
    }

    // After a stream job: draws the next.
    __device__ void draw_ahead() { draw(); }
    // The job drawn ahead, or -1.
    __device__ int next() const {
        return ticket_ >= 0 && ticket_ < stream_jobs_ ? matrix_jobs_ + ticket_ : -1;
    }

  private:
    __device__ void draw() {
        // Volatile: otherwise nvcc would move it behind the loads that it should overlap with.
        asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;"
                     : "=r"(ticket_)
                     : "l"(&a_.queues[queue_])
                     : "memory");
    }

    const AttentionArguments &a_;
    int matrix_jobs_, stream_jobs_;
    int queue_;
    int ticket_ = -1; // not drawn yet
    int exhausted_ = 0;
};

// A lane's part of an item: its first page numbers and, if there are up to 32, its rows.
struct ItemRows {
    int page[2];
    int4 row;

    // All loads are in flight together.
    __device__ __forceinline__ void load(const AttentionArguments &a, const AttentionItem &item,
                                         bool widened, int lane) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            page[s] = item.stretch[s].page_begin + lane;
            if (!widened && lane < tiles(item.stretch[s].keys, kPageKeys)) {
                page[s] = __ldg(a.pages + page[s]);
            }
        }
        row = make_int4(0, 0, 0, 0);
        if (lane < item.row_count) {
            row = __ldg(reinterpret_cast<const int4 *>(a.rows + item.row_begin) + lane);
        }
    }
    __device__ __forceinline__ void store(const AttentionArguments &a, const AttentionItem &item,
                                          int lane, Job *job) const {
#pragma unroll
        for (int s = 0; s < 2; ++s) job->pages[s][lane] = page[s];
        const auto *rows = reinterpret_cast<const int4 *>(a.rows + item.row_begin);
        for (int i = lane; i < item.row_count; i += 32) {
            const int4 there = i < 32 ? row : __ldg(rows + i);
            job->token[i] = there.x;
            job->slot[i] = there.y;
            job->position[i] = there.z;
        }
    }
};

// A job's item and KV head.
struct JobPlace {
    int item, kv_head;
    __device__ JobPlace(const AttentionArguments &a, int number) {
        const bool by_head = a.matrix_by_head && number < a.matrix_items * a.kv_heads;
        const auto each = static_cast<unsigned>(by_head ? a.matrix_items : a.kv_heads);
        const auto quotient = static_cast<unsigned>(number) / each;
        const auto rest = static_cast<unsigned>(number) - quotient * each;
        item = static_cast<int>(by_head ? rest : quotient);
        kv_head = static_cast<int>(by_head ? quotient : rest);
    }
};

// Copies the queries of a stream job to their place. token: that of the item's row `lane`.
template <int HeadDim, typename T>
__device__ __forceinline__ void fetch_queries(const AttentionArguments &a, const Ratio &ratio,
                                              int rows, int kv_head, int token, uint32_t to,
                                              uint32_t full) {
    if (elect_one()) barrier_expect(full, static_cast<uint32_t>(rows * HeadDim * 2));
    for (int r = 0; r < rows; ++r) {
        const int64_t from = __shfl_sync(~0u, token, ratio.token(r)) * a.q_stride +
                             (kv_head * ratio.ratio + ratio.head(r)) * HeadDim;
        if (elect_one()) {
            bulk_copy(to + r * Shape<HeadDim>::kStreamQueryStride,
                      static_cast<const T *>(a.q) + from, HeadDim * 2, full);
        }
    }
}

template <int HeadDim, typename T, typename Stored>
__device__ void fetch_jobs(const AttentionArguments &a, unsigned char *shared, Rest *rest) {
    using S = Shape<HeadDim>;
    const int lane = threadIdx.x % 32;
    const Ratio ratio(a);
    constexpr int kWords = sizeof(AttentionItem) / 4;
    const int matrix_jobs = a.matrix_items * a.kv_heads;
    auto item_word = [&](int item) {
        return lane < kWords ? __ldg(reinterpret_cast<const int *>(&a.items[item]) + lane) : 0;
    };
    JobSource source(a);      // only lane 0 draws
    int ahead = -1, word = 0; // the next stream job, and its item's words, in flight
    Ring<kJobs> ring;
    Ring<Shape<HeadDim>::kQueries> queries;
    for (uint32_t count = 0;; ++count) {
        if (count > 0) barrier_wait(shared_address(&rest->draw), (count - 1) & 1);
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
        const JobPlace place(a, number);
        if (number != ahead) word = item_word(place.item);
        if (lane < kWords) reinterpret_cast<int *>(&job.item)[lane] = word;
        __syncwarp();
        const AttentionItem item = job.item;
        const bool stream = number >= matrix_jobs;
        if (stream && lane == 0 &&
            item.stretch[0].keys + item.stretch[1].keys <=
                kStreamLead * StreamShape<HeadDim, Stored>::kKeys) {
            source.draw_ahead();
        }
        const int query_rows = item.row_count * ratio.ratio;
        const bool widened = kInBytes<Stored> && !stream && query_rows > kNarrowRows;
        ItemRows rows;
        rows.load(a, item, widened, lane);
        rows.store(a, item, lane, &job);
        if (stream) {
            barrier_wait(shared_address(&rest->queries_empty[queries.slot]), queries.phase ^ 1);
        }
        __syncwarp();
        if (lane == 0) {
            job.number = number;
            job.kv_head = place.kv_head;
            barrier_arrive(full);
        }
        if (stream) {
            fetch_queries<HeadDim, T>(a, ratio, query_rows, place.kv_head, rows.row.x,
                                      shared_address(shared) + S::kStreamQueries +
                                          queries.slot * S::kStreamQueryBytes,
                                      shared_address(&rest->queries_full[queries.slot]));
            queries.advance();
        }
        ring.advance();
        ahead = __shfl_sync(~0u, source.next(), 0);
        if (ahead >= 0) word = item_word(JobPlace(a, ahead).item);
    }
    // The last CTA to find the queues empty resets them for the next launch.
    if (lane == 0 && atomicAdd(&a.queues[2], 1) == static_cast<int>(gridDim.x) - 1) {
        a.queues[0] = 0;
        a.queues[1] = 0;
        a.queues[2] = 0;
    }
}

} // namespace batchllm::cuda::sm90
