// src/plan: from rows to groups in order, and plans made from earlier plans.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
extern "C" { // which cmocka 1.1.5 lacks
#include <cmocka.h>
}

#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <vector>
#include <xxhash.h>

#include "plan/checks.h"
#include "plan/plan.h"
#include "seed.h"

using namespace batchllm;

namespace {

PlanOptions with(int32_t enlarge, int32_t levels = 1, int32_t min_prefix_tokens = 1) {
    PlanOptions options;
    options.enlarge = enlarge;
    options.levels = levels;
    options.min_prefix_tokens = min_prefix_tokens;
    options.common_prefix_cost = 3.0 / 16;
    return options;
}

Plan plan_of(const TokenRows &rows, const PlanOptions &options, const Plan *previous = nullptr,
             std::vector<int32_t> decode = {}) {
    return make_plan(views(rows), decode, options, previous).value();
}

std::mt19937_64 seeded() { return std::mt19937_64(seed_of_run()); }

// `shared` tokens that depend on `which`, then `own` that depend on `row` as well.
std::vector<int32_t> row_of(int which, int shared, int row, int own) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < shared; ++i) tokens.push_back(which * 1000 + i);
    for (int i = 0; i < own; ++i) tokens.push_back(1000000 + row * 1000 + i);
    return tokens;
}

// The rows of the group that row `row` is in.
std::vector<int64_t> companions(const Plan &plan, int64_t row) {
    for (const PlanGroup &group : plan.groups) {
        const std::vector<int64_t> rows(plan.rows.begin() + group.row_begin,
                                        plan.rows.begin() + group.row_end);
        if (std::find(rows.begin(), rows.end(), row) != rows.end()) return rows;
    }
    return {};
}

int32_t prefix_length(const Plan &plan, int64_t row) {
    for (const PlanGroup &group : plan.groups) {
        for (int64_t i = group.row_begin; i < group.row_end; ++i) {
            if (plan.rows[static_cast<size_t>(i)] != row) continue;
            return group.prefix < 0 ? 0 : plan.prefixes[static_cast<size_t>(group.prefix)].length;
        }
    }
    return -1;
}

void no_rows_make_an_empty_plan(void **) {
    const Plan plan = plan_of({}, PlanOptions());
    assert_int_equal(plan.row_count(), 0);
    assert_int_equal(plan.groups.size(), 0);
    assert_true(plan.saving_ratio() == 0);
}

void one_row_is_alone(void **) {
    const Plan plan = plan_of({{1, 2, 3}}, with(BATCHLLM_ENLARGE_OPTIMAL));
    assert_int_equal(plan.groups.size(), 1);
    assert_int_equal(plan.groups[0].prefix, -1);
    assert_int_equal(plan.processed_tokens(), 3);
}

void empty_rows_and_rows_of_one_token_are_alone(void **) {
    const TokenRows rows = {{}, {7}, {7}, {}};
    const Plan plan = plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL));
    assert_string_equal(fault_of(plan, views(rows)).c_str(), "");
    assert_int_equal(plan.groups.size(), 4);
}

void equal_rows_share_all_but_their_last_token(void **) {
    const TokenRows rows(5, std::vector<int32_t>{1, 2, 3, 4});
    const Plan plan = plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL));
    assert_int_equal(plan.groups.size(), 1);
    assert_int_equal(plan.prefixes[0].length, 3);
    assert_int_equal(plan.processed_tokens(), 3 + 5);
    assert_true(plan.fingerprints[0] == plan.fingerprints[4]);
}

void nothing_is_shared_beyond_a_rows_shareable_part(void **) {
    const TokenRows rows = {{1, 2, 3, 4, 5}, {1, 2, 3, 4, 6}, {1, 2, 3, 4, 7}};
    auto limited = views(rows);
    limited[1].shareable = 2;
    const Plan plan = make_plan(limited, {}, with(BATCHLLM_ENLARGE_OPTIMAL), nullptr).value();
    assert_string_equal(fault_of(plan, limited).c_str(), "");
    // 3 rows sharing 2 tokens (saves 4) and 2 rows sharing 4 (saves 4) are equally good; the former
    // has all rows.
    assert_int_equal(plan.processed_tokens(), 15 - 4);
}

void without_enlarging_every_row_is_alone(void **) {
    const TokenRows rows(5, std::vector<int32_t>(50, 1));
    const Plan plan = plan_of(rows, with(BATCHLLM_ENLARGE_NONE));
    assert_int_equal(plan.groups.size(), 5);
    assert_int_equal(plan.prefixes.size(), 0);
    assert_true(plan.saving_ratio() == 0);
}

