// Checks that a token batch names the pages that its attention reads and writes.
#pragma once

#include "backend/backend.h"

namespace batchllm {

// [nodes] the position of the first query that sees the node, among its own tokens and those of its
// descendants. INT64_MAX if there is none.
std::vector<int64_t> first_queries(const TokenBatch &batch);

// Checks that every KV group has a list, and that every column that a query of the batch reads or
// writes is in the list and is a page of the pool. The nodes must have been checked already: their
// parents and token ranges are in bounds.
Status check_pages(const TokenBatch &batch, const BackendInfo &info);

} // namespace batchllm
