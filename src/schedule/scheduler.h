// Planned groups -> one token batch per step, on a bounded pool of KV pages (Orca's iteration-level
// scheduling, PagedAttention's pages, BatchLLM's order and memory-centric token batching).
//
// Three queues, taken in this order: decode tokens, own prompt tokens, shared prefix tokens (a
// prefix before its rows). A step is filled up to the token budget while the predicted use of pages
// stays within the pool; the number of requests has no cap. A prefix's pages are released with the
// last request that needs them. When decoding outgrows the pool, the requests admitted last are
// preempted and recomputed.
//
// A batch may be built while the previous one runs. The tokens that the running batch samples are
// not known yet, so a fed_token() stands for each of them in the new batch. An end by count
// (max_tokens, the last score) is known at once. An EOS or a stop string is found one batch late,
// and that batch's sample is discarded.
//
// Every request and every prefix has pages in each KV group. In a group with a window, pages are
// released as soon as no later token can see them.
//
// If the model has a state, each also has a state slot, from its first token on. A prefix's slot is a
// snapshot of the state at the exact end of the prefix. Each of its requests starts from the snapshot, in
// a slot of its own, and does so again after a preemption. The forecast counts slots as well as pages.
//
// A request's tokens, and those of its prefix, go through its adapter, which has a slot while the
// request is admitted (adapter_slots.h). A batch has tokens of a picture only if the picture has a slot
// (picture_slots.h); the tokens from the first picture without one wait, as do requests that are not
// admitted yet.
//
// Tokens may be proposed (src/draft): a step then computes a request's newest token and, behind it,
// proposed ones, and has an output row for each. The runtime takes the samples up to the first that
// is not the token proposed there. The positions behind it are computed again with later tokens,
// which overwrite what was stored there. Until its samples are known, the request is in no other
// batch. Proposed tokens take only what a step has left, and only pages that nobody else needs now.
//
// Always: a page is in the free list or belongs to one node; every step makes progress; any request
// that fits the pool alone finishes. Batches run in the order in which they are built, so the next
// batch may use a page that has been released while a batch in flight still reads or writes it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "image/rope_positions.h"
#include "kv/page_pool.h"
#include "plan/plan.h"
#include "sample/sampling.h"
#include "schedule/adapter_slots.h"
#include "schedule/picture_slots.h"

namespace batchllm {

enum class RequestState : uint8_t {
    waiting, // new or preempted: has no pages
    prefilling,
    decoding, // all known tokens except the newest are stored
    ending,   // a batch in flight computes its last result: has no pages
    finished,
};

// A picture in a request's prompt: tokens [begin, begin + length), of which those from first_picture_id on
// are the picture's; others may stand in between.
struct PromptPicture {
    int32_t begin, length;
    int32_t number; // in Scheduler::pictures()
};

// One sequence to compute: a row, one of a row's samples, or one continuation to score. Owned by
// the runtime, which keeps it at a fixed address; the scheduler changes only the fields marked as
// its own.
struct Request {
    // Set by the runtime before Scheduler::add.
    TokenRow prompt{};                      // borrowed until the request has finished
    const SamplingParams *params = nullptr; // borrowed likewise
    uint64_t random_key = 0;
    Task task = Task::generate;
    int32_t max_tokens = 0; // generate: the maximum, limited by the longest request
    // For tasks other than generate: how many of the last prompt positions have a result. score:
    // the i-th of them scores targets[target_offsets[i], target_offsets[i + 1]). embed: the result
    // is their sum.
    int32_t wanted_positions = 0;
    // generate: position i of the prompt scores targets[i]; if there are any, nothing is shared.
    std::vector<int32_t> targets;
    std::vector<int32_t> target_offsets;
    int32_t adapter = -1;                          // its number in Scheduler::adapters(); -1: none
    std::span<const PromptPicture> pictures = {};  // borrowed likewise, in the prompt's order
    const RopePositions *rope_positions = nullptr; // borrowed likewise; null: those of text
    int64_t row = 0;                               // used only by the runtime
    int32_t sample = 0;
    int64_t logical_tokens = 0; // of all prompts that it answers: Scheduler::started_tokens()

    // The runtime appends to it after each batch in which the request sampled.
    std::vector<int32_t> output;
    // The runtime sets it once nothing more is to be computed (stop, length, cancelled, error), at
    // the latest after max_tokens tokens or all scores.
    bool done = false;

    // Set by SchedulerOptions::propose: tokens that may come behind `output`. Those that the batch
    // being built computes; the scheduler removes what it has no room for.
    std::vector<int32_t> proposed;

