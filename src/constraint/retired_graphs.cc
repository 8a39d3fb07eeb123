#include "constraint/retired_graphs.h"

#include <algorithm>
#include <utility>

namespace batchllm {

void RetiredGraphs::add(std::unique_ptr<StateGraph> graph) {
    const std::lock_guard lock(mutex_);
    graph_ = std::move(graph);
    waiting_.store(true, std::memory_order_relaxed);
}

void RetiredGraphs::free_some(int64_t today) {
    if (empty()) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || !graph_) return; // another thread is freeing it
    const int64_t piece = std::clamp(today - std::exchange(last_today_, today), kLeast, kMost);
    graph_->free_some(piece);
    if (graph_->bytes() > 0) return;
    graph_.reset();
    waiting_.store(false, std::memory_order_relaxed);
}

} // namespace batchllm
