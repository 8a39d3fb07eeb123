// Planned groups -> one token batch a step, on a bounded pool of KV pages (Orca's iteration-level
// scheduling, PagedAttention's pages, BatchLLM's order and memory-centric token batching).
//
// Three queues, taken in this order: decode tokens, own prompt tokens, shared prefix tokens (a
// prefix before its rows). A step is filled up to the token budget while the predicted use of pages
// stays within the pool; the number of requests has no cap. A prefix's pages go back with the last
// request that needs them. When decoding outgrows the pool, the requests admitted last are
// preempted and recomputed.
//
// A batch may be built while the one before it runs. The tokens that the running batch samples are not
// yet known; a fed_token() stands for each of them in the new batch. An end by count (max_tokens, the
// last score) is known at once; an EOS or a stop string is found one batch late, and that batch's
// sample is discarded.
//
// Each request and each prefix has pages in every KV group. In a group with a window, pages are released
// as soon as no later token can see them.
//
// In a model with a state, each of them also has a state slot, from its first token on. A prefix's slot is a
// snapshot of the state at the prefix's very end. Each of its requests starts from the snapshot in a slot of
// its own, and does so again after preemption. The forecast counts slots as well as pages.
//
// Always: a page is in the free list or belongs to one node; progress is made by every step; any
// request that fits the pool alone finishes. Batches run in the order in which they are built, so a
// released page may be used by the next batch, even if one in flight still reads or writes it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "kv/page_pool.h"
#include "plan/plan.h"
#include "sample/sampling.h"

namespace batchllm {

enum class RequestState : uint8_t {
    waiting, // new or preempted: holds nothing
    prefilling,
    decoding, // all known tokens but the newest are stored
    ending,   // the last result that it needs is in a batch in flight: holds nothing
    finished,
};

// One sequence to compute: a row, one of a row's samples, or one continuation to score. Owned by
// the runtime, which keeps its address; the scheduler changes only the fields named as its own.
struct Request {
    // Set by the runtime before Scheduler::add.
    TokenRow prompt{};                      // borrowed until the request has finished
    const SamplingParams *params = nullptr; // borrowed likewise
    uint64_t random_key = 0;
    Task task = Task::generate;
    int32_t max_tokens = 0; // generate: the most tokens, limited by the longest request
    // Except for generate: how many of the last prompt positions have a result. score: the i-th of them
    // scores targets[target_offsets[i], target_offsets[i + 1]). embed: the result is the sum over them.
    int32_t wanted_positions = 0;
    // generate: position i of the prompt scores targets[i]; nothing is shared then.
    std::vector<int32_t> targets;
    std::vector<int32_t> target_offsets;
    int64_t row = 0; // the runtime's own
    int32_t sample = 0;

    // Appended to by the runtime after each batch in which the request sampled.
    std::vector<int32_t> output;
    // Set by the runtime once nothing more is to be computed: stop, length, cancelled, error. At the
    // latest after max_tokens tokens, or all scores.
    bool done = false;

