#include "kv/page_pool.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace batchllm {

PagePool::PagePool(int64_t pages, int32_t page_tokens) : page_tokens_(page_tokens) {
    if (page_tokens < 1 || pages < 0 || pages > std::numeric_limits<int32_t>::max())
        throw std::logic_error("page pool: impossible size");
    free_.resize(static_cast<size_t>(pages));
    held_.resize(static_cast<size_t>(pages), 0);
    // Low numbers first: a job that needs little touches little memory.
    for (int64_t i = 0; i < pages; ++i)
        free_[static_cast<size_t>(i)] = static_cast<int32_t>(pages - 1 - i);
}

bool PagePool::take(PageTable *table) {
    if (free_.empty()) return false;
    const int32_t page = free_.back();
    table->push_back(page); // may throw: the page is still free then
    free_.pop_back();
    held_[static_cast<size_t>(page)] = 1;
    peak_ = std::max(peak_, used());
    return true;
}

void PagePool::give(PageTable *table) {
    for (const int32_t page : *table) {
        if (page < 0 || page >= total() || !held_[static_cast<size_t>(page)])
            throw std::logic_error("page pool: a page given back that is not held");
        held_[static_cast<size_t>(page)] = 0;
        free_.push_back(page); // never grows: free_ had room for every page from the start
    }
    table->clear();
}

} // namespace batchllm
