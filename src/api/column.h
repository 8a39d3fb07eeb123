// Columns that the library returns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batchllm.h"

namespace batchllm::api {

// batchllm_column with the memory that its pointers lead to.
struct ColumnBatch : batchllm_column {
    std::vector<int64_t> all_offsets;
    std::vector<int32_t> all_tokens;
    std::string all_text;
    std::vector<int32_t> all_statuses;
    std::vector<int64_t> all_error_offsets;
    std::string all_errors;
    std::shared_ptr<void> held; // what the tokens stand for
};

} // namespace batchllm::api
