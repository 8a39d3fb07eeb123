// A plan for some of a plan's rows, and two plans joined: how the engine uses a plan as it is.

#include "plan/plan.h"

namespace batchllm {
namespace {

// Appends a prefix and its ancestors, each once; `row` has their tokens.
int32_t take_prefix(const Plan &from, int32_t prefix, int64_t row, std::vector<int32_t> *taken,
                    std::vector<PlanPrefix> *to) {
    std::vector<int32_t> chain;
    for (; prefix >= 0 && (*taken)[static_cast<size_t>(prefix)] < 0;
         prefix = from.prefixes[static_cast<size_t>(prefix)].parent) {
        chain.push_back(prefix);
    }
    int32_t above = prefix < 0 ? -1 : (*taken)[static_cast<size_t>(prefix)];
    for (auto i = chain.rbegin(); i != chain.rend(); ++i) {
        const int32_t copy = static_cast<int32_t>(to->size());
        to->push_back({row, from.prefixes[static_cast<size_t>(*i)].length, above});
        (*taken)[static_cast<size_t>(*i)] = copy;
        above = copy;
    }
    return above;
}

bool same_options(const PlanOptions &a, const PlanOptions &b) {
    return a.enlarge == b.enlarge && a.levels == b.levels && a.order == b.order &&
           a.min_prefix_tokens == b.min_prefix_tokens;
}

// Whether the rows of every group and of every prefix's parent start with the prefix.
bool prefixes_hold(const Plan &plan, std::span<const TokenRow> rows) {
    for (const PlanGroup &group : plan.groups) {
        const TokenRow *first = nullptr; // already compared with the prefixes above
        for (int64_t i = group.row_begin; i < group.row_end && group.prefix >= 0; ++i) {
            const TokenRow &row = rows[static_cast<size_t>(plan.rows[static_cast<size_t>(i)])];
            if (row.tokens == nullptr) continue;
            const int32_t length = plan.prefixes[static_cast<size_t>(group.prefix)].length;
            if (row.shareable < length) return false;
            if (first != nullptr && !same_prefix(row, *first, length)) return false;
            if (first != nullptr) continue;
            first = &row;
            for (int32_t at = group.prefix; at >= 0;) {
                const PlanPrefix &prefix = plan.prefixes[static_cast<size_t>(at)];
                const TokenRow &has = rows[static_cast<size_t>(prefix.row)];
                if (has.tokens == nullptr || has.length < prefix.length ||
                    !same_prefix(has, row, prefix.length)) {
                    return false;
                }
                at = prefix.parent;
            }
        }
    }
    return true;
}

} // namespace

bool is_plan_of(const Plan &plan, std::span<const TokenRow> rows, const PlanOptions &options) {
    if (!same_options(plan.options, options)) return false;
    if (plan.row_count() != static_cast<int64_t>(rows.size())) return false;
    for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].tokens == nullptr) continue;
        if (rows[i].length != plan.lengths[i] ||
            token_fingerprint({rows[i].tokens, static_cast<size_t>(rows[i].length)},
                              rows[i].salt) != plan.fingerprints[i]) {
            return false;
        }
    }
    return prefixes_hold(plan, rows);
}

Plan renumbered(const Plan &plan, size_t first_group, std::span<const int64_t> number,
                int64_t rows) {
    Plan out;
    out.options = plan.options;
    out.options.self_contained = false;
    out.seconds = plan.seconds;
    out.fingerprints.assign(static_cast<size_t>(rows), token_fingerprint({}, 0));
    out.lengths.assign(static_cast<size_t>(rows), 0);
    std::vector<int32_t> taken(plan.prefixes.size(), -1);
    std::vector<bool> numbered(static_cast<size_t>(rows));
    for (size_t g = first_group; g < plan.groups.size(); ++g) {
        const PlanGroup &group = plan.groups[g];
        const int64_t begin = out.row_count();
        for (int64_t i = group.row_begin; i < group.row_end; ++i) {
            const auto old_row = static_cast<size_t>(plan.rows[static_cast<size_t>(i)]);
            if (number[old_row] < 0) continue;
            const auto row = static_cast<size_t>(number[old_row]);
            out.rows.push_back(number[old_row]);
            out.fingerprints[row] = plan.fingerprints[old_row];
            out.lengths[row] = plan.lengths[old_row];
            numbered[row] = true;
            ++out.reused_rows;
        }
        const int64_t end = out.row_count();
        if (begin == end) continue;
        // A single row shares nothing.
        const int32_t prefix = end - begin == 1 ? -1
                                                : take_prefix(plan, group.prefix, out.rows.back(),
                                                              &taken, &out.prefixes);
        out.groups.push_back({prefix, begin, end});
    }
    for (int64_t row = 0; row < rows; ++row) {
        if (numbered[static_cast<size_t>(row)]) continue;
        out.groups.push_back({-1, out.row_count(), out.row_count() + 1});
        out.rows.push_back(row);
    }
    return out;
}

Plan joined(Plan first, const Plan &second) {
    const int64_t rows = first.row_count();
    const auto prefixes = static_cast<int32_t>(first.prefixes.size());
    first.options = second.options;
    first.reused_rows += second.reused_rows;
    first.seconds = second.seconds;
    for (const PlanPrefix &prefix : second.prefixes) {
        const int32_t parent = prefix.parent < 0 ? -1 : prefix.parent + prefixes;
        first.prefixes.push_back({prefix.row + rows, prefix.length, parent});
    }
    for (const PlanGroup &group : second.groups) {
        const int32_t prefix = group.prefix < 0 ? -1 : group.prefix + prefixes;
        first.groups.push_back({prefix, group.row_begin + rows, group.row_end + rows});
    }
    for (const int64_t row : second.rows) first.rows.push_back(row + rows);
    first.fingerprints.insert(first.fingerprints.end(), second.fingerprints.begin(),
                              second.fingerprints.end());
    first.lengths.insert(first.lengths.end(), second.lengths.begin(), second.lengths.end());
    return first;
}

} // namespace batchllm
