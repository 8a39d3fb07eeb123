#include "text/merge.h"

#include <algorithm>
#include <functional>

namespace batchllm {
namespace {

constexpr size_t kScanLimit = 48; // symbols; beyond this the heap is faster
constexpr uint32_t kEnd = UINT32_MAX;

void merge_by_scanning(const MergeTable &merges, MergeScratch *scratch,
                       std::vector<int32_t> *symbols) {
    size_t count = symbols->size();
    int32_t *const tokens = symbols->data();
    scratch->ranks.resize(count);
    scratch->merged.resize(count);
    uint32_t *const ranks = scratch->ranks.data();
    int32_t *const merged = scratch->merged.data();
    const auto look_up = [&](size_t i) {
        const Merge merge = merges.find(tokens[i], tokens[i + 1]);
        ranks[i] = merge.rank;
        merged[i] = merge.token;
    };
    for (size_t i = 0; i + 1 < count; ++i) look_up(i);
    while (count > 1) {
        const size_t best = static_cast<size_t>(std::min_element(ranks, ranks + count - 1) - ranks);
        if (ranks[best] == kNoMerge) break;
        tokens[best] = merged[best];
        std::copy(tokens + best + 2, tokens + count, tokens + best + 1);
        if (best + 2 < count) {
            std::copy(ranks + best + 2, ranks + count - 1, ranks + best + 1);
            std::copy(merged + best + 2, merged + count - 1, merged + best + 1);
        }
        --count;
        if (best > 0) look_up(best - 1);
        if (best + 1 < count) look_up(best);
    }
    symbols->resize(count);
}

void merge_by_heap(const MergeTable &merges, MergeScratch *scratch, std::vector<int32_t> *symbols) {
    const auto count = static_cast<uint32_t>(symbols->size());
    std::vector<int32_t> &tokens = *symbols;
    std::vector<uint32_t> &ranks = scratch->ranks;
    std::vector<uint32_t> &previous = scratch->previous;
    std::vector<uint32_t> &next = scratch->next;
    std::vector<uint64_t> &heap = scratch->heap;
    ranks.assign(count, kNoMerge);
    scratch->merged.resize(count);
    previous.resize(count);
    next.resize(count);
    heap.clear();
    // Sets the pair that starts at a place. A heap entry is valid as long as its rank is that of
    // the place.
    const auto look_up = [&](uint32_t place) {
        const Merge merge = merges.find(tokens[place], tokens[next[place]]);
        ranks[place] = merge.rank;
        scratch->merged[place] = merge.token;
        return merge.rank != kNoMerge;
    };
    for (uint32_t i = 0; i < count; ++i) {
        previous[i] = i == 0 ? kEnd : i - 1;
        next[i] = i + 1 == count ? kEnd : i + 1;
        if (i + 1 < count && look_up(i)) heap.push_back(uint64_t{ranks[i]} << 32 | i);
    }
    const std::greater<uint64_t> lowest_on_top;
    std::make_heap(heap.begin(), heap.end(), lowest_on_top);
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end(), lowest_on_top);
        const uint64_t top = heap.back();
        heap.pop_back();
        const auto place = static_cast<uint32_t>(top);
        if (ranks[place] != static_cast<uint32_t>(top >> 32)) continue;
        const uint32_t right = next[place];
        tokens[place] = scratch->merged[place];
        ranks[place] = ranks[right] = kNoMerge;
        next[place] = next[right];
        if (next[place] != kEnd) previous[next[place]] = place;
        for (const uint32_t changed : {previous[place], place}) {
            if (changed == kEnd || next[changed] == kEnd || !look_up(changed)) continue;
            heap.push_back(uint64_t{ranks[changed]} << 32 | changed);
            std::push_heap(heap.begin(), heap.end(), lowest_on_top);
        }
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != kEnd; i = next[i]) tokens[kept++] = tokens[i];
    tokens.resize(kept);
}

} // namespace

void merge_word(const MergeTable &merges, MergeScratch *scratch, std::vector<int32_t> *symbols) {
    if (symbols->size() < 2) return;
    if (symbols->size() <= kScanLimit) {
        merge_by_scanning(merges, scratch, symbols);
    } else {
        merge_by_heap(merges, scratch, symbols);
    }
}

} // namespace batchllm
