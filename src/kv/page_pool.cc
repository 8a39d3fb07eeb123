#include "kv/page_pool.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace batchllm {

PagePool::PagePool(int64_t pages, int32_t page_tokens, const std::vector<int32_t> &windows,
                   int64_t state_slots)
    : total_(pages), page_tokens_(page_tokens), windows_(windows), slots_(state_slots) {
    if (page_tokens < 1 || pages < 0 || pages > std::numeric_limits<int32_t>::max() ||
        windows.empty())
        throw std::logic_error("page pool: impossible size");
    for (const int32_t window : windows_) {
        if (window < 0) throw std::logic_error("page pool: impossible window");
        slides_ = slides_ || window > 0;
        const auto same = std::find_if(distinct_.begin(), distinct_.end(),
                                       [&](const KvWindow &kind) { return kind.window == window; });
        if (same == distinct_.end()) {
            distinct_.push_back({window, 1});
        } else {
            same->groups += 1;
        }
    }
    most_tokens_ = find_most_tokens();
}

// The first column that some token from `stored` on can see.
int64_t PagePool::first_kept(int32_t window, int64_t stored) const {
    return window == 0 ? 0 : std::max<int64_t>(0, stored + 1 - window) / page_tokens_;
}

int64_t PagePool::pages_kept(int64_t stored) const {
    int64_t pages = 0;
    for (const KvWindow &kind : distinct_)
        pages += kind.groups * (pages_for(stored, page_tokens_) - first_kept(kind.window, stored));
    return pages;
}

// A node has the most pages when its newest token is the first of a column: the column's other
// tokens take no pages and may release an old one. The number never falls from one column to the
// next.
int64_t PagePool::find_most_tokens() const {
    const auto fits = [&](int64_t columns) {
        int64_t pages = 0;
        for (const KvWindow &kind : distinct_)
            pages +=
                kind.groups * (columns - first_kept(kind.window, (columns - 1) * page_tokens_));
        return pages <= total_;
    };
    constexpr int64_t endless = int64_t{1} << 40;
    if (fits(endless)) return std::numeric_limits<int64_t>::max();
    int64_t good = 0, bad = endless;
    while (bad - good > 1) {
        const int64_t middle = good + (bad - good) / 2;
        (fits(middle) ? good : bad) = middle;
    }
    return good * page_tokens_;
}

int32_t PagePool::take_page() {
    if (!free_.empty()) {
        const int32_t page = free_.back();
        free_.pop_back();
        held_[static_cast<size_t>(page)] = 1;
        return page;
    }
    held_.push_back(1);
    return static_cast<int32_t>(held_.size() - 1);
}

bool PagePool::take(PageTable *table) {
    const size_t wanted = windows_.size();
    const bool takes_slot = has_states() && table->state < 0;
    if (free() < static_cast<int64_t>(wanted) || (takes_slot && slots_.free() == 0)) return false;
    // Allocates all memory first, which may throw, so that nothing fails halfway. This includes
    // room in the free list, so that releasing pages cannot fail.
    if (table->groups() != wanted) table->other_groups.resize(wanted - 1);
    for (size_t g = 0; g < wanted; ++g) {
        GroupPageTable &group = table->group(g);
        if (group.pages.size() == group.pages.capacity())
            group.pages.reserve(std::max<size_t>(1, 2 * group.pages.size()));
    }
    if (free_.capacity() < held_.size() + wanted)
        free_.reserve(std::max<size_t>(64, 2 * (held_.size() + wanted)));
    held_.reserve(free_.capacity());
    if (takes_slot) table->state = slots_.take();
    for (size_t g = 0; g < wanted; ++g) table->group(g).pages.push_back(take_page());
    table->columns += 1;
    return true;
}

void PagePool::give_pages(const int32_t *pages, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        const int32_t page = pages[i];
        if (page < 0 || page >= peak() || !held_[static_cast<size_t>(page)])
            throw std::logic_error("page pool: a page given back that is not held");
        held_[static_cast<size_t>(page)] = 0;
        free_.push_back(page); // allocates nothing: take() left room for every page ever taken
    }
}

void PagePool::slide_groups(PageTable *table, int64_t stored) {
    for (size_t g = 0; g < table->groups(); ++g) {
        GroupPageTable &group = table->group(g);
        const int64_t first = std::min<int64_t>(first_kept(windows_[g], stored), table->columns);
        if (first <= group.first) continue;
        const auto count = static_cast<size_t>(first - group.first);
        give_pages(group.pages.data(), count);
        group.pages.erase(group.pages.begin(), group.pages.begin() + static_cast<ptrdiff_t>(count));
        group.first = static_cast<int32_t>(first);
    }
}

void PagePool::give(PageTable *table) {
    for (size_t g = 0; g < table->groups(); ++g) {
        GroupPageTable &group = table->group(g);
        give_pages(group.pages.data(), group.pages.size());
        group.pages.clear();
        group.first = 0;
    }
    table->columns = 0;
    if (table->state >= 0) slots_.give(table->state);
    table->state = -1;
}

} // namespace batchllm
