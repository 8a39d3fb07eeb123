// The scheduler against a model that checks every batch: random jobs on random pools, many of them
// as small as can be, with cancellation, scored rows, prefix forests and several plans.
#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <stdexcept>

extern "C" {
#include <cmocka.h>
}

#include "checked_model.h"
#include "schedule/scheduler.h"

using namespace batchllm;

namespace {

using Random = std::mt19937_64;

int64_t draw(Random &random, int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

// A row and what must come out of it. The prompt and the request are freed as soon as the row has
// finished, so that a pointer kept too long is seen by the address sanitizer.
struct Row {
    std::vector<int32_t> prompt;
    int32_t shareable = 0;
    int32_t max_tokens = 0;
    int32_t score_positions = 0;
    std::vector<int32_t> targets;
    std::vector<int32_t> target_offsets;
    bool null = false;

    std::unique_ptr<int32_t[]> held_prompt;
    std::unique_ptr<Request> request;
    bool finished = false;
    bool cancelled = false;
    std::vector<int32_t> output;
    std::vector<float> scores;
};

struct Window { // rows that are planned together
    std::vector<Row> rows;
    Plan plan;
};

struct Limits {
    int32_t prefix_length = 20;
    int32_t own_length = 12;
    int32_t output_length = 12;
    int32_t groups = 6;
    int32_t group_rows = 6;
    int32_t depth = 3;
};

std::vector<int32_t> some_tokens(Random &random, int64_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t &token : tokens) token = static_cast<int32_t>(draw(random, 1, 3));
    return tokens;
}

Window make_window(Random &random, const Limits &limits) {
    Window window;
    std::vector<std::vector<int32_t>> prefix_tokens;
    std::vector<int32_t> prefix_depth;
    const int64_t groups = draw(random, 1, limits.groups);
    for (int64_t g = 0; g < groups; ++g) {
        int32_t prefix = -1;
        if (draw(random, 0, 3) > 0) {
            const auto known = static_cast<int64_t>(prefix_tokens.size());
            int32_t parent = static_cast<int32_t>(draw(random, -1, known - 1));
            if (draw(random, 0, 1)) parent = -1;
            if (parent >= 0 && prefix_depth[static_cast<size_t>(parent)] >= limits.depth)
                parent = -1;
            std::vector<int32_t> tokens =
                parent < 0 ? std::vector<int32_t>() : prefix_tokens[static_cast<size_t>(parent)];
            const auto more = some_tokens(random, draw(random, 1, limits.prefix_length));
            tokens.insert(tokens.end(), more.begin(), more.end());
            prefix = static_cast<int32_t>(known);
            window.plan.prefixes.push_back({0, static_cast<int32_t>(tokens.size()), parent});
            prefix_tokens.push_back(tokens);
            prefix_depth.push_back(parent < 0 ? 1 : prefix_depth[static_cast<size_t>(parent)] + 1);
        }
        const auto begin = static_cast<int64_t>(window.rows.size());
        const int64_t rows = prefix < 0 ? 1 : draw(random, 1, limits.group_rows);
        for (int64_t r = 0; r < rows; ++r) {
            Row row;
            if (prefix >= 0) row.prompt = prefix_tokens[static_cast<size_t>(prefix)];
            const auto own = some_tokens(random, draw(random, 1, limits.own_length));
            row.prompt.insert(row.prompt.end(), own.begin(), own.end());
            const auto length = static_cast<int32_t>(row.prompt.size());
            row.shareable = length - 1;
            if (draw(random, 0, 5) == 0)
                row.shareable = static_cast<int32_t>(draw(random, 0, length - 1));
            row.null = draw(random, 0, 12) == 0;
            if (draw(random, 0, 4) == 0) {
                row.score_positions =
                    static_cast<int32_t>(draw(random, 1, draw(random, 0, 3) ? own.size() : length));
                row.target_offsets.push_back(0);
                for (int32_t i = 0; i < row.score_positions; ++i) {
                    const auto more = some_tokens(random, draw(random, 1, 3));
                    row.targets.insert(row.targets.end(), more.begin(), more.end());
                    row.target_offsets.push_back(static_cast<int32_t>(row.targets.size()));
                }
            } else {
                row.max_tokens = static_cast<int32_t>(draw(random, 1, limits.output_length));
            }
            window.rows.push_back(std::move(row));
        }
        window.plan.groups.push_back({prefix, begin, static_cast<int64_t>(window.rows.size())});
        if (prefix >= 0) window.plan.prefixes.back().row = begin;
    }
    for (size_t i = 0; i < window.rows.size(); ++i) {
        window.plan.rows.push_back(static_cast<int64_t>(i));
        window.plan.lengths.push_back(static_cast<int32_t>(window.rows[i].prompt.size()));
    }
    // Row numbers are in no order that the groups know of.
    std::vector<int64_t> number(window.rows.size());
    for (size_t i = 0; i < number.size(); ++i) number[i] = static_cast<int64_t>(i);
    std::shuffle(number.begin(), number.end(), random);
    std::vector<Row> shuffled(window.rows.size());
    for (size_t i = 0; i < number.size(); ++i)
        shuffled[static_cast<size_t>(number[i])] = std::move(window.rows[i]);
    window.rows = std::move(shuffled);
    for (int64_t &row : window.plan.rows) row = number[static_cast<size_t>(row)];
    for (PlanPrefix &prefix : window.plan.prefixes)
        prefix.row = number[static_cast<size_t>(prefix.row)];
    return window;
}

void reference(const Row &row, int32_t mean_length, std::vector<int32_t> *output,
               std::vector<float> *scores) {
    uint64_t hash = 1;
    const auto length = static_cast<int32_t>(row.prompt.size());
    for (int32_t p = 0; p < length; ++p) {
        hash = context_hash(hash, row.prompt[static_cast<size_t>(p)]);
        const int32_t i = p - (length - row.score_positions);
        if (i < 0) continue;
        for (int32_t t = row.target_offsets[static_cast<size_t>(i)];
             t < row.target_offsets[static_cast<size_t>(i) + 1]; ++t)
            scores->push_back(target_logprob(hash, row.targets[static_cast<size_t>(t)]));
    }
    while (static_cast<int32_t>(output->size()) < row.max_tokens) {
        output->push_back(next_token(hash, mean_length));
        if (output->back() == model_eos) break;
        hash = context_hash(hash, output->back());
    }
}

struct JobOptions {
    SchedulerOptions scheduler;
    int32_t mean_length = 8;
    int32_t cancel_one_in = 0; // 0: nobody is cancelled
    bool all_at_once = true;   // every window before the first step
    int64_t most_steps = 200000;
};

struct JobResult {
    int64_t steps = 0;
    int64_t preemptions = 0;
    int64_t recomputed = 0;
    int64_t prefix_tokens = 0;
    int64_t own_tokens = 0;
    int64_t peak_running = 0;
};

// Runs the windows' rows to their ends. "" or what went wrong.
class Job {
  public:
    Job(std::vector<Window> *windows, const JobOptions &options, Random *random)
        : windows_(*windows), options_(options), random_(*random), scheduler_(options.scheduler),
          model_(options.scheduler.pages, options.scheduler.page_tokens,
                 options.scheduler.step_tokens, options.mean_length) {}

