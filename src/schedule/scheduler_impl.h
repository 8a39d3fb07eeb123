// Shared by the scheduler's parts: scheduler.cc schedules steps, scheduler_pace.cc says how many prompt
// tokens they compute, scheduler_rows.cc adds and removes requests.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "kv/page_pool.h"
#include "schedule/batch_builder.h"
#include "schedule/forecast.h"
#include "schedule/prefix_forest.h"
#include "schedule/scheduler.h"

namespace batchllm {

// Output tokens, including those that are still being sampled.
inline int64_t output_length(const Request &request) {
    return static_cast<int64_t>(request.output.size()) + request.unknown;
}

// Own tokens, known or being sampled. All of them are stored by the time the next token is sampled.
inline int64_t own_target(const Request &request) {
    return request.prompt.length - request.own_begin + output_length(request);
}

// Its newest token cannot be in a batch yet.
inline bool held_back(const Request &request) { return request.unknown > 0 && !request.feeds; }

inline int32_t own_prompt(const Request &request) {
    return request.prompt.length - request.own_begin;
}

// Own prompt tokens that have never been computed.
inline int64_t own_prompt_left(const Request &request) {
    return std::max(0, own_prompt(request) - request.highest);
}

struct Scheduler::Impl {
    explicit Impl(const SchedulerOptions &given)
        : options(given), pool(given.pages, given.page_tokens, given.kv_windows, given.state_slots),
          forest(&pool), builder(given), forecast(pool.windows(), given.page_tokens),
          adapters(given.adapter_slots, given.adapter_bytes),
          pictures(given.picture_slots, given.picture_tokens) {
        options.step_tokens = std::clamp<int64_t>(given.step_tokens, 1, INT32_MAX);
    }

    // add
    Status check(std::span<Request *const> requests) const;
    bool has_room_for_picture(int64_t stored, int32_t length) const;
    int32_t uncut(const Request &request, int32_t tokens) const;
    void add(std::span<const PlanPrefix> prefixes, int32_t prefix, int32_t own_common,
             Request *request, int32_t *own_node);
    void enqueue(Request *request, int32_t prefix);

    // next_step
    void schedule_decode();
    void schedule_prompts();
    void schedule_prompt(Request *request);
    bool schedule_prefix(Request *request);
    void schedule_own(Request *request);
    int64_t with_pictures(const Request &request, int32_t begin, int64_t wanted);
    int64_t whole_pictures(const Request &request, int32_t begin, int64_t tokens) const;
    void schedule_proposed();
    int64_t prompt_budget(bool *forecast_made);
    int64_t most_running() const;
    bool drafts_pay();
    int64_t grow(PageTable *pages, int64_t stored, int64_t tokens);
    bool finds_no_page() const;
    int64_t grow_by_preemption(Request *request);
    void move_on();
    bool count_chunk(Request *request);

    // Admission and preemption
    Request *next_waiting();
    void pop_waiting();
    void forecast_running();
    bool forecast_allows(const Request &request) const;
    bool slots_allow(const Request &request) const;
    int64_t pages_of_chunks(const Request &request) const;
    Outlook outlook(const Request &request) const;
    void admit(Request *request);
    void preempt_youngest();
    void start_unshared(Request *request);

    // End of a request
    void leave(Request *request);
    void forget(Request *request);
    void leave_queue(Request *request);
    void end(Request *request);
    void take_back_refused(Request *request);
    void clear_rows(Request *request);

    SchedulerOptions options;
    PagePool pool;
    PrefixForest forest;
    BatchBuilder builder;
    LengthEstimate lengths;
    MemoryForecast forecast;
    AdapterSlots adapters;
    PictureSlots pictures;
    int64_t longest = 0; // maximum of max_tokens over all requests so far

    // Waiting requests in the order of their groups; null: dropped. queue[i] has place first_place
    // + i. Preempted requests come before all of them, the last one in `preempted` first.
    std::deque<Request *> queue;
    int64_t first_place = 0;
    int64_t waiting = 0;
    int64_t waiting_output = 0; // sum of their max_tokens
    std::vector<Request *> preempted;
    std::vector<Request *> running;               // in order of admission, oldest first
    int64_t ending = 0;                           // number of requests
    int64_t own_tokens_left = 0;                  // own prompt tokens that have never been computed
    int64_t started_tokens = 0;                   // Scheduler::started_tokens()
    int64_t coming_prompt = 0, coming_output = 0; // tokens of requests to come
    bool spreads = true;                          // prompts, where more wait than fit

    // For the step that is being scheduled.
    int64_t budget = 0;
    int64_t preemptions = 0;
    bool stalled = false; // the youngest request waits for a picture, so none is admitted
    std::vector<int32_t> scheduled_prefixes; // parents before children
    std::vector<int32_t> chain;              // scratch
    std::vector<Request *> decoding;         // scratch
    bool proposes = false;
    bool proposes_later = false; // whether tokens would be proposed if a step had no prompts
    StepCounts counts;

    // Batches in flight: records[oldest], then the other one.
    std::array<BatchRecord, 2> records;
    size_t oldest = 0;
    int32_t in_flight = 0;
    uint64_t batches = 0; // that have been put in flight
    int64_t held_back = 0;

    BatchRecord &record(int32_t i) { return records[(oldest + static_cast<size_t>(i)) % 2]; }
};

} // namespace batchllm
