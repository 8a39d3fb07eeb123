#include "plan/plan.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <xxhash.h>

#include "plan/draft.h"
#include "prefix/common_prefix.h"

namespace batchllm {
namespace {

Status check_arguments(std::span<const TokenRow> rows, std::span<const int32_t> decode_lengths,
                       const PlanOptions &options) {
    constexpr int32_t bad = BATCHLLM_ERROR_INVALID_ARGUMENT;
    if (options.enlarge < BATCHLLM_ENLARGE_NONE || options.enlarge > BATCHLLM_ENLARGE_PAPER) {
        return error(bad, "enlarge is %d: it must be 0 to 2 (NONE, OPTIMAL, PAPER)",
                     options.enlarge);
    }
    if (options.order < BATCHLLM_ORDER_DECODE_FIRST || options.order > BATCHLLM_ORDER_ARRIVAL) {
        return error(bad, "order is %d: it must be 0 or 1 (DECODE_FIRST, ARRIVAL)", options.order);
    }
    if (options.levels < levels_auto || options.levels > 2) {
        return error(bad, "levels: %d is not in [0, 2]", options.levels);
    }
    if (!(options.common_prefix_cost >= 0 &&
          options.common_prefix_cost <= most_common_prefix_cost)) {
        return error(bad, "common_prefix_cost: %g is not in [0, %g]", options.common_prefix_cost,
                     most_common_prefix_cost);
    }
    if (options.min_prefix_tokens < 1) {
        return error(bad, "min_prefix_tokens: %d is less than 1", options.min_prefix_tokens);
    }
    if (rows.size() >= INT32_MAX) {
        return error(bad, "rows: %zu are more than a plan takes (2^31 - 2)", rows.size());
    }
    if (!decode_lengths.empty() && decode_lengths.size() != rows.size()) {
        return error(bad, "decode_lengths: %zu given for %zu rows", decode_lengths.size(),
                     rows.size());
    }
    for (size_t i = 0; i < rows.size(); ++i) {
        const TokenRow &row = rows[i];
        if (row.length < 0 || row.length == INT32_MAX || row.shareable < 0 ||
            row.shareable > std::max(0, row.length - 1)) {
            return error(bad, "row %zu: length %d, shareable %d", i, row.length, row.shareable);
        }
    }
    return {};
}

// Stores what makes a plan self-contained.
void keep_rows(std::span<const TokenRow> rows, Plan *plan) {
    plan->tokens.reserve(static_cast<size_t>(plan->logical_tokens()));
    for (const TokenRow &row : rows) {
        plan->tokens.insert(plan->tokens.end(), row.tokens, row.tokens + row.length);
    }
    const auto salted = [](const TokenRow &row) { return row.salt != 0; };
    if (std::none_of(rows.begin(), rows.end(), salted)) return;
    plan->salts.reserve(rows.size());
    for (const TokenRow &row : rows) plan->salts.push_back(row.salt);
}

} // namespace

uint64_t token_fingerprint(std::span<const int32_t> tokens, uint64_t salt) {
    static_assert(std::endian::native == std::endian::little);
    const uint64_t hash = XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), salt);
    return hash == 0 ? 1 : hash;
}

bool same_prefix(const TokenRow &a, const TokenRow &b, int32_t length) {
    return a.salt == b.salt && common_prefix(a.tokens, b.tokens, length) == length;
}

Result<Plan> make_plan(std::span<const TokenRow> rows, std::span<const int32_t> decode_lengths,
                       const PlanOptions &options, const Plan *previous) {
    const auto start = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(check_arguments(rows, decode_lengths, options));

    Plan plan;
    plan.options = options;
    plan.fingerprints.resize(rows.size());
    plan.lengths.resize(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
        plan.lengths[i] = rows[i].length;
        plan.fingerprints[i] =
            token_fingerprint({rows[i].tokens, static_cast<size_t>(rows[i].length)}, rows[i].salt);
    }

    PlanDraft draft;
    draft.group_of.assign(rows.size(), no_group);
    std::vector<int64_t> previous_rows;
    if (previous != nullptr && previous->options.enlarge == options.enlarge &&
        previous->options.min_prefix_tokens == options.min_prefix_tokens) {
        previous_rows = match_rows(*previous, plan.fingerprints, plan.lengths);
        keep_groups(*previous, previous_rows, rows, draft);
        plan.known_rows = std::count_if(previous_rows.begin(), previous_rows.end(),
                                        [](int64_t row) { return row >= 0; });
    }
    for (const uint32_t group : draft.group_of) plan.reused_rows += group != no_group;
    group_rest(rows, options, draft);
    if (!previous_rows.empty()) {
        // A row that was alone and still is also keeps its group.
        const std::vector<bool> was_alone = rows_alone(*previous);
        for (size_t i = 0; i < rows.size(); ++i) {
            const int64_t row = previous_rows[i];
            plan.reused_rows +=
                draft.group_of[i] == no_group && row >= 0 && was_alone[static_cast<size_t>(row)];
        }
    }

    share_common_prefixes(rows, decode_lengths, options, draft);
    put_in_order(rows, decode_lengths, draft, plan);

    if (options.self_contained) keep_rows(rows, &plan);
    plan.advice = advise(rows, plan);
    plan.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return plan;
}

int64_t Plan::logical_tokens() const {
    int64_t sum = 0;
    for (const int32_t length : lengths) sum += length;
    return sum;
}

int64_t Plan::processed_tokens() const {
    int64_t sum = logical_tokens();
    for (const PlanGroup &group : groups) {
        if (group.prefix < 0) continue;
        sum -=
            (group.row_end - group.row_begin) * prefixes[static_cast<size_t>(group.prefix)].length;
    }
    for (const PlanPrefix &prefix : prefixes) {
        sum += prefix.length;
        if (prefix.parent >= 0) sum -= prefixes[static_cast<size_t>(prefix.parent)].length;
    }
    return sum;
}

double Plan::saving_ratio() const {
    const int64_t logical = logical_tokens();
    if (logical == 0) return 0;
    return 1 - static_cast<double>(processed_tokens()) / static_cast<double>(logical);
}

} // namespace batchllm