    std::string run(JobResult *result);

  private:
    std::string add(Window *window);
    std::string step(JobResult *result);
    std::string check_counts(const TokenBatch &batch) const;
    std::string check_decode_first() const;
    void take_outputs(const TokenBatch &batch, const BatchOutput &output);
    void finish(Row *row);
    void cancel_some();

    std::vector<Window> &windows_;
    JobOptions options_;
    Random &random_;
    Scheduler scheduler_;
    CheckedModel model_;
    std::vector<Row *> live_;
};

std::string Job::add(Window *window) {
    std::vector<Request *> requests;
    for (Row &row : window->rows) {
        if (row.null) {
            row.finished = true;
            requests.push_back(nullptr);
            continue;
        }
        const size_t length = row.prompt.size();
        row.held_prompt.reset(new int32_t[length]);
        std::copy(row.prompt.begin(), row.prompt.end(), row.held_prompt.get());
        row.request = std::make_unique<Request>();
        row.request->prompt = {row.held_prompt.get(), static_cast<int32_t>(length), row.shareable};
        row.request->max_tokens = row.max_tokens;
        row.request->score_positions = row.score_positions;
        row.request->targets = row.targets;
        row.request->target_offsets = row.target_offsets;
        row.request->row = static_cast<int64_t>(live_.size());
        live_.push_back(&row);
        requests.push_back(row.request.get());
    }
    const Status status = scheduler_.add(window->plan, requests);
    return status.ok() ? "" : status.message();
}

void Job::finish(Row *row) {
    row->output = row->request->output;
    row->finished = true;
    row->request.reset();
    row->held_prompt.reset();
}

void Job::cancel_some() {
    if (options_.cancel_one_in == 0 || draw(random_, 0, 3) > 0) return;
    for (Row *row : live_)
        if (!row->finished && draw(random_, 1, options_.cancel_one_in) == 1) {
            row->cancelled = true;
            row->request->done = true;
            scheduler_.drop(row->request.get());
            finish(row);
        }
}

std::string Job::check_counts(const TokenBatch &batch) const {
    const StepCounts &counts = scheduler_.counts();
    if (counts.decode_tokens + counts.own_tokens + counts.prefix_tokens !=
        static_cast<int64_t>(batch.tokens.size()))
        return fault("counts do not add up");
    int64_t prefix_tokens = 0, own_nodes = 0;
    for (const ContextNode &node : batch.nodes) {
        prefix_tokens += node.shared ? node.token_count : 0;
        own_nodes += node.shared ? 0 : 1;
    }
    if (prefix_tokens != counts.prefix_tokens) return fault("prefix tokens miscounted");
    if (own_nodes != counts.requests) return fault("requests miscounted");
    if (counts.pages_used > options_.scheduler.pages) return fault("more pages than the pool");
    if (scheduler_.sampled().size() != batch.logits.size()) return fault("sampled is not logits");
    const int64_t cap = options_.scheduler.max_requests;
    if (cap > 0 && scheduler_.running() > cap) return fault("more requests than the cap");
    return "";
}

// Every decoding request gets its token before any prompt does. One may be left out, the youngest,
// and only when no page is free.
std::string Job::check_decode_first() const {
    int64_t decoding = 0, left_out = 0;
    for (const Row *row : live_) {
        if (row->finished || row->request->state != RequestState::decoding) continue;
        decoding += row->request->chunk;
        left_out += row->request->chunk == 0;
    }
    const StepCounts &counts = scheduler_.counts();
    if (counts.decode_tokens != decoding) return fault("decode tokens of nobody");
    if (left_out > 1) return fault("decoding requests left out", left_out, decoding);
    if (left_out == 1 && counts.pages_used != options_.scheduler.pages)
        return fault("a decoding request left out while pages are free");
    if (left_out == 1 && counts.own_tokens + counts.prefix_tokens > 0)
        return fault("prompt tokens before a decode token");
    return "";
}

void Job::take_outputs(const TokenBatch &batch, const BatchOutput &output) {
    size_t target = 0;
    for (size_t i = 0; i < batch.logits.size(); ++i) {
        Request *request = scheduler_.sampled()[i];
        Row *row = live_[static_cast<size_t>(request->row)];
        if (!batch.logits[i].targets.empty()) {
            for (size_t j = 0; j < batch.logits[i].targets.size(); ++j)
                row->scores.push_back(output.target_logprobs[target++]);
            request->done = row->scores.size() == row->targets.size();
            continue;
        }
        request->output.push_back(output.samples[i].token);
        request->done = output.samples[i].token == model_eos ||
                        static_cast<int32_t>(request->output.size()) == request->max_tokens;
    }
}

std::string Job::step(JobResult *result) {
    int64_t unfinished = 0;
    for (const Row *row : live_) unfinished += !row->finished;
    if (scheduler_.waiting() + scheduler_.running() != unfinished)
        return fault("waiting and running are not all", scheduler_.waiting(), scheduler_.running());
    const TokenBatch &batch = scheduler_.next_step();
    if (batch.tokens.empty() != (unfinished == 0)) return fault("an empty step", unfinished);
    std::string wrong = check_counts(batch);
    if (wrong.empty()) wrong = check_decode_first();
    BatchOutput output;
    if (wrong.empty()) wrong = model_.run(batch, &output);
    if (!wrong.empty()) return wrong;
    take_outputs(batch, output);
    result->steps += 1;
    result->preemptions += scheduler_.counts().preemptions;
    result->recomputed += scheduler_.counts().recomputed_tokens;
    result->prefix_tokens += scheduler_.counts().prefix_tokens;
    result->own_tokens += scheduler_.counts().own_tokens;
    result->peak_running = std::max(result->peak_running, scheduler_.running());
    scheduler_.finish_step();
    for (Row *row : live_)
        if (!row->finished && row->request->done) finish(row);
    return "";
}

std::string Job::run(JobResult *result) {
    size_t added = 0;
    for (bool first = true;; first = false) {
        while (added < windows_.size() &&
               (first || options_.all_at_once || draw(random_, 0, 9) == 0 ||
                scheduler_.waiting() + scheduler_.running() == 0)) {
            const std::string wrong = add(&windows_[added++]);
            if (!wrong.empty()) return wrong;
            if (!options_.all_at_once) break;
        }
        cancel_some();
        if (added == windows_.size() && scheduler_.waiting() + scheduler_.running() == 0) break;
        if (scheduler_.waiting() + scheduler_.running() == 0) continue;
        const std::string wrong = step(result);
        if (!wrong.empty()) return wrong;
        if (result->steps > options_.most_steps) return fault("no end");
    }
    if (!scheduler_.next_step().tokens.empty()) return fault("a batch of nothing");
    scheduler_.finish_step();
    if (scheduler_.pages_used() != 0) return fault("pages leaked", scheduler_.pages_used());
    if (scheduler_.prompt_tokens_left() != 0)
        return fault("prompt tokens left", scheduler_.prompt_tokens_left());
    for (const Window &window : windows_)
        for (const Row &row : window.rows) {
            if (row.null) continue;
            std::vector<int32_t> expected;
            std::vector<float> expected_scores;
            reference(row, options_.mean_length, &expected, &expected_scores);
            if (!row.finished) return fault("a row without end");
            if (row.cancelled) {
                if (row.output.size() > expected.size() ||
                    !std::equal(row.output.begin(), row.output.end(), expected.begin()))
                    return fault("a cancelled row's output is not the start of its own");
                continue;
            }
            if (row.output != expected) return fault("wrong output");
            if (row.scores != expected_scores) return fault("wrong scores");
        }
    return "";
}

int64_t slots_needed(const std::vector<Window> &windows) {
    int64_t most = 1;
    for (const Window &window : windows)
        for (const Row &row : window.rows)
            most = std::max(most, static_cast<int64_t>(row.prompt.size()) +
                                      std::max(0, row.max_tokens - 1));
    return most;
}

uint64_t seed_of_run() {
    const char *given = std::getenv("BATCHLLM_TEST_SEED");
    const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
    print_message("seed %llu (BATCHLLM_TEST_SEED)\n", static_cast<unsigned long long>(seed));
    return seed;
}

struct Sweep {
    int32_t jobs = 3000;
    int64_t most_extra_pages = 40; // beyond the fewest that hold the longest request
    int32_t cancel_one_in = 0;
    Limits limits;
};

// Random jobs under random options. Returns the first fault, with the job's own seed.
std::string sweep(const Sweep &given, JobResult *total) {
    const uint64_t seed = seed_of_run();
    for (int32_t job = 0; job < given.jobs; ++job) {
        Random random(seed + static_cast<uint64_t>(job));
        std::vector<Window> windows;
        const int64_t count = draw(random, 1, 3);
        for (int64_t i = 0; i < count; ++i) windows.push_back(make_window(random, given.limits));
        JobOptions options;
        options.scheduler.page_tokens = static_cast<int32_t>(draw(random, 1, 7));
        const int64_t fewest = (slots_needed(windows) + options.scheduler.page_tokens - 1) /
                               options.scheduler.page_tokens;
        options.scheduler.pages =
            fewest + (draw(random, 0, 3) ? draw(random, 0, given.most_extra_pages) : 0);
        options.scheduler.step_tokens = draw(random, 1, draw(random, 0, 1) ? 6 : 100);
        options.scheduler.max_requests = draw(random, 0, 3) ? 0 : draw(random, 1, 5);
        options.scheduler.order =
            draw(random, 0, 1) ? BATCHLLM_ORDER_ARRIVAL : BATCHLLM_ORDER_DECODE_FIRST;
        options.scheduler.look_ahead = draw(random, 0, 1) == 0;
        options.mean_length = static_cast<int32_t>(draw(random, 2, 30));
        options.cancel_one_in = given.cancel_one_in;
        options.all_at_once = draw(random, 0, 1) == 0;
        JobResult result;
        std::string wrong;
        try {
            wrong = Job(&windows, options, &random).run(&result);
        } catch (const std::logic_error &violated) {
            wrong = violated.what();
        }
        total->preemptions += result.preemptions;
        total->recomputed += result.recomputed;
        total->steps += result.steps;
        if (!wrong.empty())
            return wrong + ", job " + std::to_string(job) + " of seed " + std::to_string(seed);
    }
    print_message("%lld steps, %lld preemptions, %lld recomputed tokens\n",
                  static_cast<long long>(total->steps), static_cast<long long>(total->preemptions),
                  static_cast<long long>(total->recomputed));
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

void prefixes_that_waste_more_pages_than_there_are_are_not_shared(void **) {
    // Prefixes far shorter than a page: sharing needs more pages than the whole request.
    Sweep seams;
    seams.limits = {4, 3, 4, 6, 6, 4};
    seams.most_extra_pages = 2;
    JobResult total;
    expect_good(sweep(seams, &total));
    assert_true(total.preemptions > 0);
}

// ---- Small jobs, each for one promise ----

Row plain_row(const std::vector<int32_t> &prompt, int32_t max_tokens) {
    Row row;
    row.prompt = prompt;
    row.shareable = static_cast<int32_t>(prompt.size()) - 1;
    row.max_tokens = max_tokens;
    return row;
}

// One group of rows with a prefix of so many tokens.
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
        return Job(&windows, options, &random).run(result);
    } catch (const std::logic_error &violated) {
        return violated.what();
    }
}