void random_plans_hold_what_the_header_says(void **) {
    std::mt19937_64 random = seeded();
    for (int i = 0; i < 600; ++i) {
        const TokenRows rows = random_rows(random, 1 + static_cast<int>(random() % 60),
                                           1 + static_cast<int>(random() % 4), 40);
        for (const int32_t enlarge :
             {BATCHLLM_ENLARGE_NONE, BATCHLLM_ENLARGE_OPTIMAL, BATCHLLM_ENLARGE_PAPER}) {
            PlanOptions options = with(enlarge, 1 + static_cast<int32_t>(random() % 3),
                                       1 + static_cast<int32_t>(random() % 6));
            options.order = static_cast<int32_t>(random() % 2);
            std::vector<int32_t> decode(random() % 2 ? rows.size() : 0);
            for (int32_t &length : decode) length = static_cast<int32_t>(random() % 100) - 10;
            const Plan plan = plan_of(rows, options, nullptr, decode);
            assert_string_equal(fault_of(plan, views(rows)).c_str(), "");
            assert_true(plan.processed_tokens() <= plan.logical_tokens());
        }
    }
}

void optimal_plan_computes_as_few_tokens_as_any_set_of_prefixes(void **) {
    std::mt19937_64 random = seeded();
    int checked = 0;
    for (int i = 0; i < 2000; ++i) {
        const TokenRows rows = random_rows(random, 2 + static_cast<int>(random() % 8),
                                           1 + static_cast<int>(random() % 3), 10);
        auto limited = i % 2 == 0 ? views(rows) : salted(random, views(rows));
        for (TokenRow &row : limited) {
            if (random() % 4 == 0)
                row.shareable = static_cast<int32_t>(random() % static_cast<uint64_t>(row.length));
        }
        const int32_t min_prefix_tokens = random() % 2 ? 1 : 3;
        const int64_t least = least_processed(limited, min_prefix_tokens);
        if (least < 0) continue;
        ++checked;
        const auto optimal = with(BATCHLLM_ENLARGE_OPTIMAL, 1, min_prefix_tokens);
        const auto paper = with(BATCHLLM_ENLARGE_PAPER, 1, min_prefix_tokens);
        const Plan plan = make_plan(limited, {}, optimal, nullptr).value();
        assert_string_equal(fault_of(plan, limited).c_str(), "");
        assert_int_equal(plan.processed_tokens(), least);
        assert_true(make_plan(limited, {}, paper, nullptr)->processed_tokens() >= least);
    }
    assert_true(checked > 400);
}

void rows_of_equal_tokens_and_different_salts_share_nothing(void **) {
    const TokenRows rows(6, std::vector<int32_t>(40, 1));
    auto apart = views(rows);
    for (size_t i = 0; i < 6; ++i) apart[i].salt = i % 3;
    for (const int32_t enlarge : {BATCHLLM_ENLARGE_OPTIMAL, BATCHLLM_ENLARGE_PAPER}) {
        const Plan plan = make_plan(apart, {}, with(enlarge, 2), nullptr).value();
        assert_string_equal(fault_of(plan, apart).c_str(), "");
        assert_int_equal(plan.groups.size(), 3);
        for (const int64_t i : {0, 1, 2}) {
            assert_true((companions(plan, i) == std::vector<int64_t>{i, i + 3}));
            assert_true(plan.fingerprints[static_cast<size_t>(i)] ==
                        plan.fingerprints[static_cast<size_t>(i) + 3]);
        }
        assert_true(plan.fingerprints[0] != plan.fingerprints[1]);
        assert_true(plan.fingerprints[1] != plan.fingerprints[2]);
        assert_int_equal(plan.processed_tokens(), 3 * (39 + 2));
    }
}

// The tokens that each salt's rows need separately add up to what all rows need together.
void random_plans_of_salted_rows_hold_what_the_header_says(void **) {
    std::mt19937_64 random = seeded();
    int shared = 0;
    for (int i = 0; i < 600; ++i) {
        const TokenRows rows = random_rows(random, 1 + static_cast<int>(random() % 60),
                                           1 + static_cast<int>(random() % 4), 40);
        const std::vector<TokenRow> all = salted(random, views(rows));
        for (const int32_t enlarge : {BATCHLLM_ENLARGE_OPTIMAL, BATCHLLM_ENLARGE_PAPER}) {
            const PlanOptions options = with(enlarge, 1 + static_cast<int32_t>(random() % 3),
                                             1 + static_cast<int32_t>(random() % 6));
            const Plan plan = make_plan(all, {}, options, nullptr).value();
            assert_string_equal(fault_of(plan, all).c_str(), "");
            std::map<uint64_t, std::vector<TokenRow>> by_salt;
            for (const TokenRow &row : all) by_salt[row.salt].push_back(row);
            int64_t apart = 0;
            for (const auto &[salt, some] : by_salt) {
                apart += make_plan(some, {}, options, nullptr)->processed_tokens();
            }
            assert_int_equal(plan.processed_tokens(), apart);
            shared += plan.processed_tokens() < plan.logical_tokens();
        }
    }
    assert_true(shared > 600);
}

