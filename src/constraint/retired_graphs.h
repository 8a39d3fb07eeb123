// Graphs that no row stands in any more, freed a piece at a time.
//
// To free a graph of 64 MiB takes a tenth of a second, which would come to the one row that happens to
// be the last to leave it. So a graph that goes is put here, and each call of a row frees a little.
//
// At least as much is freed as the graph of today has grown meanwhile: when that one is as large as the
// last was, nothing of the last is left.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "constraint/state_graph.h"

namespace batchllm {

class RetiredGraphs {
  public:
    static constexpr int64_t kPiece = int64_t{256} << 10; // bytes; well under a millisecond

    void add(std::unique_ptr<StateGraph> graph);
    // Frees a piece, if there is any. `today`: bytes of the graph that the rows are in.
    void free_some(int64_t today);
    bool empty() const { return !waiting_.load(std::memory_order_relaxed); }

  private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<StateGraph>> graphs_;
    int64_t last_today_ = 0;
    std::atomic<bool> waiting_ = false; // graphs_ is not empty
};

} // namespace batchllm
