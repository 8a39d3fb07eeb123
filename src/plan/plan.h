// Prompts -> groups of rows that share a prefix, in the order in which they are to be scheduled.
// A plan knows tokens and groups; it knows nothing about models or memory.
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

// One prompt, borrowed. Its first `shareable` tokens may be computed for several rows at once. The
// others never are: at least the last token, because each row needs its own logits there.
struct TokenRow {
    const int32_t *tokens; // [length]
    int32_t length;
    int32_t shareable; // in [0, length)
    // A number for whatever else its keys and values depend on; 0: on the tokens alone. Tokens and salt
    // identify the row: rows with different salts share nothing and are never treated as equal.
    uint64_t salt = 0;
};

// PlanOptions::levels: prefixes share the heads that save more than it costs to read them.
constexpr int32_t levels_auto = 0;
// The greatest PlanOptions::head_cost that has an effect of its own.
constexpr double most_head_cost = 1024;

struct PlanOptions {
    int32_t enlarge = BATCHLLM_ENLARGE_OPTIMAL;
    // 1: prefixes stand alone; 2: they may have a parent; n: n - 1 ancestors; or levels_auto
    int32_t levels = 1;
    int32_t order = BATCHLLM_ORDER_DECODE_FIRST;
    // Shorter prefixes are not shared: they would save a page at most, and put all rows that start
    // alike into one group (docs/planning.md). At least 1.
    int32_t min_prefix_tokens = 16;
    bool self_contained = false;
    uint64_t tokenizer_fingerprint = 0;
    // With levels_auto: what each token below a head pays for it, in computed tokens (docs/planning.md), at most
    // most_head_cost. 0: not known, so there are no heads. A plan does not keep it.
    double head_cost = 0;
};

// The first `length` tokens of row `row`, computed once for all groups and prefixes that name it.
struct PlanPrefix {
    int64_t row;
    int32_t length;
    int32_t parent; // index of the prefix whose tokens it continues, or -1; less than its own
};

struct PlanGroup {
    int32_t prefix;    // index into prefixes, or -1: a single row that shares nothing
    int64_t row_begin; // its rows are Plan::rows[row_begin, row_end), long decodes first
    int64_t row_end;
};

// How much more rows could share if their texts were put together in another order (batchllm_plan_advice).
struct PlanAdvice {
    int32_t kind = BATCHLLM_ADVICE_NONE; // with NONE the rest is not set
    int64_t rows = 0;                    // looked at
    int64_t common_tokens = 0;
    int64_t row = 0; // whose tokens [begin, end) are an example
    int64_t begin = 0;
    int64_t end = 0;
    double saving_ratio = 0;
    double possible_ratio = 0;

    // A sentence or two, in one line; "" for NONE. row_name: what to call `row`, if not by its number.
    std::string text(const std::string &row_name) const;
    std::string text() const { return text("row " + std::to_string(row)); }
};

struct Plan {
    PlanOptions options;
    std::vector<PlanPrefix> prefixes;
    std::vector<PlanGroup> groups;      // in scheduling order
    std::vector<int64_t> rows;          // a permutation of the row numbers
    std::vector<uint64_t> fingerprints; // [rows] of each row's salt and tokens, never 0
    std::vector<int32_t> lengths;       // [rows] prompt lengths
    std::vector<int32_t> tokens; // self-contained: all rows' tokens, in row order; else empty
    std::vector<uint64_t> salts; // [rows] self-contained, if not all are 0; else empty
    int64_t reused_rows = 0;     // in groups kept from the previous plan
    double seconds = 0;          // spent on planning
    PlanAdvice advice;

    int64_t row_count() const { return static_cast<int64_t>(rows.size()); }
    int64_t logical_tokens() const;   // sum of prompt lengths
    int64_t processed_tokens() const; // each prefix beyond its parent once, plus rows' own tokens
    double saving_ratio() const;      // 1 - processed / logical; BatchLLM, Eq. 2
};

// Plans fewer than 2^31 rows. decode_lengths: [rows] expected tokens to generate, or empty: all equal.
// previous: a plan that was made or loaded. Rows of equal identity keep their groups; the others are
// planned again and may join these. The previous plan is never trusted: each prefix that is kept is
// compared with the salt and the tokens of each of its rows.
Result<Plan> make_plan(std::span<const TokenRow> rows, std::span<const int32_t> decode_lengths,
                       const PlanOptions &options, const Plan *previous);

// Looks at the tokens of a few rows only, however many the plan has.
PlanAdvice advise(std::span<const TokenRow> rows, const Plan &plan);

// Whether the plan can be used as it is: made with these options, of these rows in this order. Rows
// without tokens may be missing from it. Its prefixes are compared with the rows' salts and tokens.
bool is_plan_of(const Plan &plan, std::span<const TokenRow> rows, const PlanOptions &options);

// The plan's groups from first_group on, in their order, with the rows that are renumbered. number: the
// plan's row -> new row in [0, rows), or -1 to leave it out. New rows that get no row are alone and
// empty; all others count as reused. The result has no tokens of its own.
Plan renumbered(const Plan &plan, size_t first_group, std::span<const int64_t> number,
                int64_t rows);

// The groups of both plans, those of `first` first. Its rows keep their numbers, and the rows of
// `second` follow. Neither plan may hold tokens. The options are those of `second`.
Plan joined(Plan first, const Plan &second);

// Whether both rows start with the same `length` tokens and have the same salt. Neither is shorter.
bool same_prefix(const TokenRow &a, const TokenRow &b, int32_t length);

// XXH3-64 of the tokens as little-endian int32, the salt as its seed; 1 instead of 0.
uint64_t token_fingerprint(std::span<const int32_t> tokens, uint64_t salt);

// docs/plan-file.md. Both name the path in their errors.
Status save_plan(const Plan &plan, const std::string &path);
Result<Plan> load_plan(const std::string &path);

} // namespace batchllm
