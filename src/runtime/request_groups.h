// The runs for rows of one of the plan's groups -> the groups of requests that a scheduler gets.
//
// The plan's rows are the caller's rows. A row with several requests (its samples, or its
// continuations to score) becomes a group of its own: all of them begin with the row's prompt
// without its last token, which continues the prefix that the row shares with others.
//
//     the plan's group     P                           rows a, b, c (c wants 3 samples)
//     groups of requests   P                           requests a, b
//                          P, then the rest of         requests c0, c1, c2
//                          c's prompt (own_common)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "runtime/row_run.h"

namespace batchllm {

struct RequestSharing {
    bool sharing = true;          // false: each request is computed separately
    bool prefixes_nested = false; // some prefix of the plan has a parent
    // Each row continues its prefix of the plan even if no other row here does, because on some
    // backends the last bits of the row depend on where that prefix ends.
    bool as_planned = false;
};

// prefix: that of the runs' group in the plan, or -1. The groups' requests are stored in *requests.
std::vector<RequestGroup> request_groups(std::span<const PlanPrefix> prefixes, int32_t prefix,
                                         std::span<RowRun *const> runs, const RequestSharing &how,
                                         std::vector<Request *> *requests);

} // namespace batchllm