    // The scheduler's own fields. The runtime may read all of them.
    RequestState state = RequestState::waiting;
    int32_t prefix = -1;    // node of the shared prefix that it continues
    int32_t own_begin = 0;  // position of its first own token = number of shared tokens
    int32_t computed = 0;   // own positions whose keys and values are stored, or soon will be
    int32_t chunk = 0;      // own tokens in the batch that is being built
    int32_t highest = 0;    // the maximum of `computed` so far; tokens below it are recomputed
    int32_t taken = 0;      // wanted or scored positions in the batches built so far
    int32_t unknown = 0;    // tokens after `output` that batches in flight will sample
    int32_t logits_row = 0; // its first row in the newest batch, if it has any
    bool feeds = false;     // that row's sample can enter the next batch before it is known
    int32_t drafted = 0;    // proposed tokens in the batch in flight; counted in `computed`
    int32_t generated = 0;  // output tokens that the length estimate has counted
    int32_t preemptions = 0;
    bool started = false; // a batch has had own tokens of it
    int64_t place = -1;   // index in the waiting queue, or -1
    PageTable pages;      // of its own tokens
};

struct SchedulerOptions {
    int64_t pages = 0;
    int32_t page_tokens = 0;
    int64_t step_tokens = 0;
    int64_t max_requests = 0; // 0: no cap
    // false: requests are admitted while any page is free, without looking ahead. For comparisons.
    bool look_ahead = true;
    // With fewer tokens, a step costs more per token: while more requests wait than fit, prompts are
    // spread over steps of at least so many (scheduler_pace.cc). But if fewer than paced_requests fit at
    // once, they are not: where a model has many experts, so few tokens read only some of them, and a
    // step with some more reads all.
    int64_t paced_tokens = 1024, paced_requests = 32;
    // Backend::feeds. Never called for rows with penalties or bad words of several tokens, because
    // sampling them needs all earlier tokens. Null: every token of a batch is already known.
    std::function<bool(const SampleInput &)> feeds = nullptr;
    // Sets `proposed` of these requests, all of which decode one token in a step without prompts.
    // Returns whether tokens would be proposed if all samples were known:
    // then no batch should be built while another is in flight. Now and then it is also asked before a
    // step's prompts, for this answer alone: what it proposed is then dropped, and it may be called
    // again in the same step. Null: there are no proposals.
    std::function<bool(std::span<Request *const> decoding)> propose = nullptr;
    std::vector<int32_t> kv_windows = {0}; // BackendInfo::kv_windows
    // Each embedded token gets an output row of its own, so that the order of summation does not
    // depend on which steps compute the tokens.
    bool single_tokens = false;
    int64_t state_slots = 0;    // BackendInfo::state_slots
    int32_t adapter_slots = 0;  // BackendInfo::adapter_slots
    int64_t adapter_bytes = 0;  // BackendInfo::adapter_bytes
    int32_t picture_slots = 0;  // BackendInfo::picture_slots
    int64_t picture_tokens = 0; // BackendInfo::picture_tokens
    // The model's: its placeholder in batches, whether its ropes have several axes, and whether each
    // picture has to be in one batch.
    int32_t picture_token = -1;
    bool rope_axes = false;
    bool whole_pictures = false;
};

struct StepCounts {
    int64_t decode_tokens = 0;
    int64_t own_tokens = 0;        // prompt tokens of single requests, and all that they recompute
    int64_t prefix_tokens = 0;     // prompt tokens of shared prefixes
    int64_t recomputed_tokens = 0; // own and prefix tokens that were computed before and lost
    int64_t prompt_tokens = 0;     // own and prefix tokens computed for the first time
    int64_t draft_tokens = 0;      // decode tokens that are proposed
    int64_t requests = 0;          // that have tokens in the batch
    int64_t pages_used = 0;
    int64_t preemptions = 0; // decided in this step
};

// What the runtime needs to know about a batch once its outputs arrive.
struct BatchRecord {
    StepCounts counts;
    std::vector<Request *> sampled; // [output rows]; null: the request has ended in the meantime
    std::vector<Task> tasks;        // [output rows]
    std::vector<int32_t> targets;   // [output rows] token ids scored there
    std::vector<int32_t> tokens;    // [output rows] OutputRow::count
    // [output rows] the proposed token after which it samples; -1: all tokens before it are known.
    // The rows of a request are adjacent, in the order of their positions.
    std::vector<int32_t> proposed;
};

// Requests that all continue one common prefix of a plan.
struct RequestGroup {
    int32_t prefix = -1; // its number in the plan; -1: none
    // If more than the prefix has: the requests begin with this many equal tokens, which they share
    // with each other only (a row's samples, or its continuations to score).
    int32_t own_common = 0;
    std::span<Request *const> requests;
};

// Order of calls: next_step, the runtime runs the batch, finish_step, and so on. With a batch in
// flight: next_step, next_step, finish_step for the first, next_step, finish_step for the second,
// and so on. Call all others before next_step. A violated invariant throws
// std::logic_error.
class Scheduler {
  public:
    explicit Scheduler(const SchedulerOptions &options);
    ~Scheduler();