// Plans saved before there were salts keep their rows.
void the_fingerprint_under_salt_0_is_that_of_the_tokens_alone(void **) {
    for (size_t length : {0, 1, 3, 40, 100, 1000}) {
        const std::vector<int32_t> tokens(length, 5);
        assert_true(token_fingerprint(tokens, 0) ==
                    XXH3_64bits(tokens.data(), tokens.size() * sizeof(int32_t)));
        assert_true(token_fingerprint(tokens, 0) != token_fingerprint(tokens, 1));
        assert_true(token_fingerprint(tokens, 1) != token_fingerprint(tokens, uint64_t{1} << 63));
    }
}

void prefixes_below_the_minimum_are_not_shared(void **) {
    // All rows start with the same token; two of them share 20.
    TokenRows rows = {row_of(1, 20, 0, 5), row_of(1, 20, 1, 5)};
    for (int i = 2; i < 6; ++i) {
        rows.push_back(row_of(1, 1, i, 30));
    }
    const Plan plan = plan_of(rows, PlanOptions());
    assert_int_equal(prefix_length(plan, 0), 20);
    assert_int_equal(prefix_length(plan, 2), 0);
    const Plan all = plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL));
    assert_int_equal(prefix_length(all, 2), 1);
    assert_true(all.processed_tokens() < plan.processed_tokens());
}

void two_levels_compute_the_head_of_prefixes_once(void **) {
    TokenRows rows;
    for (int document = 0; document < 3; ++document) {
        for (int i = 0; i < 4; ++i) {
            auto row = row_of(9, 40, 0, 0);
            const auto rest = row_of(document, 60, document * 4 + i, 10);
            row.insert(row.end(), rest.begin(), rest.end());
            rows.push_back(row);
        }
    }
    const Plan one = plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL, 1));
    const Plan two = plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL, 2));
    assert_string_equal(fault_of(two, views(rows)).c_str(), "");
    assert_int_equal(one.processed_tokens(), 3 * 100 + 12 * 10);
    assert_int_equal(two.processed_tokens(), 40 + 3 * 60 + 12 * 10);
    assert_int_equal(two.groups.size(), one.groups.size());
    assert_int_equal(two.prefixes.size(), 4);
    assert_int_equal(two.prefixes[0].parent, -1);
    assert_int_equal(two.prefixes[0].length, 40);
}

void a_groups_prefix_can_be_the_head_of_another(void **) {
    // Many rows share 30 tokens; some of these share 300 more.
    TokenRows rows;
    for (int i = 0; i < 20; ++i) rows.push_back(row_of(1, 30, i, 10));
    for (int i = 20; i < 26; ++i) {
        auto row = row_of(1, 30, 0, 0);
        const auto rest = row_of(2, 300, i, 10);
        row.insert(row.end(), rest.begin(), rest.end());
        rows.push_back(row);
    }
    const Plan plan = plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL, 2));
    assert_string_equal(fault_of(plan, views(rows)).c_str(), "");
    assert_int_equal(plan.prefixes.size(), 2);
    assert_int_equal(plan.prefixes[1].parent, 0);
    assert_int_equal(plan.processed_tokens(), 30 + 300 + 26 * 10);
}

void a_second_level_never_computes_more_tokens_and_never_changes_groups(void **) {
    std::mt19937_64 random = seeded();
    int better = 0;
    for (int i = 0; i < 400; ++i) {
        const TokenRows rows = random_rows(random, 40, 1 + static_cast<int>(random() % 3), 60);
        const Plan one = plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL, 1));
        const Plan two = plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL, 2));
        assert_true(two.processed_tokens() <= one.processed_tokens());
        assert_true(one.rows == two.rows);
        assert_string_equal(fault_of(two, views(rows)).c_str(), "");
        better += two.processed_tokens() < one.processed_tokens();
    }
    assert_true(better > 50);
}

// Documents of 60 tokens after a head; four rows with 10 own tokens for each.
TokenRows documents_behind(int head, int documents, int32_t first_token = 0) {
    TokenRows rows;
    for (int document = 0; document < documents; ++document) {
        for (int i = 0; i < 4; ++i) {
            auto row = row_of(9 + first_token, head, 0, 0);
            const auto rest = row_of(20 + document, 60, first_token * 1000 + document * 4 + i, 10);
            row.insert(row.end(), rest.begin(), rest.end());
            rows.push_back(row);
        }
    }
    return rows;
}

// In sixteenths of a token: the computed tokens, plus 3 for each token that reads a head.
int64_t cost_of(const Plan &plan, const std::vector<int32_t> &decode) {
    int64_t cost = 16 * plan.processed_tokens();
    for (const PlanGroup &group : plan.groups) {
        if (group.prefix < 0) continue;
        const PlanPrefix &prefix = plan.prefixes[static_cast<size_t>(group.prefix)];
        if (prefix.parent < 0) continue;
        cost += 3 * (prefix.length - plan.prefixes[static_cast<size_t>(prefix.parent)].length);
        for (int64_t i = group.row_begin; i < group.row_end; ++i) {
            const auto row = static_cast<size_t>(plan.rows[static_cast<size_t>(i)]);
            cost += 3 * (plan.lengths[row] - prefix.length);
            cost += 3 * (decode.empty() ? 1 : std::max(0, decode[row]));
        }
    }
    return cost;
}

