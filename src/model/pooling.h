// modules.json and the files that sentence-transformers writes beside it -> how a row's hidden
// states become its vector. An unsupported module, mode or option that would change the vector is
// an error that names it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace batchllm {

enum class Pooling : uint8_t { last, mean, first };

struct EmbeddingForm {
    Pooling pooling = Pooling::last;
    bool normalize = false; // to length 1
    int32_t dimensions = 0; // keep this many of the first; 0: all

    bool operator==(const EmbeddingForm &) const = default;
};

// Without a modules.json: the last token's, not normalised. hidden: the model's. Sets *note to what these files say
// that is left to the caller, or to "".
Result<EmbeddingForm> read_embedding_form(const std::string &model_dir, int32_t hidden,
                                          std::string *note);

// The names of the files that it reads, if they are there, config.json aside.
std::vector<std::string> embedding_files(const std::string &model_dir);

} // namespace batchllm
