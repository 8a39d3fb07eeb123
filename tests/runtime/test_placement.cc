// The agenda's rows on lanes of `sim`.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/placement.h" // before cmocka, whose fail() is a macro

#include "engine_parts.h"

using namespace batchllm;

namespace {

struct Placed : WaitingRows {
    explicit Placed(int32_t devices, int32_t levels = 1)
        : observers(EngineOptions{}), agenda(options_of(levels), limits, intake.rows()),
          placement(numbers(devices), backends(devices), {}, limits, reader.get(), intake.rows(),
                    &observers) {}

    static PlanOptions options_of(int32_t levels) {
        PlanOptions options;
        options.levels = levels;
        return options;
    }
    static std::vector<int32_t> numbers(int32_t devices) {
        std::vector<int32_t> numbers;
        for (int32_t i = 0; i < devices; ++i) numbers.push_back(i);
        return numbers;
    }
    static std::vector<std::unique_ptr<Backend>> backends(int32_t devices) {
        std::vector<std::unique_ptr<Backend>> made;
        for (int32_t i = 0; i < devices; ++i) {
            BackendOptions options;
            options.extra = {{"vocabulary", std::to_string(parts_vocabulary)}, {"pages", "500"}};
            options.step_tokens = 64;
            auto backend = make_sim_backend(nullptr, options);
            assert_true(backend.ok());
            made.push_back(std::move(backend).value());
        }
        return made;
    }
    void plan() {
        assert_true(agenda.plan(&intake, true).ok());
        placement.begin_plan();
    }
    void place() { assert_true(placement.place(&agenda).ok()); }
    const Scheduler &scheduler(size_t lane) { return placement.lanes()[lane]->scheduler(); }
    RowRun *run_of(int64_t id) {
        Cancels cancels;
        cancels.below[static_cast<uint64_t>(id)] = id + 1;
        const std::vector<RowRun *> runs = placement.runs_with(cancels);
        return runs.empty() ? nullptr : runs.front();
    }

