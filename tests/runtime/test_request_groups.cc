// Which requests share what, for the rows of one group of a plan.
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/request_groups.h"
#include "testing.h"

namespace {

using batchllm::PlanPrefix;
using batchllm::Request;
using batchllm::request_groups;
using batchllm::RequestGroup;
using batchllm::RequestSharing;
using batchllm::RowRun;

// Rows of 100 tokens that share 60.
const std::vector<PlanPrefix> prefixes = {{0, 60, -1}};

std::unique_ptr<RowRun> run_of(int32_t samples) {
    auto run = std::make_unique<RowRun>();
    run->answers.push_back({0, 0, samples, 100, false});
    run->sequences.resize(static_cast<size_t>(samples));
    run->prompt_length = run->computed_length = 100;
    for (auto &sequence : run->sequences) sequence.prompt.length = 100;
    return run;
}

// If another device has the rest of its group.
void a_row_of_several_samples_that_is_left_alone_drops_its_prefix(void **) {
    const auto run = run_of(3);
    RowRun *runs[] = {run.get()};
    std::vector<Request *> requests;
    const std::vector<RequestGroup> groups = request_groups(prefixes, 0, runs, {}, &requests);
    assert_int_equal(groups.size(), 1);
    assert_int_equal(groups[0].requests.size(), 3);
    assert_int_equal(groups[0].own_common, 99);
    assert_int_equal(groups[0].prefix, -1);
}

// Without the prefix, tensor cores would add its keys in another order.
void it_keeps_the_prefix_where_results_are_to_be_reproducible(void **) {
    const auto run = run_of(3);
    RowRun *runs[] = {run.get()};
    std::vector<Request *> requests;
    RequestSharing as_planned;
    as_planned.as_planned = true;
    const std::vector<RequestGroup> groups =
        request_groups(prefixes, 0, runs, as_planned, &requests);
    assert_int_equal(groups.size(), 1);
    assert_int_equal(groups[0].requests.size(), 3);
    assert_int_equal(groups[0].own_common, 99);
    assert_int_equal(groups[0].prefix, 0);
}

void rows_of_one_request_come_before_those_of_several(void **) {
    const auto three = run_of(3), one = run_of(1), another = run_of(1);
    RowRun *runs[] = {three.get(), one.get(), another.get()};
    std::vector<Request *> requests;
    const std::vector<RequestGroup> groups = request_groups(prefixes, 0, runs, {}, &requests);
    assert_int_equal(groups.size(), 2);
    assert_int_equal(groups[0].prefix, 0);
    assert_int_equal(groups[0].own_common, 0);
    assert_int_equal(groups[0].requests.size(), 2);
    assert_ptr_equal(groups[0].requests[0], &one->sequences[0]);
    assert_ptr_equal(groups[0].requests[1], &another->sequences[0]);
    assert_int_equal(groups[1].prefix, 0);
    assert_int_equal(groups[1].own_common, 99);
    assert_ptr_equal(groups[1].requests[2], &three->sequences[2]);
}

void without_sharing_no_request_has_a_prefix_of_its_row(void **) {
    const auto three = run_of(3);
    RowRun *runs[] = {three.get()};
    std::vector<Request *> requests;
    RequestSharing none;
    none.sharing = false;
    const std::vector<RequestGroup> groups = request_groups(prefixes, -1, runs, none, &requests);
    assert_int_equal(groups.size(), 1);
    assert_int_equal(groups[0].own_common, 0);
    assert_int_equal(groups[0].requests.size(), 3);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_row_of_several_samples_that_is_left_alone_drops_its_prefix),
        cmocka_unit_test(it_keeps_the_prefix_where_results_are_to_be_reproducible),
        cmocka_unit_test(rows_of_one_request_come_before_those_of_several),
        cmocka_unit_test(without_sharing_no_request_has_a_prefix_of_its_row),
    };
    return cmocka_run_group_tests_name("request_groups", tests, nullptr, nullptr);
}
