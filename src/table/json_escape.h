// Text -> the inside of a JSON string.
#pragma once

#include <string>
#include <string_view>

namespace batchllm {

// Bytes that are no UTF-8 stay as they are: whoever reads the JSON finds them.
inline void append_json_escaped(std::string_view text, std::string *out) {
    constexpr char digits[] = "0123456789abcdef";
    size_t plain = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
        out->append(text.substr(plain, i - plain));
        plain = i + 1;
        *out += '\\';
        if (byte == '"' || byte == '\\') {
            *out += text[i];
        } else if (byte == '\n') {
            *out += 'n';
        } else {
            *out += "u00";
            *out += digits[byte >> 4];
            *out += digits[byte & 15];
        }
    }
    out->append(text.substr(plain));
}

} // namespace batchllm