int heads_of(const Plan &plan) {
    std::vector<char> head(plan.prefixes.size());
    for (const PlanPrefix &prefix : plan.prefixes) {
        if (prefix.parent >= 0) head[static_cast<size_t>(prefix.parent)] = 1;
    }
    return static_cast<int>(std::count(head.begin(), head.end(), 1));
}

void heads_that_cost_more_than_they_save_are_not_shared(void **) {
    // Below a document's head: its 60 own tokens and, for each of four rows, 10 tokens and those
    // that it generates.
    const PlanOptions by_cost = with(BATCHLLM_ENLARGE_OPTIMAL, levels_auto, 16);
    const TokenRows rows = documents_behind(40, 8);
    const auto head_of = [&](int32_t generated) {
        const Plan plan =
            plan_of(rows, by_cost, nullptr, std::vector<int32_t>(rows.size(), generated));
        assert_string_equal(fault_of(plan, views(rows)).c_str(), "");
        return heads_of(plan);
    };
    // Seven of eight documents save 40 tokens; eight pay for 60 + 4 * (10 + generated), at 3 / 16.
    assert_int_equal(head_of(21), 1); // 280 > 276
    assert_int_equal(head_of(22), 0); // 280 < 282
    // Nothing else differs.
    const std::vector<int32_t> many(rows.size(), 500);
    const Plan one = plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL, 1, 16), nullptr, many);
    const Plan plan = plan_of(rows, by_cost, nullptr, many);
    assert_true(plan.rows == one.rows);
    assert_int_equal(plan.prefixes.size(), one.prefixes.size());
    assert_int_equal(plan.processed_tokens(), one.processed_tokens());
}

void heads_by_cost_never_cost_more_than_all_or_none(void **) {
    std::mt19937_64 random = seeded();
    int heads = 0, fewer = 0;
    for (int i = 0; i < 600; ++i) {
        const TokenRows rows = random_rows(random, 40, 1 + static_cast<int>(random() % 3), 120);
        std::vector<int32_t> decode(i % 3 ? rows.size() : 0);
        for (int32_t &length : decode) length = static_cast<int32_t>(random() % 10) - 2;
        const auto made = [&](int32_t levels) {
            return plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL, levels, 1 + i % 9), nullptr,
                           decode);
        };
        const Plan one = made(1), two = made(2), by_cost = made(levels_auto);
        assert_string_equal(fault_of(by_cost, views(rows)).c_str(), "");
        assert_true(cost_of(by_cost, decode) <= cost_of(one, decode));
        assert_true(cost_of(by_cost, decode) <= cost_of(two, decode));
        assert_int_equal(by_cost.groups.size(), one.groups.size());
        heads += heads_of(by_cost);
        fewer += heads_of(by_cost) < heads_of(two);
        if (heads_of(by_cost) == 0) assert_true(by_cost.rows == one.rows);
    }
    assert_true(heads > 100 && fewer > 100);
}

void groups_below_a_head_that_pays_follow_each_other(void **) {
    // Documents that alternate between two heads; their rows generate different numbers of tokens.
    TokenRows rows;
    const TokenRows a = documents_behind(200, 6, 1), b = documents_behind(200, 6, 2);
    for (size_t i = 0; i < a.size(); ++i) {
        rows.push_back(a[i]);
        rows.push_back(b[i]);
    }
    std::vector<int32_t> decode(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) decode[i] = 5 + static_cast<int32_t>(i / 8 * 3 % 7);
    const auto changes = [&](int32_t levels, int32_t order) {
        PlanOptions options = with(BATCHLLM_ENLARGE_OPTIMAL, levels, 16);
        options.order = order;
        const Plan plan = plan_of(rows, options, nullptr, decode);
        assert_int_equal(plan.groups.size(), 12);
        assert_int_equal(heads_of(plan), 2);
        int count = 0;
        for (size_t g = 1; g < plan.groups.size(); ++g) {
            const auto head = [&](size_t i) {
                return plan.prefixes[static_cast<size_t>(plan.groups[i].prefix)].parent;
            };
            count += head(g) != head(g - 1);
        }
        return count;
    };
    assert_int_equal(changes(levels_auto, BATCHLLM_ORDER_DECODE_FIRST), 1);
    assert_true(changes(2, BATCHLLM_ORDER_DECODE_FIRST) > 1);
    assert_int_equal(changes(levels_auto, BATCHLLM_ORDER_ARRIVAL), 11);
}

