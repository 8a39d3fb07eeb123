// Prompts -> groups of rows that share a prefix, in scheduling order. A plan knows tokens and
// groups but nothing about models or memory.
//
// Always: every row is in exactly one group; a group's prefix is a prefix of each of its rows and
// at most as long as each row's shareable part; a prefix's parent is a proper prefix of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace batchllm {

// One prompt, borrowed. Its first `shareable` tokens may be computed once for several rows; the
// others may not. At least the last token is not shareable, because each row needs its own logits
// there.
struct TokenRow {
    const int32_t *tokens; // [length]
    int32_t length;
    int32_t shareable; // in [0, length)
    // Represents everything except the tokens that the row's keys and values depend on; 0: nothing.
    // Tokens and salt together identify the row: rows with different salts share nothing and are
    // never equal.
    uint64_t salt = 0;
};

// For PlanOptions::levels: prefixes share those common prefixes that save more than reading them
// costs.
constexpr int32_t levels_auto = 0;
// Values of PlanOptions::common_prefix_cost above this have no further effect.
constexpr double most_common_prefix_cost = 1024;

struct PlanOptions {
    int32_t enlarge = BATCHLLM_ENLARGE_OPTIMAL;
    // 1: prefixes stand alone; 2: they may have a parent; or levels_auto
    int32_t levels = 1;
    int32_t order = BATCHLLM_ORDER_DECODE_FIRST;
    // Shorter prefixes are not shared: they would save at most a page, and would put all rows that
    // start alike into one group (docs/planning.md). At least 1.
    int32_t min_prefix_tokens = 16;
    bool self_contained = false;
    uint64_t tokenizer_fingerprint = 0;
    // For levels_auto: the cost of a common prefix for each token below it, in computed tokens
    // (docs/planning.md), at most most_common_prefix_cost. 0: unknown, so there are no common
    // prefixes. Not stored in the plan.
    double common_prefix_cost = 0;
};

// The first `length` tokens of row `row`, computed once for all groups and prefixes that refer to
// it.
struct PlanPrefix {
    int64_t row;
    int32_t length;
    int32_t parent; // index of the prefix that it continues, smaller than its own; or -1
};

struct PlanGroup {
    int32_t prefix;    // index into prefixes, or -1 for a single row that shares nothing
    int64_t row_begin; // its rows are Plan::rows[row_begin, row_end), longest decodes first
    int64_t row_end;
};

// How much more the rows could share if the parts of their texts were in another order
// (batchllm_plan_advice).
struct PlanAdvice {
    int32_t kind = BATCHLLM_ADVICE_NONE; // if NONE, the other fields are not set
    int64_t rows = 0;                    // rows examined
    int64_t common_tokens = 0;
    int64_t row = 0; // the example: this row's tokens [begin, end)
    int64_t begin = 0;
    int64_t end = 0;
    double saving_ratio = 0;
    double possible_ratio = 0;

    // One or two sentences on one line; "" for NONE. row_name: how to refer to `row`; empty: by its
    // number.
    std::string text(const std::string &row_name) const;
    std::string text() const { return text("row " + std::to_string(row)); }
};

struct Plan {
    PlanOptions options;
    std::vector<PlanPrefix> prefixes;
    std::vector<PlanGroup> groups;      // in scheduling order
    std::vector<int64_t> rows;          // a permutation of the row numbers
    std::vector<uint64_t> fingerprints; // [rows] hash of each row's salt and tokens, never 0
    std::vector<int32_t> lengths;       // [rows] prompt lengths
    std::vector<int32_t> tokens; // if self-contained: the tokens of all rows, in row order; else
                                 // empty
    std::vector<uint64_t> salts; // [rows] if self-contained and not all are 0; else empty
    int64_t reused_rows = 0;     // in groups kept from the previous plan
    int64_t known_rows = 0;      // that the previous plan has, if this one was made from it
    double seconds = 0;          // spent on planning
    PlanAdvice advice;

    int64_t row_count() const { return static_cast<int64_t>(rows.size()); }
    int64_t logical_tokens() const;   // sum of prompt lengths
    int64_t processed_tokens() const; // each prefix's tokens beyond its parent, once, plus the
                                      // rows' own tokens
    double saving_ratio() const;      // 1 - processed / logical; BatchLLM, Eq. 2
};

// Plans fewer than 2^31 rows. decode_lengths: [rows] expected tokens to generate; empty: the same
// for all. previous: a plan that was made or loaded. Rows that are also in it keep their groups;
// the other rows are planned again and may join those groups. The previous plan is not trusted:
// each prefix that is kept is compared with the salt and the tokens of each of its rows.
Result<Plan> make_plan(std::span<const TokenRow> rows, std::span<const int32_t> decode_lengths,
                       const PlanOptions &options, const Plan *previous);

// Examines the tokens of only a few rows, however many the plan has.
PlanAdvice advise(std::span<const TokenRow> rows, const Plan &plan);

// Whether the plan can be used as it is: it was made with these options for these rows in this
// order. Rows without tokens may be missing from it. Its prefixes are compared with the rows' salts
// and tokens.
bool is_plan_of(const Plan &plan, std::span<const TokenRow> rows, const PlanOptions &options);

// The plan's groups from first_group on, in their order, with renumbered rows. number: row of the
// plan -> new row in [0, rows), or -1 to leave it out. New rows to which no row is mapped are alone
// and empty; all others count as reused. The result has no tokens of its own.
Plan renumbered(const Plan &plan, size_t first_group, std::span<const int64_t> number,
                int64_t rows);

// The groups of `first`, then those of `second`. Rows of `first` keep their numbers; those of
// `second` follow. Neither plan may contain tokens. The options are those of `second`.
Plan joined(Plan first, const Plan &second);

// Whether both rows have the same salt and start with the same `length` tokens. Both are at least
// that long.
bool same_prefix(const TokenRow &a, const TokenRow &b, int32_t length);

// XXH3-64 of the tokens as little-endian int32, seeded with the salt. A hash of 0 becomes 1.
uint64_t token_fingerprint(std::span<const int32_t> tokens, uint64_t salt);

// The format is in docs/plan-file.md. Errors name the path.
Status save_plan(const Plan &plan, const std::string &path);
Result<Plan> load_plan(const std::string &path);

} // namespace batchllm
