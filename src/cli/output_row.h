// A finished or rejected row -> its line of output, in the format of the row's input
// (docs/formats.md). Lines end with LF.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "batchllm.h"
#include "cli/row.h"

namespace batchllm::cli {

// Job-wide values that the answers to OpenAI batch rows contain.
struct OutputOptions {
    std::string model;               // for rows that name none
    int64_t created = 0;             // start of the job, in seconds since 1970
    std::vector<std::string> labels; // of the model's classification head
};

// Appends the line for results[first, first + count), the samples of one row.
void append_result(std::string *out, const OutputOptions &options, int64_t line,
                   const RowRecord &record, const batchllm_results &results, int64_t first,
                   int64_t count);

// Appends the line for a row that never reached the library.
void append_failure(std::string *out, int64_t line, const RowRecord &record, const RowError &error);

} // namespace batchllm::cli
