// The shared prefixes of all unfinished requests: how much of each is computed, on which pages, and
// which requests need it.
//
// A common prefix of the plan has the plan's number here too. A prefix that only one row's requests
// share (its samples, or its continuations to score) is in no plan and has none.
//
// A prefix has two counts of users:
//   pending  unfinished requests directly below it, prefixes below it that are still pending, and
//            one more while it is kept for requests to come. At 0 it is removed: its pages are
//            released and its slot is reused.
//   live     admitted requests directly below it, and resident prefixes below it. At 0 no batch can
//            need it: it is idle, and its pages may be taken for others. It is computed again if
//            one of its pending requests is admitted later.
//
// A request may start to continue a prefix at any time while the prefix is resident, and always
// from its end. So in a KV group with a window, a prefix keeps the pages that the window covers at
// its end or, while it is being computed, at its next token.
//
// If the model has a state, a resident prefix with pages also has a slot for the state from which its
// continuations start. The slot is released with the pages.
//
// Always: live > 0 implies resident; a resident prefix's parent is live (so a parent's pages
// outlast its children's); idle prefixes are resident and have live == 0 < pending. They hold pages
// unless no group's window reaches back into them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/page_pool.h"
#include "plan/plan.h"

namespace batchllm {

struct Request; // schedule/scheduler.h

struct ScheduledPrefix {
    int32_t parent = -1;
    int32_t number = -1;  // in the plan; -1: none, or another plan has begun since
    int32_t start = 0;    // position of its first token
    int32_t length = 0;   // its own tokens: those beyond the parent's
    int32_t computed = 0; // how many of them are stored, or will be by a batch in flight
    int32_t highest = 0;  // the most that were ever stored; tokens below it are recomputed
    int32_t chunk = 0;    // its tokens in the batch that is being built
    int32_t pending = 0;
    int32_t live = 0;
    bool resident = false;
    bool idle = false;
    bool kept = false;
    int32_t adapter = -1;    // of the requests that continue it, once it is scheduled
    int32_t batch_node = -1; // in the batch of step `batch_step`
    uint64_t batch_step = 0;
    int64_t order = 0;               // of creation; prefixes with greater numbers are needed later
    const Request *source = nullptr; // whose prompt the chunk's tokens are read from
    PageTable pages;

    bool ready() const { return computed + chunk == length; }
};

class PrefixForest {
  public:
    explicit PrefixForest(PagePool *pool) : pool_(pool) {}

    // A prefix for positions [parent's end, end). It counts as pending in its parent.
    int32_t add(int32_t parent, int32_t end);
    // The node of the plan's prefix with this number (-1: of none), which is added with its parents
    // if it is not here.
    int32_t of_plan(std::span<const PlanPrefix> prefixes, int32_t number);
    bool has(int32_t number) const;
    // A kept prefix stays even if nothing pending needs it. Neither has an effect on a prefix that
    // is not here; neither can fail.
    void keep(int32_t number);
    void stop_keeping(int32_t number);
    // Numbers are those of another plan from now on, and nothing is kept. Cannot fail.
    void begin_plan();

    ScheduledPrefix &at(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
    const ScheduledPrefix &at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }

    void add_pending(int32_t node) { at(node).pending += 1; }
    void remove_pending(int32_t node);
    void hold(int32_t node);
    // Returns the number of chunk tokens that were scheduled for it, if no one needs them any more.
    int32_t release(int32_t node);

    // Drops the idle prefix that will be needed last. False if none is idle.
    bool evict_idle();
    bool has_idle() const { return !idle_.empty(); }

    int64_t live_pages() const { return live_pages_; } // of live prefixes once fully computed
    int64_t pages_to_hold(int32_t node) const; // how much hold(node) would add to live_pages
    int32_t once_computed(int32_t node) const; // positions up to its end that were ever stored
    int64_t live_prefixes() const { return live_prefixes_; }
    int64_t prefixes_to_hold(int32_t node) const;        // how much it would add to live_prefixes
    int64_t tokens_left() const { return tokens_left_; } // of pending prefixes, never computed yet

    // The batch that was built is in flight: its tokens count as stored from now on.
    void finish_chunk(int32_t node);

  private:
    void evict(int32_t node);

    PagePool *pool_;
    std::vector<ScheduledPrefix> nodes_;
    std::vector<int32_t> node_of_; // the plan's prefix -> node; -1: it is not here
    std::vector<int32_t> chain_;   // scratch
    std::vector<int32_t> free_slots_;
    std::vector<int32_t> idle_;
    int64_t live_pages_ = 0;
    int64_t live_prefixes_ = 0;
    int64_t tokens_left_ = 0;
    int64_t created_ = 0;
};

} // namespace batchllm
