// Graphs that no row stands in any more, freed a piece at a time.
//
// To free a graph of 64 MiB takes a tenth of a second, which would come to the one row that happens to
// be the last to leave it. So a graph that goes is put here, and each call of a row frees a little.
//
// As much is freed as the graph of today has grown meanwhile, within bounds. Should the next one come
// before the last is gone, what is left of the last is freed at once: never more than one is kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "constraint/state_graph.h"

namespace batchllm {

class RetiredGraphs {
  public:
    // Bytes; about a millisecond and a few.
    static constexpr int64_t kLeast = int64_t{256} << 10, kMost = int64_t{2} << 20;

    void add(std::unique_ptr<StateGraph> graph);
    // Frees a piece, if there is any. `today`: bytes of the graph that the rows are in.
    void free_some(int64_t today);
    bool empty() const { return !waiting_.load(std::memory_order_relaxed); }

  private:
    std::mutex mutex_;
    std::unique_ptr<StateGraph> graph_;
    int64_t last_today_ = 0;
    std::atomic<bool> waiting_ = false; // there is a graph_
};

} // namespace batchllm
