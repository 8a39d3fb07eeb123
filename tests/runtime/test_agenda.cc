// Rows that wait -> a plan -> what is started next.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine_parts.h"

using namespace batchllm;

namespace {

struct Planned : WaitingRows {
    explicit Planned(int32_t levels = 1) : agenda(options_of(levels), limits, intake.rows()) {}
    static PlanOptions options_of(int32_t levels) {
        PlanOptions options;
        options.levels = levels;
        return options;
    }
    void plan() { assert_true(agenda.plan(&intake, true).ok()); }

    // Starts the next group's rows, and moves on.
    std::vector<std::vector<int64_t>> start_group(std::vector<int32_t> *passed = nullptr) {
        std::vector<std::vector<int64_t>> started;
        const PlanGroup group = agenda.next_group();
        for (int64_t place = group.row_begin; place < group.row_end; ++place) {
            const std::vector<int64_t> ids = agenda.start(place);
            if (!ids.empty()) started.push_back(ids);
        }
        agenda.move_on([&](int32_t prefix) {
            if (passed != nullptr) passed->push_back(prefix);
        });
        return started;
    }
    std::vector<int64_t> start_all() {
        std::vector<int64_t> ids;
        while (!agenda.at_end()) {
            for (const std::vector<int64_t> &equal : start_group()) {
                ids.insert(ids.end(), equal.begin(), equal.end());
            }
        }
        std::sort(ids.begin(), ids.end());
        return ids;
    }

