// src/plan/advice.cc: what rows have in common that their plan does not share, and when to be silent.
#include <algorithm>
#include <random>

#include "plan/plan.h"
#include "plan/plan_file.h"
#include "processor_time.h"
#include "testing.h"

using namespace batchllm;

namespace {

using Rows = std::vector<std::vector<int32_t>>;

// Appends a run of tokens: the same number gives the same tokens.
void put(std::vector<int32_t> *row, uint32_t number, int32_t tokens) {
    std::mt19937 random(number);
    for (int32_t i = 0; i < tokens; ++i) row->push_back(static_cast<int32_t>(random() % 30000));
}

struct Part {
    uint32_t number; // of the run of tokens
    int32_t tokens;
    uint32_t each; // rows with the same row / each have the same tokens; 0: all rows
};

// Rows made of parts. A part with `each` 1 is a row's own; with 10, ten rows have the same.
Rows rows_of(size_t count, const std::vector<Part> &parts) {
    Rows rows(count);
    for (size_t i = 0; i < count; ++i) {
        for (const Part &part : parts) {
            const auto own = part.each == 0 ? 0 : static_cast<uint32_t>(i) / part.each + 1;
            put(&rows[i], part.number + 100000 * own, part.tokens);
        }
    }
    return rows;
}

Plan plan_of(const Rows &rows, PlanOptions options = {}) {
    std::vector<TokenRow> views;
    for (const std::vector<int32_t> &row : rows) {
        const auto length = static_cast<int32_t>(row.size());
        views.push_back({row.data(), length, std::max(length - 1, 0)});
    }
    return make_plan(views, {}, options, nullptr).value();
}

void the_question_before_the_instruction_gets_a_word(void **) {
    const Plan plan = plan_of(rows_of(2000, {{1, 60, 1}, {2, 490, 0}}));
    const PlanAdvice &advice = plan.advice;
    assert_true(plan.saving_ratio() < 0.01);
    assert_int_equal(advice.kind, BATCHLLM_ADVICE_COMMON_FIRST);
    assert_int_equal(advice.common_tokens, 490);
    assert_int_equal(advice.begin, 60);
    assert_int_equal(advice.end, 550);
    assert_true(advice.possible_ratio > 0.88 && advice.possible_ratio < 0.90);
    std::printf("%s\n", advice.text().c_str());
    assert_true(advice.text().find("about 89 % could be") != std::string::npos);
    assert_true(advice.text().find("about 490 tokens in common") != std::string::npos);
    // Following the advice gives the predicted saving.
    assert_true(plan_of(rows_of(2000, {{2, 490, 0}, {1, 60, 1}})).saving_ratio() > 0.88);
}

void a_time_or_an_id_near_the_head_gets_a_word(void **) {
    for (const int32_t head : {0, 20}) {
        const Plan plan = plan_of(rows_of(500, {{1, head, 0}, {2, 8, 1}, {3, 400, 0}, {4, 60, 1}}));
        assert_int_equal(plan.advice.kind, BATCHLLM_ADVICE_EARLY_DIFFERENCE);
        assert_int_equal(plan.advice.common_tokens, 400);
        assert_int_equal(plan.advice.begin, head + 8);
        assert_true(plan.advice.text().find("a time or an id") != std::string::npos);
    }
}

void several_instructions_behind_what_differs_get_a_word(void **) {
    Rows rows = rows_of(600, {{1, 50, 1}});
    for (size_t i = 0; i < rows.size(); ++i) put(&rows[i], 7 + static_cast<uint32_t>(i % 4), 300);
    const Plan plan = plan_of(rows);
    assert_int_equal(plan.advice.kind, BATCHLLM_ADVICE_COMMON_FIRST);
    assert_true(plan.advice.possible_ratio > 0.8);
}

// Prefixes that are already shared stay shared if what all rows have moves to the front.
void documents_with_a_long_instruction_behind_them_get_a_word(void **) {
    const Plan plan = plan_of(rows_of(1000, {{1, 300, 10}, {2, 40, 1}, {3, 300, 0}}));
    assert_true(plan.saving_ratio() > 0.35);
    assert_int_equal(plan.advice.kind, BATCHLLM_ADVICE_COMMON_FIRST);
    assert_true(plan.advice.possible_ratio > 0.8);
}

void ordinary_jobs_are_silent(void **) {
    const std::vector<std::vector<Part>> jobs = {
        {{1, 500, 0}, {2, 60, 1}},                           // an instruction, a question
        {{1, 500, 0}, {2, 60, 1}, {3, 12, 0}},               // and the end of a template
        {{1, 200, 0}, {2, 400, 20}, {3, 40, 1}, {4, 10, 0}}, // instruction, document, question
        {{1, 400, 20}, {2, 30, 1}, {3, 20, 0}},              // documents, a short common end
        {{1, 300, 1}},                                       // nothing in common
        {{1, 1000, 1}, {2, 60, 0}},                          // a long text, a short instruction
        {{1, 40, 0}, {2, 300, 1}},
        {{1, 200, 0}},           // all rows equal
        {{1, 8, 1}, {2, 20, 0}}, // little to gain
    };
    for (size_t i = 0; i < jobs.size(); ++i) {
        const Plan plan = plan_of(rows_of(1000, jobs[i]));
        if (plan.advice.kind == BATCHLLM_ADVICE_NONE) continue;
        fail_msg("job %zu: %s", i, plan.advice.text().c_str());
    }
    // The same questions about each document: two common parts cannot both come first.
    Rows rows = rows_of(1000, {{1, 600, 20}});
    for (size_t i = 0; i < rows.size(); ++i) put(&rows[i], 50 + static_cast<uint32_t>(i % 20), 80);
    assert_int_equal(plan_of(rows).advice.kind, BATCHLLM_ADVICE_NONE);
    // Too few rows to tell; and sharing that is switched off.
    const std::vector<Part> question_first = {{1, 60, 1}, {2, 490, 0}};
    assert_int_equal(plan_of(rows_of(20, question_first)).advice.kind, BATCHLLM_ADVICE_NONE);
    PlanOptions none;
    none.enlarge = BATCHLLM_ENLARGE_NONE;
    assert_int_equal(plan_of(rows_of(200, question_first), none).advice.kind, BATCHLLM_ADVICE_NONE);
    assert_int_equal(plan_of({}).advice.kind, BATCHLLM_ADVICE_NONE);
    assert_int_equal(plan_of(Rows(100)).advice.kind, BATCHLLM_ADVICE_NONE);
}

void looking_takes_no_time_that_grows_with_the_rows(void **) {
    const Rows rows = rows_of(50000, {{1, 20, 1}, {2, 100, 0}});
    std::vector<TokenRow> views;
    for (const std::vector<int32_t> &row : rows) views.push_back({row.data(), 120, 119});
    const Plan plan = make_plan(views, {}, {}, nullptr).value();
    PlanAdvice advice;
    const double seconds = processor_seconds(1, [&] { advice = advise(views, plan); });
    std::printf("%.4f s for 50,000 rows\n", seconds);
    assert_int_equal(advice.rows, 128);
    assert_true(seconds < 5); // a hundredth of one
}

void advice_is_kept_in_the_plan_file(void **) {
    for (const bool self_contained : {false, true}) {
        PlanOptions options;
        options.self_contained = self_contained;
        const Plan plan = plan_of(rows_of(300, {{1, 60, 1}, {2, 490, 0}}), options);
        const std::string file = write_plan(plan).value();
        const Plan read = read_plan(std::as_bytes(std::span(file))).value();
        assert_int_equal(read.advice.kind, BATCHLLM_ADVICE_COMMON_FIRST);
        assert_string_equal(read.advice.text().c_str(), plan.advice.text().c_str());
        assert_int_equal(read.advice.row, plan.advice.row);
        // A file may be wrong: an example that is not one of the rows is ignored.
        Plan forged = plan;
        forged.advice.row = 300;
        std::string sections = write_plan_sections(forged);
        const Result<Plan> bad =
            read_plan_sections(std::as_bytes(std::span(sections)), self_contained);
        assert_false(bad.ok());
        assert_int_equal(bad.status().code(), BATCHLLM_ERROR_PLAN_FORMAT);
        forged = plan;
        forged.advice.end = 551;
        sections = write_plan_sections(forged);
        assert_false(read_plan_sections(std::as_bytes(std::span(sections)), self_contained).ok());
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(the_question_before_the_instruction_gets_a_word),
        cmocka_unit_test(a_time_or_an_id_near_the_head_gets_a_word),
        cmocka_unit_test(several_instructions_behind_what_differs_get_a_word),
        cmocka_unit_test(documents_with_a_long_instruction_behind_them_get_a_word),
        cmocka_unit_test(ordinary_jobs_are_silent),
        cmocka_unit_test(looking_takes_no_time_that_grows_with_the_rows),
        cmocka_unit_test(advice_is_kept_in_the_plan_file),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