    // The most tokens (prompt and output; count one output token for a scored request) with which a
    // request fits the pool alone. Exact: the last token is never stored, and pages that fall out of
    // windows are released. Any request that fits finishes, even if its group's prefix would waste
    // the page that it needs.
    int64_t longest_request() const;
    // Whether a request of this many stored tokens that fits can also have a picture of this many, which
    // has to be in one batch (SchedulerOptions::whole_pictures).
    bool has_room_for_picture(int64_t stored, int32_t length) const;

    // The prefixes named from now on are those of another plan, and none of them is here yet.
    // Requests that continue prefixes of the plan before are not affected. Cannot fail.
    void begin_plan();

    // Queues requests behind those already there. prefixes: all of the plan's. A request uses the
    // prefix only if its prompt's `shareable` and wanted_positions allow it; otherwise the nearest
    // parent prefix that they allow, or none. A prefix that is here already is used together with
    // everything computed of it. Null requests are passed over. If a request does not fit, none is
    // added.
    Status add(std::span<const PlanPrefix> prefixes, const RequestGroup &group);

    // Besides the requests that are here, others with so many tokens are to come: of prompts, and to
    // generate at most.
    void more_to_come(int64_t prompt_tokens, int64_t output_tokens);

    // Whether the plan's prefix is here: a request that has not finished needs it, or it is kept.
    bool has(int32_t prefix) const;
    // Keeps the prefix, if it is here, for requests to come, until it is released or another plan
    // begins.
    void keep(int32_t prefix);
    void release(int32_t prefix);

    // The adapters of requests. They are added before the requests that name them. A request whose
    // adapter is not ready or gets no slot is not admitted, nor is any behind it.
    AdapterSlots &adapters();
    const AdapterSlots &adapters() const;
    // The pictures of requests, added before the requests that have them.
    PictureSlots &pictures();
    const PictureSlots &pictures() const;

    // Builds the next batch, valid until the next call, and advances the requests as far as is
    // known before the batch has run. The batch is then in flight unless it is empty; at most two
    // are. It is empty if all that is left to do is to finish_step the batches in flight.
    const TokenBatch &next_step();
    const StepCounts &counts() const; // of that batch

    int32_t in_flight() const;
    // The oldest batch in flight. sampled[i] is the request of its outputs[i]. The rows of a
    // request that does not generate are in the order of its wanted positions.
    const BatchRecord &oldest() const;
    const BatchRecord &newest() const;
    std::span<Request *const> sampled() const { return oldest().sampled; }
    // How many requests of the newest batch in flight cannot be in the next one before its samples
    // are known.
    int64_t held_back() const;
    // Whether the newest batch would have had proposed tokens if all samples had been known.
    bool proposes() const;

    // Call after the oldest batch has run and the runtime has appended the outputs and set `done`.
    // Releases the requests that are done. The scheduler keeps no pointer to a finished request.
    void finish_step();

    // The runtime has appended tokens to the request's output without waiting for the newest batch
    // in flight, which samples for it. That sample is discarded, and the next batches compute the
    // appended tokens, as many at a time as there is room for. All tokens before the sample must be
    // known, and the request must not be ending.
    void discard_sample(Request *request);

    // Removes a request that the runtime has set `done` outside a step (a cancelled one). Whatever
    // a batch in flight computes for it is discarded.
    void drop(Request *request);

    int64_t waiting() const; // including preempted ones
    int64_t running() const; // including ending ones
    int64_t pages_used() const;
    int64_t pages_peak() const;
    // Request::logical_tokens of all requests of which a batch has had own tokens.
    int64_t started_tokens() const;
    int64_t states_used() const; // slots
    int64_t states_peak() const;
    int64_t prompt_tokens_left() const;   // neither computed nor in flight; shared tokens count
                                          // once, recomputation does not count
    double expected_length_share() const; // of max_tokens, estimated from the job so far

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace batchllm