constexpr int32_t never = 1 << 30; // mean length: no EOS

void a_shared_prefix_is_computed_once(void **) {
    JobResult result;
    expect_good(run_one(one_group(40, 8, 10, 5), {1000, 16, 64, 0, 0, true}, never, &result));
    assert_int_equal(result.prefix_tokens, 40);
    assert_int_equal(result.own_tokens, 80);
    assert_int_equal(result.recomputed, 0);
    assert_int_equal(result.peak_running, 10);
}

void a_prefix_end_and_its_rows_share_a_batch(void **) {
    JobResult result; // 40 + 2 * 8 prompt tokens fit one step; each row's second token is the last
    expect_good(run_one(one_group(40, 8, 2, 2), {1000, 16, 64, 0, 0, true}, never, &result));
    assert_int_equal(result.steps, 2);
}

void a_request_fits_where_its_prefix_would_waste_the_page_it_needs(void **) {
    // 17 + 15 prompt tokens and no output to store: 2 pages of 16, but 3 with a seam at 17.
    JobResult result;
    expect_good(run_one(one_group(17, 15, 3, 1), {2, 16, 64, 0, 0, true}, never, &result));
    assert_true(result.steps >= 3);
}

void requests_have_no_cap_unless_one_is_set(void **) {
    JobResult free_result, capped;
    expect_good(
        run_one(one_group(16, 4, 600, 8), {4000, 4, 2048, 0, 0, true}, never, &free_result));
    expect_good(run_one(one_group(16, 4, 600, 8), {4000, 4, 2048, 256, 0, true}, never, &capped));
    assert_int_equal(free_result.peak_running, 600);
    assert_int_equal(capped.peak_running, 256);
    assert_true(capped.steps > free_result.steps);
}

