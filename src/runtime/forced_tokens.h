// A constraint's state -> the tokens of the text that must come next, to be computed in one go as a prompt
// is, in place of a step for each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "constraint/constraint.h"
#include "text/tokenizer.h"

namespace batchllm {

// As the tokenizer would have them behind the output so far, at most `most`. Each is one that the
// constraint allows there. The last of the forced text's is left out where a longer token can stand in
// its place: how the text goes on decides that. Empty where that leaves fewer than two, which would save
// no step.
std::vector<int32_t> forced_tokens(const ConstraintState &state, const Tokenizer &tokenizer,
                                   std::span<const int32_t> output, int64_t most);

} // namespace batchllm
