#include "constraint/retired_graphs.h"

#include <algorithm>
#include <utility>

namespace batchllm {

void RetiredGraphs::add(std::unique_ptr<StateGraph> graph) {
    const std::lock_guard lock(mutex_);
    graphs_.push_back(std::move(graph));
    waiting_.store(true, std::memory_order_relaxed);
}

void RetiredGraphs::free_some(int64_t today) {
    if (empty()) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return; // another thread is at it
    int64_t piece = std::max(kPiece, today - std::exchange(last_today_, today));
    while (piece > 0 && !graphs_.empty()) {
        piece -= graphs_.back()->free_some(piece);
        if (graphs_.back()->bytes() == 0) graphs_.pop_back();
    }
    waiting_.store(!graphs_.empty(), std::memory_order_relaxed);
}

} // namespace batchllm
