#include "text/split.h"

#include "text/utf8.h"

namespace batchllm {
namespace {

struct Spelling {
    std::string_view regex;
    SplitPattern pattern;
};

// The last spelling of llama3 is cl100k's: possessive quantifiers that change no match, and one
// newline after \s* where any number before it are taken by \s* itself.
constexpr Spelling kSpellings[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     SplitPattern::gpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     SplitPattern::gpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::llama3},
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
     SplitPattern::llama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::qwen2},
};

// Scans one text; every function takes and returns places in it.
class Scanner {
  public:
    Scanner(const UnicodeClasses &classes, const char *end) : classes_(classes), end_(end) {}

    // Class and length of the character at p; class 0 at the end of the text.
    uint8_t at(const char *p, int32_t *length) const {
        if (p == end_) {
            *length = 0;
            return 0;
        }
        if (static_cast<signed char>(*p) >= 0) {
            *length = 1;
            return classes_.ascii(*p);
        }
        return classes_.of(utf8_decode(p, length));
    }

    // End of the run, from p, of characters with one of these class bits.
    const char *run(const char *p, uint8_t bits) const {
        while (p < end_) {
            int32_t length = 0;
            if ((at(p, &length) & bits) == 0) break;
            p += length;
        }
        return p;
    }

    // End of the run of characters with none of these class bits.
    const char *run_without(const char *p, uint8_t bits) const {
        while (p < end_) {
            int32_t length = 0;
            if ((at(p, &length) & bits) != 0) break;
            p += length;
        }
        return p;
    }

    // 's 't 're 've 'm 'll 'd; p itself when there is none.
    template <bool any_case> const char *contraction(const char *p) const {
        if (*p != '\'' || end_ - p < 2) return p;
        const auto letter = [&](int i) {
            const char byte = p + i < end_ ? p[i] : '\0';
            return any_case && byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte + 32) : byte;
        };
        const char first = letter(1);
        if (first == 's' || first == 't' || first == 'm' || first == 'd') return p + 2;
        const char second = letter(2);
        if ((first == 'r' || first == 'v') && second == 'e') return p + 3;
        if (first == 'l' && second == 'l') return p + 3;
        // The long s, U+017F, is an s in another case.
        if (any_case && end_ - p >= 3 && p[1] == '\xC5' && p[2] == '\xBF') return p + 3;
        return p;
    }

    // \s+(?!\S)|\s+ : the run of spaces, less its last one when something follows it.
    const char *spaces(const char *p, const char *run_end) const {
        if (run_end == end_) return run_end;
        const char *last = utf8_previous(run_end);
        return last == p ? run_end : last;
    }

    const char *end() const { return end_; }

  private:
    const UnicodeClasses &classes_;
    const char *end_;
};

const char *next_gpt2(const Scanner &scan, const char *p) {
    if (const char *after = scan.contraction<false>(p); after != p) return after;
    int32_t length = 0;
    uint8_t type = scan.at(p, &length);
    const char *start = p;
    if (*p == ' ') {
        int32_t next_length = 0;
        const uint8_t next = scan.at(p + 1, &next_length);
        if (next_length == 0 || (next & kSpace) != 0) {
            return scan.spaces(p, scan.run(p, kSpace));
        }
        type = next;
        start = p + 1;
        length = next_length;
    }
    if ((type & kLetter) != 0) return scan.run(start + length, kLetter);
    if ((type & kNumber) != 0) return scan.run(start + length, kNumber);
    if ((type & kSpace) != 0) return scan.spaces(p, scan.run(p, kSpace));
    return scan.run_without(start + length, kSpace | kLetter | kNumber);
}

template <int32_t digits> const char *next_llama3(const Scanner &scan, const char *p) {
    if (const char *after = scan.contraction<true>(p); after != p) return after;
    int32_t length = 0;
    const uint8_t type = scan.at(p, &length);
    if ((type & kLetter) != 0) return scan.run(p + length, kLetter);
    if ((type & kNumber) != 0) {
        p += length;
        for (int32_t i = 1; i < digits; ++i) {
            if ((scan.at(p, &length) & kNumber) == 0) break;
            p += length;
        }
        return p;
    }
    // One character that is neither a newline nor a number goes with the letters after it.
    int32_t next_length = 0;
    const uint8_t next = scan.at(p + length, &next_length);
    if ((type & kNewline) == 0 && (next & kLetter) != 0) {
        return scan.run(p + length + next_length, kLetter);
    }
    constexpr uint8_t not_other = kSpace | kLetter | kNumber;
    if ((type & kSpace) == 0) {
        return scan.run(scan.run_without(p + length, not_other), kNewline);
    }
    if (*p == ' ' && next_length != 0 && (next & not_other) == 0) {
        return scan.run(scan.run_without(p + 1 + next_length, not_other), kNewline);
    }
    // \s*[\r\n]+ : to the last newline of the run.
    const char *run_end = scan.run(p, kSpace);
    for (const char *q = run_end; q > p; --q) {
        if (q[-1] == '\n' || q[-1] == '\r') return q;
    }
    return scan.spaces(p, run_end);
}

const char *next_digits(const Scanner &scan, const char *p, bool each) {
    int32_t length = 0;
    if ((scan.at(p, &length) & kNumeric) == 0) return scan.run_without(p + length, kNumeric);
    return each ? p + length : scan.run(p + length, kNumeric);
}

} // namespace

std::optional<SplitPattern> split_pattern_of(std::string_view regex) {
    for (const Spelling &spelling : kSpellings) {
        if (spelling.regex == regex) return spelling.pattern;
    }
    return std::nullopt;
}

const char *next_word(SplitPattern pattern, const UnicodeClasses &classes, const char *p,
                      const char *end) {
    const Scanner scan(classes, end);
    switch (pattern) {
    case SplitPattern::gpt2:
        return next_gpt2(scan, p);
    case SplitPattern::llama3:
        return next_llama3<3>(scan, p);
    case SplitPattern::qwen2:
        return next_llama3<1>(scan, p);
    case SplitPattern::digits:
        return next_digits(scan, p, false);
    case SplitPattern::digits_each:
        return next_digits(scan, p, true);
    }
    return end;
}

} // namespace batchllm
