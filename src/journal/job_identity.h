// Model, input and options -> the identity of a job, which prevents a run from being resumed with a
// different model, input or option.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace batchllm {

struct JobIdentity {
    // Name and value of everything that changes results, in a fixed order: "model weights", "input
    // bytes", "option temperature". Error texts use the names.
    std::vector<std::pair<std::string, std::string>> parts;
    int64_t created = 0; // when the job was first started, in seconds since 1970; not compared

    void add(std::string name, std::string value) {
        parts.emplace_back(std::move(name), std::move(value));
    }

    std::string to_json() const; // one line, without a line end. Parts are UTF-8
    static Result<JobIdentity> from_json(const std::string &path, std::string_view json);

    // "model weights (was .., now ..), .."; empty: the same job. "adapter NAME" may be new, or have been "none".
    std::string differences(const JobIdentity &earlier) const;
};

// Adds the parts of a model directory: hashes of its configuration and tokenizer files, and of the
// header and some samples of each weights file. A missing file has the value "none".
Status add_model_parts(JobIdentity *identity, const std::string &model_dir);

// Adds the size and a content hash of the input. Only evenly spread blocks of files above 1 GiB are
// hashed.
Status add_input_parts(JobIdentity *identity, const std::string &path);

} // namespace batchllm