void groups_with_most_to_decode_for_their_prompt_go_first(void **) {
    const TokenRows rows = {row_of(1, 100, 0, 10), row_of(2, 100, 1, 10), row_of(1, 100, 2, 10),
                            row_of(2, 100, 3, 10), row_of(3, 10, 4, 10)};
    // Group 1: 60 / 120. Group 2: 130 / 120. Row 4 alone: 20 / 20.
    const Plan plan = plan_of(rows, PlanOptions(), nullptr, {10, 30, 50, 100, 20});
    const std::vector<int64_t> expected = {3, 1, 4, 2, 0};
    assert_true(plan.rows == expected);
    PlanOptions arrival;
    arrival.order = BATCHLLM_ORDER_ARRIVAL;
    const std::vector<int64_t> by_first_row = {0, 2, 1, 3, 4};
    assert_true(plan_of(rows, arrival, nullptr, {10, 30, 50, 100, 20}).rows == by_first_row);
}

void groups_of_equal_ratio_keep_the_order_of_their_first_rows(void **) {
    TokenRows rows;
    for (int i = 0; i < 12; ++i) rows.push_back(row_of(i % 4, 50, i, 10));
    const Plan plan = plan_of(rows, PlanOptions());
    const std::vector<int64_t> expected = {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11};
    assert_true(plan.rows == expected);
}

void the_same_rows_always_make_the_same_plan(void **) {
    std::mt19937_64 random = seeded();
    const TokenRows rows = random_rows(random, 300, 3, 60), copy = rows;
    const Plan a = plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL, 2)),
               b = plan_of(copy, with(BATCHLLM_ENLARGE_OPTIMAL, 2));
    assert_true(a.rows == b.rows);
    assert_int_equal(a.prefixes.size(), b.prefixes.size());
}

void bad_arguments_are_named(void **) {
    const std::vector<int32_t> tokens(4, 1);
    const std::vector<TokenRow> good = {{tokens.data(), 4, 3}},
                                bad = {{tokens.data(), 4, 3}, {tokens.data(), 4, 4}};
    const auto message = [](const Result<Plan> &plan) {
        return plan.ok() ? std::string() : plan.status().message();
    };
    assert_non_null(strstr(message(make_plan(bad, {}, PlanOptions(), nullptr)).c_str(), "row 1"));
    const std::vector<int32_t> lengths = {1, 2};
    assert_non_null(strstr(message(make_plan(good, lengths, PlanOptions(), nullptr)).c_str(),
                           "decode_lengths"));
    PlanOptions options;
    options.enlarge = 9;
    assert_non_null(strstr(message(make_plan(good, {}, options, nullptr)).c_str(), "enlarge"));
    options = PlanOptions();
    options.levels = -1;
    assert_non_null(strstr(message(make_plan(good, {}, options, nullptr)).c_str(), "levels"));
    options = PlanOptions();
    options.min_prefix_tokens = 0;
    assert_non_null(
        strstr(message(make_plan(good, {}, options, nullptr)).c_str(), "min_prefix_tokens"));
}

void self_contained_plan_has_all_tokens_in_row_order(void **) {
    const TokenRows rows = {{1, 2, 3}, {}, {4, 5}};
    PlanOptions options;
    options.self_contained = true;
    const std::vector<int32_t> expected = {1, 2, 3, 4, 5};
    assert_true(plan_of(rows, options).tokens == expected);
    assert_true(plan_of(rows, options).salts.empty());
    std::vector<TokenRow> some = views(rows);
    some[2].salt = 9;
    const std::vector<uint64_t> salts = {0, 0, 9};
    assert_true(make_plan(some, {}, options, nullptr)->salts == salts);
}

// ---- Reuse

TokenRows some_rows() {
    TokenRows rows;
    for (int i = 0; i < 12; ++i) rows.push_back(row_of(i % 3, 50, i, 10));
    rows.push_back(row_of(7, 40, 12, 10));
    return rows;
}

void unchanged_rows_keep_their_plan(void **) {
    const TokenRows rows = some_rows();
    const Plan before = plan_of(rows, PlanOptions());
    const Plan after = plan_of(rows, PlanOptions(), &before);
    assert_true(after.rows == before.rows);
    assert_int_equal(after.reused_rows, 13);
    assert_int_equal(before.reused_rows, 0);
    assert_int_equal(after.processed_tokens(), before.processed_tokens());
}

void rows_that_moved_keep_their_groups(void **) {
    TokenRows rows = some_rows();
    const Plan before = plan_of(rows, PlanOptions());
    std::reverse(rows.begin(), rows.end());
    const Plan after = plan_of(rows, PlanOptions(), &before);
    assert_string_equal(fault_of(after, views(rows)).c_str(), "");
    assert_int_equal(after.reused_rows, 13);
    const std::vector<int64_t> expected = {3, 6, 9, 12};
    assert_true(companions(after, 12) == expected); // was row 0
}

void a_new_row_joins_the_kept_group_whose_prefix_it_has(void **) {
    for (const int32_t enlarge : {BATCHLLM_ENLARGE_OPTIMAL, BATCHLLM_ENLARGE_PAPER}) {
        TokenRows rows = some_rows();
        const Plan before = plan_of(rows, with(enlarge, 1, 16));
        rows.push_back(row_of(1, 50, 13, 10)); // joins
        rows.push_back(row_of(7, 40, 14, 10)); // forms a group with the row that was alone
        rows.push_back(row_of(8, 40, 15, 10)); // is alone
        const Plan after = plan_of(rows, with(enlarge, 1, 16), &before);
        assert_string_equal(fault_of(after, views(rows)).c_str(), "");
        assert_int_equal(companions(after, 13).size(), 5);
        const std::vector<int64_t> pair = {12, 14};
        assert_true(companions(after, 12) == pair);
        assert_int_equal(companions(after, 15).size(), 1);
        assert_int_equal(after.reused_rows, 12);
    }
}

