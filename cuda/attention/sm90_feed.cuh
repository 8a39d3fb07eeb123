// Fused attention, sm_90a: the warp that streams jobs' keys and values into the ring.
#pragma once

#include "attention/sm90.cuh"

namespace batchllm::cuda::sm90 {

// A job's page numbers, in the order of its stretches: 32 in the warp's lanes and the next 32 in
// flight. Loading a page number just before its copy would cost a third of the copy rate. Widened
// pages are consecutive and need no list.
template <typename Stored> class PageReader {
  public:
    __device__ PageReader(const int32_t *pages, const Job &job, bool widened, int lane)
        : pages_(pages), widened_(widened), s0_(job.item.stretch[0]), s1_(job.item.stretch[1]),
          lane_(lane), batches0_(tiles(s0_.keys, 32 * kPageKeys)) {
        const bool second = batches0_ == 1; // the second batch is the second stretch's first
        current_ = job.pages[batches0_ == 0][lane];
        next_ = second ? job.pages[1][lane] : load(1);
    }
    // Number of page `index` of stretch `which`; called by all lanes. The page must be in the
    // newest batch requested so far or in the one before it.
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

// Widened elements take this many times as many bytes.
template <typename Stored> inline constexpr int kShrink = kInBytes<Stored> ? 2 : 1;

// The number of slots for a job's keys.
template <int HeadDim, typename Stored>
__device__ __forceinline__ int slots_of(Form form, const KeyStretch &s0, const KeyStretch &s1) {
    using S = Shape<HeadDim>;
    if (form == Form::wide) return 2 * (tiles(s0.keys, S::kKeys) + tiles(s1.keys, S::kKeys));
    const int each = form == Form::narrow ? S::kPairKeys : StreamShape<HeadDim, Stored>::kKeys;
    return tiles(s0.keys, each) + tiles(s1.keys, each);
}

// Copies the first `rows` keys and values of a page, as far as a warp of a stream job reads them: up to
// a multiple of 16. They go to the places that they have in a slot with the whole page, or piece of one
// of SlotRows keys. RowBytes: of 64 elements. One lane calls it.
template <int HeadDim, int RowBytes, int SlotRows> __device__ __forceinline__ void
copy_rows(uint32_t to, const unsigned char *from, int rows, uint32_t full, uint64_t policy) {
    const uint32_t bytes = (rows + 15) / 16 * (16 * RowBytes);
#pragma unroll
    for (int i = 0; i < 2 * Shape<HeadDim>::kHalves; ++i) {
        bulk_copy(to + i * (SlotRows * RowBytes), from + i * (kPageKeys * RowBytes), bytes, full,
                  policy);
    }
}
// The bytes that it copies.
template <int HeadDim, int RowBytes> __device__ __forceinline__ uint32_t bytes_of_rows(int rows) {
    return (rows + 15) / 16 * (16 * RowBytes * 2 * Shape<HeadDim>::kHalves);
}

// Feeds the slots of a stream job in e4m3, which hold up to two pages each. block(page, 0): a
// page's keys and values; wait_empty(): waits until the ring's next slot may be written; reader:
// index in Rest::full.
template <int HeadDim, typename Stored, typename Block, typename Wait>
__device__ __forceinline__ void
feed_bytes(const KeyStretch &s0, const KeyStretch &s1, int once, PageReader<Stored> &pages,
           const Block &block, const Wait &wait_empty, uint32_t slots, Rest *rest, int reader,
           Ring<Shape<HeadDim>::kSlots> &ring, uint64_t normal, uint64_t first) {
    using S = Shape<HeadDim>;
    using Stream = StreamShape<HeadDim, Stored>;
    constexpr int kPages = Stream::kKeys / kPageKeys; // pages per slot
    constexpr uint32_t kBytes = S::kSlotBytes / kPages;
    for (int which = 0; which < 2; ++which) {
        const int keys = which ? s1.keys : s0.keys;
        const int all = tiles(keys, kPageKeys);
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
            const int last = index + count == all ? keys - (all - 1) * kPageKeys : kPageKeys;
            if (elect_one()) {
                barrier_expect(full, (count - 1) * kBytes + bytes_of_rows<HeadDim, 64>(last));
#pragma unroll
                for (int p = 0; p < kPages; ++p) {
                    if (p >= count) break;
                    if (p == count - 1 && last <= kPageKeys - 16) {
                        copy_rows<HeadDim, 64, kPageKeys>(to + p * kBytes, block(page[p], 0), last,
                                                          full, policy);
                    } else {
                        bulk_copy(to + p * kBytes, block(page[p], 0), kBytes, full, policy);
                    }
                }
            }
            ring.advance();
        }
    }
}

// Feeds the slots of a narrow job, or of a stream job with 2-byte elements; each holds the keys of
// a page or a part of it. parts: a warp reads 16 of a slot's keys (stream), not all.
template <int HeadDim, typename Stored, typename Block, typename Wait>
__device__ __forceinline__ void
feed_pairs(const KeyStretch &s0, const KeyStretch &s1, int once, PageReader<Stored> &pages,
           const Block &block, const Wait &wait_empty, uint32_t slots, Rest *rest, int reader,
           bool parts, Ring<Shape<HeadDim>::kSlots> &ring, uint64_t normal, uint64_t first) {
    using S = Shape<HeadDim>;
    constexpr int kPieces = kPageKeys / S::kPairKeys; // slots per page
    // Bytes that will be widened go to the slot's second half.
    constexpr uint32_t kSlotBytes = S::kSlotBytes / kShrink<Stored>;
    constexpr uint32_t kFirst = S::kSlotBytes - kSlotBytes;
    // K and V of a whole page are adjacent, both in memory and in the slot. For a piece, each half
    // of K and of V has its own part.
    constexpr int kCopies = kPieces == 1 ? 1 : 2 * S::kHalves;
    constexpr uint32_t kBytes = kSlotBytes / kCopies;
    for (int which = 0; which < 2; ++which) {
        const int keys = which ? s1.keys : s0.keys;
        const int count = tiles(keys, S::kPairKeys);
        const uint64_t policy = once >> which & 1 ? first : normal;
        for (int piece = 0; piece < count; ++piece) {
            const int page = pages.at(which, piece / kPieces);
            const uint32_t full = shared_address(&rest->full[reader][ring.slot]);
            const uint32_t to = slots + ring.slot * S::kSlotBytes + kFirst;
            wait_empty();
            const int rows = keys - piece * S::kPairKeys; // and more, but in the last piece
            if (elect_one()) {
                const auto *from = block(page, 0) + piece % kPieces * kBytes;
                if (!kInBytes<Stored> && parts && rows <= S::kPairKeys - 16) {
                    barrier_expect(full, bytes_of_rows<HeadDim, 128>(rows));
                    copy_rows<HeadDim, 128, S::kPairKeys>(
                        to, block(page, 0) + piece % kPieces * (S::kPairKeys * 128), rows, full,
                        policy);
                } else {
                    barrier_expect(full, kSlotBytes);
#pragma unroll
                    for (int i = 0; i < kCopies; ++i) {
                        bulk_copy(to + i * kBytes, from + i * (kPieces * kBytes), kBytes, full,
                                  policy);
                    }
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
    int next_alone = 0; // the same as in Consumer
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
        int reader = 0; // index in Rest::full
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
            feed_pairs<HeadDim>(s0, s1, once, pages, block, wait_empty, slots, rest, reader,
                                form == Form::stream, ring, normal, first);
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
