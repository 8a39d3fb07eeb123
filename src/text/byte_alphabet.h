// Bytes <-> the printable characters that represent them in byte-level vocabularies.
//
// Printable Latin-1 characters represent themselves; the other 68 bytes are U+0100 and up, in byte
// order (as in GPT-2's encoder).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace batchllm {

uint32_t byte_character(uint8_t byte);

// The bytes that a token spells; empty if one of its characters represents no byte.
std::optional<std::string> bytes_of_token(std::string_view token);

} // namespace batchllm
