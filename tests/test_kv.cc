// The page pool and the prefix forest above it.
#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "kv/page_pool.h"
#include "schedule/forecast.h"
#include "schedule/prefix_forest.h"

using namespace batchllm;

namespace {

bool refused(PagePool *pool, PageTable *table) {
    try {
        pool->give(table);
    } catch (const std::logic_error &) {
        return true;
    }
    return false;
}

void pages_fill_up_before_a_new_one_is_needed(void **) {
    assert_int_equal(pages_for(0, 16), 0);
    assert_int_equal(pages_for(1, 16), 1);
    assert_int_equal(pages_for(16, 16), 1);
    assert_int_equal(pages_for(17, 16), 2);
    assert_int_equal(pages_for(int64_t{1} << 40, 16), int64_t{1} << 36);
}

void every_page_is_given_out_once(void **) {
    PagePool pool(100, 16);
    PageTable tables[3];
    int64_t taken = 0;
    while (pool.take(&tables[taken % 3])) ++taken;
    PageTable all;
    for (const PageTable &table : tables) all.insert(all.end(), table.begin(), table.end());
    std::sort(all.begin(), all.end());
    const bool distinct = std::adjacent_find(all.begin(), all.end()) == all.end();
    const int32_t last = all.back();
    const int64_t used = pool.used(), empty = pool.free();
    for (PageTable &table : tables) pool.give(&table);
    assert_int_equal(taken, 100);
    assert_true(distinct);
    assert_int_equal(last, 99);
    assert_int_equal(used, 100);
    assert_int_equal(empty, 0);
    assert_int_equal(pool.free(), 100);
    assert_int_equal(pool.peak(), 100);
}

void giving_a_page_twice_is_refused(void **) {
    PagePool pool(4, 16);
    PageTable table;
    const bool taken = pool.take(&table);
    PageTable copy = table;
    pool.give(&table);
    const bool again = refused(&pool, &copy);
    copy = {4};
    const bool outside = refused(&pool, &copy);
    copy = {-1};
    const bool negative = refused(&pool, &copy);
    assert_true(taken);
    assert_true(again);
    assert_true(outside);
    assert_true(negative);
}

void random_taking_and_giving_keeps_count(void **) {
    const uint64_t seed = std::random_device()();
    print_message("seed %llu\n", static_cast<unsigned long long>(seed));
    std::mt19937_64 random(seed);
    PagePool pool(57, 4);
    std::vector<PageTable> tables(10);
    bool good = true;
    for (int32_t i = 0; i < 20000; ++i) {
        PageTable &table = tables[random() % tables.size()];
        if (random() % 5 == 0) {
            pool.give(&table);
        } else {
            good &= pool.take(&table) == (pool.free() > 0 || !table.empty());
            if (pool.free() == 0) pool.give(&table);
        }
        size_t held = 0;
        for (const PageTable &each : tables) held += each.size();
        good &= pool.used() == static_cast<int64_t>(held);
    }
    assert_true(good);
}

// Takes the pages of a whole prefix, as the scheduler does chunk by chunk.
void compute(PrefixForest *forest, PagePool *pool, int32_t node) {
    PrefixNode &prefix = forest->at(node);
    while (static_cast<int64_t>(prefix.pages.size()) < pages_for(prefix.length, 16))
        if (!pool->take(&prefix.pages)) return;
    prefix.chunk = prefix.length - prefix.computed;
    forest->finish_chunk(node);
}

void a_prefix_goes_with_its_last_user(void **) {
    PagePool pool(10, 16);
    PrefixForest forest(&pool);
    const int32_t head = forest.add(-1, 20), tail = forest.add(head, 40);
    for (int32_t i = 0; i < 2; ++i) forest.add_pending(tail);
    forest.hold(tail);
    forest.hold(tail);
    const int64_t live = forest.live_pages();
    compute(&forest, &pool, head);
    compute(&forest, &pool, tail);
    const int64_t both = pool.used();
    forest.release(tail);
    forest.remove_pending(tail);
    const int64_t one = pool.used();
    forest.release(tail);
    forest.remove_pending(tail);
    assert_int_equal(live, 4);
    assert_int_equal(both, 4);
    assert_int_equal(one, 4);
    assert_int_equal(pool.used(), 0);
    assert_int_equal(forest.live_pages(), 0);
    assert_int_equal(forest.tokens_left(), 0);
    const int32_t again = forest.add(-1, 7); // a slot used again starts afresh
    assert_true(again == head || again == tail);
    assert_int_equal(forest.at(again).length, 7);
    assert_int_equal(forest.at(again).computed, 0);
}

void an_idle_prefix_is_evicted_before_its_parent_and_only_when_idle(void **) {
    PagePool pool(10, 16);
    PrefixForest forest(&pool);
    const int32_t head = forest.add(-1, 16), tail = forest.add(head, 32);
    forest.add_pending(tail);
    forest.hold(tail);
    compute(&forest, &pool, head);
    compute(&forest, &pool, tail);
    const bool while_live = forest.evict_idle();
    forest.release(tail);
    const bool first = forest.evict_idle();
    const int32_t head_kept = forest.at(head).computed, tail_kept = forest.at(tail).computed;
    const bool second = forest.evict_idle();
    const bool third = forest.evict_idle();
    assert_false(while_live);
    assert_true(first);
    assert_int_equal(head_kept, 16);
    assert_int_equal(tail_kept, 0);
    assert_true(second);
    assert_false(third);
    assert_int_equal(pool.used(), 0);
    assert_int_equal(forest.pages_to_hold(tail), 2);
}

void a_chunk_that_nobody_needs_any_more_is_cancelled(void **) {
    PagePool pool(10, 16);
    PrefixForest forest(&pool);
    const int32_t head = forest.add(-1, 16);
    forest.add_pending(head);
    forest.hold(head);
    const bool taken = pool.take(&forest.at(head).pages);
    forest.at(head).chunk = 9;
    const int32_t cancelled = forest.release(head);
    assert_true(taken);
    assert_int_equal(cancelled, 9);
    assert_int_equal(pool.used(), 0);
    assert_int_equal(forest.at(head).chunk, 0);
}

void expected_length_follows_what_the_job_shows(void **) {
    LengthEstimate lengths;
    assert_true(lengths.share() == 1.0); // nothing known: max_tokens
    for (int32_t row = 0; row < 1000; ++row) {
        for (int32_t i = 0; i < 25; ++i) lengths.generated(100);
        lengths.ended();
    }
    assert_true(lengths.share() > 0.24 && lengths.share() < 0.27);
    assert_true(lengths.remaining(100, 0, false) >= 24 && lengths.remaining(100, 0, false) <= 27);
    assert_true(lengths.remaining(100, 60, false) >= 6);    // longer than expected: some more
    assert_int_equal(lengths.remaining(100, 30, true), 30); // preempted: as much again
    assert_int_equal(lengths.remaining(100, 99, true), 0);  // the last token is not stored
    // Requests that are still decoding count: short ones end first, and would mislead alone.
    for (int32_t i = 0; i < 1000 * 100; ++i) lengths.generated(100);
    assert_true(lengths.share() == 1.0);
}

void the_forecast_is_the_peak_of_requests_that_end_one_after_the_other(void **) {
    const uint64_t seed = std::random_device()();
    print_message("seed %llu\n", static_cast<unsigned long long>(seed));
    std::mt19937_64 random(seed);
    bool good = true;
    for (int32_t round = 0; round < 200; ++round) {
        const int64_t longest = 63; // one step a bucket: exact
        std::vector<std::pair<int64_t, int64_t>> requests;
        MemoryForecast forecast;
        forecast.clear(longest);
        for (uint64_t i = 0; i < 1 + random() % 20; ++i)
            requests.push_back(
                {static_cast<int64_t>(random() % 100),
                 static_cast<int64_t>(random() % static_cast<uint64_t>(longest + 1))});
        for (size_t i = 0; i + 1 < requests.size(); ++i)
            forecast.add(requests[i].first, requests[i].second);
        int64_t peak = 0;
        for (int64_t step = 0; step <= longest; ++step) {
            int64_t slots = 0;
            for (const auto &[now, left] : requests) slots += left >= step ? now + step : 0;
            peak = std::max(peak, slots);
        }
        const int64_t guess = forecast.peak_with(requests.back().first, requests.back().second);
        // A bucket's end is at most one step behind its requests' ends.
        good &= guess >= peak && guess <= peak + static_cast<int64_t>(requests.size());
    }
    assert_true(good);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(pages_fill_up_before_a_new_one_is_needed),
        cmocka_unit_test(every_page_is_given_out_once),
        cmocka_unit_test(giving_a_page_twice_is_refused),
        cmocka_unit_test(random_taking_and_giving_keeps_count),
        cmocka_unit_test(a_prefix_goes_with_its_last_user),
        cmocka_unit_test(an_idle_prefix_is_evicted_before_its_parent_and_only_when_idle),
        cmocka_unit_test(a_chunk_that_nobody_needs_any_more_is_cancelled),
        cmocka_unit_test(expected_length_follows_what_the_job_shows),
        cmocka_unit_test(the_forecast_is_the_peak_of_requests_that_end_one_after_the_other),
    };
    return cmocka_run_group_tests_name("kv", tests, nullptr, nullptr);
}
