// Which KV pages are free, and which context node each of the others belongs to.
//
//     the backend's KV memory               the scheduler's view, of a model with two KV groups
//     +--------+--------+--------+-- --+    free list  [ 7, 3, 2 ]           taken from the back
//     | page 0 | page 1 | page 2 | ... |    prefix A   full    [ 5, 0, 9 ]   its page tables
//     +--------+--------+--------+-- --+               window  [ -, -, 6 ]
//     |<- page_tokens slots of K and V ->|  request x  full    [ 1, 4 ]      continues A on pages
//         of every layer of one group                  window  [ 8, 10 ]     of its own
//
// Token i of a node is in slot i % page_tokens of page i / page_tokens of each group's table. So a
// column of the tables, one page per group, is taken as a whole. Pages are released group by group,
// from the front, as their tokens fall out of the group's window (slide). Any page can serve any
// group.
//
// A node's tokens start on a page of their own, so a prefix may end anywhere and is never copied; at
// most one page per node and group is partly filled.
//
// If the model has a state, there are also slots of one fixed size (backend.h). A node takes its
// slot with its first column and releases it with its last pages.
//
// Always: every page that was ever taken is either in the free list or in exactly one page table.
// Taking and releasing are O(1) amortised, and the pool's own memory grows with the peak number of
// pages in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/state_slots.h"

namespace batchllm {

// How many pages this many tokens of one node fill.
constexpr int64_t pages_for(int64_t tokens, int32_t page_tokens) {
    return (tokens + page_tokens - 1) / page_tokens;
}

// A node's pages in one KV group, for columns [first, first + pages.size()).
struct GroupPageTable {
    int32_t first = 0;
    std::vector<int32_t> pages;
};

// A node's pages. Most models have one KV group, whose table is stored in place.
struct PageTable {
    int32_t columns = 0; // ever taken: there is room for columns * page_tokens tokens
    GroupPageTable first_group;
    std::vector<GroupPageTable> other_groups; // empty before the first column
    int32_t state = -1;                       // slot; -1 before the first column

    size_t groups() const { return 1 + other_groups.size(); }
    GroupPageTable &group(size_t g) { return g == 0 ? first_group : other_groups[g - 1]; }
    const GroupPageTable &group(size_t g) const {
        return g == 0 ? first_group : other_groups[g - 1];
    }
    int64_t pages() const {
        size_t count = 0;
        for (size_t g = 0; g < groups(); ++g) count += group(g).pages.size();
        return static_cast<int64_t>(count);
    }
};

// KV groups with the same window. They keep and release the same columns.
struct KvWindow {
    int32_t window; // positions that a token sees, including its own; 0: all
    int32_t groups;
};

class PagePool {
  public:
    // windows: one per KV group; 0: a token sees all positions. state_slots: 0 if the model has no
    // state.
    PagePool(int64_t pages, int32_t page_tokens, const std::vector<int32_t> &windows = {0},
             int64_t state_slots = 0);

    // Appends a column to the table: a free page for each group and, with the first column, a state
    // slot. If there are not enough, changes nothing and returns false.
    bool take(PageTable *table);
    // Whether a table without columns could take its first one.
    bool has_room() const { return free() >= groups() && (!has_states() || slots_.free() > 0); }

    // Releases the pages whose tokens lie before the window of every token from `stored` on.
    void slide(PageTable *table, int64_t stored) {
        if (slides_) slide_groups(table, stored);
    }

    // Releases all pages and the slot of the table and empties it, but keeps its memory. Like
    // slide, throws std::logic_error on a page that is not in use, which is a bug in the library;
    // the C boundary reports it.
    void give(PageTable *table);

    // The pages that a node with `stored` computed tokens has after slide.
    int64_t pages_kept(int64_t stored) const;
    // The most tokens that the whole pool can hold for one node if they are computed one after
    // another. INT64_MAX if windows bound the pages in use.
    int64_t most_tokens() const { return most_tokens_; }

    int32_t page_tokens() const { return page_tokens_; }
    int32_t groups() const { return static_cast<int32_t>(windows_.size()); }
    // The distinct windows, in the order of their first groups.
    const std::vector<KvWindow> &windows() const { return distinct_; }
    // Whether some group releases pages before its node is done.
    bool slides() const { return slides_; }
    int64_t total() const { return total_; }
    bool has_states() const { return slots_.total() > 0; }
    const StateSlots &states() const { return slots_; }
    int64_t free() const { return total_ - used(); }
    int64_t used() const { return peak() - static_cast<int64_t>(free_.size()); }
    int64_t peak() const { return static_cast<int64_t>(held_.size()); } // most ever used at once

  private:
    int32_t take_page();
    void slide_groups(PageTable *table, int64_t stored);
    void give_pages(const int32_t *pages, size_t count);
    int64_t first_kept(int32_t window, int64_t stored) const;
    int64_t find_most_tokens() const;

    int64_t total_;
    int32_t page_tokens_;
    std::vector<int32_t> windows_; // [groups]
    std::vector<KvWindow> distinct_;
    bool slides_ = false;
    int64_t most_tokens_ = 0;
    // A new page is taken only if no other is free, so the pages ever taken are those below peak().
    std::vector<int32_t> free_; // free pages below peak()
    std::vector<uint8_t> held_; // [peak]
    StateSlots slots_;
};

} // namespace batchllm
