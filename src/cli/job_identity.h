// Model, input and options -> what makes two runs the same job, so that a resumed run is refused
// when one of them has changed since.
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
    // "input bytes", "option temperature". Names serve in error texts.
    std::vector<std::pair<std::string, std::string>> parts;
    int64_t created = 0; // seconds since 1970: when the job was first started; not compared

    void add(std::string name, std::string value) {
        parts.emplace_back(std::move(name), std::move(value));
    }

    std::string to_json() const; // one line, without its end
    static Result<JobIdentity> from_json(const std::string &path, std::string_view json);

    // "model weights (was .., now ..), .."; empty: the same job.
    std::string differences(const JobIdentity &earlier) const;
};

// Of a value that is too long to be told: another one for another text.
std::string hash_text(std::string_view text);

// Adds the parts of a model directory: hashes of its configuration and tokenizer files, and of the
// header and of samples of each weights file. A file that is not there has the value "none".
Status add_model_parts(JobIdentity *identity, const std::string &model_dir);

// Adds size and content hash of the input. Files above a gibibyte are hashed by evenly spread
// blocks.
Status add_input_parts(JobIdentity *identity, const std::string &path);

} // namespace batchllm::cli
