// Model, input and options -> the identity of a job, so that a run is not resumed with a different
// model, input or option.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace batchllm::cli {

struct JobIdentity {
    // Name and value of each thing that changes results, in a fixed order: "model weights",
    // "input bytes", "option temperature". Error texts use the names.
    std::vector<std::pair<std::string, std::string>> parts;
    int64_t created = 0; // seconds since 1970: when the job was first started; not compared

    void add(std::string name, std::string value) {
        parts.emplace_back(std::move(name), std::move(value));
    }

    std::string to_json() const; // one line, without its line end
    static Result<JobIdentity> from_json(const std::string &path, std::string_view json);

    // "model weights (was .., now ..), .."; empty: the same job.
    std::string differences(const JobIdentity &earlier) const;
};

// Stands for a text that is too long to be shown; differs between different texts.
std::string hash_text(std::string_view text);

// Adds the parts of a model directory: hashes of its configuration and tokenizer files, and of the
// header and of samples of each weights file. A missing file has the value "none".
Status add_model_parts(JobIdentity *identity, const std::string &model_dir);

// Adds size and content hash of the input. Files above a gibibyte are hashed by evenly spread
// blocks.
Status add_input_parts(JobIdentity *identity, const std::string &path);

} // namespace batchllm::cli
