// batchllm_plan_*: plans without an engine.
#include "api/plan.h"

#include <algorithm>
#include <cinttypes>
#include <limits>

#include "api/boundary.h"
#include "runtime/columns.h"

using namespace batchllm;
using api::guard;
using api::guard_out;
using api::need;

namespace {

Result<batchllm_plan_options> known_options(const batchllm_plan_options *options) {
    batchllm_plan_options defaults;
    batchllm_plan_options_init(&defaults, sizeof defaults);
    return api::over_defaults(options, defaults);
}

Result<PlanOptions> read_options(const batchllm_plan_options &known) {
    if (known.enlarge < BATCHLLM_ENLARGE_NONE || known.enlarge > BATCHLLM_ENLARGE_PAPER) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "enlarge is %d: it must be %d to %d",
                     known.enlarge, BATCHLLM_ENLARGE_NONE, BATCHLLM_ENLARGE_PAPER);
    }
    if (known.levels < levels_auto || known.levels > 2) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "levels is %d: it must be 0, 1 or 2",
                     known.levels);
    }
    if (known.order < BATCHLLM_ORDER_DECODE_FIRST || known.order > BATCHLLM_ORDER_ARRIVAL) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "order is %d: it must be %d to %d",
                     known.order, BATCHLLM_ORDER_DECODE_FIRST, BATCHLLM_ORDER_ARRIVAL);
    }
    if (!(known.common_prefix_cost >= 0)) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "common_prefix_cost is %g: it must not be negative", known.common_prefix_cost);
    }
    if (known.min_prefix_tokens < 0) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "min_prefix_tokens is %d: it must not be negative", known.min_prefix_tokens);
    }
    PlanOptions read;
    read.order = known.order;
    if (known.min_prefix_tokens > 0) read.min_prefix_tokens = known.min_prefix_tokens;
    read.enlarge = known.enlarge;
    read.levels = known.levels;
    read.common_prefix_cost = std::min(known.common_prefix_cost, most_common_prefix_cost);
    read.self_contained = known.self_contained != 0;
    read.tokenizer_fingerprint = known.tokenizer_fingerprint;
    return read;
}

// salts: [rows] or null.
Result<std::vector<TokenRow>> read_rows(const Column<int32_t> &column, const uint64_t *salts) {
    std::vector<TokenRow> rows;
    rows.reserve(static_cast<size_t>(column.n));
    for (int64_t i = 0; i < column.n; ++i) {
        const std::span<const int32_t> row = column[i];
        if (row.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "row %" PRId64 " has %zu tokens, more than a plan takes", i, row.size());
        }
        const int32_t length = static_cast<int32_t>(row.size());
        rows.push_back(
            {row.data(), length, std::max(0, length - 1), salts == nullptr ? 0 : salts[i]});
    }
    return rows;
}

} // namespace

namespace batchllm::api {

Result<std::optional<PlanRows>> rows_of(const Plan &plan, const int32_t *tokens,
                                        const int64_t *offsets) {
    PlanRows rows;
    const int64_t count = plan.row_count();
    if (offsets == nullptr && tokens != nullptr) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "offsets is NULL and tokens is not");
    }
    if (offsets == nullptr) {
        if (plan.tokens.empty() && plan.logical_tokens() > 0) return std::optional<PlanRows>();
        rows.kept_offsets.push_back(0);
        for (const int32_t length : plan.lengths) {
            rows.kept_offsets.push_back(rows.kept_offsets.back() + length);
        }
        rows.column = {count, plan.tokens.data(), rows.kept_offsets.data()};
        return std::optional(std::move(rows));
    }
    RETURN_IF_ERROR(check_column("tokens", tokens, "offsets", offsets, count));
    rows.column = {count, tokens, offsets};
    for (int64_t i = 0; i < count; ++i) {
        const int32_t length = plan.lengths[static_cast<size_t>(i)];
        if (static_cast<int64_t>(rows.column[i].size()) == length) continue;
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "row %" PRId64 " has %zu tokens, and the plan's has %d", i,
                     rows.column[i].size(), length);
    }
    return std::optional(std::move(rows));
}

} // namespace batchllm::api

