// Prefix tree -> the nodes whose prefixes are shared, and the runs that share each of them.
//
// The saving of a choice, in tokens: for each run the depth of the chosen node above it, less the
// depth of each chosen node once. This is one level of sharing, as in BatchLLM's saving ratio
// (arXiv 2412.03594, Eq. 2).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "prefix/prefix_tree.h"

namespace batchllm {

constexpr uint32_t no_node = UINT32_MAX;

// Gains from common prefixes are counted in units of 1/1024 of a computed token.
constexpr int64_t token_parts = 1024;

// The gain, in parts of a token, if the first `depth` tokens of a run of `length` tokens become a
// common prefix: these tokens, less `reading` parts for each token that reads the common prefix.
// Those are the rest of the run and the `readers` tokens after it. A run that equals the common
// prefix pays nothing.
constexpr int64_t gain_by_common_prefix(int32_t depth, int64_t length, int64_t readers,
                                        int64_t reading) {
    if (length == depth) return token_parts * depth;
    return token_parts * depth - reading * (length - depth + readers);
}

struct GroupingOptions {
    int32_t min_prefix_tokens = 1; // shallower nodes are not chosen
    // Runs from this number on are existing prefixes: where such a run ends, its prefix can be
    // shared at no cost. They do not count as runs.
    uint32_t first_existing = UINT32_MAX;
    // [runs] tokens computed after each run. If given, the runs are prefixes that look for common
    // prefixes: a choice then saves the sum of gain_by_common_prefix() over the runs where it is positive,
    // less the chosen nodes' tokens. A run for which a common prefix does not pay gets none. Not
    // together with first_existing.
    std::span<const int64_t> readers = {};
    int64_t reading = 0; // argument of gain_by_common_prefix()
};

// [nodes] the chosen node (this one or an ancestor) whose prefix is shared by the runs directly
// below; or no_node.
using ChosenAbove = std::vector<uint32_t>;

// The choice that saves most; among equals, one without superfluous nodes. `runs` are the tree's.
// O(n log^2 n).
ChosenAbove choose_optimal(const PrefixTree &tree, std::span<const TokenRun> runs,
                           const GroupingOptions &options);

// BatchLLM's Algorithm 1 (MaximizeReuse), as a reference. Its objective has no minimum length, so
// nodes that are too shallow are dropped afterwards. A node that is moved up is examined again on
// each level, so the time grows with the tree's height.
ChosenAbove choose_paper(const PrefixTree &tree, int32_t min_prefix_tokens);

} // namespace batchllm
