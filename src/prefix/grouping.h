// Prefix tree -> the nodes whose prefixes are to be shared, and the runs that share each.
//
// What a choice saves, in tokens: the depth of the chosen node above each run, summed over the runs,
// less the depth of each chosen node once. This is one level of sharing, as BatchLLM's saving ratio
// (arXiv 2412.03594, Eq. 2) counts it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "prefix/prefix_tree.h"

namespace batchllm {

constexpr uint32_t no_node = UINT32_MAX;

// Gains from heads are counted in this many parts of a computed token.
constexpr int64_t token_parts = 1024;

// What a run of `length` tokens gains, in parts of a token, if the first `depth` of them are a head:
// these tokens, less `reading` parts for each token that reads the head, which are the rest of the run
// and the `readers` tokens after it. A run that is the head itself pays nothing.
constexpr int64_t gain_by_head(int32_t depth, int64_t length, int64_t readers, int64_t reading) {
    if (length == depth) return token_parts * depth;
    return token_parts * depth - reading * (length - depth + readers);
}

struct GroupingOptions {
    int32_t min_prefix_tokens = 1; // shallower nodes are not chosen
    // Runs from this number on are prefixes that already exist: where such a run ends, its prefix
    // can be shared at no cost. They are not counted as runs.
    uint32_t first_existing = UINT32_MAX;
    // [runs] tokens that are computed after each run. If given, the runs are prefixes that look for heads:
    // a choice then saves the sum over runs of gain_by_head(), where that is positive, less the chosen
    // nodes' tokens. A run for which a head does not pay does without. Not with first_existing.
    std::span<const int64_t> readers = {};
    int64_t reading = 0; // gain_by_head()
};

// [nodes] for each node the chosen node, itself or above it, whose prefix the runs directly below share; or no_node.
using ChosenAbove = std::vector<uint32_t>;

// The choice that saves most; of several, one without needless nodes. `runs` are the tree's. O(n log^2 n).
ChosenAbove choose_optimal(const PrefixTree &tree, std::span<const TokenRun> runs,
                           const GroupingOptions &options);

// BatchLLM's Algorithm 1 (MaximizeReuse), the reference. Its objective has no minimum length, so
// nodes that are too shallow are dropped afterwards. A node that is moved up is examined again on
// each level, so the time grows with the tree's height.
ChosenAbove choose_paper(const PrefixTree &tree, int32_t min_prefix_tokens);

} // namespace batchllm
