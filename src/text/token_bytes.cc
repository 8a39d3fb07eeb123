#include "text/token_bytes.h"

#include "text/byte_alphabet.h"

namespace batchllm {
namespace {

std::string replaced(const std::string &text, std::string_view pattern, std::string_view content) {
    std::string result;
    size_t done = 0;
    for (size_t found; (found = text.find(pattern, done)) != std::string::npos;) {
        result.append(text, done, found - done).append(content);
        done = found + pattern.size();
    }
    return result.append(text, done);
}

void strip(std::string *text, const DecoderStep &step) {
    const std::string &content = step.content;
    for (int64_t i = 0; i < step.start && text->starts_with(content); ++i)
        text->erase(0, content.size());
    for (int64_t i = 0; i < step.stop && text->ends_with(content); ++i)
        text->erase(text->size() - content.size());
}

} // namespace

int32_t fallback_byte(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    int32_t value = 0;
    for (size_t i = 3; i < 5; ++i) {
        const char c = token[i];
        if (c == '+' && i == 3) continue;
        const int32_t digit = c >= '0' && c <= '9'   ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

std::optional<std::string> token_bytes(const std::vector<DecoderStep> &steps,
                                       std::string_view token, TokenPlace place) {
    std::string text(token);
    const bool first = place == TokenPlace::first;
    bool is_byte = false; // <0x..>, which later steps on single tokens leave alone
    bool fused = false;   // from here on, steps see the whole text as one token
    for (const DecoderStep &step : steps) {
        switch (step.kind) {
        case DecoderStep::Kind::byte_level:
            if (const auto bytes = bytes_of_token(text)) text = *bytes;
            fused = true;
            break;
        case DecoderStep::Kind::byte_fallback:
            if (const int32_t byte = fallback_byte(text); byte >= 0) {
                text.assign(1, static_cast<char>(byte));
                is_byte = true;
            }
            break;
        case DecoderStep::Kind::fuse:
            fused = true;
            break;
        case DecoderStep::Kind::replace:
            if (!is_byte) text = replaced(text, step.pattern, step.content);
            break;
        case DecoderStep::Kind::strip:
            if (!fused && !is_byte) strip(&text, step);
            if (!fused || step.start == 0) break;
            if (step.start > 1) return std::nullopt;
            if (first && text.starts_with(step.content)) text.erase(0, step.content.size());
            break;
        case DecoderStep::Kind::metaspace:
            if (!is_byte) text = replaced(text, step.pattern, first && step.drop_first ? "" : " ");
            break;
        case DecoderStep::Kind::join:
            return std::nullopt;
        }
    }
    return text;
}

} // namespace batchllm