    // The scheduler's own. The runtime may read all of them.
    RequestState state = RequestState::waiting;
    int32_t prefix = -1;    // node of the shared prefix that its own tokens continue
    int32_t own_begin = 0;  // position of its first own token, and so the number of shared ones
    int32_t computed = 0;   // own positions whose keys and values are stored, or will be shortly
    int32_t chunk = 0;      // own tokens in the batch that is being built
    int32_t highest = 0;    // the most that `computed` ever was: below it tokens are recomputed
    int32_t taken = 0;      // wanted or scored positions in the batches built so far
    int32_t unknown = 0;    // tokens after `output` that batches in flight sample
    int32_t logits_row = 0; // the first of its rows in the newest batch, if it has any
    bool feeds = false;     // that row's sample can enter the next batch before it is known
    int32_t generated = 0;  // output tokens that the length estimate has counted
    int32_t preemptions = 0;
    int64_t place = -1; // in the waiting queue, or -1
    PageTable pages;    // of its own tokens
};

struct SchedulerOptions {
    int64_t pages = 0;
    int32_t page_tokens = 0;
    int64_t step_tokens = 0;
    int64_t max_requests = 0; // 0: no cap
    // DECODE_FIRST: groups in the plan's order (Eq. 4; its expected decode lengths are relative to
    // max_tokens, so later estimates scale all of them equally and do not change the order).
    // ARRIVAL: a plan's groups by their first row, whatever their order in the plan.
    int32_t order = BATCHLLM_ORDER_DECODE_FIRST;
    // false: requests are admitted while any page is free, without looking ahead. For comparison.
    bool look_ahead = true;
    // Backend::feeds. It is never called for rows with penalties or bad words of several tokens, whose
    // sampling needs all earlier tokens. Null: no batch contains tokens that are not yet known.
    std::function<bool(const SampleInput &)> feeds = nullptr;
    std::vector<int32_t> kv_windows = {0}; // BackendInfo::kv_windows
    // Each embedded token gets an output row of its own, so that they are always added in the same order,
    // whatever steps they are computed in.
    bool single_tokens = false;
    int64_t state_slots = 0; // BackendInfo::state_slots
};

struct StepCounts {
    int64_t decode_tokens = 0;
    int64_t own_tokens = 0;        // prompt tokens of single requests, and all that they recompute
    int64_t prefix_tokens = 0;     // prompt tokens of shared prefixes
    int64_t recomputed_tokens = 0; // of own and prefix tokens, computed before and lost
    int64_t prompt_tokens = 0;     // of own and prefix tokens, those computed for the first time
    int64_t requests = 0;          // with tokens in the batch
    int64_t pages_used = 0;
    int64_t preemptions = 0; // decided in this step
};

// What the runtime must know about a batch once its outputs are there.
struct BatchRecord {
    StepCounts counts;
    std::vector<Request *> sampled; // [output rows]; null: the request has ended in the meantime
    std::vector<Task> tasks;        // [output rows]
    std::vector<int32_t> targets;   // [output rows] token ids scored there
    std::vector<int32_t> tokens;    // [output rows] OutputRow::count
};

// A prefix of a plan that later plans continue, as Scheduler::add takes and returns it.
using KeptPrefix = int32_t;
constexpr KeptPrefix not_kept = -1;
constexpr KeptPrefix to_be_kept = -2; // in: keep it; out: no request needed it

// Order of calls: next_step, the runtime runs the batch, finish_step, and again; or with a batch in
// flight: next_step, next_step, finish_step for the first, next_step, finish_step for the second, and
// so on. add, release and drop come before next_step. A violated invariant throws std::logic_error.
class Scheduler {
  public:
    explicit Scheduler(const SchedulerOptions &options);
    ~Scheduler();

    // Whether a request of this many tokens (prompt and output; count one output token for a scored
    // request) fits the pool alone. The answer is exact, because the last token is never stored, and pages
    // that fall out of windows are released. Any request that fits finishes, even if its group's prefix
    // would waste the page that it lacks.
    bool fits(int64_t tokens) const;

    // Queues a plan's groups behind those already there. requests[i] is the plan's row i; a null
    // entry is a row that is not to be computed (nor is its prefix, if no other row needs it). A row
    // uses its group's prefix only if its prompt's `shareable` and wanted_positions allow it, else the
    // nearest parent prefix that they allow, or none.
    // kept: [the plan's prefixes] or empty. In place of to_be_kept, add writes the prefix that it keeps
    // from now on. A prefix that was kept before, with equal tokens and parents, is used together with
    // all that has been computed of it.
    // Errors, with nothing taken: a request that does not fit; a plan that is not of these requests.
    Status add(const Plan &plan, std::span<Request *const> requests,
               std::span<KeptPrefix> kept = {});
    // No plan that is added from now on continues it.
    void release(KeptPrefix prefix);

    // Builds the next batch, valid until the next call, and advances the requests as far as is known
    // before it has run. The batch is then in flight, unless it is empty; at most two are. It is empty
    // if all that is left is to finish_step what is in flight.
    const TokenBatch &next_step();
    const StepCounts &counts() const; // of that batch

    int32_t in_flight() const;
    // The batch in flight that was built first. sampled[i] is the request of its outputs[i]. The rows of
    // a request that does not generate come in the order of its wanted positions.
    const BatchRecord &oldest() const;
    const BatchRecord &newest() const;
    std::span<Request *const> sampled() const { return oldest().sampled; }
    // Of the newest batch in flight, the requests that cannot be in the next one before its samples
    // are known.
    int64_t held_back() const;

    // Called after the oldest batch has run and the runtime has appended the outputs and set `done`:
    // releases the requests that are done. The scheduler keeps no pointer to a request that has finished.
    void finish_step();

    // The runtime has appended tokens to the request's output without waiting for the newest batch in
    // flight, which samples for it. That sample is discarded, and the next batches compute the appended
    // tokens, as many at a time as there is room for. All tokens before the sample must be known, and
    // the request must not be ending.
    void discard_sample(Request *request);

    // Removes a request that the runtime has set `done` outside a step (a cancelled one). What a batch
    // in flight computes for it is discarded.
    void drop(Request *request);

    int64_t waiting() const; // preempted ones included
    int64_t running() const; // ending ones included
    int64_t pages_used() const;
    int64_t pages_peak() const;
    int64_t states_used() const; // slots
    int64_t states_peak() const;
    int64_t prompt_tokens_left() const;   // neither computed nor in flight, shared ones once;
                                          // recomputation not counted
    double expected_length_share() const; // of max_tokens, estimated from the job so far

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace batchllm
