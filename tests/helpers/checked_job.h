// Random jobs, and the loop that runs one through a scheduler and the checked model and compares
// every row's outcome with its reference. With overlap, a batch is built before the previous one is
// run, from a copy of it.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "checked_model.h"
#include "held_batch.h"
#include "schedule/scheduler.h"
#include "whole_plan.h"

namespace batchllm {

using Random = std::mt19937_64;

inline int64_t draw(Random &random, int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

// A row and its expected output. The prompt and the request are freed as soon as the row has
// finished, so that the address sanitizer detects a pointer kept too long.
struct CheckedRow {
    std::vector<int32_t> prompt;
    int32_t shareable = 0;
    int32_t max_tokens = 0;
    int32_t wanted_positions = 0;
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
    std::vector<CheckedRow> rows;
    Plan plan;
    size_t groups_added = 0;
    std::vector<bool> keep; // [the plan's prefixes], if groups are added in parts
};

struct Limits {
    int32_t prefix_length = 20;
    int32_t own_length = 12;
    int32_t output_length = 12;
    int32_t groups = 6;
    int32_t group_rows = 6;
    int32_t depth = 3;
};

inline std::vector<int32_t> some_tokens(Random &random, int64_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t &token : tokens) token = static_cast<int32_t>(draw(random, 1, 3));
    return tokens;
}

inline Window make_window(Random &random, const Limits &limits) {
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
            CheckedRow row;
            if (prefix >= 0) row.prompt = prefix_tokens[static_cast<size_t>(prefix)];
            const auto own = some_tokens(random, draw(random, 1, limits.own_length));
            row.prompt.insert(row.prompt.end(), own.begin(), own.end());
            const auto length = static_cast<int32_t>(row.prompt.size());
            row.shareable = length - 1;
            if (draw(random, 0, 5) == 0)
                row.shareable = static_cast<int32_t>(draw(random, 0, length - 1));
            row.null = draw(random, 0, 12) == 0;
            if (draw(random, 0, 4) == 0) {
                row.wanted_positions =
                    static_cast<int32_t>(draw(random, 1, draw(random, 0, 3) ? own.size() : length));
                row.target_offsets.push_back(0);
                for (int32_t i = 0; i < row.wanted_positions; ++i) {
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
    // Row numbers are in an order unrelated to the groups.
    std::vector<int64_t> number(window.rows.size());
    for (size_t i = 0; i < number.size(); ++i) number[i] = static_cast<int64_t>(i);
    std::shuffle(number.begin(), number.end(), random);
    std::vector<CheckedRow> shuffled(window.rows.size());
    for (size_t i = 0; i < number.size(); ++i)
        shuffled[static_cast<size_t>(number[i])] = std::move(window.rows[i]);
    window.rows = std::move(shuffled);
    for (int64_t &row : window.plan.rows) row = number[static_cast<size_t>(row)];
    for (PlanPrefix &prefix : window.plan.prefixes)
        prefix.row = number[static_cast<size_t>(prefix.row)];
    return window;
}

inline void reference(const CheckedRow &row, int32_t mean_length, std::vector<int32_t> *output,
                      std::vector<float> *scores) {
    uint64_t hash = 1;
    const auto length = static_cast<int32_t>(row.prompt.size());
    for (int32_t p = 0; p < length; ++p) {
        hash = context_hash(hash, row.prompt[static_cast<size_t>(p)]);
        const int32_t i = p - (length - row.wanted_positions);
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
    int32_t cancel_one_in = 0; // 0: no row is cancelled
    bool all_at_once = true;   // adds every window before the first step
    bool in_parts = false; // adds a window's groups in several calls, keeping prefixes in between
    bool overlap = false;
    int32_t feeds_but_one_in = 0; // rows whose samples are not fed; 0: every row's are
    int32_t proposes_one_in = 0;  // decode tokens behind which others are proposed; 0: none
    int64_t most_steps = 200000;
};

struct JobResult {
    int64_t steps = 0;
    int64_t preemptions = 0;
    int64_t recomputed = 0;
    int64_t prefix_tokens = 0;
    int64_t own_tokens = 0;
    int64_t peak_running = 0;
    int64_t peak_states = 0;
    int64_t fed_tokens = 0;
    int64_t wasted_rows = 0; // samples for requests that had ended
    int64_t draft_tokens = 0, accepted_tokens = 0;
};

// Runs the windows' rows to their ends. Returns "" or an error.
class CheckedJob {
  public:
    CheckedJob(std::vector<Window> *windows, const JobOptions &options, Random *random)
        : windows_(*windows), options_(options), random_(*random),
          scheduler_(with_functions(options)),
          model_(options.scheduler.pages, options.scheduler.page_tokens,
                 options.scheduler.step_tokens, options.mean_length, options.scheduler.kv_windows,
                 options.scheduler.state_slots) {}

    std::string run(JobResult *result);

  private:
    struct Decoding { // a request that can decode a token, before a batch is built
        const Request *request;
        int32_t computed;
        int32_t preemptions;
    };

    SchedulerOptions with_functions(const JobOptions &options) {
        SchedulerOptions with = options.scheduler;
        if (options.overlap)
            with.feeds = [every = options.feeds_but_one_in](const SampleInput &input) {
                return every == 0 || input.prompt.size() % static_cast<size_t>(every) != 0;
            };
        if (options.proposes_one_in > 0)
            with.propose = [this](std::span<Request *const> decoding) { return propose(decoding); };
        return with;
    }

    bool propose(std::span<Request *const> decoding);

    std::string add(Window *window);
    std::string step(JobResult *result);
    std::string plan(JobResult *result);
    std::string run_oldest(JobResult *result);
    std::string check_counts(const TokenBatch &batch) const;
    std::string check_decode_first(const std::vector<Decoding> &decoding) const;
    void take_outputs(const BatchOutput &output, JobResult *result);
    void finish(CheckedRow *row);
    void cancel_some();

    std::vector<Window> &windows_;
    JobOptions options_;
    Random &random_;
    Scheduler scheduler_;
    CheckedModel model_;
    std::vector<CheckedRow *> live_;
    std::deque<HeldBatch> held_; // in flight
    BatchOutput output_;         // of the last batch that was run
};

inline std::string CheckedJob::add(Window *window) {
    Plan part = window->plan;
    const auto groups = static_cast<int64_t>(part.groups.size());
    const auto begin = static_cast<int64_t>(window->groups_added);
    const int64_t end = options_.in_parts ? draw(random_, begin + 1, groups) : groups;
    part.groups.assign(window->plan.groups.begin() + begin, window->plan.groups.begin() + end);
    window->groups_added = static_cast<size_t>(end);
    std::vector<Request *> requests(window->rows.size(), nullptr);
    for (int64_t i = part.groups.front().row_begin; i < part.groups.back().row_end; ++i) {
        const auto number = static_cast<size_t>(part.rows[static_cast<size_t>(i)]);
        CheckedRow &row = window->rows[number];
        if (row.null) {
            row.finished = true;
            continue;
        }
        const size_t length = row.prompt.size();
        row.held_prompt.reset(new int32_t[length]);
        std::copy(row.prompt.begin(), row.prompt.end(), row.held_prompt.get());
        row.request = std::make_unique<Request>();
        row.request->prompt = {row.held_prompt.get(), static_cast<int32_t>(length), row.shareable};
        row.request->task = row.wanted_positions > 0 ? Task::score : Task::generate;
        row.request->max_tokens = row.max_tokens;
        row.request->wanted_positions = row.wanted_positions;
        row.request->targets = row.targets;
        row.request->target_offsets = row.target_offsets;
        row.request->row = static_cast<int64_t>(live_.size());
        live_.push_back(&row);
        requests[number] = row.request.get();
    }
    if (begin == 0) scheduler_.begin_plan();
    if (options_.in_parts && window->keep.empty())
        for (size_t i = 0; i < part.prefixes.size(); ++i)
            window->keep.push_back(draw(random_, 0, 3) > 0);
    const Status status = add_plan(scheduler_, part, requests);
    for (size_t i = 0; i < window->keep.size(); ++i) {
        const auto prefix = static_cast<int32_t>(i);
        if (end == groups) {
            scheduler_.release(prefix);
        } else if (window->keep[i]) {
            scheduler_.keep(prefix);
        }
    }
    return status.ok() ? "" : status.message();
}

inline void CheckedJob::finish(CheckedRow *row) {
    row->output = row->request->output;
    row->finished = true;
    row->request.reset();
    row->held_prompt.reset();
}

// Tokens that are right up to a random one.
inline bool CheckedJob::propose(std::span<Request *const> decoding) {
    bool any = false;
    for (Request *request : decoding) {
        request->proposed.clear();
        if (draw(random_, 1, options_.proposes_one_in) > 1) continue;
        any = true;
        std::vector<int32_t> output;
        std::vector<float> scores;
        reference(*live_[static_cast<size_t>(request->row)], options_.mean_length, &output,
                  &scores);
        const size_t known = request->output.size() + static_cast<size_t>(request->unknown);
        if (known < output.size())
            request->proposed.assign(output.begin() + static_cast<ptrdiff_t>(known), output.end());
        if (!request->proposed.empty() && draw(random_, 0, 1))
            request->proposed[static_cast<size_t>(draw(random_, 0, 3)) % request->proposed.size()] =
                1;
        for (int64_t i = draw(random_, 0, 2); i > 0; --i) request->proposed.push_back(2);
    }
    return any;
}

inline void CheckedJob::cancel_some() {
    if (options_.cancel_one_in == 0 || draw(random_, 0, 3) > 0) return;
    for (CheckedRow *row : live_)
        if (!row->finished && draw(random_, 1, options_.cancel_one_in) == 1) {
            row->cancelled = true;
            row->request->done = true;
            scheduler_.drop(row->request.get());
            finish(row);
        }
}

inline std::string CheckedJob::check_counts(const TokenBatch &batch) const {
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
    if (scheduler_.states_used() > options_.scheduler.state_slots)
        return fault("more states than slots");
    const int64_t cap = options_.scheduler.max_requests;
    if (cap > 0 && counts.requests > cap) return fault("more requests than the cap");
    return "";
}

// Every request that can decode gets its token before any prompt does. Only the youngest may be
// left out, and only if no page is free.
inline std::string CheckedJob::check_decode_first(const std::vector<Decoding> &decoding) const {
    int64_t decoded = 0, left_out = 0, drafted = 0;
    for (const Decoding &before : decoding) {
        const Request &request = *before.request;
        if (request.preemptions != before.preemptions) continue;
        const bool moved =
            request.state == RequestState::ending || request.computed > before.computed;
        if (moved && request.state != RequestState::ending) {
            drafted += request.drafted;
            if (request.computed != before.computed + 1 + request.drafted)
                return fault("more tokens than those proposed", request.computed, before.computed);
        }
        decoded += moved;
        left_out += !moved;
    }
    const StepCounts &counts = scheduler_.counts();
    if (counts.draft_tokens != drafted) return fault("drafts miscounted", drafted);
    if (counts.decode_tokens != decoded + drafted) return fault("decode tokens of nobody");
    if (left_out > 1) return fault("decoding requests left out", left_out, decoded);
    const auto groups = static_cast<int64_t>(options_.scheduler.kv_windows.size());
    if (left_out == 1 && counts.pages_used + groups <= options_.scheduler.pages)
        return fault("a decoding request left out while pages are free");
    if (left_out == 1 && counts.own_tokens + counts.prefix_tokens > 0)
        return fault("prompt tokens before a decode token");
    return "";
}

inline void CheckedJob::take_outputs(const BatchOutput &output, JobResult *result) {
    const BatchRecord &record = scheduler_.oldest();
    size_t target = 0;
    bool follows = true;
    for (size_t i = 0; i < record.sampled.size(); ++i) {
        Request *request = record.sampled[i];
        const int32_t proposed = record.proposed[i];
        follows = proposed < 0 || (follows && output.samples[i - 1].token == proposed);
        const auto targets = static_cast<size_t>(record.targets[i]);
        target += targets;
        if (request == nullptr) {
            result->wasted_rows += 1;
            continue;
        }
        CheckedRow *row = live_[static_cast<size_t>(request->row)];
        if (request->task == Task::score) {
            row->scores.insert(
                row->scores.end(),
                output.target_logprobs.begin() + static_cast<std::ptrdiff_t>(target - targets),
                output.target_logprobs.begin() + static_cast<std::ptrdiff_t>(target));
            request->done = row->scores.size() == row->targets.size();
            continue;
        }
        result->draft_tokens += proposed >= 0;
        if (!follows || request->done) continue;
        result->accepted_tokens += proposed >= 0;
        request->output.push_back(output.samples[i].token);
        request->done = output.samples[i].token == model_eos ||
                        static_cast<int32_t>(request->output.size()) == request->max_tokens;
    }
}

// Builds a batch and puts it in flight.
inline std::string CheckedJob::plan(JobResult *result) {
    int64_t unfinished = 0;
    std::vector<Decoding> decoding;
    for (const CheckedRow *row : live_) {
        if (row->finished) continue;
        ++unfinished;
        const Request &request = *row->request;
        if (request.state != RequestState::decoding) continue;
        if (request.output.empty() && request.unknown == 0)
            return fault("decoding without a token to decode");
        if (request.unknown > 0 && !request.feeds) continue;
        decoding.push_back({&request, request.computed, request.preemptions});
    }
    if (scheduler_.waiting() + scheduler_.running() != unfinished)
        return fault("waiting and running are not all", scheduler_.waiting(), scheduler_.running());
    const int32_t before = scheduler_.in_flight();
    const TokenBatch &batch = scheduler_.next_step();
    if (batch.tokens.empty() && unfinished > 0 && before == 0)
        return fault("an empty step", unfinished);
    if (!batch.tokens.empty() && unfinished == 0) return fault("a batch of nobody");
    std::string wrong = check_counts(batch);
    if (wrong.empty()) wrong = check_decode_first(decoding);
    if (!wrong.empty() || batch.tokens.empty()) return wrong;
    held_.emplace_back(batch);
    result->steps += 1;
    result->preemptions += scheduler_.counts().preemptions;
    result->recomputed += scheduler_.counts().recomputed_tokens;
    result->prefix_tokens += scheduler_.counts().prefix_tokens;
    result->own_tokens += scheduler_.counts().own_tokens;
    result->peak_running = std::max(result->peak_running, scheduler_.running());
    result->peak_states = std::max(result->peak_states, scheduler_.states_used());
    return "";
}

// Runs the batch that has been in flight longest, and advances its rows.
inline std::string CheckedJob::run_oldest(JobResult *result) {
    HeldBatch &held = held_.front();
    const int64_t fed = held.feed(output_.samples);
    if (fed < 0) return fault("a token of a row that sampled none");
    if (scheduler_.sampled().size() != held.batch().outputs.size())
        return fault("sampled is not logits");
    result->fed_tokens += fed;
    const std::string wrong = model_.run(held.batch(), &output_);
    if (!wrong.empty()) return wrong;
    take_outputs(output_, result);
    scheduler_.finish_step();
    held_.pop_front();
    if (scheduler_.in_flight() != static_cast<int32_t>(held_.size()))
        return fault("batches in flight", scheduler_.in_flight());
    for (CheckedRow *row : live_)
        if (!row->finished && row->request->done) finish(row);
    return "";
}

inline std::string CheckedJob::step(JobResult *result) {
    std::string wrong = plan(result);
    // Now and then waits for a batch before building the next one, as if few rows were fed.
    if (wrong.empty() && options_.overlap && held_.size() < 2 && draw(random_, 0, 7) > 0)
        wrong = plan(result);
    return wrong.empty() && !held_.empty() ? run_oldest(result) : wrong;
}

inline std::string CheckedJob::run(JobResult *result) {
    size_t added = 0;
    for (bool first = true;; first = false) {
        while (added < windows_.size() &&
               (first || options_.all_at_once || draw(random_, 0, 9) == 0 ||
                scheduler_.waiting() + scheduler_.running() == 0)) {
            Window *window = &windows_[added];
            const std::string wrong = add(window);
            if (!wrong.empty()) return wrong;
            added += window->groups_added == window->plan.groups.size();
            if (!options_.all_at_once) break;
        }
        cancel_some();
        if (added == windows_.size() && scheduler_.waiting() + scheduler_.running() == 0) break;
        if (scheduler_.waiting() + scheduler_.running() == 0) continue;
        const std::string wrong = step(result);
        if (!wrong.empty()) return wrong;
        if (result->steps > options_.most_steps) return fault("no end");
    }
    while (!held_.empty()) { // batches of rows that have ended
        const std::string wrong = run_oldest(result);
        if (!wrong.empty()) return wrong;
    }
    if (!scheduler_.next_step().tokens.empty()) return fault("a batch of nothing");
    scheduler_.finish_step();
    if (scheduler_.pages_used() != 0) return fault("pages leaked", scheduler_.pages_used());
    if (scheduler_.prompt_tokens_left() != 0)
        return fault("prompt tokens left", scheduler_.prompt_tokens_left());
    for (const Window &window : windows_)
        for (const CheckedRow &row : window.rows) {
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

inline int64_t slots_needed(const std::vector<Window> &windows) {
    int64_t most = 1;
    for (const Window &window : windows)
        for (const CheckedRow &row : window.rows)
            most = std::max(most, static_cast<int64_t>(row.prompt.size()) +
                                      std::max(0, row.max_tokens - 1));
    return most;
}

} // namespace batchllm
