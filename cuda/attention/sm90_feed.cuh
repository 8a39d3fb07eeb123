// Fused attention, sm_90a: the warps that keep the consumers fed. They draw jobs, fetch what a job
// needs, and stream its keys and values into the ring.
#pragma once

#include "attention/sm90.cuh"

namespace batchllm::cuda::sm90 {

// Draws jobs from the queue that this CTA prefers, then from the other. Every job is drawn, the first
// too: CTAs wait for one another's partials, and a job that belonged to a CTA that has not begun could
// be waited for by those in whose place it is to run. The next is drawn late, when the last one's keys
// are nearly fed: a job drawn early waits here while CTAs elsewhere have nothing left. Only short
// stream jobs leave no time for that: the next are drawn with the last, and several at once as long as every CTA
// still has some to come. They are mostly one item's, of neighbouring KV heads, so all but the first find it here.
class JobSource {
  public:
    __device__ explicit JobSource(const AttentionArguments &a)
        : a_(a), matrix_jobs_(a.matrix_items * a.kv_heads),
          stream_jobs_(a.stream_items * a.kv_heads), share_(0.5f / static_cast<float>(gridDim.x)) {
        // The CTAs of each kind lie evenly among the others.
        const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
        const int before = cta * a.matrix_ctas / ctas;
        queue_ = before == (cta + 1) * a.matrix_ctas / ctas;
    }

    // The first of `count` jobs; -1: both queues are empty.
    __device__ int take(int *count) {
        while (true) {
            if (ticket_ < 0) draw(1);
            if (ticket_ < jobs()) break;
            exhausted_ |= 1 << queue_;
            if (exhausted_ == 3) return -1;
            queue_ ^= 1;
            ticket_ = -1;
        }
        *count = min(drawn_, jobs() - ticket_);
        const int job = queue_ == 0 ? ticket_ : matrix_jobs_ + ticket_;
        ticket_ = -1;
        return job;
    }

    // After stream job `number`: those to take next.
    __device__ void draw_ahead(int number) {
        const int left = stream_jobs_ - (number - matrix_jobs_);
        draw(max(1, min(a_.most_drawn, static_cast<int>(static_cast<float>(left) * share_))));
    }
    // The first of them, or -1.
    __device__ int next() const {
        return ticket_ >= 0 && ticket_ < stream_jobs_ ? matrix_jobs_ + ticket_ : -1;
    }

  private:
    __device__ int jobs() const { return queue_ == 0 ? matrix_jobs_ : stream_jobs_; }
    __device__ void draw(int count) {
        drawn_ = count;
        // Volatile: nvcc would move it behind the loads that it is to be in flight with.
        asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], %2;"
                     : "=r"(ticket_)
                     : "l"(&a_.queues[queue_]), "r"(count)
                     : "memory");
    }

    const AttentionArguments &a_;
    int matrix_jobs_, stream_jobs_;
    float share_; // of the jobs left, that one draw may take
    int queue_;
    int ticket_ = -1, drawn_ = 0; // not drawn yet
    int exhausted_ = 0;
};

// What a lane holds of an item: its first page numbers and, up to 32, its rows.
struct ItemRows {
    int page[2];
    int4 row;

    // All in flight together.
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

// Which item and KV head a job is.
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

// The queries of a stream job into their place. token: of the item's row `lane`.
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
    JobSource source(a); // lane 0 alone draws
    int number = 0, left = 0;
    int fetched = -1; // the item that rows are of, ...
    ItemRows rows{};
    int loaded = -1, word = 0; // ... and that the words are of, which may be on their way
    auto load_words = [&](int item) {
        if (item == loaded) return;
        loaded = item;
        if (lane < kWords) {
            word = __ldg(reinterpret_cast<const int *>(&a.items[item]) + lane);
        }
    };
    Ring<kJobs> ring;
    Ring<kQueries> queries;
    for (uint32_t count = 0;; ++count) {
        if (count > 0) barrier_wait(shared_address(&rest->draw), (count - 1) & 1);
        const bool drawn = left == 0;
        if (drawn) {
            if (lane == 0) number = source.take(&left);
            number = __shfl_sync(~0u, number, 0);
            left = __shfl_sync(~0u, left, 0);
        } else {
            ++number;
        }
        --left;
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
        load_words(place.item);
        if (lane < kWords) reinterpret_cast<int *>(&job.item)[lane] = word;
        __syncwarp();
        const AttentionItem item = job.item;
        const bool stream = number >= matrix_jobs;
        if (stream && drawn && lane == 0 &&
            item.stretch[0].keys + item.stretch[1].keys <=
                kStreamLead * StreamShape<HeadDim, Stored>::kKeys) {
            source.draw_ahead(number);
        }
        const int query_rows = item.row_count * ratio.ratio;
        const bool widened = kInBytes<Stored> && !stream && query_rows > kNarrowRows;
        if (place.item != fetched) rows.load(a, item, widened, lane);
        fetched = place.item;
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
        const int ahead = left > 0 ? number + 1 : __shfl_sync(~0u, source.next(), 0);
        if (ahead >= 0) load_words(JobPlace(a, ahead).item);
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