extern "C" {

int32_t batchllm_plan_create(int64_t n, const int32_t *tokens, const int64_t *offsets,
                             const int32_t *decode_lengths, const batchllm_plan_options *options,
                             const batchllm_plan *previous, batchllm_plan **out) {
    return guard_out(out, [&]() -> Status {
        RETURN_IF_ERROR(check_column("tokens", tokens, "offsets", offsets, n));
        ASSIGN_OR_RETURN(const batchllm_plan_options known, known_options(options));
        ASSIGN_OR_RETURN(const PlanOptions read, read_options(known));
        ASSIGN_OR_RETURN(const std::vector<TokenRow> rows,
                         read_rows({n, tokens, offsets}, known.salts));
        std::span<const int32_t> lengths;
        if (decode_lengths != nullptr) lengths = {decode_lengths, static_cast<size_t>(n)};
        ASSIGN_OR_RETURN(Plan plan, make_plan(rows, lengths, read,
                                              previous == nullptr ? nullptr : &previous->plan));
        *out = api::make_plan_handle(std::move(plan)).release();
        return {};
    });
}

void batchllm_plan_destroy(batchllm_plan *plan) { delete plan; }

int32_t batchllm_plan_save(const batchllm_plan *plan, const char *path) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("plan", plan));
        RETURN_IF_ERROR(need("path", path));
        return save_plan(plan->plan, path);
    });
}

int32_t batchllm_plan_load(const char *path, batchllm_plan **out) {
    return guard_out(out, [&]() -> Status {
        RETURN_IF_ERROR(need("path", path));
        ASSIGN_OR_RETURN(Plan plan, load_plan(path));
        *out = api::make_plan_handle(std::move(plan)).release();
        return {};
    });
}

int32_t batchllm_plan_get_stats(const batchllm_plan *handle, batchllm_plan_stats *stats) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("plan", handle));
        RETURN_IF_ERROR(need("stats", stats));
        const Plan &plan = handle->plan;
        batchllm_plan_stats full{};
        full.struct_size = sizeof full;
        full.enlarge = plan.options.enlarge;
        full.levels = plan.options.levels;
        full.self_contained = plan.options.self_contained ? 1 : 0;
        full.rows = plan.row_count();
        for (const PlanGroup &group : plan.groups) {
            const int64_t rows = group.row_end - group.row_begin;
            full.largest_group = std::max(full.largest_group, rows);
            if (group.prefix < 0) continue;
            ++full.groups;
            full.grouped_rows += rows;
            const int32_t length = plan.prefixes[static_cast<size_t>(group.prefix)].length;
            full.longest_prefix = std::max<int64_t>(full.longest_prefix, length);
        }
        full.reused_rows = plan.reused_rows;
        full.known_rows = std::max(plan.known_rows, plan.reused_rows);
        full.logical_tokens = plan.logical_tokens();
        full.processed_tokens = plan.processed_tokens();
        full.saving_ratio = plan.saving_ratio();
        full.seconds = plan.seconds;
        full.tokenizer_fingerprint = plan.options.tokenizer_fingerprint;
        return api::copy_out("stats", &full, sizeof full, stats);
    });
}

int32_t batchllm_plan_get_advice(const batchllm_plan *plan, batchllm_plan_advice *advice) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("plan", plan));
        RETURN_IF_ERROR(need("advice", advice));
        const PlanAdvice &of = plan->plan.advice;
        batchllm_plan_advice full{};
        full.struct_size = sizeof full;
        full.kind = of.kind;
        full.rows = of.rows;
        full.common_tokens = of.common_tokens;
        full.row = of.row;
        full.begin = of.begin;
        full.end = of.end;
        full.saving_ratio = of.saving_ratio;
        full.possible_ratio = of.possible_ratio;
        full.text = plan->advice.c_str();
        return api::copy_out("advice", &full, sizeof full, advice);
    });
}

int64_t batchllm_plan_group_count(const batchllm_plan *plan) {
    return plan == nullptr ? 0 : static_cast<int64_t>(plan->plan.groups.size());
}

int32_t batchllm_plan_group(const batchllm_plan *handle, int64_t group,
                            batchllm_plan_group_info *info) {
    return guard([&]() -> Status {
        RETURN_IF_ERROR(need("plan", handle));
        RETURN_IF_ERROR(need("info", info));
        const Plan &plan = handle->plan;
        if (group < 0 || group >= static_cast<int64_t>(plan.groups.size())) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "group is %" PRId64 ": the plan has %zu groups", group,
                         plan.groups.size());
        }
        const PlanGroup &of = plan.groups[static_cast<size_t>(group)];
        batchllm_plan_group_info full{};
        full.struct_size = sizeof full;
        if (of.prefix >= 0) {
            const PlanPrefix &prefix = plan.prefixes[static_cast<size_t>(of.prefix)];
            full.prefix_tokens = prefix.length;
            if (prefix.parent >= 0) {
                full.common_prefix_tokens =
                    plan.prefixes[static_cast<size_t>(prefix.parent)].length;
            }
        }
        full.row_count = of.row_end - of.row_begin;
        full.rows = plan.rows.data() + of.row_begin;
        return api::copy_out("info", &full, sizeof full, info);
    });
}

} // extern "C"
