#include "text/byte_alphabet.h"

#include <array>

#include "text/utf8.h"

namespace batchllm {
namespace {

constexpr bool stands_for_itself(uint32_t byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<uint16_t, 256> make_characters() {
    std::array<uint16_t, 256> characters{};
    uint16_t next = 256;
    for (uint16_t byte = 0; byte < 256; ++byte) {
        characters[byte] = stands_for_itself(byte) ? byte : next++;
    }
    return characters;
}

constexpr std::array<uint16_t, 256> kCharacters = make_characters();

constexpr std::array<int16_t, 324> make_bytes() {
    std::array<int16_t, 324> bytes{};
    for (int16_t &byte : bytes) byte = -1;
    for (int16_t byte = 0; byte < 256; ++byte) bytes[kCharacters[static_cast<size_t>(byte)]] = byte;
    return bytes;
}

constexpr std::array<int16_t, 324> kBytes = make_bytes();

} // namespace

uint32_t byte_character(uint8_t byte) { return kCharacters[byte]; }

std::optional<std::string> bytes_of_token(std::string_view token) {
    std::string bytes;
    const char *p = token.data();
    const char *const end = p + token.size();
    while (p < end) {
        int32_t length = 0;
        const uint32_t point = utf8_decode(p, &length);
        if (point >= kBytes.size() || kBytes[point] < 0) return std::nullopt;
        bytes.push_back(static_cast<char>(kBytes[point]));
        p += length;
    }
    return bytes;
}

} // namespace batchllm
