// The page pool and the prefix forest above it.
#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <sys/resource.h>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "kv/page_pool.h"
#include "schedule/forecast.h"
#include "schedule/prefix_forest.h"
#include "seed.h"

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
    std::vector<int32_t> all;
    for (const PageTable &table : tables)
        all.insert(all.end(), table.group(0).pages.begin(), table.group(0).pages.end());
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

void a_pool_takes_memory_for_the_pages_that_are_used(void **) {
    // A list of all of them would be 10 GB.
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    PagePool pool(INT32_MAX, 16);
    PageTable table;
    bool taken = true;
    for (int32_t i = 0; i < 1000; ++i) taken &= pool.take(&table);
    const int64_t used = pool.used(), empty = pool.free();
    pool.give(&table);
    getrusage(RUSAGE_SELF, &after);
    assert_true(taken);
    assert_int_equal(used, 1000);
    assert_int_equal(empty, INT32_MAX - 1000);
    assert_int_equal(pool.free(), INT32_MAX);
    assert_int_equal(pool.peak(), 1000);
    assert_true(after.ru_maxrss - before.ru_maxrss < 64 * 1024); // KiB
}

void giving_a_page_twice_is_refused(void **) {
    PagePool pool(4, 16);
    PageTable table;
    const bool taken = pool.take(&table);
    PageTable copy = table;
    pool.give(&table);
    const bool again = refused(&pool, &copy);
    copy.group(0).pages = {4};
    const bool outside = refused(&pool, &copy);
    copy.group(0).pages = {-1};
    const bool negative = refused(&pool, &copy);
    assert_true(taken);
    assert_true(again);
    assert_true(outside);
    assert_true(negative);
}

void random_taking_and_giving_keeps_count(void **) {
    std::mt19937_64 random(seed_of_run());
    PagePool pool(57, 4);
    std::vector<PageTable> tables(10);
    bool good = true;
    for (int32_t i = 0; i < 20000; ++i) {
        PageTable &table = tables[random() % tables.size()];
        if (random() % 5 == 0) {
            pool.give(&table);
        } else {
            good &= pool.take(&table) == (pool.free() > 0 || table.columns > 0);
            if (pool.free() == 0) pool.give(&table);
        }
        size_t held = 0;
        for (const PageTable &each : tables) held += static_cast<size_t>(each.pages());
        good &= pool.used() == static_cast<int64_t>(held);
    }
    assert_true(good);
}

void a_column_is_a_page_of_each_group_or_nothing(void **) {
    PagePool pool(7, 4, {0, 6, 6});
    PageTable table;
    const bool first = pool.take(&table), second = pool.take(&table), third = pool.take(&table);
    const int64_t used = pool.used();
    const int32_t columns = table.columns;
    const auto groups = table.groups();
    pool.give(&table);
    assert_true(first && second);
    assert_false(third);
    assert_int_equal(used, 6);
    assert_int_equal(columns, 2);
    assert_int_equal(groups, 3);
    assert_int_equal(pool.used(), 0);
    assert_int_equal(table.columns, 0);
}

void pages_go_back_as_they_fall_out_of_the_window(void **) {
    PagePool pool(100, 4, {0, 6});
    PageTable table;
    bool good = true;
    // The token at `stored` sees positions [stored - 5, stored]: from column (stored - 5) / 4 on.
    for (int32_t stored = 0; stored < 60; ++stored) {
        if (stored % 4 == 0) good &= pool.take(&table);
        pool.slide(&table, stored);
        const int32_t first = std::max(0, stored - 5) / 4;
        good &= table.group(0).first == 0 && table.group(1).first == first;
        good &= table.pages() == 2 * table.columns - first;
        good &= pool.used() == table.pages();
    }
    const int32_t kept = table.group(1).pages[0];
    pool.slide(&table, 60); // 60 tokens are stored, in 15 columns
    good &= pool.pages_kept(60) == table.pages();
    const bool still = kept == table.group(1).pages[0];
    pool.give(&table);
    assert_true(good);
    assert_true(still);
    assert_int_equal(pool.used(), 0);
    assert_int_equal(table.group(1).first, 0);
}

