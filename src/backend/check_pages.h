// Checks that a token batch names the pages that its attention reads and writes.
#pragma once

#include "backend/backend.h"

namespace batchllm {

// [nodes] position of the first query that sees the node, among its own tokens and those of its
// descendants. INT64_MAX if there is none.
std::vector<int64_t> first_queries(const TokenBatch &batch);

// Every KV group has a list; every column that a query of the batch reads or writes is in it, and
// is a page of the pool. The nodes themselves have already been checked: their parents and token
// ranges are in bounds.
Status check_pages(const TokenBatch &batch, const BackendInfo &info);

} // namespace batchllm
