// A row's tokens, pictures among them -> text for people.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "text/tokenizer.h"

namespace batchllm {

// With special tokens, and "[picture]" for each run of a picture's tokens.
Result<std::string> decode_row(const Tokenizer &tokenizer, std::span<const int32_t> tokens);

} // namespace batchllm
