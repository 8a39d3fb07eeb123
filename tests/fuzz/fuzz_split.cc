// libFuzzer: a regular expression by which a tokenizer splits, and a text. Nothing may crash, read outside the text or
// go on for ever; matches follow one another and begin and end between characters.
//
// Input: the expression, a zero byte, the text.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/printable.h"
#include "text/regex/matcher.h"
#include "text/utf8.h"

namespace {

void check(bool good) {
    if (!good) std::abort();
}

bool between_characters(const std::string &text, size_t at) {
    return at == text.size() || !batchllm::utf8_continues(text[at]);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const std::string input(reinterpret_cast<const char *>(data), size);
    const size_t zero = input.find('\0');
    const auto matcher = batchllm::RegexMatcher::make(input.substr(0, zero));
    if (!matcher.ok()) {
        check(!matcher.status().message().empty());
        return 0;
    }
    const std::string text = zero == std::string::npos ? "aab 12\n" : input.substr(zero + 1);
    if (text.empty() || !batchllm::is_utf8(text)) return 0;
    size_t at = 0;
    while (const auto match = matcher->find(text, at)) {
        check(match->begin >= at && match->end >= match->begin && match->end <= text.size());
        check(match->end > at || match->begin > at);
        check(between_characters(text, match->begin) && between_characters(text, match->end));
        check(match->begin != match->end || matcher->may_be_empty());
        at = match->end;
    }
    return 0;
}