    Observers observers;
    Agenda agenda;
    Placement placement;
};

std::vector<std::vector<int32_t>> groups_of(int32_t groups, int32_t rows, int32_t common) {
    std::vector<std::vector<int32_t>> prompts;
    for (int32_t i = 0; i < groups * rows; ++i) {
        std::vector<int32_t> prompt = prompt_of(i / rows, common, i, common + 20);
        prompt[static_cast<size_t>(common)] = 900 + i % 90;
        prompts.push_back(prompt);
    }
    return prompts;
}

void groups_are_spread_over_the_lanes(void **) {
    Placed rows(2);
    rows.add(groups_of(6, 4, 60));
    rows.plan();
    rows.place();
    const int64_t first = rows.scheduler(0).waiting(), second = rows.scheduler(1).waiting();
    assert_int_equal(first + second, 24);
    assert_int_equal(first, 12);
    // A group stays together.
    for (int64_t row = 0; row < 24; ++row) {
        assert_ptr_equal(rows.run_of(row)->lane, rows.run_of(row / 4 * 4)->lane);
        assert_true(rows.state(row) == RowState::started);
    }
    const RowTokens left = rows.placement.tokens_left();
    assert_int_equal(left.prompt, 6 * 60 + 24 * 20);
    assert_int_equal(left.generated, 24 * 10);
    assert_true(rows.agenda.at_end());
}

void a_lane_that_has_enough_gets_no_more(void **) {
    Placed rows(1);
    rows.add(groups_of(100, 5, 30));
    rows.plan();
    rows.place();
    assert_false(rows.agenda.at_end());
    const int64_t placed = rows.scheduler(0).waiting();
    assert_in_range(placed, 256, 260); // at least a step's requests, in whole groups
    rows.place();
    assert_int_equal(rows.scheduler(0).waiting(), placed);
}

// All groups begin with the same 100 tokens: computed by one lane, which keeps them for the groups
// to come.
void a_lane_keeps_what_groups_to_come_continue(void **) {
    Placed rows(1, 2);
    std::vector<std::vector<int32_t>> prompts;
    for (const std::vector<int32_t> &prompt : groups_of(100, 5, 30)) {
        prompts.push_back(prompt_of(500, 100, 0, 100));
        prompts.back().insert(prompts.back().end(), prompt.begin(), prompt.end());
    }
    rows.add(prompts);
    rows.plan();
    assert_true(rows.agenda.prefixes_nested());
    rows.place();
    assert_false(rows.agenda.at_end());
    int32_t common = rows.agenda.next_group().prefix;
    while (rows.agenda.parent_of(common) >= 0) common = rows.agenda.parent_of(common);
    assert_int_equal(rows.agenda.length_of(common), 100);
    // No request needs it any more, but groups to come do.
    Cancels all;
    all.all_below = 500;
    for (RowRun *run : rows.placement.runs_with(all)) {
        rows.placement.drop(run);
        rows.placement.remove_run(run);
    }
    assert_true(rows.scheduler(0).has(common));
    assert_int_equal(
        missing_tokens(*rows.placement.lanes()[0], rows.agenda, rows.agenda.next_group().prefix),
        30);
    while (!rows.agenda.at_end()) {
        rows.place();
        for (RowRun *run : rows.placement.runs_with(all)) {
            rows.placement.drop(run);
            rows.placement.remove_run(run);
        }
    }
    assert_false(rows.scheduler(0).has(common));
    assert_int_equal(rows.scheduler(0).prompt_tokens_left(), 0);
}

void rows_of_a_lane_that_is_lost_wait_again(void **) {
    Placed rows(2);
    rows.add(groups_of(6, 4, 60));
    rows.add({prompt_of(77, 0, 77, 30), prompt_of(77, 0, 77, 30)}); // equal
    rows.plan();
    rows.place();
    assert_null(rows.placement.lost_lane());
    Lane *lost = rows.run_of(24)->lane;
    rows.run_of(24)->sequences[0].output.push_back(3);
    const auto answered = rows.run_of(25);
    answered->answers[1].answered = true; // it was cancelled
    const Placement::Lost had = rows.placement.remove_lane(lost);
    assert_int_equal(had.generated, 1);
    assert_int_equal(rows.placement.lanes().size(), 1);
    assert_int_equal(rows.placement.devices().size(), 2);
    int64_t waiting = 0;
    for (int64_t row = 0; row < 24; ++row) waiting += rows.state(row) == RowState::waiting;
    assert_int_equal(waiting + 1, had.rows);
    assert_true(rows.state(24) == RowState::waiting);
    assert_true(rows.state(25) == RowState::released);
    assert_int_equal(rows.placement.tokens_left().generated, (24 - waiting) * 10);
    rows.intake.unplan_all();
    assert_int_equal(rows.intake.unplanned().size(), had.rows);
    rows.agenda.clear();
    rows.plan();
    rows.place();
    assert_int_equal(rows.placement.tokens_left().generated, 25 * 10);
}

void what_is_dropped_leaves_nothing(void **) {
    Placed rows(1);
    rows.add({prompt_of(1, 40, 1, 50), prompt_of(1, 40, 2, 50)},
             [](batchllm_params *params) { params->samples = 3, params->temperature = 1; });
    rows.plan();
    rows.place();
    assert_int_equal(rows.scheduler(0).waiting(), 6);
    const auto batch = rows.placement.next_batch(rows.placement.lanes()[0].get(), &rows.agenda);
    assert_true(batch.ok() && !(*batch)->tokens.empty());
    assert_int_equal(rows.placement.rows_running(), 2);
    Cancels all;
    all.all_below = 2;
    const std::vector<RowRun *> runs = rows.placement.runs_with(all);
    assert_int_equal(runs.size(), 2);
    assert_int_equal(runs[0]->answers[0].row, 0);
    for (RowRun *run : runs) {
        rows.placement.drop(run);
        rows.placement.remove_run(run);
    }
    assert_int_equal(rows.scheduler(0).running() + rows.scheduler(0).waiting(), 0);
    assert_int_equal(rows.scheduler(0).pages_used(), 0);
    assert_int_equal(rows.placement.tokens_left().generated, 0);
    assert_int_equal(rows.intake.rows()->rows(), 0);
    assert_int_equal(rows.placement.rows_running(), 0);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_spread_over_the_lanes),
        cmocka_unit_test(a_lane_that_has_enough_gets_no_more),
        cmocka_unit_test(a_lane_keeps_what_groups_to_come_continue),
        cmocka_unit_test(rows_of_a_lane_that_is_lost_wait_again),
        cmocka_unit_test(what_is_dropped_leaves_nothing),
    };
    return cmocka_run_group_tests_name("placement", tests, nullptr, nullptr);
}