void fits_is_exact(void **) {
    Scheduler scheduler({3, 8, 64, 0, 0, true});
    assert_true(scheduler.fits(25)); // the last token is not stored
    assert_false(scheduler.fits(26));
}

void a_request_that_does_not_fit_is_refused_and_nothing_is_taken(void **) {
    JobResult result;
    const std::string wrong =
        run_one(one_group(10, 10, 2, 6), {3, 8, 64, 0, 0, true}, never, &result);
    assert_non_null(std::strstr(wrong.c_str(), "row 0 needs keys and values of 25 tokens"));
}

void prefixes_of_rows_that_are_not_computed_are_not_computed(void **) {
    Window window = one_group(40, 8, 3, 1);
    for (Row &row : window.rows) row.null = true;
    JobResult result;
    expect_good(run_one(std::move(window), {100, 16, 64, 0, 0, true}, never, &result));
    assert_int_equal(result.steps, 0);
}

void a_row_that_may_share_less_takes_the_parent_prefix(void **) {
    Window window = one_group(40, 8, 3, 1);
    window.plan.prefixes = {{0, 30, -1}, {0, 40, 0}};
    window.plan.groups[0].prefix = 1;
    window.rows[1].shareable = 39; // the head of 30
    window.rows[2].shareable = 29; // nothing
    JobResult result;
    expect_good(run_one(std::move(window), {100, 16, 64, 0, 0, true}, never, &result));
    assert_int_equal(result.prefix_tokens, 40);
    assert_int_equal(result.own_tokens, 8 + 18 + 48);
}

