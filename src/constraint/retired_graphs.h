// Graphs that no row uses any more, freed bit by bit.
//
// Freeing a graph of 64 MiB takes a tenth of a second, for which the last row that leaves it would
// have to wait. So a retired graph is moved here, and each call for a row frees a little of it.
//
// Within limits, each call frees as much as the current graph has grown since the last call. If
// another graph is retired before this one is gone, the rest of this one is freed at once, so at
// most one is kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "constraint/state_graph.h"

namespace batchllm {

class RetiredGraphs {
  public:
    // The range of bytes to free at a time: this takes about a millisecond, up to a few.
    static constexpr int64_t kLeast = int64_t{256} << 10, kMost = int64_t{2} << 20;

    void add(std::unique_ptr<StateGraph> graph);
    // Frees a piece, if there is any. `today`: size in bytes of the graph that rows use now.
    void free_some(int64_t today);
    bool empty() const { return !waiting_.load(std::memory_order_relaxed); }

  private:
    std::mutex mutex_;
    std::unique_ptr<StateGraph> graph_;
    int64_t last_today_ = 0;
    std::atomic<bool> waiting_ = false; // graph_ is set
};

} // namespace batchllm
