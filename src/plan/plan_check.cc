#include <algorithm>
#include <vector>

#include "plan/draft.h"
#include "plan/plan_file.h"

namespace batchllm {
namespace {

constexpr int32_t bad_plan = BATCHLLM_ERROR_PLAN_FORMAT;

Status check_options(const PlanOptions &options) {
    if (options.enlarge < BATCHLLM_ENLARGE_NONE || options.enlarge > BATCHLLM_ENLARGE_PAPER) {
        return error(bad_plan, "options: unknown enlarge %d", options.enlarge);
    }
    if (options.order < BATCHLLM_ORDER_DECODE_FIRST || options.order > BATCHLLM_ORDER_ARRIVAL) {
        return error(bad_plan, "options: unknown order %d", options.order);
    }
    if (options.levels < levels_auto || options.levels > 2) {
        return error(bad_plan, "options: %d levels", options.levels);
    }
    if (options.min_prefix_tokens < 1) {
        return error(bad_plan, "options: least prefix of %d tokens", options.min_prefix_tokens);
    }
    return {};
}

Status check_prefixes(const Plan &plan) {
    for (size_t i = 0; i < plan.prefixes.size(); ++i) {
        const PlanPrefix &prefix = plan.prefixes[i];
        if (prefix.row < 0 || prefix.row >= plan.row_count()) {
            return error(bad_plan, "prefix %zu: no row %lld", i,
                         static_cast<long long>(prefix.row));
        }
        const int32_t row_length = plan.lengths[static_cast<size_t>(prefix.row)];
        if (prefix.length < plan.options.min_prefix_tokens || prefix.length > row_length) {
            return error(bad_plan, "prefix %zu: %d tokens of a row of %d", i, prefix.length,
                         row_length);
        }
        if (prefix.parent < -1 || prefix.parent >= static_cast<int64_t>(i)) {
            return error(bad_plan, "prefix %zu: parent %d", i, prefix.parent);
        }
        if (prefix.parent >= 0) {
            const PlanPrefix &parent = plan.prefixes[static_cast<size_t>(prefix.parent)];
            if (parent.length >= prefix.length) {
                return error(bad_plan, "prefix %zu: %d tokens, its parent %d", i, prefix.length,
                             parent.length);
            }
        }
    }
    return {};
}

Status check_groups(const Plan &plan) {
    std::vector<bool> seen(plan.rows.size());
    int64_t place = 0;
    for (size_t i = 0; i < plan.groups.size(); ++i) {
        const PlanGroup &group = plan.groups[i];
        if (group.row_begin != place || group.row_end <= place ||
            group.row_end > plan.row_count()) {
            return error(bad_plan, "group %zu: rows [%lld, %lld)", i,
                         static_cast<long long>(group.row_begin),
                         static_cast<long long>(group.row_end));
        }
        if (group.prefix < -1 || group.prefix >= static_cast<int64_t>(plan.prefixes.size())) {
            return error(bad_plan, "group %zu: no prefix %d", i, group.prefix);
        }
        if (group.prefix < 0 && group.row_end - group.row_begin != 1) {
            return error(bad_plan, "group %zu: several rows without a prefix", i);
        }
        const int32_t shared =
            group.prefix < 0 ? -1 : plan.prefixes[static_cast<size_t>(group.prefix)].length;
        for (; place < group.row_end; ++place) {
            const int64_t row = plan.rows[static_cast<size_t>(place)];
            if (row < 0 || row >= plan.row_count() || seen[static_cast<size_t>(row)]) {
                return error(bad_plan, "group %zu: row %lld is not there or is there twice", i,
                             static_cast<long long>(row));
            }
            seen[static_cast<size_t>(row)] = true;
            if (plan.lengths[static_cast<size_t>(row)] <= shared) {
                return error(bad_plan, "group %zu: row %lld of %d tokens has no own token after %d",
                             i, static_cast<long long>(row), plan.lengths[static_cast<size_t>(row)],
                             shared);
            }
        }
    }
    if (place != plan.row_count()) {
        return error(bad_plan, "groups have %lld of %lld rows", static_cast<long long>(place),
                     static_cast<long long>(plan.row_count()));
    }
    return {};
}

Status check_tokens(const Plan &plan) {
    std::vector<int64_t> offsets(plan.rows.size() + 1);
    for (size_t i = 0; i < plan.lengths.size(); ++i) offsets[i + 1] = offsets[i] + plan.lengths[i];
    if (offsets.back() != static_cast<int64_t>(plan.tokens.size())) {
        return error(bad_plan, "%zu tokens in rows of %lld", plan.tokens.size(),
                     static_cast<long long>(offsets.back()));
    }
    if (!plan.salts.empty() && plan.salts.size() != plan.rows.size()) {
        return error(bad_plan, "%zu salts of %zu rows", plan.salts.size(), plan.rows.size());
    }
    const auto salt = [&](size_t row) { return plan.salts.empty() ? 0 : plan.salts[row]; };
    for (size_t i = 0; i < plan.lengths.size(); ++i) {
        const std::span<const int32_t> row(plan.tokens.data() + offsets[i],
                                           static_cast<size_t>(plan.lengths[i]));
        if (token_fingerprint(row, salt(i)) != plan.fingerprints[i]) {
            return error(bad_plan,
                         "row %zu: a salt and tokens that are not those of its fingerprint", i);
        }
    }
    const auto starts_alike = [&](int64_t a, int64_t b, int32_t length) {
        const int32_t *x = plan.tokens.data() + offsets[static_cast<size_t>(a)];
        return salt(static_cast<size_t>(a)) == salt(static_cast<size_t>(b)) &&
               std::equal(x, x + length, plan.tokens.data() + offsets[static_cast<size_t>(b)]);
    };
    for (size_t i = 0; i < plan.groups.size(); ++i) {
        const PlanGroup &group = plan.groups[i];
        if (group.prefix < 0) continue;
        const PlanPrefix &prefix = plan.prefixes[static_cast<size_t>(group.prefix)];
        for (int64_t k = group.row_begin; k < group.row_end; ++k) {
            const int64_t row = plan.rows[static_cast<size_t>(k)];
            if (!starts_alike(row, prefix.row, prefix.length)) {
                return error(bad_plan, "group %zu: row %lld does not start with the prefix", i,
                             static_cast<long long>(row));
            }
        }
    }
    for (size_t i = 0; i < plan.prefixes.size(); ++i) {
        const PlanPrefix &prefix = plan.prefixes[i];
        if (prefix.parent < 0) continue;
        const PlanPrefix &parent = plan.prefixes[static_cast<size_t>(prefix.parent)];
        if (!starts_alike(prefix.row, parent.row, parent.length)) {
            return error(bad_plan, "prefix %zu: does not start with its parent", i);
        }
    }
    return {};
}

} // namespace

Status check_plan_structure(const Plan &plan) {
    if (plan.lengths.size() != plan.rows.size() || plan.fingerprints.size() != plan.rows.size()) {
        return error(bad_plan, "%zu rows, %zu lengths, %zu fingerprints", plan.rows.size(),
                     plan.lengths.size(), plan.fingerprints.size());
    }
    RETURN_IF_ERROR(check_options(plan.options));
    for (size_t i = 0; i < plan.rows.size(); ++i) {
        if (plan.lengths[i] < 0) return error(bad_plan, "row %zu: %d tokens", i, plan.lengths[i]);
        if (plan.fingerprints[i] == 0) return error(bad_plan, "row %zu: fingerprint 0", i);
    }
    RETURN_IF_ERROR(check_prefixes(plan));
    return check_groups(plan);
}

Status check_plan(const Plan &plan) {
    RETURN_IF_ERROR(check_plan_structure(plan));
    if (plan.options.self_contained) return check_tokens(plan);
    if (plan.tokens.empty() && plan.salts.empty()) return {};
    return error(bad_plan, "tokens or salts in a plan that is not self-contained");
}

} // namespace batchllm
