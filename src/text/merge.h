// Initial symbols of a word -> its tokens: byte-pair merging.
//
// Repeatedly merges the pair of lowest rank (ties: the leftmost) until none is left.
#pragma once

#include <cstdint>
#include <vector>

#include "text/merge_table.h"

namespace batchllm {

// Memory that merging reuses from word to word.
struct MergeScratch {
    std::vector<uint32_t> ranks;    // [symbols] rank of the pair that starts here
    std::vector<int32_t> merged;    // [symbols] the token that this pair becomes
    std::vector<uint32_t> previous; // [symbols] linked list of the remaining symbols
    std::vector<uint32_t> next;
    std::vector<uint64_t> heap; // rank << 32 | place
};

// Merges in place and shrinks *symbols. Short words are scanned, O(n^2) with a small constant; long
// ones use a heap, O(n log n). At most 2^32 - 1 symbols.
void merge_word(const MergeTable &merges, MergeScratch *scratch, std::vector<int32_t> *symbols);

} // namespace batchllm
