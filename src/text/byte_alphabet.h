// Bytes to the printable characters that stand for them in byte-level vocabularies, and back.
//
// Printable Latin-1 characters stand for themselves; the other 68 bytes are U+0100 and up, in order
// of the byte (as in GPT-2's encoder).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace batchllm {

uint32_t byte_character(uint8_t byte);

// The bytes that a token spells; empty optional if one of its characters stands for no byte.
std::optional<std::string> bytes_of_token(std::string_view token);

} // namespace batchllm
