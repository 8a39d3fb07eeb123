// One token's spelling -> the bytes that it adds to a text, whatever stands around it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/decoder.h"

namespace batchllm {

// The byte of a token "<0x..>"; -1: it is no such token. As in the reference, "<0x+A>" is one too.
int32_t fallback_byte(std::string_view token);

enum class TokenPlace : uint8_t { first, later };

// Unlike decoded text this may end, or begin, inside a character. A text's first token may lose a space
// that it keeps elsewhere; what a decoder does only to the last token is left out. Nothing when the
// decoder puts text between tokens, or takes text off more than the first token.
std::optional<std::string> token_bytes(const std::vector<DecoderStep> &steps,
                                       std::string_view token,
                                       TokenPlace place = TokenPlace::later);

} // namespace batchllm
