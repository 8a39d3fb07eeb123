#include "text/jinja/case.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

#include "text/jinja/python_text.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace batchllm::jinja {
namespace {

struct Range {
    uint32_t first;
    uint32_t last;
};

// Characters first, first + step, ..., last, each mapped to itself plus the difference.
struct CaseRun {
    uint32_t first;
    uint32_t last;
    uint32_t step;
    int32_t difference;
};

// A character that maps to several; unused ones are 0.
struct Expansion {
    uint32_t point;
    uint32_t first, second, third;
};

#include "text/jinja/python_tables.inc"

struct Mapping {
    std::span<const CaseRun> runs;
    std::span<const Expansion> expansions;
};

const Mapping upper_case = {upper_runs, upper_expansions};
const Mapping lower_case = {lower_runs, lower_expansions};
const Mapping title_case = {title_runs, title_expansions};

void append_mapped(const Mapping &mapping, uint32_t point, std::string *out) {
    if (point < 0x80) {
        const bool lower = &mapping == &lower_case;
        const char from = lower ? 'A' : 'a';
        const auto c = static_cast<char>(point);
        out->push_back(c >= from && c < from + 26 ? static_cast<char>(c ^ 0x20) : c);
        return;
    }
    for (const Expansion &expansion : mapping.expansions) {
        if (expansion.point != point) continue;
        for (const uint32_t part : {expansion.first, expansion.second, expansion.third}) {
            if (part != 0) utf8_append(part, out);
        }
        return;
    }
    const auto after =
        std::upper_bound(mapping.runs.begin(), mapping.runs.end(), point,
                         [](uint32_t value, const CaseRun &run) { return value < run.first; });
    if (after != mapping.runs.begin()) {
        const CaseRun &run = *std::prev(after);
        if (point <= run.last && (point - run.first) % run.step == 0) {
            point = static_cast<uint32_t>(static_cast<int32_t>(point) + run.difference);
        }
    }
    utf8_append(point, out);
}

bool is_cased(uint32_t point) {
    if (point < 0x80) return (point | 0x20) >= 'a' && (point | 0x20) <= 'z';
    const auto *const after =
        std::upper_bound(std::begin(cased), std::end(cased), point,
                         [](uint32_t value, const Range &range) { return value < range.first; });
    return after != std::begin(cased) && point <= std::prev(after)->last;
}

bool is_case_ignorable(uint32_t point) {
    // Unicode's Word_Break MidLetter, MidNumLet and Single_Quote.
    constexpr char32_t within_words[] =
        U"'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";
    if (std::u32string_view(within_words).find(point) != std::u32string_view::npos) return true;
    const std::string_view category = unicode_category(point);
    return category == "Mn" || category == "Me" || category == "Cf" || category == "Lm" ||
           category == "Sk";
}

// Whether the capital sigma at byte `at` ends a word: the only rule of lower case that depends on
// context.
bool is_final_sigma(std::string_view text, size_t at) {
    bool before = false;
    for (const char *p = text.data() + at; p > text.data();) {
        p = utf8_previous(p);
        int32_t bytes = 0;
        const uint32_t point = utf8_decode(p, &bytes);
        if (is_case_ignorable(point)) continue;
        before = is_cased(point);
        break;
    }
    if (!before) return false;
    for (size_t i = at + 2; i < text.size();) {
        int32_t bytes = 0;
        const uint32_t point = utf8_decode(text.data() + i, &bytes);
        i += static_cast<size_t>(bytes);
        if (is_case_ignorable(point)) continue;
        return !is_cased(point);
    }
    return true;
}

constexpr uint32_t capital_sigma = 0x3A3;
constexpr uint32_t final_sigma = 0x3C2;

// Appends the character at byte `at` of text in lower case.
void append_lower(std::string_view text, size_t at, uint32_t point, std::string *out) {
    if (point == capital_sigma && is_final_sigma(text, at)) {
        utf8_append(final_sigma, out);
    } else {
        append_mapped(lower_case, point, out);
    }
}

// Calls change(byte, character) for each character.
template <typename Change> void for_each(std::string_view text, Change change) {
    for (size_t i = 0; i < text.size();) {
        int32_t bytes = 0;
        const uint32_t point = utf8_decode(text.data() + i, &bytes);
        change(i, point);
        i += static_cast<size_t>(bytes);
    }
}

} // namespace

bool is_printable(uint32_t point) {
    if (point == ' ') return true;
    const std::string_view category = unicode_category(point);
    return category[0] != 'C' && category[0] != 'Z';
}

std::string to_upper(std::string_view text) {
    std::string out;
    for_each(text, [&](size_t, uint32_t point) { append_mapped(upper_case, point, &out); });
    return out;
}

std::string to_lower(std::string_view text) {
    std::string out;
    for_each(text, [&](size_t at, uint32_t point) { append_lower(text, at, point, &out); });
    return out;
}

std::string capitalize(std::string_view text) {
    std::string out;
    for_each(text, [&](size_t at, uint32_t point) {
        if (at == 0) {
            append_mapped(title_case, point, &out);
        } else {
            append_lower(text, at, point, &out);
        }
    });
    return out;
}

std::string to_title(std::string_view text) {
    std::string out;
    bool inside = false;
    for_each(text, [&](size_t at, uint32_t point) {
        if (inside) {
            append_lower(text, at, point, &out);
        } else {
            append_mapped(title_case, point, &out);
        }
        inside = is_cased(point);
    });
    return out;
}

std::string title_words(std::string_view text) {
    std::string out;
    const auto separates = [](uint32_t point) {
        return is_python_space(point) ||
               (point < 0x80 && point != 0 &&
                std::string_view("-({[<").find(static_cast<char>(point)) != std::string_view::npos);
    };
    size_t begin = 0;
    // A word: its first character in upper case, the rest in lower case.
    const auto end_word = [&](size_t end) {
        const std::string_view word = text.substr(begin, end - begin);
        if (word.empty()) return;
        const auto first = static_cast<size_t>(utf8_length(word[0]));
        out += to_upper(word.substr(0, first));
        out += to_lower(word.substr(first));
    };
    for_each(text, [&](size_t at, uint32_t point) {
        if (!separates(point)) return;
        end_word(at);
        utf8_append(point, &out);
        begin = at + static_cast<size_t>(utf8_length(text[at]));
    });
    end_word(text.size());
    return out;
}

} // namespace batchllm::jinja
