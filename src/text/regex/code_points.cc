#include "text/regex/code_points.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "text/unicode.h"

namespace batchllm {
namespace {

struct LongName {
    std::string_view name;
    std::string_view category;
};
constexpr LongName long_names[] = {
    {"Letter", "L"},
    {"Cased_Letter", "LC"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Mark", "M"},
    {"Combining_Mark", "M"},
    {"Nonspacing_Mark", "Mn"},
    {"Spacing_Mark", "Mc"},
    {"Enclosing_Mark", "Me"},
    {"Number", "N"},
    {"Decimal_Number", "Nd"},
    {"digit", "Nd"},
    {"Letter_Number", "Nl"},
    {"Other_Number", "No"},
    {"Punctuation", "P"},
    {"punct", "P"},
    {"Connector_Punctuation", "Pc"},
    {"Dash_Punctuation", "Pd"},
    {"Open_Punctuation", "Ps"},
    {"Close_Punctuation", "Pe"},
    {"Initial_Punctuation", "Pi"},
    {"Final_Punctuation", "Pf"},
    {"Other_Punctuation", "Po"},
    {"Symbol", "S"},
    {"Math_Symbol", "Sm"},
    {"Currency_Symbol", "Sc"},
    {"Modifier_Symbol", "Sk"},
    {"Other_Symbol", "So"},
    {"Separator", "Z"},
    {"Space_Separator", "Zs"},
    {"Line_Separator", "Zl"},
    {"Paragraph_Separator", "Zp"},
    {"Other", "C"},
    {"Control", "Cc"},
    {"cntrl", "Cc"},
    {"Format", "Cf"},
    {"Surrogate", "Cs"},
    {"Private_Use", "Co"},
    {"Unassigned", "Cn"},
};
// Of unicode_property() alone.
constexpr LongName short_names[] = {{"Lowercase", "Ll"}, {"Uppercase", "Lu"}};

bool in_category(std::string_view category, std::string_view wanted) {
    if (wanted == "LC")
        return category[0] == 'L' &&
               (category[1] == 'u' || category[1] == 'l' || category[1] == 't');
    return category[0] == wanted[0] && (wanted.size() == 1 || category[1] == wanted[1]);
}

constexpr std::string_view categories[] = {
    "L",  "LC", "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc",
    "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cs", "Co", "Cn"};

bool is_category(std::string_view name) {
    return std::find(std::begin(categories), std::end(categories), name) != std::end(categories);
}

// Lower case, without spaces, _ and -.
std::string squashed(std::string_view name) {
    std::string text;
    for (const char c : name) {
        if (c == ' ' || c == '_' || c == '-') continue;
        text += c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
    }
    return text;
}

CodePointSet category(std::string_view wanted) {
    CodePointSet set;
    for_each_category([&](uint32_t first, uint32_t last, std::string_view category) {
        if (in_category(category, wanted)) set.add(first, last);
    });
    set.normalize();
    return set;
}

} // namespace

void CodePointSet::normalize() {
    std::sort(ranges_.begin(), ranges_.end());
    std::vector<Range> merged;
    for (const Range &range : ranges_) {
        if (!merged.empty() && range.first <= merged.back().second + 1)
            merged.back().second = std::max(merged.back().second, range.second);
        else
            merged.push_back(range);
    }
    ranges_ = std::move(merged);
}

void CodePointSet::fold_ascii() {
    const auto add_shifted = [this](uint32_t first, uint32_t last, uint32_t target) {
        const size_t count = ranges_.size();
        for (size_t i = 0; i < count; ++i) {
            const uint32_t low = std::max(ranges_[i].first, first);
            const uint32_t high = std::min(ranges_[i].second, last);
            if (low <= high) add(low - first + target, high - first + target);
        }
    };
    add_shifted('a', 'z', 'A');
    add_shifted('A', 'Z', 'a');
    normalize();
}

CodePointSet CodePointSet::inverse() const {
    CodePointSet result;
    uint32_t after = 0;
    for (const Range &range : ranges_) {
        if (range.first > after) result.add(after, range.first - 1);
        after = range.second + 1;
    }
    if (after <= 0x10FFFF) result.add(after, 0x10FFFF);
    return result;
}

CodePointSet CodePointSet::intersection(const CodePointSet &other) const {
    CodePointSet result;
    for (auto a = ranges_.begin(), b = other.ranges_.begin();
         a != ranges_.end() && b != other.ranges_.end();) {
        const uint32_t first = std::max(a->first, b->first);
        const uint32_t last = std::min(a->second, b->second);
        if (first <= last) result.add(first, last);
        ++(a->second < b->second ? a : b);
    }
    return result;
}

std::optional<CodePointSet> oniguruma_property(std::string_view name) {
    const std::string wanted = squashed(name);
    if (wanted == "any") return CodePointSet{{0, 0x10FFFF}};
    if (wanted == "ascii") return CodePointSet{{0, 0x7F}};
    if (wanted == "assigned") return category("Cn").inverse();
    for (const std::string_view known : categories) {
        if (squashed(known) == wanted) return category(known);
    }
    for (const LongName &known : long_names) {
        const bool of_posix = known.name[0] >= 'a'; // which means something else there
        if (!of_posix && squashed(known.name) == wanted) return category(known.category);
    }
    CodePointSet set;
    for_each_script([&](uint32_t first, uint32_t last, std::string_view script) {
        if (squashed(script) == wanted) set.add(first, last);
    });
    if (set.ranges().empty()) return std::nullopt;
    set.normalize();
    return set;
}

std::optional<CodePointSet> unicode_property(std::string_view name) {
    for (const std::string_view prefix : {"gc=", "General_Category="})
        if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
    if (name == "Any") return CodePointSet{{0, 0x10FFFF}};
    if (name == "ASCII") return CodePointSet{{0, 0x7F}};
    if (name == "Assigned") return category("Cn").inverse();
    if (name == "Alphabetic" || name == "Alpha") {
        CodePointSet set = category("L");
        set.add(category("Nl"));
        set.normalize();
        return set;
    }
    for (const LongName &known : long_names)
        if (known.name == name) return category(known.category);
    for (const LongName &known : short_names)
        if (known.name == name) return category(known.category);
    if (is_category(name)) return category(name);
    return std::nullopt;
}

} // namespace batchllm
