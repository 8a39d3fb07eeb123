// A grammar -> the length of its shortest text.
#pragma once

#include <cstdint>

#include "constraint/grammar.h"

namespace batchllm {

// In bytes; at most 2^40. The grammar has been compiled, so that it has a text (grammar_code.h).
int64_t least_bytes(const Grammar &grammar);

} // namespace batchllm