void changed_rows_leave_and_removed_rows_vanish(void **) {
    TokenRows rows = some_rows();
    const Plan before = plan_of(rows, PlanOptions());
    rows[0][10] = -5;             // changed within the prefix
    rows[3].back() = -5;          // changed after it: joins its group again
    rows.erase(rows.begin() + 1); // row 1; later rows move up by one
    const Plan after = plan_of(rows, PlanOptions(), &before);
    assert_string_equal(fault_of(after, views(rows)).c_str(), "");
    assert_int_equal(after.row_count(), 12);
    assert_int_equal(companions(after, 0).size(), 1);
    assert_int_equal(companions(after, 2).size(), 3);
    assert_int_equal(companions(after, 3).size(), 3);
    assert_int_equal(after.reused_rows, 2 + 3 + 4 + 1);
}

void a_group_of_which_one_row_is_left_dissolves(void **) {
    const TokenRows rows = some_rows();
    const Plan before = plan_of(rows, PlanOptions());
    const TokenRows fewer = {rows[0], rows[1], rows[4]};
    const Plan after = plan_of(fewer, PlanOptions(), &before);
    assert_int_equal(companions(after, 0).size(), 1);
    assert_int_equal(companions(after, 1).size(), 2);
    assert_int_equal(after.reused_rows, 2);
}

void a_plan_of_other_options_is_not_reused(void **) {
    const TokenRows rows = some_rows();
    const Plan before = plan_of(rows, PlanOptions());
    const Plan none = plan_of(rows, with(BATCHLLM_ENLARGE_NONE, 1, 16), &before);
    assert_int_equal(none.reused_rows, 0);
    assert_int_equal(none.prefixes.size(), 0);
    assert_int_equal(plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL, 1, 17), &before).reused_rows, 0);
    const Plan levels = plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL, 2, 16), &before);
    assert_int_equal(levels.reused_rows, 13); // heads are found again
}

void equal_rows_are_matched_one_to_one(void **) {
    const TokenRows two(2, std::vector<int32_t>(40, 3)), three(3, std::vector<int32_t>(40, 3));
    const Plan before = plan_of(two, PlanOptions());
    const Plan more = plan_of(three, PlanOptions(), &before);
    assert_int_equal(more.reused_rows, 2);
    assert_int_equal(more.groups.size(), 1);
    const Plan fewer = plan_of(two, PlanOptions(), &more);
    assert_int_equal(fewer.reused_rows, 2);
}

void a_forged_plan_cannot_make_a_wrong_prefix(void **) {
    std::mt19937_64 random = seeded();
    for (int i = 0; i < 300; ++i) {
        const TokenRows rows = random_rows(random, 30, 2, 40);
        Plan forged = plan_of(random_rows(random, 30, 2, 40), with(BATCHLLM_ENLARGE_OPTIMAL, 2));
        // Another job's plan that claims to be for these rows.
        const Plan honest = plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL, 2));
        forged.fingerprints = honest.fingerprints;
        forged.lengths = honest.lengths;
        for (const int32_t enlarge : {BATCHLLM_ENLARGE_OPTIMAL, BATCHLLM_ENLARGE_PAPER}) {
            forged.options.enlarge = enlarge;
            const Plan plan = plan_of(rows, with(enlarge, 2), &forged);
            assert_string_equal(fault_of(plan, views(rows)).c_str(), "");
        }
    }
}

void a_row_under_another_salt_is_a_changed_row(void **) {
    const TokenRows rows = some_rows();
    std::vector<TokenRow> now = views(rows);
    const Plan before = plan_of(rows, PlanOptions());
    now[3].salt = now[6].salt = 1;
    assert_false(is_plan_of(before, now, PlanOptions()));
    const Plan after = make_plan(now, {}, PlanOptions(), &before).value();
    assert_string_equal(fault_of(after, now).c_str(), "");
    assert_int_equal(after.reused_rows, 11);
    assert_int_equal(companions(after, 0).size(), 2);
    assert_true((companions(after, 3) == std::vector<int64_t>{3, 6}));
    assert_true(is_plan_of(after, now, PlanOptions()));
    assert_int_equal(make_plan(now, {}, PlanOptions(), &after)->reused_rows, 13);
}

