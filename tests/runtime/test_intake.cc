// Columns -> rows that wait: all or none, tags, bad rows, cancels.
#include <cstdint>
#include <vector>

#include "engine_parts.h"

using namespace batchllm;

namespace {

void rows_wait_in_order_of_addition(void **) {
    WaitingRows rows;
    rows.add({{1, 2, 3}, {4, 5}});
    rows.add({{6}}, [](batchllm_params *params) { params->samples = 3, params->temperature = 1; });
    assert_true(rows.intake.unplanned() == std::vector<int64_t>({0, 1, 2}));
    assert_int_equal(rows.intake.added(), 3);
    assert_int_equal(rows.intake.waiting_tokens().prompt, 6);
    assert_int_equal(rows.intake.waiting_tokens().generated, 10 + 10 + 3 * 10);
    assert_int_equal(rows.intake.rows()->find(2)->tag, 2);
    rows.intake.clear_unplanned();
    assert_true(rows.intake.unplanned().empty());
    assert_int_equal(rows.intake.waiting_tokens().prompt, 0);
    assert_int_equal(rows.intake.waiting_tokens().generated, 0);
    assert_true(rows.state(2) == RowState::waiting);
}

void a_row_that_cannot_be_computed_has_its_answer_at_once(void **) {
    WaitingRows rows;
    rows.intake.set_devices({{100, 10, 10}, {50, 5, 10}});
    rows.add({{1, 2}, {1, parts_vocabulary}, {}, {3}});
    rows.add({prompt_of(0, 0, 0, 45)}); // more than the smaller device's pages hold
    assert_true(rows.intake.unplanned() == std::vector<int64_t>({0, -1, -1, 1, -1}));
    assert_int_equal(rows.intake.added(), 5);
    assert_int_equal(rows.answers.rows_done(), 3);
    const auto results = rows.answers.poll(0);
    assert_int_equal(results->count, 3);
    assert_int_equal(results->statuses[0], BATCHLLM_ERROR_ROW_UNKNOWN_TOKEN);
    assert_int_equal(results->statuses[1], BATCHLLM_ERROR_ROW_EMPTY);
    assert_int_equal(results->statuses[2], BATCHLLM_ERROR_ROW_TOO_LARGE);
    assert_int_equal(results->tags[1], 2); // bad rows count in the order of addition
    assert_int_equal(results->tags[2], 4);
    assert_int_equal(rows.intake.rows()->find(1)->tag, 3);
}

void a_call_that_fails_midway_adds_nothing(void **) {
    WaitingRows rows;
    rows.add({{1}});
    std::vector<batchllm_params> params(4, default_params());
    const auto column = ParamsColumn::open(params.data(), 4, 4);
    assert_true(column.ok());
    params[3].struct_size = 3; // the caller writes to it in the meantime
    const std::vector<int32_t> tokens = {1, parts_vocabulary, 2, 3};
    const std::vector<int64_t> offsets = {0, 1, 2, 3, 4};
    assert_int_equal(
        rows.intake.add_tokens({4, tokens.data(), offsets.data()}, nullptr, *column).code(),
        BATCHLLM_ERROR_INVALID_ARGUMENT);
    assert_int_equal(rows.intake.added(), 1);
    assert_true(rows.intake.unplanned() == std::vector<int64_t>({0}));
    assert_int_equal(rows.intake.rows()->rows(), 1);
    assert_int_equal(rows.intake.waiting_tokens().prompt, 1);
    assert_int_equal(rows.answers.waiting(), 0);
    assert_int_equal(rows.answers.rows_done(), 0);
    rows.add({{5, 6}});
    assert_true(rows.intake.unplanned() == std::vector<int64_t>({0, 1}));
    assert_int_equal(rows.intake.rows()->find(1)->tag, 1);
}

void a_cancel_names_only_rows_that_have_been_added(void **) {
    WaitingRows rows;
    rows.add({{1}, {2}});
    assert_false(rows.intake.take_cancels().has_value());
    rows.intake.cancel(1);
    rows.add({{3}});
    const auto cancels = rows.intake.take_cancels();
    assert_true(cancels.has_value());
    assert_true(cancels->name(1, 1));
    assert_false(cancels->name(1, 2)); // a later row of the same tag
    assert_false(cancels->name(0, 0));
    assert_false(rows.intake.take_cancels().has_value());
    rows.intake.cancel_all();
    rows.add({{4}});
    const auto all = rows.intake.take_cancels();
    assert_true(all->name(7, 2));
    assert_false(all->name(7, 3));
}

void rows_that_wait_again_are_unplanned(void **) {
    WaitingRows rows;
    rows.add({{1, 1}, {2, 2}, {3, 3}, {4, 4}});
    rows.intake.clear_unplanned();
    rows.intake.rows()->find(1)->state = RowState::started;
    rows.intake.rows()->find(2)->state = RowState::answered;
    rows.intake.unplan_all();
    assert_true(rows.intake.unplanned() == std::vector<int64_t>({0, 3}));
    assert_int_equal(rows.intake.waiting_tokens().prompt, 4);
    assert_int_equal(rows.intake.waiting_tokens().generated, 20);
    assert_true(rows.state(2) == RowState::released);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(rows_wait_in_order_of_addition),
        cmocka_unit_test(a_row_that_cannot_be_computed_has_its_answer_at_once),
        cmocka_unit_test(a_call_that_fails_midway_adds_nothing),
        cmocka_unit_test(a_cancel_names_only_rows_that_have_been_added),
        cmocka_unit_test(rows_that_wait_again_are_unplanned),
    };
    return cmocka_run_group_tests_name("intake", tests, nullptr, nullptr);
}
