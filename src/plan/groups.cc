// Rows -> groups, and the groups' prefixes -> common prefixes, both through the prefix tree.
#include <cmath>

#include "plan/draft.h"
#include "prefix/grouping.h"

namespace batchllm {
namespace {

TokenRun first_tokens(const TokenRow &row, int32_t length) {
    return {{row.tokens, static_cast<size_t>(length)}, row.salt};
}

enum class Choice { optimal, paper, existing_only };

// Groups the rows that are in no group yet. Existing groups may get more rows, except with
// Choice::paper.
void group(std::span<const TokenRow> rows, Choice choice, int32_t min_prefix_tokens,
           PlanDraft &draft) {
    std::vector<uint32_t> rest;
    for (size_t i = 0; i < rows.size(); ++i) {
        if (draft.group_of[i] == no_group) rest.push_back(static_cast<uint32_t>(i));
    }
    // The rows, followed by the prefixes of existing groups, which cost nothing extra.
    const size_t kept = choice == Choice::paper ? 0 : draft.prefixes.size();
    std::vector<TokenRun> runs;
    runs.reserve(rest.size() + kept);
    for (const uint32_t row : rest) runs.push_back(first_tokens(rows[row], rows[row].shareable));
    for (size_t i = 0; i < kept; ++i) {
        const PlanPrefix &prefix = draft.prefixes[i];
        runs.push_back(first_tokens(rows[static_cast<size_t>(prefix.row)], prefix.length));
    }

    const PrefixTree tree(runs);
    const auto first_existing = static_cast<uint32_t>(rest.size());
    const int32_t min_tokens = choice == Choice::existing_only ? INT32_MAX : min_prefix_tokens;
    const ChosenAbove chosen = choice == Choice::paper
                                   ? choose_paper(tree, min_tokens)
                                   : choose_optimal(tree, runs, {min_tokens, first_existing});

    std::vector<uint32_t> group_of_node(tree.nodes().size(), no_group);
    for (size_t leaf = 0; leaf < runs.size() && kept > 0; ++leaf) {
        const uint32_t run = tree.leaves()[leaf], node = tree.leaf_parents()[leaf];
        if (run < first_existing || chosen[node] != node) continue;
        if (runs[run].tokens.size() == static_cast<size_t>(tree.nodes()[node].depth)) {
            group_of_node[node] = run - first_existing;
        }
    }
    for (size_t leaf = 0; leaf < runs.size(); ++leaf) {
        const uint32_t run = tree.leaves()[leaf], node = chosen[tree.leaf_parents()[leaf]];
        if (run >= first_existing || node == no_node) continue;
        if (group_of_node[node] == no_group) {
            group_of_node[node] = static_cast<uint32_t>(draft.prefixes.size());
            draft.prefixes.push_back({rest[run], tree.nodes()[node].depth, -1});
        }
        draft.group_of[rest[run]] = group_of_node[node];
    }
}

} // namespace

void group_rest(std::span<const TokenRow> rows, const PlanOptions &options, PlanDraft &draft) {
    if (options.enlarge == BATCHLLM_ENLARGE_OPTIMAL) {
        group(rows, Choice::optimal, options.min_prefix_tokens, draft);
    } else if (options.enlarge == BATCHLLM_ENLARGE_PAPER) {
        // The algorithm cannot use existing prefixes, so rows that fit one join it first.
        if (!draft.prefixes.empty()) group(rows, Choice::existing_only, 0, draft);
        group(rows, Choice::paper, options.min_prefix_tokens, draft);
    }
}

namespace {

// [prefixes] how many tokens are computed after each: the rows' own, and those that they generate.
std::vector<int64_t> readers_of(std::span<const TokenRow> rows,
                                std::span<const int32_t> decode_lengths, const PlanDraft &draft) {
    std::vector<int64_t> readers(draft.prefixes.size());
    for (size_t i = 0; i < rows.size(); ++i) {
        const uint32_t group = draft.group_of[i];
        if (group == no_group) continue;
        readers[group] += int64_t{rows[i].length} - draft.prefixes[group].length +
                          decode_length(decode_lengths, i);
    }
    return readers;
}

} // namespace

// Prefixes are grouped like rows: the common prefix of a group of prefixes is the optimum of the
// same objective, one level higher. With levels_auto the objective includes the cost of reading a
// common prefix.
void share_common_prefixes(std::span<const TokenRow> rows, std::span<const int32_t> decode_lengths,
                           const PlanOptions &options, PlanDraft &draft) {
    const bool chosen_by_cost = options.levels == levels_auto;
    if (options.levels == 1 || (chosen_by_cost && options.common_prefix_cost == 0)) return;
    std::vector<int64_t> readers;
    if (chosen_by_cost) readers = readers_of(rows, decode_lengths, draft);
    const int64_t reading =
        std::llround(static_cast<double>(token_parts) * options.common_prefix_cost);
    std::vector<PlanPrefix> &prefixes = draft.prefixes;
    std::vector<TokenRun> runs; // one for each prefix
    for (const PlanPrefix &prefix : prefixes) {
        runs.push_back(first_tokens(rows[static_cast<size_t>(prefix.row)], prefix.length));
    }
    const PrefixTree tree(runs);
    const ChosenAbove chosen =
        choose_optimal(tree, runs, {options.min_prefix_tokens, UINT32_MAX, readers, reading});

    // A prefix as long as the common prefix is that itself.
    std::vector<int32_t> common_prefixes(tree.nodes().size(), -1);
    for (size_t leaf = 0; leaf < runs.size(); ++leaf) {
        const uint32_t run = tree.leaves()[leaf], node = chosen[tree.leaf_parents()[leaf]];
        if (node != no_node && prefixes[run].length == tree.nodes()[node].depth)
            common_prefixes[node] = static_cast<int32_t>(run);
    }
    for (size_t leaf = 0; leaf < runs.size(); ++leaf) {
        const uint32_t run = tree.leaves()[leaf], node = chosen[tree.leaf_parents()[leaf]];
        if (node == no_node) continue;
        const int32_t depth = tree.nodes()[node].depth, length = prefixes[run].length;
        if (chosen_by_cost && gain_by_common_prefix(depth, length, readers[run], reading) <= 0)
            continue;
        if (common_prefixes[node] < 0) {
            common_prefixes[node] = static_cast<int32_t>(prefixes.size());
            prefixes.push_back({prefixes[run].row, depth, -1});
        }
        if (length > depth) prefixes[run].parent = common_prefixes[node];
    }
}

} // namespace batchllm
