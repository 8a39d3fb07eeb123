// Fused attention, sm_90a: the warps that keep the consumers fed. They draw jobs, fetch what a job
// needs, and stream its keys and values into the ring.
#pragma once

#include "attention/sm90.cuh"

namespace batchllm::cuda::sm90 {

// Draws jobs from the queue that this CTA prefers, then from the other. Every job is drawn, the first
// too: CTAs wait for one another's partials, and a job that belonged to a CTA that has not begun could
// be waited for by those in whose place it is to run. The next is drawn late, when the last one's keys
// are nearly fed: a job drawn early waits here while CTAs elsewhere have nothing left. Only short
// stream jobs leave no time for that.
class JobSource {
  public:
    __device__ explicit JobSource(const AttentionArguments &a)
        : a_(a), matrix_jobs_(a.matrix_items * a.kv_heads),
          stream_jobs_(a.stream_items * a.kv_heads) {
        // The CTAs of each kind lie evenly among the others.
        const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
        const int before = cta * a.matrix_ctas / ctas;
        queue_ = before == (cta + 1) * a.matrix_ctas / ctas;
    }

    __device__ int take() { // -1: both are empty
        while (true) {
            if (ticket_ < 0) ticket_ = draw();
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

    // After a stream job: the next.
    __device__ void draw_ahead() { ticket_ = draw(); }
    // It, or -1.
    __device__ int next() const {
        return ticket_ >= 0 && ticket_ < stream_jobs_ ? matrix_jobs_ + ticket_ : -1;
    }

  private:
    __device__ int draw() { return atomicAdd(&a_.queues[queue_], 1); }

    const AttentionArguments &a_;
    int matrix_jobs_, stream_jobs_;
    int queue_;
    int ticket_ = -1; // not drawn yet
    int exhausted_ = 0;
};

// Loads an item's first page numbers and its rows, all in flight together. Returns the token of row `lane`.
__device__ __forceinline__ int fetch_rows(const AttentionArguments &a, const AttentionItem &item,
                                          bool widened, int lane, Job *job) {
    int page[2];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
        page[s] = item.stretch[s].page_begin + lane;
        if (!widened && lane < tiles(item.stretch[s].keys, kPageKeys)) {
            page[s] = __ldg(a.pages + page[s]);
        }
    }
    const auto *rows = reinterpret_cast<const int4 *>(a.rows + item.row_begin);
    int4 row{};
    if (lane < item.row_count) row = __ldg(rows + lane);
    const int token = row.x;
#pragma unroll
    for (int s = 0; s < 2; ++s) job->pages[s][lane] = page[s];
    for (int i = lane; i < item.row_count; i += 32) {
        if (i >= 32) row = __ldg(rows + i);
        job->token[i] = row.x;
        job->slot[i] = row.y;
        job->position[i] = row.z;
    }
    return token;
}

template <int HeadDim, typename T, typename Stored>
__device__ void fetch_jobs(const AttentionArguments &a, unsigned char *shared, Rest *rest) {
    using S = Shape<HeadDim>;
    const int lane = threadIdx.x % 32;
    const int ratio = a.heads / a.kv_heads;
    constexpr int kWords = sizeof(AttentionItem) / 4;
    const int matrix_jobs = a.matrix_items * a.kv_heads;
    auto by_head = [&](int number) { return a.matrix_by_head && number < matrix_jobs; };
    auto item_word = [&](int number) {
        const int item = by_head(number) ? number % a.matrix_items : number / a.kv_heads;
        return lane < kWords ? __ldg(reinterpret_cast<const int *>(&a.items[item]) + lane) : 0;
    };
    JobSource source(a);      // lane 0 alone draws
    int ahead = -1, word = 0; // the next stream job, its item's words on their way
    Ring<kJobs> ring;
    Ring<kQueries> queries;
    for (uint32_t fetched = 0;; ++fetched) {
        if (fetched > 0) barrier_wait(shared_address(&rest->draw), (fetched - 1) & 1);
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
        const int kv_head = by_head(number) ? number / a.matrix_items : number % a.kv_heads;
        if (number != ahead) word = item_word(number);
        if (lane < kWords) reinterpret_cast<int *>(&job.item)[lane] = word;
        __syncwarp();
        const AttentionItem item = job.item;
        const bool stream = number >= matrix_jobs;
        if (stream && lane == 0 &&
            item.stretch[0].keys + item.stretch[1].keys <=
                kStreamLead * StreamShape<HeadDim, Stored>::kKeys) {
            source.draw_ahead();
        }
        const bool widened = kInBytes<Stored> && !stream && item.row_count * ratio > kNarrowRows;
        int token = fetch_rows(a, item, widened, lane, &job);
        const int rows = item.row_count * ratio;
        if (stream) {
            barrier_wait(shared_address(&rest->queries_empty[queries.slot]), queries.phase ^ 1);
        }
        __syncwarp();
        if (lane == 0) {
            job.number = number;
            job.kv_head = kv_head;
            barrier_arrive(full);
        }
        if (stream) {
            const uint32_t queries_full = shared_address(&rest->queries_full[queries.slot]);
            if (lane == 0) {
                barrier_expect(queries_full, static_cast<uint32_t>(rows * HeadDim * 2));
            }
            __syncwarp();
            token = __shfl_sync(~0u, token, min(31, lane / ratio));
            if (lane < rows) {
                bulk_copy(shared_address(shared) + S::kStreamQueries +
                              queries.slot * S::kStreamQueryBytes + lane * S::kStreamQueryStride,
                          static_cast<const T *>(a.q) + token * a.q_stride +
                              (kv_head * ratio + lane % ratio) * HeadDim,
                          HeadDim * 2, queries_full);
            }
            queries.advance();
        }
        ring.advance();
        ahead = __shfl_sync(~0u, source.next(), 0);
        if (ahead >= 0) word = item_word(ahead);
    }
    // The last CTA to find the queues empty resets them for the next launch.
    if (lane == 0 && atomicAdd(&a.queues[2], 1) == static_cast<int>(gridDim.x) - 1) {
        a.queues[0] = 0;
        a.queues[1] = 0;
        a.queues[2] = 0;
    }
}

// A job's page numbers, in the order of its stretches, 32 in the warp's lanes and the next 32 on
// their way: a page number loaded just before its copy would cost the copy a third of its rate. Widened
// pages have no list: they follow one another.
template <typename Stored> class PageReader {
  public:
    __device__ PageReader(const int32_t *pages, const Job &job, bool widened, int lane)
        : pages_(pages), widened_(widened), s0_(job.item.stretch[0]), s1_(job.item.stretch[1]),
          lane_(lane), batches0_(tiles(s0_.keys, 32 * kPageKeys)) {
        const bool second = batches0_ == 1; // the second batch is the second stretch's first
        current_ = job.pages[batches0_ == 0][lane];
        next_ = second ? job.pages[1][lane] : load(1);
    }
    // Number of page `index` of stretch `which`; all lanes ask. Pages of one batch or of the one
    // before it, the newest ever asked for included.
    __device__ int at(int which, int index) {
        const int batch = (which == 0 ? 0 : batches0_) + index / 32;
        if (batch > batch_) {
            previous_ = current_;
            current_ = next_;
            batch_ = batch;
            next_ = load(batch + 1);
        }
        return __shfl_sync(~0u, batch == batch_ ? current_ : previous_, index % 32);
    }

  private:
    __device__ int load(int batch) const {
        const bool first = batch < batches0_;
        const int index = (first ? batch : batch - batches0_) * 32 + lane_;
        const bool there = index < tiles(first ? s0_.keys : s1_.keys, kPageKeys);
        if constexpr (kInBytes<Stored>) {
            if (widened_) return (first ? s0_.page_begin : s1_.page_begin) + index;
        }
        return there ? __ldg(pages_ + (first ? s0_.page_begin : s1_.page_begin) + index) : 0;
    }

    const int32_t *pages_;
    bool widened_;
    KeyStretch s0_, s1_;
    int lane_, batches0_;
    int batch_ = 0;
    int previous_ = 0, current_, next_;
};

// Times so many bytes do widened elements take.
template <typename Stored> inline constexpr int kShrink = kInBytes<Stored> ? 2 : 1;

// Slots of a job's keys.
template <int HeadDim, typename Stored>
__device__ __forceinline__ int slots_of(Form form, const KeyStretch &s0, const KeyStretch &s1) {
    using S = Shape<HeadDim>;
    if (form == Form::wide) return 2 * (tiles(s0.keys, S::kKeys) + tiles(s1.keys, S::kKeys));
    const int each = form == Form::narrow ? S::kPairKeys : StreamShape<HeadDim, Stored>::kKeys;
    return tiles(s0.keys, each) + tiles(s1.keys, each);
}

// The slots of a stream job of e4m3, each of which may hold two pages. block(page, 0): its keys and values;
// wait_empty(): the ring's next slot may be written; reader: of Rest::full.
template <int HeadDim, typename Stored, typename Block, typename Wait>
__device__ __forceinline__ void
feed_bytes(const KeyStretch &s0, const KeyStretch &s1, int once, PageReader<Stored> &pages,
           const Block &block, const Wait &wait_empty, uint32_t slots, Rest *rest, int reader,
           Ring<Shape<HeadDim>::kSlots> &ring, uint64_t normal, uint64_t first) {
    using S = Shape<HeadDim>;
    using Stream = StreamShape<HeadDim, Stored>;
    constexpr int kPages = Stream::kKeys / kPageKeys; // a slot
    constexpr uint32_t kBytes = S::kSlotBytes / kPages;
    for (int which = 0; which < 2; ++which) {
        const int all = tiles(which ? s1.keys : s0.keys, kPageKeys);
        const uint64_t policy = once >> which & 1 ? first : normal;
        for (int index = 0; index < all; index += kPages) {
            const int count = min(kPages, all - index);
            int page[kPages];
#pragma unroll
            for (int p = 0; p < kPages; ++p) {
                page[p] = pages.at(which, index + min(p, count - 1));
            }
            const uint32_t full = shared_address(&rest->full[reader][ring.slot]);
            const uint32_t to = slots + ring.slot * S::kSlotBytes;
            wait_empty();
            if (elect_one()) {
                barrier_expect(full, count * kBytes);
#pragma unroll
                for (int p = 0; p < kPages; ++p) {
                    if (p >= count) break;
                    bulk_copy(to + p * kBytes, block(page[p], 0), kBytes, full, policy);
                }
            }
            ring.advance();
        }
    }
}

// The slots of a narrow job, or of a stream job of 2-byte elements, with the keys of a page or a part of it.
template <int HeadDim, typename Stored, typename Block, typename Wait>
__device__ __forceinline__ void
feed_pairs(const KeyStretch &s0, const KeyStretch &s1, int once, PageReader<Stored> &pages,
           const Block &block, const Wait &wait_empty, uint32_t slots, Rest *rest, int reader,
           Ring<Shape<HeadDim>::kSlots> &ring, uint64_t normal, uint64_t first) {
    using S = Shape<HeadDim>;
    constexpr int kPieces = kPageKeys / S::kPairKeys; // slots a page
    // Bytes to be widened go to the slot's second half.
    constexpr uint32_t kSlotBytes = S::kSlotBytes / kShrink<Stored>;
    constexpr uint32_t kFirst = S::kSlotBytes - kSlotBytes;
    // A whole page's K and V lie one after another, in memory as in the slot; of a piece, the
    // parts of K's halves and of V's.
    constexpr int kCopies = kPieces == 1 ? 1 : 2 * S::kHalves;
    constexpr uint32_t kBytes = kSlotBytes / kCopies;
    for (int which = 0; which < 2; ++which) {
        const int count = tiles(which ? s1.keys : s0.keys, S::kPairKeys);
        const uint64_t policy = once >> which & 1 ? first : normal;
        for (int piece = 0; piece < count; ++piece) {
            const int page = pages.at(which, piece / kPieces);
            const uint32_t full = shared_address(&rest->full[reader][ring.slot]);
            const uint32_t to = slots + ring.slot * S::kSlotBytes + kFirst;
            wait_empty();
            if (elect_one()) {
                barrier_expect(full, kSlotBytes);
                const auto *from = block(page, 0) + piece % kPieces * kBytes;
#pragma unroll
                for (int i = 0; i < kCopies; ++i) {
                    bulk_copy(to + i * kBytes, from + i * (kPieces * kBytes), kBytes, full, policy);
                }
            }
            ring.advance();
        }
    }
}

// All lanes keep the same state; one of them arrives and copies (elect_one).
template <int HeadDim, typename Stored>
__device__ void feed(const AttentionArguments &a, uint32_t slots, Rest *rest) {
    using S = Shape<HeadDim>;
    const int lane = threadIdx.x % 32;
    constexpr int kBlock = kPageKeys * HeadDim * 2; // bytes of one page's K or V of a head
    constexpr int kHalfBlock = kPageKeys * 128;
    Ring<S::kSlots> ring;
    Ring<kJobs> job_ring;
    int next_alone = 0; // the same as Consumer's
    const auto *kv = static_cast<const unsigned char *>(a.kv);
    const uint64_t normal = evict_normal(), first = evict_first();

    while (true) {
        barrier_wait(shared_address(&rest->job_full[job_ring.slot]), job_ring.phase);
        const Job &job = rest->jobs[job_ring.slot];
        if (job.number < 0) break;
        const int kv_head = job.kv_head, once = job.item.once;
        const Form form = form_of(a, job);
        const KeyStretch s0 = job.item.stretch[0], s1 = job.item.stretch[1];
        PageReader<Stored> pages(a.pages, job, form == Form::wide, lane);
        auto block = [&](int page, int which) {
            return kv + ((static_cast<int64_t>(page) * a.kv_heads + kv_head) * 2 + which) *
                            (kBlock / kShrink<Stored>);
        };
        auto wide_block = [&](int page, int which) {
            const auto *from = kInBytes<Stored> ? static_cast<const unsigned char *>(a.wide) : kv;
            return from +
                   ((static_cast<int64_t>(page) * a.kv_heads + kv_head) * 2 + which) * kBlock;
        };
        int left = slots_of<HeadDim, Stored>(form, s0, s1);
        const int lead = min(left, form == Form::stream ? kStreamLead : kLead);
        if (left == 0 && lane == 0) barrier_arrive(shared_address(&rest->draw));
        int reader = 0; // of Rest::full
        if (form == Form::stream && is_alone<HeadDim, Stored>(s0, s1)) {
            reader = 1 + next_alone;
            next_alone ^= 1;
        }
        auto wait_empty = [&] {
            if (left-- == lead && elect_one()) barrier_arrive(shared_address(&rest->draw));
            barrier_wait(shared_address(&rest->empty[ring.slot]), ring.phase ^ 1);
            if (elect_one()) {
                barrier_arrive(shared_address(&rest->full[reader == 0][ring.slot]));
                barrier_arrive(shared_address(&rest->full[reader == 2 ? 1 : 2][ring.slot]));
            }
        };
        if (form == Form::wide) {
            constexpr int kTilePages = S::kKeys / kPageKeys;
            const int n0 = tiles(s0.keys, S::kKeys);
            const int n = n0 + tiles(s1.keys, S::kKeys);
            auto emit = [&](int tile, int kind) {
                const int which = tile >= n0;
                const int keys = which ? s1.keys : s0.keys;
                const int index = which ? tile - n0 : tile;
                const int count = min(kTilePages, tiles(keys - index * S::kKeys, kPageKeys));
                int page[kTilePages];
#pragma unroll
                for (int p = 0; p < kTilePages; ++p) {
                    page[p] = pages.at(which, index * kTilePages + min(p, count - 1));
                }
                const uint32_t full = shared_address(&rest->full[reader][ring.slot]);
                const uint32_t to = slots + ring.slot * S::kSlotBytes;
                wait_empty();
                if (elect_one()) {
                    barrier_expect(full, count * kBlock);
#pragma unroll
                    for (int p = 0; p < kTilePages; ++p) {
                        if (p >= count) break;
#pragma unroll
                        for (int h = 0; h < S::kHalves; ++h) {
                            bulk_copy(to + h * S::kKeys * 128 + p * kHalfBlock,
                                      wide_block(page[p], kind) + h * kHalfBlock, kHalfBlock, full);
                        }
                    }
                }
                ring.advance();
            };
            for (int tile = 0; tile <= n; ++tile) {
                if (tile < n) emit(tile, 0);
                if (tile > 0) emit(tile - 1, 1);
            }
        } else if (kInBytes<Stored> && form == Form::stream) {
            if constexpr (kInBytes<Stored>) {
                feed_bytes<HeadDim>(s0, s1, once, pages, block, wait_empty, slots, rest, reader,
                                    ring, normal, first);
            }
        } else {
            feed_pairs<HeadDim>(s0, s1, once, pages, block, wait_empty, slots, rest, reader, ring,
                                normal, first);
        }
        __syncwarp();
        if (lane == 0) {
            barrier_arrive(shared_address(&rest->job_fed[job_ring.slot]));
            barrier_arrive(shared_address(&rest->job_empty[job_ring.slot]));
        }
        job_ring.advance();
    }
}

} // namespace batchllm::cuda::sm90
