// A constraint's state -> the tokens of the text that must come next. They are computed together,
// like a prompt, instead of one per step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "constraint/constraint.h"
#include "text/tokenizer.h"

namespace batchllm {

inline constexpr size_t forced_context_tokens =
    4; // of the output so far, which the tokenizer also sees

// The tokens that the tokenizer would produce after the output so far, at most `most`. The
// constraint allows each of them in its place. The last one is left out if, depending on the text
// that follows, a longer token could replace it. Empty if fewer than two remain, since that would
// save no step.
std::vector<int32_t> forced_tokens(const ConstraintState &state, const Tokenizer &tokenizer,
                                   std::span<const int32_t> output, int64_t most);

} // namespace batchllm
