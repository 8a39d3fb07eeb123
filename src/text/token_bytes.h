// A token's spelling -> the bytes that it adds to a text, whatever its neighbours.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/decoder.h"

namespace batchllm {

// The byte of a token "<0x..>"; -1 if it is not such a token. As in the reference, "<0x+A>" counts
// as one.
int32_t fallback_byte(std::string_view token);

enum class TokenPlace : uint8_t { first, later };

// Unlike decoded text, this may begin or end inside a character. A text's first token may lose a
// space that it keeps elsewhere; changes that a decoder makes only to the last token are ignored.
// Empty optional if the decoder puts text between tokens, or removes text from tokens other than
// the first.
std::optional<std::string> token_bytes(const std::vector<DecoderStep> &steps,
                                       std::string_view token,
                                       TokenPlace place = TokenPlace::later);

} // namespace batchllm