void scored_positions_are_never_in_the_prefix(void **) {
    Window window = one_group(40, 8, 2, 0);
    for (Row &row : window.rows) {
        row.score_positions = 9; // one more than the rows' own tokens
        for (int32_t i = 0; i <= 9; ++i) row.target_offsets.push_back(i);
        row.targets.assign(9, 3);
    }
    JobResult result;
    expect_good(run_one(std::move(window), {100, 16, 7, 0, 0, true}, never, &result));
    assert_int_equal(result.prefix_tokens, 0);
}

void looking_ahead_avoids_preemption(void **) {
    // Prompts of 4 tokens that grow to 100: admitted by the pages free now, they outgrow the pool.
    JobResult ahead, by_free_pages;
    expect_good(run_one(one_group(16, 4, 100, 97), {100, 8, 64, 0, 0, true}, never, &ahead));
    expect_good(
        run_one(one_group(16, 4, 100, 97), {100, 8, 64, 0, 0, false}, never, &by_free_pages));
    assert_int_equal(ahead.preemptions, 0);
    assert_true(ahead.peak_running >=
                7); // 98 pages of at most 13 a request, with their starts spread
    assert_true(by_free_pages.preemptions > 0);
}

void arrival_order_follows_the_first_rows(void **) {
    // Two groups; the plan puts that of row 1 first.
    for (const int32_t order : {BATCHLLM_ORDER_DECODE_FIRST, BATCHLLM_ORDER_ARRIVAL}) {
        Plan plan;
        plan.rows = {1, 0};
        plan.groups = {{-1, 0, 1}, {-1, 1, 2}};
        const int32_t tokens[4] = {1, 2, 3, 4};
        Request requests[2];
        Request *held[2] = {&requests[0], &requests[1]};
        for (Request &request : requests) {
            request.prompt = {tokens, 4, 3};
            request.max_tokens = 2;
        }
        Scheduler scheduler({100, 4, 4, 0, order, true});
        const bool added = scheduler.add(plan, held).ok();
        const bool one_row = scheduler.next_step().logits.size() == 1;
        const bool first =
            one_row && scheduler.sampled()[0] == held[order == BATCHLLM_ORDER_ARRIVAL ? 0 : 1];
        assert_true(added);
        assert_true(one_row);
        assert_true(first);
    }
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_shared_prefix_is_computed_once),
        cmocka_unit_test(a_prefix_end_and_its_rows_share_a_batch),
        cmocka_unit_test(a_request_fits_where_its_prefix_would_waste_the_page_it_needs),
        cmocka_unit_test(requests_have_no_cap_unless_one_is_set),
        cmocka_unit_test(fits_is_exact),
        cmocka_unit_test(a_request_that_does_not_fit_is_refused_and_nothing_is_taken),
        cmocka_unit_test(prefixes_of_rows_that_are_not_computed_are_not_computed),
        cmocka_unit_test(a_row_that_may_share_less_takes_the_parent_prefix),
        cmocka_unit_test(scored_positions_are_never_in_the_prefix),
        cmocka_unit_test(looking_ahead_avoids_preemption),
        cmocka_unit_test(arrival_order_follows_the_first_rows),
        cmocka_unit_test(every_request_finishes_with_its_own_output_on_any_pool),
        cmocka_unit_test(tiny_pools_preempt_and_still_finish),
        cmocka_unit_test(prefixes_that_waste_more_pages_than_there_are_are_not_shared),
        cmocka_unit_test(cancelling_at_random_disturbs_nobody),
        cmocka_unit_test(long_outputs_outgrow_the_pool_and_finish),
    };
    return cmocka_run_group_tests_name("scheduler", tests, nullptr, nullptr);
}
