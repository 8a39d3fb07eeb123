// The 64-bit words of a journal's files, lowest byte first.
#pragma once

#include <cstdint>
#include <string>

namespace batchllm {

inline void append_word(std::string *out, uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) *out += static_cast<char>(value >> shift & 0xFF);
}

inline uint64_t read_word(const char *bytes) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
}

} // namespace batchllm
