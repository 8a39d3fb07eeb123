#include "base/printable.h"

#include <simdjson.h>

namespace batchllm {

bool is_utf8(std::string_view text) { return simdjson::validate_utf8(text.data(), text.size()); }

std::string printable(std::string_view text, size_t limit) {
    std::string out;
    for (const char c : text.substr(0, limit)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x80 && byte < 0xa0 && !out.empty() && out.back() == '\xc2') {
            out.back() = '?'; // U+0080 to U+009F: some terminals obey these too
        } else {
            out += byte < 0x20 || byte == 0x7f ? '?' : c;
        }
    }
    if (text.size() > limit) {
        // Removes an incomplete character at the cut.
        while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xc0) == 0x80) {
            out.pop_back();
        }
        if (!out.empty() && (static_cast<unsigned char>(out.back()) & 0x80) != 0) out.pop_back();
        out += "...";
    }
    return out;
}

std::string in_quotes(std::string_view text) { return '"' + printable(text) + '"'; }

} // namespace batchllm
