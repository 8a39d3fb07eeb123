// The library's C interface as the program uses it: handles that free themselves, and status codes
// as Status.
#pragma once

#include <memory>

#include "base/status.h"
#include "batchllm.h"

namespace batchllm::cli {

template <auto Free> struct FreeWith {
    template <typename T> void operator()(T *handle) const { Free(handle); }
};

using EngineHandle = std::unique_ptr<batchllm_engine, FreeWith<batchllm_engine_destroy>>;
using PlanHandle = std::unique_ptr<batchllm_plan, FreeWith<batchllm_plan_destroy>>;
using TokenizerHandle = std::unique_ptr<batchllm_tokenizer, FreeWith<batchllm_tokenizer_destroy>>;
using ResultsHandle = std::unique_ptr<batchllm_results, FreeWith<batchllm_results_free>>;
using TableHandle = std::unique_ptr<batchllm_table, FreeWith<batchllm_table_destroy>>;
using PicturesHandle = std::unique_ptr<batchllm_pictures, FreeWith<batchllm_pictures_destroy>>;
using ColumnHandle = std::unique_ptr<batchllm_column, FreeWith<batchllm_column_free>>;

// The status of a call that has just returned on this thread, with its error text.
inline Status call_status(int32_t status) {
    return status == BATCHLLM_OK ? Status() : Status(status, batchllm_last_error());
}

// The result of two operations that were both attempted, with the errors of both.
inline Status both(const Status &one, const Status &other) {
    if (one.ok() || other.ok()) return one.ok() ? other : one;
    return Status(one.code(), one.message() + "\nbatchllm: " + other.message());
}

} // namespace batchllm::cli
