#include "constraint/lark_terminal.h"

#include <vector>

#include "text/utf8.h"

namespace batchllm {
namespace {

struct CommonTerminal {
    std::string_view name;
    const char *expression;
};
constexpr CommonTerminal common_terminals[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\.)*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z_0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"C_COMMENT", "/\\*([^*]|\\*+[^*/])*\\*+/"},
};

// The text's character; nothing unless it has exactly one.
std::optional<uint32_t> only_character(const std::string &text) {
    if (text.empty()) return std::nullopt;
    int32_t length = 0;
    const uint32_t found = utf8_decode(text.data(), &length);
    if (static_cast<size_t>(length) != text.size()) return std::nullopt;
    return found;
}

} // namespace

bool is_lark_terminal(std::string_view name) {
    const size_t first = name.find_first_not_of('_');
    return first != std::string_view::npos && name[first] >= 'A' && name[first] <= 'Z';
}

const char *lark_common_terminal(std::string_view name) {
    for (const CommonTerminal &one : common_terminals)
        if (one.name == name) return one.expression;
    return nullptr;
}

std::optional<Automaton> characters_between(const std::string &first, const std::string &last) {
    const std::optional<uint32_t> low = only_character(first);
    const std::optional<uint32_t> high = only_character(last);
    if (!low.has_value() || !high.has_value() || *low > *high) return std::nullopt;
    return Automaton::code_points(*low, *high);
}

Result<Automaton> ignoring_case(const std::string &text, Budget *budget) {
    std::vector<Automaton> characters;
    for (const char c : text) {
        const auto byte = static_cast<uint8_t>(c);
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter) {
            characters.push_back(Automaton::byte_range(byte, byte));
            continue;
        }
        const Automaton lower = Automaton::byte_range(byte | 0x20, byte | 0x20);
        const Automaton upper = Automaton::byte_range(byte & 0xDF, byte & 0xDF);
        ASSIGN_OR_RETURN(Automaton either, unite(lower, upper, budget));
        characters.push_back(std::move(either));
    }
    return concat(characters, budget);
}

} // namespace batchllm
