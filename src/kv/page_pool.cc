#include "kv/page_pool.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace batchllm {

PagePool::PagePool(int64_t pages, int32_t page_tokens) : total_(pages), page_tokens_(page_tokens) {
    if (page_tokens < 1 || pages < 0 || pages > std::numeric_limits<int32_t>::max())
        throw std::logic_error("page pool: impossible size");
}

bool PagePool::take(PageTable *table) {
    if (!free_.empty()) {
        const int32_t page = free_.back();
        table->push_back(page); // may throw: the page is still free then
        free_.pop_back();
        held_[static_cast<size_t>(page)] = 1;
        return true;
    }
    if (peak() == total_) return false;
    // Room for it in the free list, so that giving it back cannot fail.
    if (free_.capacity() <= held_.size()) free_.reserve(std::max<size_t>(64, 2 * held_.size()));
    held_.reserve(free_.capacity());
    table->push_back(static_cast<int32_t>(peak()));
    held_.push_back(1);
    return true;
}

void PagePool::give(PageTable *table) {
    for (const int32_t page : *table) {
        if (page < 0 || page >= peak() || !held_[static_cast<size_t>(page)])
            throw std::logic_error("page pool: a page given back that is not held");
        held_[static_cast<size_t>(page)] = 0;
        free_.push_back(page); // never grows: take() left room for every page ever taken
    }
    table->clear();
}

} // namespace batchllm
