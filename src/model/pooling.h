// modules.json, with what sentence-transformers writes beside it -> how a row's hidden states become its
// vector. A module, a mode or an option that would change the vector and is not computed is refused by name.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace batchllm {

enum class Pooling : uint8_t { last, mean, first };

struct EmbeddingForm {
    Pooling pooling = Pooling::last;
    bool normalize = false; // to length 1
    int32_t dimensions = 0; // the first so many; 0: all

    bool operator==(const EmbeddingForm &) const = default;
};

// Without a modules.json: the last token's, not normalised. hidden: the model's.
Result<EmbeddingForm> read_embedding_form(const std::string &model_dir, int32_t hidden);

} // namespace batchllm
