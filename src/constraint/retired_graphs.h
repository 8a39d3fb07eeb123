// Graphs that no row uses any more, freed a piece at a time.
//
// Freeing a graph of 64 MiB takes a tenth of a second, and the last row that leaves it would have to
// wait for that. So a retired graph is put here, and each call for a row frees a little.
//
// Within limits, each call frees as much as the current graph has grown meanwhile. If the next graph is retired
// before the last one is gone, the rest of the last one is freed at once, so at most one is kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "constraint/state_graph.h"

namespace batchllm {

class RetiredGraphs {
  public:
    // Bytes to free at a time: about a millisecond, and a few.
    static constexpr int64_t kLeast = int64_t{256} << 10, kMost = int64_t{2} << 20;

    void add(std::unique_ptr<StateGraph> graph);
    // Frees a piece, if there is any. `today`: bytes of the graph that rows use now.
    void free_some(int64_t today);
    bool empty() const { return !waiting_.load(std::memory_order_relaxed); }

  private:
    std::mutex mutex_;
    std::unique_ptr<StateGraph> graph_;
    int64_t last_today_ = 0;
    std::atomic<bool> waiting_ = false; // there is a graph_
};

} // namespace batchllm