    Agenda agenda;
};

// Two groups of three rows each, with prefixes of 40 tokens, and a row by itself.
const std::vector<std::vector<int32_t>> two_groups = {
    prompt_of(1, 40, 1, 50), prompt_of(2, 40, 2, 50), prompt_of(1, 40, 3, 50),
    prompt_of(2, 40, 4, 50), prompt_of(1, 40, 5, 50), prompt_of(2, 40, 6, 50),
    prompt_of(3, 0, 7, 50)};

void every_row_is_started_once_with_its_group(void **) {
    Planned rows;
    assert_false(rows.agenda.get().ok());
    rows.add(two_groups);
    rows.plan();
    assert_true(rows.intake.unplanned().empty());
    assert_true(rows.agenda.get().ok());
    assert_int_equal(rows.agenda.waiting_tokens().prompt, 2 * 40 + 6 * 10 + 50);
    assert_int_equal(rows.agenda.waiting_tokens().generated, 7 * 10);
    std::vector<int64_t> all;
    int64_t groups = 0;
    while (!rows.agenda.at_end()) {
        const int32_t prefix = rows.agenda.next_group().prefix;
        const auto started = rows.start_group();
        assert_int_equal(started.size(), prefix < 0 ? 1 : 3);
        for (const auto &ids : started) {
            assert_int_equal(ids.size(), 1);
            assert_true(prefix < 0 || ids[0] % 2 == started[0][0] % 2);
            assert_true(rows.state(ids[0]) == RowState::started);
            all.push_back(ids[0]);
        }
        ++groups;
    }
    std::sort(all.begin(), all.end());
    assert_true(all == std::vector<int64_t>({0, 1, 2, 3, 4, 5, 6}));
    assert_int_equal(groups, 3);
    assert_int_equal(rows.agenda.groups_started(), 2);
    assert_int_equal(rows.agenda.waiting_tokens().prompt, 0);
    assert_int_equal(rows.agenda.waiting_tokens().generated, 0);
}

void equal_greedy_rows_are_started_together(void **) {
    Planned rows;
    const std::vector<int32_t> prompt = prompt_of(1, 40, 1, 50);
    rows.add({prompt, prompt_of(1, 40, 2, 50), prompt});
    rows.add({prompt}, [](batchllm_params *params) { params->max_tokens = 3; });
    rows.add({prompt}, [](batchllm_params *params) { params->temperature = 1; });
    rows.plan();
    const auto started = rows.start_group();
    assert_true(rows.agenda.at_end());
    assert_int_equal(started.size(), 4);
    for (const std::vector<int64_t> &ids : started) {
        assert_true(ids[0] == 0 ? ids == std::vector<int64_t>({0, 2}) : ids.size() == 1);
    }
    assert_int_equal(rows.agenda.waiting_tokens().generated, 0);
}

// Four groups of two rows: all begin with 30 tokens, and two and two with 60.
void a_common_prefix_is_needed_until_its_last_group_has_passed(void **) {
    Planned rows(2);
    std::vector<std::vector<int32_t>> prompts;
    for (int32_t row = 0; row < 8; ++row) {
        std::vector<int32_t> prompt = prompt_of(1, 30, 0, 30);
        const std::vector<int32_t> second = prompt_of(row / 2 + 2, 30, 0, 30),
                                   own = prompt_of(0, 0, row, 10);
        for (const auto *part : {&second, &own}) {
            prompt.insert(prompt.end(), part->begin(), part->end());
        }
        prompts.push_back(prompt);
    }
    rows.add(prompts);
    rows.plan();
    assert_true(rows.agenda.prefixes_nested());
    std::vector<int32_t> passed_before;
    std::vector<size_t> passed_at; // after how many groups each has passed
    size_t groups = 0;
    while (!rows.agenda.at_end()) {
        std::vector<int32_t> needed, passed;
        for (int32_t prefix = rows.agenda.next_group().prefix; prefix >= 0;
             prefix = rows.agenda.parent_of(prefix)) {
            assert_true(std::find(passed_before.begin(), passed_before.end(), prefix) ==
                        passed_before.end());
            if (rows.agenda.needed_later(prefix)) needed.push_back(prefix);
        }
        rows.start_group(&passed);
        ++groups;
        for (const int32_t prefix : passed) {
            assert_true(std::find(needed.begin(), needed.end(), prefix) == needed.end());
            passed_before.push_back(prefix);
            if (rows.agenda.parent_of(prefix) < 0) passed_at.push_back(groups);
        }
    }
    assert_int_equal(groups, 4);
    assert_int_equal(passed_before.size(), rows.agenda.prefixes().size());
    assert_true(passed_at == std::vector<size_t>({4})); // the one of all rows
}

void a_new_plan_has_what_is_left_of_the_old_one(void **) {
    Planned rows;
    rows.add(two_groups);
    rows.plan();
    const auto started = rows.start_group();
    rows.add({prompt_of(1, 40, 8, 50)});
    rows.plan();
    for (const auto &ids : started) assert_true(rows.state(ids[0]) == RowState::started);
    const std::vector<int64_t> rest = rows.start_all();
    assert_int_equal(rest.size() + started.size(), 8);
    for (const auto &ids : started) {
        assert_true(std::find(rest.begin(), rest.end(), ids[0]) == rest.end());
    }
}

void a_cancelled_row_is_not_started_and_its_memory_goes(void **) {
    Planned rows;
    rows.add(two_groups);
    rows.plan();
    Cancels cancels;
    cancels.below[3] = 7;
    std::vector<uint64_t> cancelled;
    rows.agenda.cancel(cancels, [&](const Row &row) { cancelled.push_back(row.tag); });
    assert_true(cancelled == std::vector<uint64_t>({3}));
    assert_true(rows.state(3) == RowState::answered);
    assert_int_equal(rows.agenda.waiting_tokens().generated, 6 * 10);
    assert_true(rows.start_all() == std::vector<int64_t>({0, 1, 2, 4, 5, 6}));
    assert_true(rows.state(3) == RowState::released);
    assert_int_equal(rows.agenda.waiting_tokens().generated, 0);
}

void a_given_plan_is_used_for_its_rows_and_then_forgotten(void **) {
    Planned first;
    first.add(two_groups);
    first.plan();
    Plan reversed = *first.agenda.get();
    std::reverse(reversed.groups.begin(), reversed.groups.end());
    Planned rows;
    assert_true(rows.agenda.use(reversed).ok());
    rows.add(two_groups);
    rows.plan();
    const Plan used = *rows.agenda.get();
    assert_int_equal(used.groups[0].prefix < 0, reversed.groups[0].prefix < 0);
    assert_true(used.rows[0] == reversed.rows[static_cast<size_t>(reversed.groups[0].row_begin)]);
    assert_int_equal(used.reused_rows, 7);
    rows.start_all();
    rows.add(two_groups);
    rows.plan();
    assert_int_equal(rows.agenda.get()->reused_rows, 0);
}

// As after the loss of a device.
void rows_that_wait_again_are_planned_without_the_given_plan(void **) {
    Planned first;
    first.add(two_groups);
    first.plan();
    Planned rows;
    rows.add({prompt_of(1, 40, 1, 50), prompt_of(1, 40, 3, 50)});
    rows.plan();
    assert_true(rows.agenda.use(*first.agenda.get()).ok());
    rows.intake.unplan_all();
    rows.agenda.clear();
    assert_true(rows.agenda.at_end());
    assert_int_equal(rows.agenda.waiting_tokens().prompt, 0);
    assert_true(rows.agenda.plan(&rows.intake, false).ok());
    assert_int_equal(rows.agenda.get()->reused_rows, 0);
    assert_true(rows.start_all() == std::vector<int64_t>({0, 1}));
    rows.add(two_groups);
    rows.plan();
    assert_int_equal(rows.agenda.get()->reused_rows, 7);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_started_once_with_its_group),
        cmocka_unit_test(equal_greedy_rows_are_started_together),
        cmocka_unit_test(a_common_prefix_is_needed_until_its_last_group_has_passed),
        cmocka_unit_test(a_new_plan_has_what_is_left_of_the_old_one),
        cmocka_unit_test(a_cancelled_row_is_not_started_and_its_memory_goes),
        cmocka_unit_test(a_given_plan_is_used_for_its_rows_and_then_forgotten),
        cmocka_unit_test(rows_that_wait_again_are_planned_without_the_given_plan),
    };
    return cmocka_run_group_tests_name("agenda", tests, nullptr, nullptr);
}
