#include "text/split.h"

#include <string>

#include "text/utf8.h"

namespace batchllm {
namespace {

struct Spelling {
    std::string_view regex;
    SplitPattern pattern;
};

// The last spellings of llama3 and qwen2 are like cl100k's: possessive quantifiers that change no match, and one
// newline after \s*, which itself takes any number of newlines before that.
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
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
     SplitPattern::qwen2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::qwen3_5},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::seed},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::o200k},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitPattern::tekken},
};

// Scans one text; every function takes and returns positions in it.
class Scanner {
  public:
    Scanner(const UnicodeClasses &classes, const char *end) : classes_(classes), end_(end) {}

    // Class and length of the character at p; class 0 at the end of the text.
    uint16_t at(const char *p, int32_t *length) const {
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
    const char *run(const char *p, uint16_t bits) const {
        while (p < end_) {
            int32_t length = 0;
            if ((at(p, &length) & bits) == 0) break;
            p += length;
        }
        return p;
    }

    // End of the run of characters with none of these class bits.
    const char *run_without(const char *p, uint16_t bits) const {
        while (p < end_) {
            int32_t length = 0;
            if ((at(p, &length) & bits) != 0) break;
            p += length;
        }
        return p;
    }

    // 's 't 're 've 'm 'll 'd; p itself if there is none.
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

    // \s+(?!\S)|\s+ : the run of spaces, without its last one if something follows it.
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
    uint16_t type = scan.at(p, &length);
    const char *start = p;
    if (*p == ' ') {
        int32_t next_length = 0;
        const uint16_t next = scan.at(p + 1, &next_length);
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

// \p{N}{1,most} : p is at a number character of this length.
const char *numbers(const Scanner &scan, const char *p, int32_t length, int32_t most) {
    p += length;
    for (int32_t i = 1; i < most; ++i) {
        if ((scan.at(p, &length) & kNumber) == 0) break;
        p += length;
    }
    return p;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ : to the last newline of the run of spaces, if it has one.
const char *lines_or_spaces(const Scanner &scan, const char *p) {
    const char *run_end = scan.run(p, kSpace);
    for (const char *q = run_end; q > p; --q) {
        if (q[-1] == '\n' || q[-1] == '\r') return q;
    }
    return scan.spaces(p, run_end);
}

// What may follow other characters in their word.
enum class Tail : uint8_t { none, newlines, newlines_and_slashes };

// A space or not, characters with none of the bits `letters`, space or number, and their tail;
// if there are no such characters, lines_or_spaces. type: the class of the character at p, no
// letter or number.
template <uint16_t letters, Tail tail>
const char *others_or_spaces(const Scanner &scan, const char *p, uint16_t type, int32_t length) {
    constexpr uint16_t not_other = kSpace | kNumber | letters;
    if ((type & kSpace) != 0) {
        int32_t next_length = 0;
        const uint16_t next = scan.at(p + length, &next_length);
        if (*p != ' ' || next_length == 0 || (next & not_other) != 0) {
            return lines_or_spaces(scan, p);
        }
        length += next_length;
    }
    p = scan.run_without(p + length, not_other);
    if (tail == Tail::newlines) return scan.run(p, kNewline);
    if (tail == Tail::newlines_and_slashes) {
        while (p < scan.end() && (*p == '\r' || *p == '\n' || *p == '/')) ++p;
    }
    return p;
}

// letters: the class bits of what words are made of. One character that is neither a newline, a
// number nor \p{L} goes with the letters after it.
template <int32_t digits, uint16_t letters, Tail tail>
const char *next_llama3(const Scanner &scan, const char *p) {
    if (const char *after = scan.contraction<true>(p); after != p) return after;
    int32_t length = 0;
    const uint16_t type = scan.at(p, &length);
    if ((type & letters) != 0) return scan.run(p + length, letters);
    if ((type & kNumber) != 0) return numbers(scan, p, length, digits);
    if ((type & kNewline) == 0) {
        int32_t next_length = 0;
        const uint16_t next = scan.at(p + length, &next_length);
        if ((next & letters) != 0) return scan.run(p + length + next_length, letters);
    }
    return others_or_spaces<letters, tail>(scan, p, type, length);
}

// Letters that are neither capital nor small, and marks, count as both.
constexpr uint16_t kWordLetter = kLetter | kMark;
bool is_capital(uint16_t type) { return (type & kWordLetter) != 0 && (type & kLower) == 0; }
bool is_small(uint16_t type) { return (type & kWordLetter) != 0 && (type & kUpper) == 0; }

const char *small_run(const Scanner &scan, const char *p) {
    int32_t length = 0;
    for (; is_small(scan.at(p, &length)); p += length) {}
    return p;
}

// The end of capitals*small+ from p on, where capitals give back no more than they must; p: no
// match. *capitals_end: the end of the run of capitals from p.
const char *capitals_then_small(const Scanner &scan, const char *p, const char **capitals_end) {
    const char *last_of_both = p;
    const char *q = p;
    int32_t length = 0;
    for (uint16_t type = 0; is_capital(type = scan.at(q, &length)); q += length) {
        if (is_small(type)) last_of_both = q + length;
    }
    *capitals_end = q;
    const char *end = small_run(scan, q);
    return end != q ? end : last_of_both;
}

// o200k's two alternatives for words, from p on; p: no match. type: the class of the character at p.
const char *cased_word(const Scanner &scan, const char *p, uint16_t type, int32_t length) {
    const char *const after = p + length;
    const bool prefix = (type & (kNewline | kLetter | kNumber)) == 0;
    const char *capitals_after = after;
    const char *capitals = p;
    if (prefix) {
        const char *end = capitals_then_small(scan, after, &capitals_after);
        if (end != after) return end;
    }
    if ((type & kWordLetter) != 0) {
        const char *end = capitals_then_small(scan, p, &capitals);
        if (end != p) return end;
    }
    // Capitals without small letters: those would have been found.
    return capitals_after != after ? capitals_after : capitals;
}

template <int32_t digits, bool contractions>
const char *next_o200k(const Scanner &scan, const char *p) {
    int32_t length = 0;
    const uint16_t type = scan.at(p, &length);
    if ((type & kNumber) != 0) return numbers(scan, p, length, digits);
    if (const char *end = cased_word(scan, p, type, length); end != p) {
        return contractions && end < scan.end() ? scan.contraction<true>(end) : end;
    }
    return others_or_spaces<kLetter, Tail::newlines_and_slashes>(scan, p, type, length);
}

const char *next_digits(const Scanner &scan, const char *p, bool each) {
    int32_t length = 0;
    if ((scan.at(p, &length) & kNumeric) == 0) return scan.run_without(p + length, kNumeric);
    return each ? p + length : scan.run(p + length, kNumeric);
}

} // namespace

std::optional<SplitPattern> split_pattern_of(std::string_view regex) {
    std::string spelled;
    for (const char byte : regex) {
        if (byte == '\r') {
            spelled += "\\r";
        } else if (byte == '\n') {
            spelled += "\\n";
        } else {
            spelled += byte;
        }
    }
    for (const Spelling &spelling : kSpellings) {
        if (spelling.regex == spelled) return spelling.pattern;
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
        return next_llama3<3, kLetter, Tail::newlines>(scan, p);
    case SplitPattern::qwen2:
        return next_llama3<1, kLetter, Tail::newlines>(scan, p);
    case SplitPattern::qwen3_5:
        return next_llama3<1, kLetter | kMark, Tail::newlines>(scan, p);
    case SplitPattern::seed:
        return next_llama3<1, kLetter, Tail::none>(scan, p);
    case SplitPattern::o200k:
        return next_o200k<3, true>(scan, p);
    case SplitPattern::tekken:
        return next_o200k<1, false>(scan, p);
    case SplitPattern::digits:
        return next_digits(scan, p, false);
    case SplitPattern::digits_each:
        return next_digits(scan, p, true);
    }
    return end;
}

} // namespace batchllm
