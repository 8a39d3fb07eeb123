// Checks of a plan's invariants, and rows to plan, for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace batchllm {

using TokenRows = std::vector<std::vector<int32_t>>;

// All but the last token of each row may be shared.
inline std::vector<TokenRow> views(const TokenRows &rows) {
    std::vector<TokenRow> result;
    for (const auto &row : rows) {
        const auto length = static_cast<int32_t>(row.size());
        result.push_back({row.data(), length, std::max(0, length - 1)});
    }
    return result;
}

// Gives some of the rows their own salts.
inline std::vector<TokenRow> salted(std::mt19937_64 &random, std::vector<TokenRow> rows) {
    constexpr uint64_t salts[] = {0, 7, uint64_t{7} << 32}; // the last two differ in one half each
    for (TokenRow &row : rows) row.salt = salts[random() % 3];
    return rows;
}

inline bool starts_alike(const TokenRow &a, const TokenRow &b, int32_t length) {
    return a.salt == b.salt && std::equal(a.tokens, a.tokens + length, b.tokens);
}

// Returns "" or what does not hold.
inline std::string fault_of(const Plan &plan, const std::vector<TokenRow> &rows) {
    const auto at = [](int64_t i) { return static_cast<size_t>(i); };
    const auto count = static_cast<int64_t>(rows.size());
    if (plan.row_count() != count) return "number of rows";
    std::set<int64_t> seen;
    int64_t place = 0;
    for (const PlanGroup &group : plan.groups) {
        if (group.row_begin != place || group.row_end <= place) return "groups are not adjacent";
        place = group.row_end;
        if (group.prefix < 0 && group.row_end - group.row_begin != 1) return "rows share nothing";
        if (group.prefix >= 0 && group.row_end - group.row_begin < 2) return "one row shares";
        for (int64_t i = group.row_begin; i < group.row_end; ++i) {
            const int64_t row = plan.rows[at(i)];
            if (row < 0 || row >= count || !seen.insert(row).second) return "no permutation";
            if (group.prefix < 0) continue;
            const PlanPrefix &prefix = plan.prefixes[at(group.prefix)];
            if (prefix.length > rows[at(row)].shareable) return "prefix beyond the shareable part";
            if (!starts_alike(rows[at(row)], rows[at(prefix.row)], prefix.length)) {
                return "prefix is not the row's";
            }
        }
    }
    if (place != count) return "rows left out";
    for (size_t i = 0; i < plan.prefixes.size(); ++i) {
        const PlanPrefix &prefix = plan.prefixes[i];
        if (prefix.length < 1 || prefix.length > rows[at(prefix.row)].length)
            return "prefix length";
        if (prefix.length < plan.options.min_prefix_tokens) return "prefix below the minimum";
        if (prefix.parent < 0) continue;
        if (plan.options.levels == 1) return "parent with one level";
        if (prefix.parent >= static_cast<int32_t>(i)) return "parent behind its child";
        const PlanPrefix &parent = plan.prefixes[at(prefix.parent)];
        if (parent.length >= prefix.length) return "parent is not shorter";
        if (!starts_alike(rows[at(parent.row)], rows[at(prefix.row)], parent.length)) {
            return "parent is not a prefix";
        }
    }
    for (size_t i = 0; i < rows.size(); ++i) {
        if (plan.lengths[i] != rows[i].length || plan.fingerprints[i] == 0) return "row identity";
    }
    return "";
}

// Rows over a small alphabet that often continue an earlier row: small, deep and bushy trees.
inline TokenRows random_rows(std::mt19937_64 &random, int rows, int alphabet, int longest) {
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
    TokenRows result;
    for (int i = 0; i < rows; ++i) {
        std::vector<int32_t> row;
        if (i > 0 && below(4) != 0) {
            row = result[static_cast<size_t>(below(i))];
            row.resize(row.empty() ? 0
                                   : static_cast<size_t>(below(static_cast<int>(row.size()) + 1)));
        }
        const int length = 1 + below(longest);
        while (static_cast<int>(row.size()) < length) row.push_back(below(alphabet));
        result.push_back(row);
    }
    return result;
}

// The least number of tokens computed with one shared prefix per row, found by trying every set of
// prefixes; -1 if there are too many to try.
inline int64_t least_processed(const std::vector<TokenRow> &rows, int32_t min_prefix_tokens) {
    using Prefix = std::pair<uint64_t, std::vector<int32_t>>; // salt, tokens
    std::map<Prefix, int> sharers;
    int64_t logical = 0;
    for (const TokenRow &row : rows) {
        logical += row.length;
        for (int32_t n = min_prefix_tokens; n <= row.shareable; ++n) {
            ++sharers[{row.salt, std::vector<int32_t>(row.tokens, row.tokens + n)}];
        }
    }
    std::vector<Prefix> candidates;
    for (const auto &[prefix, count] : sharers) {
        if (count > 1) candidates.push_back(prefix);
    }
    if (candidates.size() > 14) return -1;
    int64_t best = 0;
    for (uint32_t set = 0; set < (uint32_t{1} << candidates.size()); ++set) {
        int64_t saved = 0;
        for (size_t i = 0; i < candidates.size(); ++i) {
            if (set >> i & 1) saved -= static_cast<int64_t>(candidates[i].second.size());
        }
        for (const TokenRow &row : rows) {
            size_t longest = 0;
            for (size_t i = 0; i < candidates.size(); ++i) {
                const auto &[salt, prefix] = candidates[i];
                if ((set >> i & 1) == 0 || salt != row.salt || prefix.size() <= longest) continue;
                if (prefix.size() <= static_cast<size_t>(row.shareable) &&
                    std::equal(prefix.begin(), prefix.end(), row.tokens)) {
                    longest = prefix.size();
                }
            }
            saved += static_cast<int64_t>(longest);
        }
        best = std::max(best, saved);
    }
    return logical - best;
}

} // namespace batchllm
