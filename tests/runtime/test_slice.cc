// The prefixes of requests for some of a plan's rows.
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/slice.h"
#include "testing.h"

namespace {

using batchllm::Job;
using batchllm::Plan;
using batchllm::Slice;

// Two rows of 100 tokens that share 60.
Plan plan_of_two() {
    Plan plan;
    plan.rows = {0, 1};
    plan.lengths = {100, 100};
    plan.prefixes = {{0, 60, -1}};
    plan.groups = {{0, 0, 2}};
    return plan;
}

std::unique_ptr<Job> job_of(int32_t samples) {
    auto job = std::make_unique<Job>();
    job->answers.push_back({0, 0, samples, 100, false});
    job->sequences.resize(static_cast<size_t>(samples));
    job->prompt_length = job->computed_length = 100;
    for (auto &sequence : job->sequences) sequence.prompt.length = 100;
    return job;
}

// If another device has the rest of its group.
void a_row_of_several_samples_that_is_left_alone_drops_its_prefix(void **) {
    const Plan plan = plan_of_two();
    const auto job = job_of(3);
    Slice slice(plan, {});
    slice.add_group(plan.groups[0], {job.get()});
    assert_int_equal(slice.size(), 3);
    assert_int_equal(slice.plan().prefixes.size(), 1);
    assert_int_equal(slice.plan().prefixes[0].length, 99);
    assert_int_equal(slice.plan().prefixes[0].parent, -1);
}

// Without the prefix, tensor cores would add its keys in another order.
void it_keeps_the_prefix_where_results_are_to_be_reproducible(void **) {
    const Plan plan = plan_of_two();
    const auto job = job_of(3);
    Slice::Options options;
    options.as_planned = true;
    Slice slice(plan, options);
    slice.add_group(plan.groups[0], {job.get()});
    assert_int_equal(slice.size(), 3);
    assert_int_equal(slice.plan().prefixes.size(), 2);
    assert_int_equal(slice.plan().prefixes[0].length, 60);
    assert_int_equal(slice.plan().prefixes[1].length, 99);
    assert_int_equal(slice.plan().prefixes[1].parent, 0);
    assert_int_equal(job->shared_tokens, 99);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_row_of_several_samples_that_is_left_alone_drops_its_prefix),
        cmocka_unit_test(it_keeps_the_prefix_where_results_are_to_be_reproducible),
    };
    return cmocka_run_group_tests_name("slice", tests, nullptr, nullptr);
}
