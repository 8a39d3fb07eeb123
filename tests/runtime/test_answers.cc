// What batches computed -> results.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "engine_parts.h"

using namespace batchllm;

namespace {

struct Running : WaitingRows {
    // The run of rows that are equal.
    RowRun *start(const std::vector<int64_t> &ids) {
        runs.push_back(make_run(intake.rows(), ids, limits));
        return runs.back().get();
    }
    // One batch in which each of the sequences samples a token.
    int64_t sample(const std::vector<std::pair<Sequence *, int32_t>> &tokens, bool finite = true) {
        BatchRecord record;
        BatchOutput output;
        for (const auto &[sequence, token] : tokens) {
            record.sampled.push_back(sequence);
            record.tasks.push_back(Task::generate);
            record.targets.push_back(0);
            record.tokens.push_back(1);
            record.proposed.push_back(-1);
            SampleOutput sampled{};
            sampled.token = token;
            sampled.finite = finite;
            output.samples.push_back(sampled);
        }
        return answers.accept(record, output, 2);
    }
    std::vector<std::unique_ptr<RowRun>> runs;
};

void a_sequence_ends_with_its_eos_or_its_last_token(void **) {
    Running rows;
    rows.add({{1, 2}, {3, 4}}, [](batchllm_params *params) { params->max_tokens = 3; });
    RowRun *first = rows.start({0}), *second = rows.start({1});
    Sequence *a = first->sequences.data(), *b = second->sequences.data();
    assert_int_equal(rows.sample({{a, 7}, {b, 8}}), 2);
    assert_true(rows.answers.take_ended().empty());
    assert_int_equal(rows.sample({{a, 7}, {b, parts_eos}}),
                     3); // and the token that b does not need
    assert_true(std::ranges::equal(rows.answers.take_ended(), std::array{second}));
    rows.answers.answer(second);
    assert_int_equal(rows.sample({{a, 9}, {nullptr, 5}}), 1);
    assert_true(std::ranges::equal(rows.answers.take_ended(), std::array{first}));
    rows.answers.answer(first);
    assert_int_equal(rows.answers.rows_done(), 2);
    assert_int_equal(rows.answers.generated_tokens(), 5);
    const auto results = rows.answers.poll(0);
    assert_int_equal(results->count, 2); // in the order in which they ended
    assert_int_equal(results->tags[0], 1);
    assert_int_equal(results->finish_reasons[0], BATCHLLM_FINISH_STOP);
    assert_int_equal(results->tags[1], 0);
    assert_int_equal(results->finish_reasons[1], BATCHLLM_FINISH_LENGTH);
    assert_int_equal(results->token_offsets[2] - results->token_offsets[1], 3);
    assert_int_equal(results->tokens[results->token_offsets[2] - 1], 9);
}

void equal_rows_and_their_samples_get_copies(void **) {
    Running rows;
    const auto two = [](batchllm_params *params) { params->max_tokens = 1, params->samples = 2; };
    rows.add({{1, 2}, {1, 2}}, two);
    RowRun *run = rows.start({0, 1});
    assert_int_equal(run->sequences.size(), 1); // greedy
    rows.sample({{run->sequences.data(), 7}});
    for (RowRun *ended : rows.answers.take_ended()) rows.answers.answer(ended);
    assert_int_equal(rows.answers.rows_done(), 2);
    assert_int_equal(rows.answers.poll(1)->count, 2); // a row is never split
    const auto rest = rows.answers.poll(0);
    assert_int_equal(rest->count, 2);
    assert_int_equal(rest->tags[1], 1);
    assert_int_equal(rest->samples[1], 1);
    assert_int_equal(rest->tokens[1], 7);
}

void a_cancelled_row_has_what_there_is_and_the_others_go_on(void **) {
    Running rows;
    rows.add({{1, 2}, {1, 2}});
    RowRun *run = rows.start({0, 1});
    rows.sample({{run->sequences.data(), 7}});
    Cancels cancels;
    cancels.below[1] = 2;
    rows.answers.cancel(run, cancels);
    rows.answers.cancel(run, cancels); // once
    assert_true(run->any_answer_left());
    rows.sample({{run->sequences.data(), parts_eos}});
    for (RowRun *ended : rows.answers.take_ended()) rows.answers.answer(ended);
    const auto results = rows.answers.poll(0);
    assert_int_equal(results->count, 2);
    assert_int_equal(results->tags[0], 1);
    assert_int_equal(results->finish_reasons[0], BATCHLLM_FINISH_CANCELLED);
    assert_int_equal(results->token_offsets[1], 1);
    assert_int_equal(results->finish_reasons[1], BATCHLLM_FINISH_STOP);
    assert_int_equal(rows.answers.rows_done(), 2);
}

void a_row_that_waits_is_cancelled_without_tokens(void **) {
    Running rows;
    rows.add({{1, 2, 3}}, [](batchllm_params *params) { params->samples = 2; });
    rows.answers.cancel(*rows.intake.rows()->find(0));
    const auto results = rows.answers.poll(0);
    assert_int_equal(results->count, 2);
    assert_int_equal(results->finish_reasons[1], BATCHLLM_FINISH_CANCELLED);
    assert_int_equal(results->prompt_tokens[1], 3);
    assert_int_equal(rows.answers.rows_done(), 1);
}

void logits_that_are_no_numbers_fail_their_row_alone(void **) {
    Running rows;
    rows.add({{1, 2}, {3, 4}});
    RowRun *bad = rows.start({0}), *good = rows.start({1});
    assert_int_equal(rows.sample({{bad->sequences.data(), 7}}, false), 10);
    rows.sample({{good->sequences.data(), parts_eos}});
    for (RowRun *ended : rows.answers.take_ended()) rows.answers.answer(ended);
    const auto results = rows.answers.poll(0);
    assert_int_equal(results->statuses[0], BATCHLLM_ERROR_ROW_NOT_A_NUMBER);
    assert_int_equal(results->statuses[1], BATCHLLM_OK);
    batchllm_stats stats{};
    rows.answers.add_to(&stats);
    assert_int_equal(stats.rows_done, 2);
    assert_int_equal(stats.rows_failed, 1);
}

void scores_come_in_any_number_of_batches(void **) {
    Running rows;
    const std::vector<int32_t> prompt = {1, 2}, continuation = {3, 4, 5};
    const std::vector<int64_t> offsets = {0, 2}, ends = {0, 3}, of_row = {0, 1};
    const Column<int32_t> column{1, continuation.data(), ends.data()};
    assert_true(rows.intake
                    .add_scores({1, prompt.data(), offsets.data()}, {column, of_row.data()},
                                nullptr, default_params())
                    .ok());
    RowRun *run = rows.start({0});
    for (const int32_t count : {1, 2}) {
        BatchRecord record;
        BatchOutput output;
        for (int32_t i = 0; i < count; ++i) {
            record.sampled.push_back(run->sequences.data());
            record.tasks.push_back(Task::score);
            record.targets.push_back(1);
            record.tokens.push_back(1);
            SampleOutput sampled{};
            sampled.finite = true;
            output.samples.push_back(sampled);
            output.target_logprobs.push_back(-0.5F * static_cast<float>(count));
        }
        rows.answers.accept(record, output, 2);
    }
    for (RowRun *ended : rows.answers.take_ended()) rows.answers.answer(ended);
    const auto results = rows.answers.poll(0);
    assert_int_equal(results->finish_reasons[0], BATCHLLM_FINISH_SCORED);
    assert_true(results->scores[0] == -2.5);
}

void refused_rows_count_only_once_their_addition_is_certain(void **) {
    Running rows;
    rows.answers.refuse(1, 5, 2, Status(BATCHLLM_ERROR_ROW_EMPTY, "first"));
    rows.answers.count_refused(1);
    const size_t before = rows.answers.waiting();
    rows.answers.refuse(2, 5, 3, Status(BATCHLLM_ERROR_ROW_EMPTY, "second"));
    rows.answers.take_back(before);
    assert_int_equal(rows.answers.rows_done(), 1);
    const auto results = rows.answers.poll(0);
    assert_int_equal(results->count, 2);
    assert_int_equal(results->tags[1], 1);
}

void tokens_of_a_lost_device_are_not_completion(void **) {
    Running rows;
    rows.add({{1, 2}});
    RowRun *run = rows.start({0});
    rows.sample({{run->sequences.data(), 7}});
    rows.answers.lose_tokens(1);
    batchllm_stats stats{};
    rows.answers.add_to(&stats);
    assert_int_equal(stats.completion_tokens, 0);
    assert_int_equal(rows.answers.generated_tokens(), 1); // progress does not go back
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_ends_with_its_eos_or_its_last_token),
        cmocka_unit_test(equal_rows_and_their_samples_get_copies),
        cmocka_unit_test(a_cancelled_row_has_what_there_is_and_the_others_go_on),
        cmocka_unit_test(a_row_that_waits_is_cancelled_without_tokens),
        cmocka_unit_test(logits_that_are_no_numbers_fail_their_row_alone),
        cmocka_unit_test(scores_come_in_any_number_of_batches),
        cmocka_unit_test(refused_rows_count_only_once_their_addition_is_certain),
        cmocka_unit_test(tokens_of_a_lost_device_are_not_completion),
    };
    return cmocka_run_group_tests_name("answers", tests, nullptr, nullptr);
}
