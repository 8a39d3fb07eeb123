// The parts of make_plan, in the order in which they run: keep groups of the previous plan, group
// the other rows, find the common prefixes of their prefixes, put the groups in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "prefix/prefix_tree.h"

namespace batchllm {

constexpr uint32_t no_group = UINT32_MAX;

// Groups in no particular order. Group g's prefix is prefixes[g]; common prefixes belong to no
// group.
struct PlanDraft {
    std::vector<PlanPrefix> prefixes;
    std::vector<uint32_t> group_of; // [rows] or no_group
};

// Matches rows with those of the previous plan, by fingerprint and length. Returns [rows] the row
// in the previous plan, or -1. Equal rows are matched one to one, in row order.
std::vector<int64_t> match_rows(const Plan &previous, std::span<const uint64_t> fingerprints,
                                std::span<const int32_t> lengths);

// [plan's rows] true for rows that share nothing.
std::vector<bool> rows_alone(const Plan &plan);

// Adds the groups of the previous plan that still have at least two rows.
void keep_groups(const Plan &previous, std::span<const int64_t> previous_rows,
                 std::span<const TokenRow> rows, PlanDraft &draft);

// Puts each row that is in no group into a new or an existing group.
void group_rest(std::span<const TokenRow> rows, const PlanOptions &options, PlanDraft &draft);

// How many tokens a row is expected to generate. `lengths` empty: the same for all rows.
inline int32_t decode_length(std::span<const int32_t> lengths, size_t row) {
    return lengths.empty() ? 1 : std::max(lengths[row], 0);
}

// Appends the common prefixes that the groups' prefixes share, after those prefixes.
void share_common_prefixes(std::span<const TokenRow> rows, std::span<const int32_t> decode_lengths,
                           const PlanOptions &options, PlanDraft &draft);

// Fills plan.prefixes, groups and rows.
void put_in_order(std::span<const TokenRow> rows, std::span<const int32_t> decode_lengths,
                  const PlanDraft &draft, Plan &plan);

} // namespace batchllm
