// A finished or refused row -> its one line of output, in the form that the row came in
// (docs/formats.md). Lines end with LF.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "batchllm.h"
#include "cli/row.h"

namespace batchllm::cli {

// What the answers to OpenAI batch rows say about the job as a whole.
struct OutputOptions {
    std::string model;               // for rows that name none
    int64_t created = 0;             // seconds since 1970: the start of the job
    std::vector<std::string> labels; // of the model's classification head
};

// Appends the line for results[first, first + count): one row's samples. Returns whether the row
// failed, which it did if all of its samples failed.
bool append_result(std::string *out, const OutputOptions &options, int64_t line,
                   const RowRecord &record, const batchllm_results &results, int64_t first,
                   int64_t count);

// Appends the line of a row that never reached the library.
void append_failure(std::string *out, int64_t line, const RowRecord &record, const RowError &error);

} // namespace batchllm::cli
