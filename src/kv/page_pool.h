// KV pages: which are free, and which belong to a context node.
//
//     the backend's KV memory             the scheduler's view
//     +--------+--------+--------+-- --+  free list  [ 7, 3, 2 ]         taken from the back
//     | page 0 | page 1 | page 2 | ... |  prefix A   [ 5, 0 ]            2000 tokens: its page table
//     +--------+--------+--------+-- --+  request x  [ 1, 4 ]            continues A on pages of its own
//     |<- page_tokens slots of K and V, of every layer ->|
//
// Token i of a node is in slot i % page_tokens of page table[i / page_tokens]. A node's tokens start
// on a page of their own, so a prefix may end anywhere and is never copied; at most one page a node
// is partly filled.
//
// Always: a page that was ever taken is in the free list or in exactly one page table. Taking and
// giving are O(1) amortised, and the pool's own memory grows with the most pages used at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace batchllm {

using PageTable = std::vector<int32_t>;

// Pages that so many tokens of one node fill.
constexpr int64_t pages_for(int64_t tokens, int32_t page_tokens) {
    return (tokens + page_tokens - 1) / page_tokens;
}

class PagePool {
  public:
    PagePool(int64_t pages, int32_t page_tokens);

    // Puts a free page at the end of the table. False, and nothing done, when there is none.
    bool take(PageTable *table);

    // Gives back all pages of the table and empties it (its memory stays). Throws std::logic_error
    // on a page that is not held: a fault of the library, which the C boundary reports.
    void give(PageTable *table);

    int32_t page_tokens() const { return page_tokens_; }
    int64_t total() const { return total_; }
    int64_t free() const { return total_ - used(); }
    int64_t used() const { return peak() - static_cast<int64_t>(free_.size()); }
    int64_t peak() const { return static_cast<int64_t>(held_.size()); } // most ever used at once

  private:
    int64_t total_;
    int32_t page_tokens_;
    // A new page is taken only when no other is free: those below peak() are the ones ever taken.
    std::vector<int32_t> free_; // of these
    std::vector<uint8_t> held_; // [peak]
};

} // namespace batchllm
