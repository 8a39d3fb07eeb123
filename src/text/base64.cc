#include "text/base64.h"

#include <array>
#include <cstdint>

namespace batchllm {
namespace {

constexpr std::array<int8_t, 256> make_values() {
    std::array<int8_t, 256> values{};
    values.fill(-1);
    constexpr std::string_view alphabet =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < alphabet.size(); ++i) {
        values[static_cast<uint8_t>(alphabet[i])] = static_cast<int8_t>(i);
    }
    values[static_cast<uint8_t>('-')] = 62;
    values[static_cast<uint8_t>('_')] = 63;
    return values;
}

constexpr std::array<int8_t, 256> values = make_values();

} // namespace

std::optional<std::vector<std::byte>> from_base64(std::string_view text) {
    for (int i = 0; i < 2 && text.ends_with('='); ++i) text.remove_suffix(1);
    if (text.size() % 4 == 1) return std::nullopt;
    std::vector<std::byte> bytes;
    bytes.reserve(text.size() / 4 * 3 + 2);
    uint32_t bits = 0;
    int count = 0;
    for (const char c : text) {
        const int8_t value = values[static_cast<uint8_t>(c)];
        if (value < 0) return std::nullopt;
        bits = (bits << 6 | static_cast<uint32_t>(value)) & 0xffff;
        count += 6;
        if (count < 8) continue;
        count -= 8;
        bytes.push_back(static_cast<std::byte>(bits >> count & 0xff));
    }
    return bytes;
}

} // namespace batchllm