// Nor can a plan of the same rows that treats all salts as one.
void a_forged_plan_cannot_join_rows_of_different_salts(void **) {
    std::mt19937_64 random = seeded();
    const auto options = with(BATCHLLM_ENLARGE_OPTIMAL, 2);
    int refused = 0;
    for (int i = 0; i < 300; ++i) {
        const TokenRows rows = random_rows(random, 30, 2, 40);
        const std::vector<TokenRow> apart = salted(random, views(rows));
        Plan forged = plan_of(rows, options);
        forged.fingerprints = make_plan(apart, {}, options, nullptr)->fingerprints;
        refused += !is_plan_of(forged, apart, options);
        const Plan plan = make_plan(apart, {}, options, &forged).value();
        assert_string_equal(fault_of(plan, apart).c_str(), "");
    }
    assert_true(refused > 250);
}

void a_plan_is_known_to_be_of_its_rows_and_of_no_others(void **) {
    std::mt19937_64 random = seeded();
    for (int i = 0; i < 200; ++i) {
        TokenRows rows = random_rows(random, 30, 2, 40);
        const auto options = with(BATCHLLM_ENLARGE_OPTIMAL, 2);
        const Plan plan = plan_of(rows, options);
        assert_true(is_plan_of(plan, views(rows), options));
        assert_false(is_plan_of(plan, views(rows), with(BATCHLLM_ENLARGE_OPTIMAL, 1)));
        assert_false(is_plan_of(plan, views(rows), with(BATCHLLM_ENLARGE_OPTIMAL, 2, 2)));
        // A plan that claims to be for these rows is only used where its prefixes match them.
        Plan forged = plan_of(random_rows(random, 30, 2, 40), options);
        forged.fingerprints = plan.fingerprints;
        forged.lengths = plan.lengths;
        if (forged.lengths.size() == rows.size() && is_plan_of(forged, views(rows), options)) {
            assert_string_equal(fault_of(forged, views(rows)).c_str(), "");
        }
        std::vector<TokenRow> fewer = views(rows);
        fewer.pop_back();
        assert_false(is_plan_of(plan, fewer, options));
        std::vector<int32_t> &changed = rows[random() % rows.size()];
        if (changed.empty()) continue;
        changed[random() % changed.size()] += 1000;
        assert_false(is_plan_of(plan, views(rows), options));
    }
}

void a_forged_prefix_is_not_taken(void **) {
    const TokenRows rows = {row_of(1, 30, 0, 5), row_of(1, 30, 1, 5), row_of(2, 30, 2, 5)};
    Plan plan = plan_of(rows, PlanOptions());
    assert_true(is_plan_of(plan, views(rows), PlanOptions()));
    plan.prefixes[0].length = 31; // the rows differ there
    assert_false(is_plan_of(plan, views(rows), PlanOptions()));
    plan.prefixes[0] = {2, 30, -1}; // another row's tokens
    assert_false(is_plan_of(plan, views(rows), PlanOptions()));
}

// Some of the plan's groups and rows, with new row numbers.
Plan part_of(const Plan &plan, size_t first_group, std::mt19937_64 &random,
             std::vector<int64_t> *rows) {
    std::vector<int64_t> number(plan.rows.size(), -1);
    const size_t begin = first_group < plan.groups.size()
                             ? static_cast<size_t>(plan.groups[first_group].row_begin)
                             : plan.rows.size();
    for (size_t i = begin; i < plan.rows.size(); ++i) {
        if (random() % 4 == 0) continue;
        number[static_cast<size_t>(plan.rows[i])] = static_cast<int64_t>(rows->size());
        rows->push_back(plan.rows[i]);
    }
    return renumbered(plan, first_group, number, static_cast<int64_t>(rows->size()));
}

void parts_of_plans_and_plans_joined_are_plans(void **) {
    std::mt19937_64 random = seeded();
    const auto options = with(BATCHLLM_ENLARGE_OPTIMAL, 3);
    for (int i = 0; i < 200; ++i) {
        const TokenRows a = random_rows(random, 40, 2, 40), b = random_rows(random, 40, 2, 40);
        const Plan first = plan_of(a, options), second = plan_of(b, options);
        std::vector<int64_t> kept;
        const Plan part = part_of(first, random() % (first.groups.size() + 1), random, &kept);
        TokenRows rows;
        for (const int64_t row : kept) rows.push_back(a[static_cast<size_t>(row)]);
        assert_string_equal(fault_of(part, views(rows)).c_str(), "");
        assert_int_equal(part.reused_rows, part.row_count());
        rows.insert(rows.end(), b.begin(), b.end());
        const Plan both = joined(part, second);
        assert_string_equal(fault_of(both, views(rows)).c_str(), "");
        assert_int_equal(both.processed_tokens(),
                         part.processed_tokens() + second.processed_tokens());
        assert_true(is_plan_of(both, views(rows), options));
    }
}