void the_most_tokens_of_a_pool_are_those_that_can_be_computed_one_by_one(void **) {
    std::mt19937_64 random(seed_of_run());
    bool good = true;
    for (int32_t round = 0; round < 300; ++round) {
        const auto page_tokens = static_cast<int32_t>(1 + random() % 9);
        std::vector<int32_t> windows(1 + random() % 4);
        for (int32_t &window : windows)
            window = random() % 3 == 0 ? 0 : static_cast<int32_t>(1 + random() % 20);
        const auto total = static_cast<int64_t>(random() % 40);
        PagePool pool(total, page_tokens, windows);
        PageTable table;
        int64_t stored = 0;
        while (stored < 1000) {
            if (stored % page_tokens == 0 && !pool.take(&table)) break;
            pool.slide(&table, ++stored);
            good &= pool.pages_kept(stored) == pool.used();
        }
        if (stored == 1000) {
            good &= pool.most_tokens() >= 1000;
        } else {
            good &= pool.most_tokens() == stored;
        }
    }
    assert_true(good);
}

// Takes the pages of a whole prefix, as the scheduler does chunk by chunk.
void compute(PrefixForest *forest, PagePool *pool, int32_t node) {
    ScheduledPrefix &prefix = forest->at(node);
    while (prefix.pages.columns < pages_for(prefix.length, 16))
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
    const int32_t again = forest.add(-1, 7); // a reused slot starts empty
    assert_true(again == head || again == tail);
    assert_int_equal(forest.at(again).length, 7);
    assert_int_equal(forest.at(again).computed, 0);
}

void a_table_has_a_state_slot_from_its_first_column_to_its_last(void **) {
    PagePool pool(10, 16, {0}, 2);
    PageTable a, b, c;
    assert_true(pool.has_states() && pool.has_room());
    assert_true(pool.take(&a) && pool.take(&b));
    assert_true(a.state >= 0 && b.state >= 0 && a.state != b.state);
    assert_int_equal(pool.states().used(), 2);
    assert_false(pool.has_room()); // there are pages, but no slot
    assert_false(pool.take(&c));
    assert_int_equal(c.state, -1);
    assert_int_equal(pool.used(), 2);
    const int32_t kept = a.state;
    assert_true(pool.take(&a)); // another column needs no slot
    assert_int_equal(a.state, kept);
    const int32_t given = b.state;
    pool.give(&b);
    assert_int_equal(b.state, -1);
    assert_true(pool.has_room() && pool.take(&c));
    assert_int_equal(c.state, given);
    PageTable copy = c;
    pool.give(&c);
    bool refused = false;
    try {
        copy.first_group.pages.clear();
        pool.give(&copy);
    } catch (const std::logic_error &) {
        refused = true;
    }
    assert_true(refused);
    PagePool without(10, 16);
    PageTable plain;
    assert_true(!without.has_states() && without.take(&plain));
    assert_int_equal(plain.state, -1);
}

