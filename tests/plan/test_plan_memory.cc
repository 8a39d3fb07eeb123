// Planning takes little memory beyond the tokens, whatever shape the rows' tree has.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
extern "C" { // which cmocka 1.1.5 lacks
#include <cmocka.h>
}

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <malloc.h>
#include <new>
#include <random>

#include "../../bench/jobs.h"
#include "plan/checks.h"
#include "seed.h"

namespace {

size_t allocated_now = 0, allocated_most = 0;

} // namespace

void *operator new(size_t bytes) {
    void *memory = std::malloc(bytes);
    if (memory == nullptr) std::abort();
    allocated_now += malloc_usable_size(memory);
    allocated_most = std::max(allocated_most, allocated_now);
    return memory;
}
void operator delete(void *memory) noexcept {
    if (memory == nullptr) return;
    allocated_now -= malloc_usable_size(memory);
    std::free(memory);
}
void operator delete(void *memory, size_t) noexcept { operator delete(memory); }

using namespace batchllm;

namespace {

// Peak bytes per row, including the caller's table of rows but not the tokens.
double bytes_a_row(const std::vector<TokenRow> &rows, int32_t levels) {
    PlanOptions options;
    options.levels = levels;
    options.min_prefix_tokens = 1;
    const size_t before = allocated_most = allocated_now;
    const Plan plan = make_plan(rows, {}, options, nullptr).value();
    return static_cast<double>(allocated_most - before) / static_cast<double>(rows.size()) +
           sizeof(TokenRow);
}

void documents_with_questions_take_less_than_200_bytes_a_row(void **) {
    JobShape shape;
    shape.rows = 50000;
    shape.prefix = 60;
    shape.common = 20;
    shape.own = 20;
    const JobRows job = make_job_rows(shape);
    for (const int32_t levels : {1, 2}) assert_true(bytes_a_row(job.rows, levels) < 200);
}

void bushy_trees_take_less_than_200_bytes_a_row(void **) {
    std::mt19937_64 random(seed_of_run());
    const TokenRows rows = random_rows(random, 50000, 4, 200);
    for (const int32_t levels : {1, 2}) assert_true(bytes_a_row(views(rows), levels) < 200);
}

void chains_take_less_than_200_bytes_a_row(void **) {
    const std::vector<int32_t> text(30000, 9);
    std::vector<TokenRow> rows;
    for (int32_t n = 2; n < 30000; ++n) rows.push_back({text.data(), n, n - 1});
    for (const int32_t levels : {1, 2}) assert_true(bytes_a_row(rows, levels) < 200);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(documents_with_questions_take_less_than_200_bytes_a_row),
        cmocka_unit_test(bushy_trees_take_less_than_200_bytes_a_row),
        cmocka_unit_test(chains_take_less_than_200_bytes_a_row),
    };
    return cmocka_run_group_tests_name("plan_memory", tests, nullptr, nullptr);
}
