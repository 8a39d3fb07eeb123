// The claim that groups found ahead of time save more than an implicit cache (docs/planning.md).
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
extern "C" { // which cmocka 1.1.5 lacks
#include <cmocka.h>
}

#include "../../bench/block_cache.h"
#include "../../bench/jobs.h"

using namespace batchllm;

namespace {

double saved_by_cache(const JobRows &job, int64_t capacity_tokens) {
    BlockCacheOptions options;
    options.capacity_tokens = capacity_tokens;
    return BlockCache(options).run(job.rows).saving_ratio();
}

double saved_by_groups(const JobRows &job, int32_t levels) {
    PlanOptions options;
    options.levels = levels;
    return make_plan(job.rows, {}, options, nullptr)->saving_ratio();
}

void a_block_cache_serves_full_blocks_and_never_the_last_token(void **) {
    const std::vector<int32_t> text(64, 3);
    const std::vector<TokenRow> rows = {
        {text.data(), 64, 63}, {text.data(), 64, 63}, {text.data(), 50, 49}};
    BlockCacheOptions options;
    options.capacity_tokens = 10000;
    const BlockCacheResult result = BlockCache(options).run(rows);
    assert_int_equal(result.processed, 64 + 16 + 2);
}

void a_block_cache_forgets_what_was_used_longest_ago(void **) {
    std::vector<std::vector<int32_t>> texts;
    for (int i = 0; i < 3; ++i) texts.emplace_back(33, i);
    const auto row = [&](size_t i) { return TokenRow{texts[i].data(), 33, 32}; };
    BlockCacheOptions options; // six blocks; a row takes three: two full ones and its last
    options.decode_tokens = 15;
    options.running = 1;
    options.capacity_tokens = 96;
    // Row 2 evicts one block: the last full one of row 1, since row 0 was used more recently.
    const BlockCacheResult result =
        BlockCache(options).run({row(0), row(1), row(0), row(2), row(0), row(1)});
    assert_int_equal(result.processed, 33 + 33 + 1 + 33 + 1 + 17);
}

void groups_save_more_than_a_cache_of_a_gpus_memory(void **) {
    const JobRows job = make_job_rows(JobShape());
    const double cache = saved_by_cache(job, 400000), one = saved_by_groups(job, 1),
                 two = saved_by_groups(job, 2);
    assert_true(cache > 0.43 && cache < 0.50);
    assert_true(one > 0.61 && one < 0.65);
    assert_true(two > 0.64 && two < 0.67);
    assert_true(one > cache + 0.1);
    // With memory for everything, the cache finds everything except parts of blocks.
    const double all = saved_by_cache(job, 100000000);
    assert_true(all < two && all > two - 0.01);
}

void papers_figures_come_out_where_few_rows_share_most_prefixes(void **) {
    JobShape shape;
    shape.uneven = true;
    shape.sharing = 4;
    const JobRows job = make_job_rows(shape);
    const double cache = saved_by_cache(job, 440000), groups = saved_by_groups(job, 1);
    assert_true(cache > 0.41 && cache < 0.47);   // the paper: 44.2 %
    assert_true(groups > 0.53 && groups < 0.58); // the paper: 54.9 %
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_block_cache_serves_full_blocks_and_never_the_last_token),
        cmocka_unit_test(a_block_cache_forgets_what_was_used_longest_ago),
        cmocka_unit_test(groups_save_more_than_a_cache_of_a_gpus_memory),
        cmocka_unit_test(papers_figures_come_out_where_few_rows_share_most_prefixes),
    };
    return cmocka_run_group_tests_name("plan_cache", tests, nullptr, nullptr);
}