void all_of_a_plan_is_the_plan(void **) {
    const TokenRows rows = some_rows();
    const Plan plan = plan_of(rows, with(BATCHLLM_ENLARGE_OPTIMAL, 2));
    std::vector<int64_t> number(rows.size());
    std::iota(number.begin(), number.end(), 0);
    const Plan same = renumbered(plan, 0, number, plan.row_count());
    assert_true(same.rows == plan.rows);
    assert_true(same.fingerprints == plan.fingerprints);
    assert_int_equal(same.groups.size(), plan.groups.size());
    assert_int_equal(same.processed_tokens(), plan.processed_tokens());
    number[3] = -1; // keeps its number, as a row without tokens
    const Plan less = renumbered(plan, 0, number, plan.row_count());
    assert_int_equal(less.row_count(), plan.row_count());
    assert_int_equal(less.lengths[3], 0);
    assert_int_equal(companions(less, 3).size(), 1);
}

void random_changes_keep_unchanged_groups_and_lose_little(void **) {
    std::mt19937_64 random = seeded();
    for (int i = 0; i < 200; ++i) {
        TokenRows rows = random_rows(random, 60, 3, 40);
        const auto options =
            with(random() % 3 ? BATCHLLM_ENLARGE_OPTIMAL : BATCHLLM_ENLARGE_PAPER, 2);
        const Plan before = plan_of(rows, options);
        const TokenRows fresh = random_rows(random, 20, 3, 40);
        for (const auto &row : fresh) {
            rows[random() % rows.size()] = row;
            if (random() % 2) rows.push_back(row);
            if (random() % 4 == 0)
                rows.erase(rows.begin() + static_cast<ptrdiff_t>(random() % rows.size()));
        }
        std::shuffle(rows.begin(), rows.end(), random);
        const Plan after = plan_of(rows, options, &before);
        assert_string_equal(fault_of(after, views(rows)).c_str(), "");
        assert_true(after.reused_rows > 0 && after.reused_rows <= after.row_count());
        assert_true(after.processed_tokens() <= after.logical_tokens());
        // Planning again from its own plan changes nothing.
        const Plan again = plan_of(rows, options, &after);
        assert_int_equal(again.reused_rows, again.row_count());
        assert_int_equal(again.processed_tokens(), after.processed_tokens());
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(no_rows_make_an_empty_plan),
        cmocka_unit_test(one_row_is_alone),
        cmocka_unit_test(empty_rows_and_rows_of_one_token_are_alone),
        cmocka_unit_test(equal_rows_share_all_but_their_last_token),
        cmocka_unit_test(nothing_is_shared_beyond_a_rows_shareable_part),
        cmocka_unit_test(without_enlarging_every_row_is_alone),
        cmocka_unit_test(random_plans_hold_what_the_header_says),
        cmocka_unit_test(optimal_plan_computes_as_few_tokens_as_any_set_of_prefixes),
        cmocka_unit_test(rows_of_equal_tokens_and_different_salts_share_nothing),
        cmocka_unit_test(random_plans_of_salted_rows_hold_what_the_header_says),
        cmocka_unit_test(the_fingerprint_under_salt_0_is_that_of_the_tokens_alone),
        cmocka_unit_test(prefixes_below_the_minimum_are_not_shared),
        cmocka_unit_test(two_levels_compute_the_head_of_prefixes_once),
        cmocka_unit_test(a_groups_prefix_can_be_the_head_of_another),
        cmocka_unit_test(a_second_level_never_computes_more_tokens_and_never_changes_groups),
        cmocka_unit_test(heads_that_cost_more_than_they_save_are_not_shared),
        cmocka_unit_test(heads_by_cost_never_cost_more_than_all_or_none),
        cmocka_unit_test(groups_below_a_head_that_pays_follow_each_other),
        cmocka_unit_test(groups_with_most_to_decode_for_their_prompt_go_first),
        cmocka_unit_test(groups_of_equal_ratio_keep_the_order_of_their_first_rows),
        cmocka_unit_test(the_same_rows_always_make_the_same_plan),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(self_contained_plan_has_all_tokens_in_row_order),
        cmocka_unit_test(unchanged_rows_keep_their_plan),
        cmocka_unit_test(rows_that_moved_keep_their_groups),
        cmocka_unit_test(a_new_row_joins_the_kept_group_whose_prefix_it_has),
        cmocka_unit_test(changed_rows_leave_and_removed_rows_vanish),
        cmocka_unit_test(a_group_of_which_one_row_is_left_dissolves),
        cmocka_unit_test(a_plan_of_other_options_is_not_reused),
        cmocka_unit_test(equal_rows_are_matched_one_to_one),
        cmocka_unit_test(a_forged_plan_cannot_make_a_wrong_prefix),
        cmocka_unit_test(a_row_under_another_salt_is_a_changed_row),
        cmocka_unit_test(a_forged_plan_cannot_join_rows_of_different_salts),
        cmocka_unit_test(a_plan_is_known_to_be_of_its_rows_and_of_no_others),
        cmocka_unit_test(a_forged_prefix_is_not_taken),
        cmocka_unit_test(parts_of_plans_and_plans_joined_are_plans),
        cmocka_unit_test(all_of_a_plan_is_the_plan),
        cmocka_unit_test(random_changes_keep_unchanged_groups_and_lose_little),
    };
    return cmocka_run_group_tests_name("plan", tests, nullptr, nullptr);
}