void a_prefix_counts_as_one_slot_while_it_is_live(void **) {
    PagePool pool(10, 16, {0}, 4);
    PrefixForest forest(&pool);
    const int32_t head = forest.add(-1, 16), prefix = forest.add(head, 40);
    forest.add_pending(prefix);
    assert_int_equal(forest.prefixes_to_hold(prefix), 2);
    forest.hold(prefix);
    assert_int_equal(forest.live_prefixes(), 2);
    assert_int_equal(forest.prefixes_to_hold(prefix), 0);
    compute(&forest, &pool, head);
    compute(&forest, &pool, prefix);
    assert_int_equal(pool.states().used(), 2);
    forest.release(prefix); // idle: both keep theirs, and only the head is live
    assert_int_equal(pool.states().used(), 2);
    assert_int_equal(forest.live_prefixes(), 1);
    assert_int_equal(forest.prefixes_to_hold(prefix), 1);
    assert_true(forest.evict_idle() && forest.evict_idle());
    assert_int_equal(pool.states().used(), 0);
    assert_int_equal(forest.live_prefixes(), 0);
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

void a_prefix_keeps_what_the_window_reaches_back_to_from_its_end(void **) {
    PagePool pool(40, 16, {0, 20});
    PrefixForest forest(&pool);
    const int32_t head = forest.add(-1, 100), tail = forest.add(head, 108);
    forest.add_pending(tail);
    forest.hold(tail);
    const int64_t live = forest.live_pages();
    compute(&forest, &pool, head);
    const int32_t first = forest.at(head).pages.group(1).first;
    compute(&forest, &pool, tail);
    const int64_t used = pool.used();
    forest.release(tail);
    const bool evicted = forest.evict_idle() && forest.evict_idle();
    // Position 100 sees [81, 100]: the last two of seven pages. 108 sees [89, 108]: all of the
    // tail.
    assert_int_equal(first, 5);
    assert_int_equal(live, 7 + 2 + 1 + 1);
    assert_int_equal(used, live);
    assert_true(evicted);
    assert_int_equal(pool.used(), 0);
    assert_int_equal(forest.at(head).pages.group(1).first, 0);
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

// Simulates `rows` requests, one after the other, whose lengths are drawn from [low, high].
void show(LengthEstimate *lengths, std::mt19937_64 *random, int32_t rows, int32_t max_tokens,
          int64_t low, int64_t high) {
    for (int32_t row = 0; row < rows; ++row) {
        const int64_t length =
            low + static_cast<int64_t>((*random)() % static_cast<uint64_t>(high - low + 1));
        for (int64_t i = 0; i < length; ++i) lengths->generated(max_tokens, i);
        lengths->ended(max_tokens, length);
        for (int32_t step = 0; step < 5; ++step) lengths->forget(max_tokens);
    }
    lengths->update();
}

bool near(double value, double expected, double relative) {
    const bool good = value > expected * (1 - relative) && value < expected * (1 + relative);
    if (!good) print_error("%g is not near %g\n", value, expected);
    return good;
}

void expected_length_follows_what_the_job_shows(void **) {
    std::mt19937_64 random(seed_of_run());
    const auto left = [](const LengthEstimate &lengths, int64_t generated, bool preempted = false) {
        double sum = 0;
        for (const int64_t steps : lengths.outlook(1000, generated, preempted))
            sum += static_cast<double>(steps);
        return sum / outlook_points;
    };
    LengthEstimate nothing;
    assert_true(nothing.share() == 1.0);
    assert_true(left(nothing, 0) == 999); // the last token is not stored
    LengthEstimate fixed;
    show(&fixed, &random, 3000, 1000, 250, 250);
    assert_true(near(fixed.share(), 0.25, 0.1));
    assert_true(near(left(fixed, 0), 250, 0.1));
    assert_true(near(left(fixed, 125), 125, 0.2));
    LengthEstimate uniform;
    show(&uniform, &random, 3000, 1000, 1, 800);
    assert_true(near(uniform.share(), 0.4, 0.15));
    assert_true(near(left(uniform, 400), 200, 0.25));
    LengthEstimate full;
    show(&full, &random, 3000, 1000, 1000, 1000);
    assert_true(near(full.share(), 1, 1e-6));
    assert_true(left(full, 400) == 599);
    // The job changes.
    show(&full, &random, 3000, 1000, 100, 100);
    assert_true(near(full.share(), 0.1, 0.3));
    assert_true(left(fixed, 300, true) >= 300); // preempted: as much again
    assert_true(left(fixed, 999, true) == 0);
}

void requests_that_still_run_count_for_the_expected_length(void **) {
    // 100 requests stop after 10 of 1000 tokens while 900 are at 500: the mean is far above 10.
    LengthEstimate lengths;
    for (int64_t i = 0; i < 500; ++i)
        for (int64_t row = 0; row < 1000; ++row)
            if (row >= 100 || i < 10) lengths.generated(1000, i);
    for (int64_t row = 0; row < 100; ++row) lengths.ended(1000, 10);
    lengths.update();
    assert_true(lengths.share() > 0.7);
}

void the_forecast_is_the_peak_of_requests_that_end_one_after_the_other(void **) {
    std::mt19937_64 random(seed_of_run());
    bool good = true;
    for (int32_t round = 0; round < 200; ++round) {
        const int64_t longest = 63; // one step per bucket
        struct Some {
            int64_t now;
            Outlook outlook;
        };
        std::vector<Some> requests;
        for (uint64_t i = 0; i < 1 + random() % 20; ++i) {
            Some some{static_cast<int64_t>(random() % 100), {}};
            for (int64_t &steps : some.outlook) steps = static_cast<int64_t>(random() % 64);
            requests.push_back(some);
        }
        MemoryForecast forecast;
        forecast.clear(longest);
        for (size_t i = 0; i + 1 < requests.size(); ++i)
            forecast.add(requests[i].now, requests[i].outlook);
        double peak = 0;
        for (int64_t step = 0; step <= longest; ++step) {
            double slots = 0;
            for (const Some &some : requests)
                for (const int64_t end : some.outlook)
                    slots +=
                        end >= step ? static_cast<double>(some.now + step) / outlook_points : 0;
            peak = std::max(peak, slots);
        }
        const auto guess =
            static_cast<double>(forecast.peak_with(requests.back().now, requests.back().outlook));
        // Requests that outlast a bucket are counted as at its end: one step more.
        good &= guess >= peak - 1e-9 && guess <= peak + 1 + static_cast<double>(requests.size());
    }
    assert_true(good);
}

void the_forecast_stops_growing_where_a_window_is_full(void **) {
    std::mt19937_64 random(seed_of_run());
    bool good = true;
    for (int32_t round = 0; round < 200; ++round) {
        const int64_t longest = 63; // one step per bucket
        std::vector<KvWindow> windows = {{0, static_cast<int32_t>(random() % 3)},
                                         {static_cast<int32_t>(1 + random() % 80), 2}};
        constexpr int32_t page_tokens = 4;
        struct Some {
            int64_t now;
            Outlook outlook;
        };
        std::vector<Some> requests;
        for (uint64_t i = 0; i < 1 + random() % 20; ++i) {
            Some some{static_cast<int64_t>(random() % 100), {}};
            for (int64_t &steps : some.outlook) steps = static_cast<int64_t>(random() % 64);
            requests.push_back(some);
        }
        MemoryForecast forecast(windows, page_tokens);
        forecast.clear(longest);
        for (size_t i = 0; i + 1 < requests.size(); ++i)
            forecast.add(requests[i].now, requests[i].outlook);
        double peak = 0;
        int64_t groups = 0;
        for (const KvWindow &kind : windows) groups += kind.groups;
        for (int64_t step = 0; step <= longest; ++step) {
            double slots = 0;
            for (const Some &some : requests)
                for (const int64_t end : some.outlook)
                    for (const KvWindow &kind : windows) {
                        if (end < step) continue;
                        int64_t own = some.now + step;
                        if (kind.window > 0)
                            own = std::min(own, int64_t{kind.window} + page_tokens - 1);
                        slots += static_cast<double>(kind.groups * own) / outlook_points;
                    }
            peak = std::max(peak, slots);
        }
        const auto guess =
            static_cast<double>(forecast.peak_with(requests.back().now, requests.back().outlook));
        const auto most = static_cast<double>(groups * static_cast<int64_t>(requests.size()));
        good &= guess >= peak - 1e-9 && guess <= peak + 1 + most;
    }
    assert_true(good);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(pages_fill_up_before_a_new_one_is_needed),
        cmocka_unit_test(every_page_is_given_out_once),
        cmocka_unit_test(a_pool_takes_memory_for_the_pages_that_are_used),
        cmocka_unit_test(giving_a_page_twice_is_refused),
        cmocka_unit_test(random_taking_and_giving_keeps_count),
        cmocka_unit_test(a_column_is_a_page_of_each_group_or_nothing),
        cmocka_unit_test(pages_go_back_as_they_fall_out_of_the_window),
        cmocka_unit_test(the_most_tokens_of_a_pool_are_those_that_can_be_computed_one_by_one),
        cmocka_unit_test(a_prefix_goes_with_its_last_user),
        cmocka_unit_test(a_prefix_keeps_what_the_window_reaches_back_to_from_its_end),
        cmocka_unit_test(a_table_has_a_state_slot_from_its_first_column_to_its_last),
        cmocka_unit_test(a_prefix_counts_as_one_slot_while_it_is_live),
        cmocka_unit_test(an_idle_prefix_is_evicted_before_its_parent_and_only_when_idle),
        cmocka_unit_test(a_chunk_that_nobody_needs_any_more_is_cancelled),
        cmocka_unit_test(expected_length_follows_what_the_job_shows),
        cmocka_unit_test(requests_that_still_run_count_for_the_expected_length),
        cmocka_unit_test(the_forecast_is_the_peak_of_requests_that_end_one_after_the_other),
        cmocka_unit_test(the_forecast_stops_growing_where_a_window_is_full),
    };
    return cmocka_run_group_tests_name("kv", tests, nullptr, nullptr);
}
