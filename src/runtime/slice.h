// Some of a plan's groups -> a small plan of requests for the scheduler.
//
// The plan's rows are the caller's rows; a slice's rows are requests. A row with several requests
// (its samples, or its continuations to score) becomes a group of its own. The prefix of that group
// is the row's prompt without its last token; it continues the prefix that the row shares with
// others:
//
//     plan:   P = [system prompt, document]       rows a, b, c (c wants 3 samples)
//     slice:  P                                   requests a, b
//             Q = [P, rest of c's prompt]         requests c0, c1, c2; parent P
//
// Always: requests() and plan().rows have the same length; a prefix comes after its parent.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "plan/plan.h"
#include "runtime/job.h"

namespace batchllm {

class Slice {
  public:
    // What the slice shares, and which prefixes exist already.
    struct Options {
        bool sharing = true; // false: each request is computed separately
        bool heads = false;  // some prefix has a parent
        // Each row continues its prefix of the plan even if no other row of the slice does, because
        // on some backends the last bits of the row depend on where that prefix ends.
        bool as_planned = false;
        // Those of the plan's prefixes that the scheduler kept from earlier slices.
        const std::unordered_map<int32_t, KeptPrefix> *kept = nullptr;
    };
    Slice(const Plan &plan, const Options &options) : from_(plan), options_(options) {}

    // Adds the requests of jobs, which all belong to the plan's group `group`. Sets the jobs'
    // shared_tokens.
    void add_group(const PlanGroup &group, const std::vector<Job *> &jobs);

    // The length of the plan's prefix in tokens, and how many of them no group of this or an
    // earlier slice has yet.
    int32_t length_of(int32_t prefix) const;
    int32_t new_prefix_tokens(int32_t prefix) const;

    // For Scheduler::add: asks it to keep the prefixes for which `lasts` is true, so that later
    // slices can continue them.
    std::vector<KeptPrefix> kept(const std::function<bool(int32_t)> &lasts) const;
    // Stores what Scheduler::add returned in `kept`, by prefix of the plan.
    void put_kept(std::span<const KeptPrefix> kept,
                  std::unordered_map<int32_t, KeptPrefix> *to) const;

    bool empty() const { return requests_.empty(); }
    int64_t size() const { return static_cast<int64_t>(requests_.size()); }
    const Plan &plan() const { return plan_; }
    const std::vector<Request *> &requests() const { return requests_; }

  private:
    void add_requests(Job *job);
    void close_group(int32_t prefix, int64_t row_begin);
    int32_t take_prefix(int32_t index, int64_t row);
    bool has(int32_t prefix) const;

    const Plan &from_;
    Options options_;
    Plan plan_;
    std::vector<Request *> requests_;
    std::unordered_map<int32_t, int32_t> taken_; // prefix of the plan -> prefix of the slice
};

} // namespace batchllm
