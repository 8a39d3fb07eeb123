// The scheduler against a model that checks every batch: random jobs on random pools, many of them
// as small as possible, with cancellation, scored rows, prefix forests and several plans.
#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <stdexcept>

#include "checked_job.h" // before cmocka, whose fail() is a macro
#include "seed.h"

extern "C" {
#include <cmocka.h>
}

using namespace batchllm;

namespace {

struct Sweep {
    int32_t jobs = 3000;
    int64_t most_extra_pages = 40; // beyond the least that holds the longest request
    int32_t cancel_one_in = 0;
    Limits limits;
    bool planned = false;    // by make_plan, from the windows' rows
    bool in_parts = false;   // JobOptions::in_parts
    bool overlap = true;     // half of the jobs
    bool windows = false;    // several KV groups, some with windows
    int64_t most_states = 0; // slots, from 1 on; 0: a model without a state
};

// The most pages of a single request with this many tokens, one token per step: the pages that each
// group's window spans.
int64_t most_pages(int64_t tokens, const SchedulerOptions &options) {
    int64_t most = 0;
    for (int64_t newest = 0; newest < tokens; ++newest) {
        int64_t pages = 0;
        for (const int32_t window : options.kv_windows) {
            const int64_t oldest = window == 0 ? 0 : std::max<int64_t>(0, newest - window + 1);
            pages += newest / options.page_tokens - oldest / options.page_tokens + 1;
        }
        most = std::max(most, pages);
    }
    return most;
}

std::vector<int32_t> some_windows(Random &random) {
    std::vector<int32_t> windows;
    const int64_t groups = draw(random, 1, 5);
    const auto window = static_cast<int32_t>(draw(random, 2, draw(random, 0, 1) ? 8 : 30));
    for (int64_t i = 0; i < groups; ++i)
        windows.push_back(draw(random, 0, 2) == 0   ? 0
                          : draw(random, 0, 9) == 0 ? static_cast<int32_t>(draw(random, 2, 40))
                                                    : window);
    return windows;
}

// Replaces the window's plan by one that the planner makes from its rows.
bool plan_again(Random *random, Window *window) {
    std::vector<TokenRow> rows;
    for (const CheckedRow &row : window->rows)
        rows.push_back({row.prompt.data(), static_cast<int32_t>(row.prompt.size()), row.shareable});
    PlanOptions options;
    options.enlarge = static_cast<int32_t>(draw(*random, 0, 2));
    options.levels = static_cast<int32_t>(draw(*random, 0, 2));
    auto plan = make_plan(rows, {}, options, nullptr);
    if (!plan.ok()) return false;
    window->plan = std::move(*plan);
    return true;
}

// Random jobs under random options. Returns the first fault, with the job's own seed.
std::string sweep(const Sweep &given, JobResult *total) {
    const uint64_t seed = seed_of_run();
    for (int32_t job = 0; job < cases(given.jobs, given.jobs / 5); ++job) {
        Random random(seed + static_cast<uint64_t>(job));
        std::vector<Window> windows;
        const int64_t count = draw(random, 1, 3);
        for (int64_t i = 0; i < count; ++i) windows.push_back(make_window(random, given.limits));
        for (Window &window : windows)
            if (given.planned && !plan_again(&random, &window)) return "make_plan failed";
        JobOptions options;
        options.scheduler.page_tokens = static_cast<int32_t>(draw(random, 1, 7));
        if (given.windows) options.scheduler.kv_windows = some_windows(random);
        if (given.most_states > 0)
            options.scheduler.state_slots = draw(random, 1, given.most_states);
        const int64_t fewest = most_pages(slots_needed(windows), options.scheduler);
        options.scheduler.pages =
            fewest + (draw(random, 0, 3) ? draw(random, 0, given.most_extra_pages) : 0);
        options.scheduler.step_tokens = draw(random, 1, draw(random, 0, 1) ? 6 : 100);
        options.scheduler.max_requests = draw(random, 0, 3) ? 0 : draw(random, 1, 5);
        options.scheduler.look_ahead = draw(random, 0, 1) == 0;
        if (draw(random, 0, 1)) options.scheduler.paced_tokens = draw(random, 1, 40);
        if (draw(random, 0, 2)) options.scheduler.paced_requests = draw(random, 0, 4);
        options.mean_length = static_cast<int32_t>(draw(random, 2, 30));
        options.cancel_one_in = given.cancel_one_in;
        options.all_at_once = draw(random, 0, 1) == 0;
        options.in_parts = given.in_parts;
        options.overlap = given.overlap && draw(random, 0, 1) == 0;
        options.feeds_but_one_in = static_cast<int32_t>(draw(random, 0, 3));
        if (given.most_states == 0 && draw(random, 0, 1))
            options.proposes_one_in = static_cast<int32_t>(draw(random, 1, 3));
        JobResult result;
        std::string wrong;
        try {
            wrong = CheckedJob(&windows, options, &random).run(&result);
        } catch (const std::logic_error &violated) {
            wrong = violated.what();
        }
        total->preemptions += result.preemptions;
        total->recomputed += result.recomputed;
        total->steps += result.steps;
        total->fed_tokens += result.fed_tokens;
        total->wasted_rows += result.wasted_rows;
        total->draft_tokens += result.draft_tokens;
        total->accepted_tokens += result.accepted_tokens;
        if (!wrong.empty())
            return wrong + ", job " + std::to_string(job) + " of seed " + std::to_string(seed);
    }
    print_message("%lld steps, %lld preemptions, %lld recomputed tokens, %lld fed, %lld wasted\n",
                  static_cast<long long>(total->steps), static_cast<long long>(total->preemptions),
                  static_cast<long long>(total->recomputed),
                  static_cast<long long>(total->fed_tokens),
                  static_cast<long long>(total->wasted_rows));
    return "";
}

void expect_good(const std::string &wrong) {
    if (wrong.empty()) return;
    print_error("%s\n", wrong.c_str());
    fail();
}

void every_request_finishes_with_its_own_output_on_any_pool(void **) {
    JobResult total;
    expect_good(sweep({}, &total));
    assert_true(total.preemptions > 0 && total.recomputed > 0);
    assert_true(total.fed_tokens > 0 && total.wasted_rows > 0);
    assert_true(total.accepted_tokens > 0 && total.draft_tokens > total.accepted_tokens);
}

void tiny_pools_preempt_and_still_finish(void **) {
    Sweep tight;
    tight.most_extra_pages = 2;
    JobResult total;
    expect_good(sweep(tight, &total));
    assert_true(total.preemptions > 0);
}

void cancelling_at_random_disturbs_nobody(void **) {
    Sweep cancelling;
    cancelling.cancel_one_in = 40;
    cancelling.most_extra_pages = 15;
    JobResult total;
    expect_good(sweep(cancelling, &total));
}

void long_outputs_outgrow_the_pool_and_finish(void **) {
    Sweep longer;
    longer.jobs = 1000;
    longer.limits.output_length = 80;
    longer.limits.own_length = 4;
    longer.most_extra_pages = 30;
    JobResult total;
    expect_good(sweep(longer, &total));
    assert_true(total.preemptions > 0);
}

void pages_outside_the_window_are_never_read(void **) {
    Sweep windows;
    windows.windows = true;
    JobResult total;
    expect_good(sweep(windows, &total));
    assert_true(total.preemptions > 0 && total.recomputed > 0);
}

void tiny_pools_with_windows_preempt_and_still_finish(void **) {
    Sweep tight;
    tight.windows = true;
    tight.most_extra_pages = 2;
    tight.limits.prefix_length = 60;
    tight.limits.own_length = 40;
    tight.limits.output_length = 40;
    JobResult total;
    expect_good(sweep(tight, &total));
    assert_true(total.preemptions > 0);
}

void plans_of_two_levels_with_windows_are_scheduled_like_any_other(void **) {
    Sweep planned;
    planned.windows = true;
    planned.planned = true;
    planned.cancel_one_in = 60;
    planned.most_extra_pages = 20;
    planned.limits.groups = 8;
    JobResult total;
    expect_good(sweep(planned, &total));
    assert_true(total.preemptions > 0);
}

// Prefixes kept between the calls are neither lost nor leaked, and may be evicted.
void groups_of_a_plan_may_come_in_parts(void **) {
    for (const bool planned : {false, true}) {
        Sweep parts;
        parts.in_parts = true;
        parts.planned = planned;
        parts.windows = true;
        parts.most_states = 12;
        parts.cancel_one_in = 60;
        parts.most_extra_pages = 20;
        parts.limits.groups = 10;
        parts.jobs = 700;
        JobResult total;
        expect_good(sweep(parts, &total));
        assert_true(total.preemptions > 0 && total.recomputed > 0);
    }
}

void a_prefix_kept_between_plans_is_computed_once(void **) {
    Random random(seed_of_run());
    std::vector<Window> windows(1);
    Window &window = windows[0];
    const std::vector<int32_t> head = some_tokens(random, 50);
    window.plan.prefixes.push_back({0, 50, -1});
    for (int64_t i = 0; i < 20; ++i) {
        CheckedRow row;
        row.prompt = head;
        row.prompt.push_back(1);
        row.shareable = 50;
        row.max_tokens = 3;
        window.rows.push_back(std::move(row));
        window.plan.rows.push_back(i);
        window.plan.lengths.push_back(51);
        window.plan.groups.push_back({0, i, i + 1});
    }
    JobOptions options;
    options.scheduler.pages = 100;
    options.scheduler.page_tokens = 4;
    options.scheduler.step_tokens = 64;
    options.all_at_once = false;
    options.in_parts = true;
    JobResult result;
    window.keep = {true};
    assert_string_equal(CheckedJob(&windows, options, &random).run(&result).c_str(), "");
    assert_int_equal(result.prefix_tokens, 50);
    assert_int_equal(result.own_tokens, 20);
}

void prefixes_that_waste_more_pages_than_there_are_are_not_shared(void **) {
    // Prefixes far shorter than a page: sharing needs more pages than the whole request.
    Sweep seams;
    seams.limits = {4, 3, 4, 6, 6, 4};
    seams.most_extra_pages = 2;
    JobResult total;
    expect_good(sweep(seams, &total));
    assert_true(total.preemptions > 0);
}

void plans_of_the_planner_are_scheduled_like_any_other(void **) {
    Sweep planned;
    planned.planned = true;
    planned.most_extra_pages = 20;
    planned.limits.groups = 8;
    JobResult total;
    expect_good(sweep(planned, &total));
    assert_true(total.preemptions > 0);
}

void states_are_those_of_their_contexts_on_any_number_of_slots(void **) {
    Sweep states;
    states.most_states = 40;
    states.cancel_one_in = 200;
    JobResult total;
    expect_good(sweep(states, &total));
    assert_true(total.preemptions > 0 && total.recomputed > 0);
    assert_true(total.fed_tokens > 0 && total.wasted_rows > 0);
}

void a_few_state_slots_finish_every_job(void **) {
    Sweep few;
    few.most_states = 3; // fewer than a request with a two-level prefix would need
    few.limits.group_rows = 4;
    few.most_extra_pages = 10;
    JobResult total;
    expect_good(sweep(few, &total));
}

void states_of_planned_prefixes_with_windows_beside_them(void **) {
    Sweep planned;
    planned.planned = true;
    planned.windows = true;
    planned.most_states = 12;
    planned.most_extra_pages = 20;
    planned.cancel_one_in = 60;
    JobResult total;
    expect_good(sweep(planned, &total));
    assert_true(total.preemptions > 0);
}

// ---- Small jobs, each for one property ----

CheckedRow plain_row(const std::vector<int32_t> &prompt, int32_t max_tokens) {
    CheckedRow row;
    row.prompt = prompt;
    row.shareable = static_cast<int32_t>(prompt.size()) - 1;
    row.max_tokens = max_tokens;
    return row;
}

// One group of rows with a prefix of this many tokens.
Window one_group(int32_t prefix, int32_t own, int32_t rows, int32_t max_tokens) {
    Window window;
    for (int32_t i = 0; i < rows; ++i) {
        std::vector<int32_t> prompt(static_cast<size_t>(prefix + own), 5);
        prompt[static_cast<size_t>(prefix)] = 10 + i;
        window.rows.push_back(plain_row(prompt, max_tokens));
        window.plan.rows.push_back(i);
        window.plan.lengths.push_back(prefix + own);
    }
    window.plan.prefixes.push_back({0, prefix, -1});
    window.plan.groups.push_back({0, 0, rows});
    return window;
}

std::string run_one(Window window, const SchedulerOptions &scheduler, int32_t mean_length,
                    JobResult *result) {
    std::vector<Window> windows;
    windows.push_back(std::move(window));
    Random random(1);
    JobOptions options;
    options.scheduler = scheduler;
    options.mean_length = mean_length;
    try {
        return CheckedJob(&windows, options, &random).run(result);
    } catch (const std::logic_error &violated) {
        return violated.what();
    }
}

constexpr int32_t never = 1 << 30; // mean length: no EOS

void a_shared_prefix_is_computed_once(void **) {
    JobResult result;
    expect_good(run_one(one_group(40, 8, 10, 5), {1000, 16, 64, 0, true}, never, &result));
    assert_int_equal(result.prefix_tokens, 40);
    assert_int_equal(result.own_tokens, 80);
    assert_int_equal(result.recomputed, 0);
    assert_int_equal(result.peak_running, 10);
}

void a_prefix_end_and_its_rows_share_a_batch(void **) {
    JobResult result; // 40 + 2 * 8 prompt tokens fit one step; each row's second token is the last
    expect_good(run_one(one_group(40, 8, 2, 2), {1000, 16, 64, 0, true}, never, &result));
    assert_int_equal(result.steps, 2);
}

void a_request_fits_where_its_prefix_would_waste_the_page_it_needs(void **) {
    // 17 + 15 prompt tokens and no output to store: 2 pages of 16, but 3 with a seam at 17.
    JobResult result;
    expect_good(run_one(one_group(17, 15, 3, 1), {2, 16, 64, 0, true}, never, &result));
    assert_true(result.steps >= 3);
}

void requests_have_no_cap_unless_one_is_set(void **) {
    JobResult free_result, capped;
    expect_good(run_one(one_group(16, 4, 600, 8), {4000, 4, 2048, 0, true}, never, &free_result));
    expect_good(run_one(one_group(16, 4, 600, 8), {4000, 4, 2048, 256, true}, never, &capped));
    assert_int_equal(free_result.peak_running, 600);
    assert_int_equal(capped.peak_running, 256);
    assert_true(capped.steps > free_result.steps);
}

void the_longest_request_is_exact(void **) {
    Scheduler scheduler({3, 8, 64, 0, true});
    assert_int_equal(scheduler.longest_request(), 25); // the last token is not stored
    SchedulerOptions windows{3, 8, 64, 0, true};
    windows.kv_windows = {4}; // pages that no token sees any more are released
    assert_true(Scheduler(windows).longest_request() == INT64_MAX);
}

void a_request_that_does_not_fit_is_refused_and_nothing_is_taken(void **) {
    JobResult result;
    const std::string wrong = run_one(one_group(10, 10, 2, 6), {3, 8, 64, 0, true}, never, &result);
    assert_non_null(std::strstr(wrong.c_str(), "row 0 needs keys and values of 25 tokens"));
}

void prefixes_of_rows_that_are_not_computed_are_not_computed(void **) {
    Window window = one_group(40, 8, 3, 1);
    for (CheckedRow &row : window.rows) row.null = true;
    JobResult result;
    expect_good(run_one(std::move(window), {100, 16, 64, 0, true}, never, &result));
    assert_int_equal(result.steps, 0);
}

void a_row_that_may_share_less_takes_the_parent_prefix(void **) {
    Window window = one_group(40, 8, 3, 1);
    window.plan.prefixes = {{0, 30, -1}, {0, 40, 0}};
    window.plan.groups[0].prefix = 1;
    window.rows[1].shareable = 39; // the head of 30
    window.rows[2].shareable = 29; // nothing
    JobResult result;
    expect_good(run_one(std::move(window), {100, 16, 64, 0, true}, never, &result));
    assert_int_equal(result.prefix_tokens, 40);
    assert_int_equal(result.own_tokens, 8 + 18 + 48);
}

void scored_positions_are_never_in_the_prefix(void **) {
    Window window = one_group(40, 8, 2, 0);
    for (CheckedRow &row : window.rows) {
        row.wanted_positions = 9; // one more than the rows' own tokens
        for (int32_t i = 0; i <= 9; ++i) row.target_offsets.push_back(i);
        row.targets.assign(9, 3);
    }
    JobResult result;
    expect_good(run_one(std::move(window), {100, 16, 7, 0, true}, never, &result));
    assert_int_equal(result.prefix_tokens, 0);
}

void requests_at_once_are_as_many_as_slots_less_their_prefix(void **) {
    SchedulerOptions options{1000, 16, 64, 0, true};
    options.state_slots = 8;
    JobResult result;
    expect_good(run_one(one_group(40, 8, 30, 6), options, never, &result));
    assert_int_equal(result.peak_running, 7);
    assert_int_equal(result.peak_states, 8);
    assert_int_equal(result.preemptions, 0);
    assert_int_equal(result.prefix_tokens, 40); // the snapshot serves every row
    assert_int_equal(result.recomputed, 0);
}

void a_request_without_a_slot_for_its_prefix_is_not_shared(void **) {
    SchedulerOptions options{1000, 16, 64, 0, true};
    options.state_slots = 1;
    JobResult result;
    expect_good(run_one(one_group(40, 8, 3, 6), options, never, &result));
    assert_int_equal(result.peak_running, 1);
    assert_int_equal(result.peak_states, 1);
    assert_int_equal(result.own_tokens, 3 * 48); // all are computed: nothing is saved
    assert_int_equal(result.recomputed, 0);
}

void a_preempted_request_starts_again_from_its_prefix(void **) {
    // Two rows that outgrow the pool together: only own tokens are computed again.
    SchedulerOptions options{16, 4, 64, 0, false};
    options.state_slots = 10;
    JobResult result;
    expect_good(run_one(one_group(16, 4, 2, 24), options, never, &result));
    assert_true(result.preemptions > 0 && result.recomputed > 0);
    assert_int_equal(result.prefix_tokens, 16);
}

void looking_ahead_avoids_preemption(void **) {
    // Prompts of 4 tokens that grow to 100: if admitted by the pages that are free now, they
    // outgrow the pool.
    JobResult ahead, by_free_pages;
    expect_good(run_one(one_group(16, 4, 100, 97), {100, 8, 64, 0, true}, never, &ahead));
    expect_good(run_one(one_group(16, 4, 100, 97), {100, 8, 64, 0, false}, never, &by_free_pages));
    assert_int_equal(ahead.preemptions, 0);
    assert_true(ahead.peak_running >= 7); // 98 pages, at most 13 per request, with staggered starts
    assert_true(by_free_pages.preemptions > 0);
}

// Rows with 48 own tokens that generate 32, of which the pool holds so many at once.
JobResult run_waiting(int32_t rows, int64_t at_once, int64_t paced_tokens) {
    SchedulerOptions options{1 + 11 * at_once, 8, 96, 0, true};
    options.paced_tokens = paced_tokens;
    options.paced_requests = 8;
    JobResult result;
    expect_good(run_one(one_group(8, 48, rows, 32), options, never, &result));
    assert_int_equal(result.recomputed, 0);
    return result;
}

void prompts_are_spread_where_more_rows_wait_than_fit(void **) {
    // All that fit begin at once and end at once, in four waves, of which the last is small.
    const JobResult waves = run_waiting(40, 12, 96), spread = run_waiting(40, 12, 16);
    assert_in_range(waves.steps, 125, 130);
    assert_in_range(spread.steps, 110, 118);
}

void prompts_come_first_where_all_rows_fit(void **) {
    assert_int_equal(run_waiting(16, 16, 16).steps, run_waiting(16, 16, 96).steps);
}

// 22 rows are two waves, of which the last is nearly full: they begin as if nothing were spread.
void expect_two_waves(SchedulerOptions options, int32_t prefix, int64_t at_once) {
    options.paced_requests = 8;
    JobResult waves, paced;
    expect_good(run_one(one_group(prefix, 48, 22, 32), options, never, &waves));
    options.paced_tokens = 16;
    expect_good(run_one(one_group(prefix, 48, 22, 32), options, never, &paced));
    assert_int_equal(paced.peak_running, at_once);
    assert_int_equal(paced.steps, waves.steps);
}

void waves_are_counted_by_all_that_limits_requests(void **) {
    SchedulerOptions states{1000, 8, 96, 0, true};
    states.state_slots = 13; // one is the prefix's
    expect_two_waves(states, 8, 12);
    expect_two_waves({1000, 8, 96, 12, true}, 8, 12);
}

void pages_of_live_prefixes_are_not_there_for_rows(void **) {
    expect_two_waves({100 + 11 * 12, 8, 96, 0, true}, 800, 13);
}

// Requests for prompts of 40 tokens, which generate one token each.
struct Several {
    explicit Several(size_t count) : tokens(40, 5), requests(count) {
        for (Request &request : requests) {
            request.prompt = {tokens.data(), 40, 39};
            request.max_tokens = 1;
            pointers.push_back(&request);
        }
    }
    std::vector<int32_t> tokens;
    std::vector<Request> requests;
    std::vector<Request *> pointers;
};

StepCounts run_step_of(Scheduler *scheduler) {
    scheduler->next_step();
    const StepCounts counts = scheduler->counts();
    for (Request *request : scheduler->sampled()) {
        request->output.push_back(1);
        request->done = true;
    }
    scheduler->finish_step();
    return counts;
}

void requests_to_come_count_as_waiting(void **) {
    for (const bool more : {false, true}) {
        SchedulerOptions options{100, 4, 64, 0, true};
        options.paced_tokens = 8;
        options.paced_requests = 6;
        Scheduler scheduler(options);
        Several several(3);
        for (Request &request : several.requests) request.max_tokens = 32;
        assert_true(scheduler.add({}, {-1, 0, several.pointers}).ok());
        if (more) scheduler.more_to_come(4000, 100 * 32);
        for (const int64_t expected : {64, more ? 9 : 56}) {
            scheduler.next_step();
            assert_int_equal(scheduler.counts().own_tokens, expected);
            for (Request *request : scheduler.sampled()) request->output.push_back(1);
            scheduler.finish_step();
        }
    }
}

// Of 12 requests that outgrow the pool one by one, some wait while others still decode.
void preempted_requests_come_back_while_others_decode(void **) {
    SchedulerOptions options{100, 4, 64, 0, true};
    options.paced_tokens = options.paced_requests = 1;
    Scheduler scheduler(options);
    Several brief(20), long_ones(12);
    for (Request &request : brief.requests) request.max_tokens = 200;
    for (size_t i = 0; i < 12; ++i)
        long_ones.requests[i].max_tokens = 60 + 20 * static_cast<int32_t>(i);
    assert_true(scheduler.add({}, {-1, 0, brief.pointers}).ok());
    while (scheduler.waiting() + scheduler.running() > 0) run_step_of(&scheduler); // one token each
    assert_true(scheduler.add({}, {-1, 0, long_ones.pointers}).ok());
    int64_t preemptions = 0, back_beside_others = 0;
    for (int32_t step = 0; scheduler.waiting() + scheduler.running() > 0; ++step) {
        assert_true(step < 4000);
        scheduler.next_step();
        const StepCounts counts = scheduler.counts();
        preemptions += counts.preemptions;
        const bool none_new = preemptions > 0 && counts.prompt_tokens == 0;
        if (none_new && counts.recomputed_tokens > 0 && counts.decode_tokens > 0)
            ++back_beside_others;
        for (Request *request : scheduler.sampled()) {
            request->output.push_back(1);
            request->done = static_cast<int32_t>(request->output.size()) == request->max_tokens;
        }
        scheduler.finish_step();
    }
    print_message("%lld preemptions, %lld\n", (long long)preemptions,
                  (long long)back_beside_others);
    assert_true(preemptions > 0);
    assert_true(back_beside_others > 0);
}

void a_prefix_has_the_number_of_its_plan_until_another_begins(void **) {
    const std::vector<PlanPrefix> prefixes = {{0, 20, -1}, {0, 30, 0}};
    Scheduler scheduler({100, 4, 400, 0, true});
    Several first(2), second(2), third(2);
    assert_true(scheduler.add(prefixes, {1, 0, first.pointers}).ok());
    assert_true(scheduler.has(0) && scheduler.has(1));
    scheduler.keep(0);
    scheduler.keep(0);
    assert_int_equal(run_step_of(&scheduler).prefix_tokens, 30);
    assert_true(scheduler.has(0)); // kept
    assert_false(scheduler.has(1));
    assert_true(scheduler.add(prefixes, {1, 0, second.pointers}).ok());
    assert_int_equal(run_step_of(&scheduler).prefix_tokens, 10);
    assert_int_equal(scheduler.pages_used(), 5);
    scheduler.begin_plan();
    assert_false(scheduler.has(0));
    assert_int_equal(scheduler.pages_used(), 0);
    assert_true(scheduler.add(prefixes, {0, 0, third.pointers}).ok());
    scheduler.release(0); // it was not kept, so its requests still have it
    assert_int_equal(run_step_of(&scheduler).prefix_tokens, 20);
    assert_int_equal(scheduler.pages_used(), 0);
}

// Its requests end after the plan does: what they release is not the new plan's.
void requests_of_an_earlier_plan_keep_their_prefix(void **) {
    const std::vector<PlanPrefix> prefixes = {{0, 20, -1}};
    Scheduler scheduler({100, 4, 400, 0, true});
    Several first(2), second(2);
    assert_true(scheduler.add(prefixes, {0, 0, first.pointers}).ok());
    scheduler.begin_plan();
    assert_false(scheduler.has(0));
    assert_true(scheduler.add(prefixes, {0, 0, second.pointers}).ok());
    for (Request &request : first.requests) {
        request.done = true;
        scheduler.drop(&request);
    }
    assert_true(scheduler.has(0));
    assert_int_equal(run_step_of(&scheduler).prefix_tokens, 20);
    assert_false(scheduler.has(0));
}

void tokens_that_only_one_rows_requests_share_are_computed_once(void **) {
    const std::vector<PlanPrefix> prefixes = {{0, 20, -1}};
    Scheduler scheduler({100, 4, 400, 0, true});
    Several samples(3), others(2);
    samples.requests[0].prompt.shareable = 0; // its prompt is scored
    assert_true(scheduler.add(prefixes, {0, 0, others.pointers}).ok());
    assert_true(scheduler.add(prefixes, {0, 39, samples.pointers}).ok());
    const StepCounts counts = run_step_of(&scheduler);
    assert_int_equal(counts.prefix_tokens, 20 + 19);
    assert_int_equal(counts.own_tokens, 2 * 20 + 40 + 2 * 1);
}

// A plan may come from elsewhere. What is before a picture that has to be in one batch is still shared.
void prefixes_that_end_inside_a_whole_picture_are_not_shared(void **) {
    const std::vector<PlanPrefix> prefixes = {{0, 4, -1}, {0, 8, 0}, {0, 20, 1}};
    SchedulerOptions options{100, 4, 400, 0, true};
    options.picture_slots = 1;
    options.picture_tokens = 10;
    options.whole_pictures = true;
    Scheduler scheduler(options);
    scheduler.pictures().add(0, 10);
    scheduler.pictures().set_ready(0);
    const PromptPicture picture{5, 10, 0};
    Several rows(2);
    for (Request &request : rows.requests) request.pictures = {&picture, 1};
    assert_true(scheduler.add(prefixes, {2, 0, rows.pointers}).ok());
    const StepCounts counts = run_step_of(&scheduler);
    assert_int_equal(counts.prefix_tokens, 4);
    assert_int_equal(counts.own_tokens, 2 * 36);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_shared_prefix_is_computed_once),
        cmocka_unit_test(a_prefix_end_and_its_rows_share_a_batch),
        cmocka_unit_test(a_request_fits_where_its_prefix_would_waste_the_page_it_needs),
        cmocka_unit_test(requests_have_no_cap_unless_one_is_set),
        cmocka_unit_test(the_longest_request_is_exact),
        cmocka_unit_test(a_request_that_does_not_fit_is_refused_and_nothing_is_taken),
        cmocka_unit_test(prefixes_of_rows_that_are_not_computed_are_not_computed),
        cmocka_unit_test(a_row_that_may_share_less_takes_the_parent_prefix),
        cmocka_unit_test(scored_positions_are_never_in_the_prefix),
        cmocka_unit_test(requests_at_once_are_as_many_as_slots_less_their_prefix),
        cmocka_unit_test(a_request_without_a_slot_for_its_prefix_is_not_shared),
        cmocka_unit_test(a_preempted_request_starts_again_from_its_prefix),
        cmocka_unit_test(looking_ahead_avoids_preemption),
        cmocka_unit_test(prompts_are_spread_where_more_rows_wait_than_fit),
        cmocka_unit_test(prompts_come_first_where_all_rows_fit),
        cmocka_unit_test(waves_are_counted_by_all_that_limits_requests),
        cmocka_unit_test(pages_of_live_prefixes_are_not_there_for_rows),
        cmocka_unit_test(requests_to_come_count_as_waiting),
        cmocka_unit_test(preempted_requests_come_back_while_others_decode),
        cmocka_unit_test(a_prefix_has_the_number_of_its_plan_until_another_begins),
        cmocka_unit_test(requests_of_an_earlier_plan_keep_their_prefix),
        cmocka_unit_test(prefixes_that_end_inside_a_whole_picture_are_not_shared),
        cmocka_unit_test(tokens_that_only_one_rows_requests_share_are_computed_once),
        cmocka_unit_test(every_request_finishes_with_its_own_output_on_any_pool),
        cmocka_unit_test(tiny_pools_preempt_and_still_finish),
        cmocka_unit_test(pages_outside_the_window_are_never_read),
        cmocka_unit_test(tiny_pools_with_windows_preempt_and_still_finish),
        cmocka_unit_test(plans_of_two_levels_with_windows_are_scheduled_like_any_other),
        cmocka_unit_test(groups_of_a_plan_may_come_in_parts),
        cmocka_unit_test(a_prefix_kept_between_plans_is_computed_once),
        cmocka_unit_test(prefixes_that_waste_more_pages_than_there_are_are_not_shared),
        cmocka_unit_test(plans_of_the_planner_are_scheduled_like_any_other),
        cmocka_unit_test(cancelling_at_random_disturbs_nobody),
        cmocka_unit_test(long_outputs_outgrow_the_pool_and_finish),
        cmocka_unit_test(states_are_those_of_their_contexts_on_any_number_of_slots),
        cmocka_unit_test(a_few_state_slots_finish_every_job),
        cmocka_unit_test(states_of_planned_prefixes_with_windows_beside_them),
    };
    return cmocka_run_group_tests_name("scheduler", tests, nullptr, nullptr);
}
