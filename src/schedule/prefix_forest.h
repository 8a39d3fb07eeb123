// The shared prefixes of all unfinished requests: how much of each is computed, on which pages, and
// which requests need it.
//
// A prefix has two counts of users:
//   pending  unfinished requests directly below it, and prefixes below it that are still pending, plus
//            one while it is kept for later plans.
//            At 0 it is removed: its pages are released and its slot is reused.
//   live     admitted requests directly below it, and resident prefixes below it. At 0 no batch can
//            need it: it is idle, and its pages may be taken for others. It is computed again if one
//            of its pending requests is admitted later.
//
// Continuations of a prefix start at its end, at any time while it is resident. So in a KV group with
// a window it keeps the pages that the window covers at its end or, while it is computed, at its next
// token.
//
// In a model with a state, a resident prefix with pages also has a slot, which is released with its
// pages: continuations start from that state.
//
// Always: live > 0 implies resident; a resident prefix's parent is live (so a parent's pages outlast
// its children's); idle prefixes are resident, hold pages (or none, if in no group a window reaches back
// into them), and have live == 0 < pending.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/page_pool.h"

namespace batchllm {

struct ScheduledPrefix {
    int32_t parent = -1;
    int32_t start = 0;    // position of its first token
    int32_t length = 0;   // its own tokens: those beyond the parent's
    int32_t computed = 0; // how many of them are stored, or will be by a batch in flight
    int32_t highest = 0;  // the most that were ever stored: below it tokens are recomputed
    int32_t chunk = 0;    // in the batch that is being built
    int32_t pending = 0;
    int32_t live = 0;
    bool resident = false;
    bool idle = false;
    int32_t batch_node = -1; // in the batch of step `batch_step`
    uint64_t batch_step = 0;
    int64_t order = 0;               // of creation: prefixes with greater numbers are needed later
    const int32_t *source = nullptr; // prompt that the chunk's tokens are read from
    PageTable pages;

    bool ready() const { return computed + chunk == length; }
};

class PrefixForest {
  public:
    explicit PrefixForest(PagePool *pool) : pool_(pool) {}

    // A prefix of positions [parent's end, end). The parent counts it as pending.
    int32_t add(int32_t parent, int32_t end);
    ScheduledPrefix &at(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
    const ScheduledPrefix &at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }

    void add_pending(int32_t node) { at(node).pending += 1; }
    void remove_pending(int32_t node);
    void hold(int32_t node);
    // Returns the tokens of the chunk that was scheduled for it, if no one needs them any more.
    int32_t release(int32_t node);

    // Drops the idle prefix that is needed latest. False if none is idle.
    bool evict_idle();
    bool has_idle() const { return !idle_.empty(); }

    int64_t live_pages() const { return live_pages_; } // of live prefixes, when fully computed
    int64_t pages_to_hold(int32_t node) const; // by how much hold(node) would increase live_pages
    int32_t once_computed(int32_t node) const; // positions up to its end that were ever stored
    int64_t live_prefixes() const { return live_prefixes_; }
    int64_t prefixes_to_hold(int32_t node) const;        // the same of live_prefixes
    int64_t tokens_left() const { return tokens_left_; } // never computed yet, of pending prefixes

    // The batch that was built is in flight: what it computes counts as stored from now on.
    void finish_chunk(int32_t node);

  private:
    void evict(int32_t node);

    PagePool *pool_;
    std::vector<ScheduledPrefix> nodes_;
    std::vector<int32_t> free_slots_;
    std::vector<int32_t> idle_;
    int64_t live_pages_ = 0;
    int64_t live_prefixes_ = 0;
    int64_t tokens_left_ = 0;
    int64_t created_ = 0;
};

} // namespace batchllm
