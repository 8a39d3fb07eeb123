#include "base/json_escape.h"

namespace batchllm {

void append_json_escaped(std::string *out, std::string_view text) {
    constexpr char digits[] = "0123456789abcdef";
    size_t plain = 0; // text[plain, i) needs no escape
    for (size_t i = 0; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7F) continue;
        out->append(text, plain, i - plain);
        plain = i + 1;
        switch (c) {
        case '"':
            *out += "\\\"";
            break;
        case '\\':
            *out += "\\\\";
            break;
        case '\n':
            *out += "\\n";
            break;
        case '\r':
            *out += "\\r";
            break;
        case '\t':
            *out += "\\t";
            break;
        default:
            *out += "\\u00";
            *out += digits[c >> 4];
            *out += digits[c & 15];
        }
    }
    out->append(text, plain);
}

} // namespace batchllm
