// Whether a token batch names the pages that its attention reads and writes.
#pragma once

#include "backend/backend.h"

namespace batchllm {

// [nodes] position of the first query that sees the node: of its own tokens and of its descendants'. INT64_MAX
// where there is none.
std::vector<int64_t> first_queries(const TokenBatch &batch);

// Every KV group has a list; every column that some query of the batch sees, or writes, is in it, and is a
// page of the pool. The nodes themselves have been checked: their parents and token ranges are in bounds.
Status check_pages(const TokenBatch &batch, const BackendInfo &info);

} // namespace batchllm
