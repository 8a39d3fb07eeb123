// Random texts that are JSON numbers or nearly so, and an oracle that shares nothing with the
// reader.
#pragma once

#include <cstdint>
#include <random>
#include <regex>
#include <string>

namespace batchllm::testing {

class NumberTexts {
  public:
    explicit NumberTexts(uint64_t seed) : random_(seed) {}

    // Of any size; malformed in about half of all cases. Never empty, and without JSON's own
    // characters.
    std::string next() {
        std::string text;
        if (below(3) == 0) text += '-';
        text += digits();
        if (below(3) == 0) text += "." + digits();
        if (below(3) == 0) {
            text += below(2) == 0 ? 'e' : 'E';
            if (below(2) == 0) text += below(2) == 0 ? '-' : '+';
            text += digits();
        }
        if (below(2) == 0) spoil(&text);
        return text;
    }

    static bool is_number(const std::string &text) {
        static const std::regex grammar(R"(-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?)");
        return std::regex_match(text, grammar);
    }

    uint64_t below(uint64_t count) { return random_() % count; }

  private:
    // Mostly few, sometimes around the sizes at which types end, rarely hundreds.
    std::string digits() {
        static constexpr int32_t sizes[] = {1, 1, 1, 2, 3, 8, 16, 18, 19, 20, 21, 39, 310, 400};
        const int32_t size = sizes[below(std::size(sizes))];
        std::string text;
        if (below(8) == 0) return std::string(static_cast<size_t>(size), '0');
        if (below(8) == 0) return "9223372036854775807";
        if (below(8) == 0) return "18446744073709551615";
        for (int32_t i = 0; i < size; ++i) text += static_cast<char>('0' + below(10));
        if (text.size() > 1 && text[0] == '0' && below(4) != 0) text[0] = '1';
        return text;
    }

    void spoil(std::string *text) {
        static constexpr char characters[] = "0123456789+-.eExf_aN";
        const char c = characters[below(sizeof characters - 1)];
        const size_t at = below(text->size() + 1);
        switch (below(3)) {
        case 0:
            text->insert(at, 1, c);
            break;
        case 1:
            if (at < text->size()) (*text)[at] = c;
            break;
        default:
            if (at < text->size() && text->size() > 1) text->erase(at, 1);
        }
    }

    std::mt19937_64 random_;
};

} // namespace batchllm::testing
