#include "constraint/grammar_reader.h"

#include <algorithm>
#include <vector>

#include "base/printable.h"
#include "text/utf8.h"

namespace batchllm {

std::string GrammarReader::where() const {
    const std::string_view before = text_.substr(0, place_);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t start = before.rfind('\n') + 1; // npos + 1 is 0
    const auto column = 1 + std::count_if(before.begin() + static_cast<ptrdiff_t>(start),
                                          before.end(), [](char c) { return !utf8_continues(c); });
    return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

Status GrammarReader::invalid(const std::string &problem) const {
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "%s: %s", where().c_str(), problem.c_str());
}

Status GrammarReader::unsupported(const std::string &what) const {
    return error(BATCHLLM_ERROR_UNSUPPORTED, "%s: %s is not supported", where().c_str(),
                 what.c_str());
}

void GrammarReader::skip_space(std::string_view comment, bool lines) {
    for (;;) {
        const char c = peek();
        if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
            skip(1);
        } else if (starts(comment)) {
            skip(std::min(rest().find_first_of("\r\n"), rest().size()));
        } else {
            return;
        }
    }
}

std::string_view GrammarReader::name(std::string_view others) {
    const std::string_view from = rest();
    size_t length = 0;
    while (length < from.size()) {
        const char c = from[length];
        const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || others.find(c) != std::string_view::npos;
        if (!fits) break;
        ++length;
    }
    skip(length);
    return from.substr(0, length);
}

Result<int64_t> GrammarReader::number() {
    if (peek() < '0' || peek() > '9') return invalid("a number is missing");
    int64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; skip(1)) {
        value = value * 10 + (peek() - '0');
        if (value > 1'000'000'000) return invalid("a number above a billion");
    }
    return value;
}

Result<uint32_t> GrammarReader::hexadecimal(int32_t digits) {
    uint32_t value = 0;
    for (int32_t i = 0; i < digits; ++i, skip(1)) {
        const char c = peek();
        const int32_t digit = c >= '0' && c <= '9'   ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
        if (digit < 0) return invalid("a hexadecimal digit is missing");
        value = value * 16 + static_cast<uint32_t>(digit);
    }
    const bool character = value <= 0x10FFFF && !(value >= 0xD800 && value < 0xE000);
    if (!character) return invalid("no such code point");
    return value;
}

Result<uint32_t> GrammarReader::character() {
    if (at_end()) return invalid("the text ends too early");
    if (peek() != '\\') {
        int32_t length;
        const uint32_t point = utf8_decode(rest().data(), &length);
        skip(static_cast<size_t>(length));
        return point;
    }
    const GrammarReader start = *this;
    skip(1);
    const char c = peek();
    skip(at_end() ? 0 : 1);
    switch (c) {
    case 'n':
        return uint32_t{'\n'};
    case 'r':
        return uint32_t{'\r'};
    case 't':
        return uint32_t{'\t'};
    case 'x':
        return hexadecimal(2);
    case 'u':
        return hexadecimal(4);
    case 'U':
        return hexadecimal(8);
    case '\\':
    case '"':
    case '\'':
    case '/':
    case '[':
    case ']':
    case '-':
    case '^':
        return static_cast<uint32_t>(c);
    default:
        return start.invalid("no such escape");
    }
}

Result<std::string> GrammarReader::quoted() {
    const GrammarReader start = *this;
    skip(1);
    std::string text;
    while (peek() != '"') {
        if (at_end() || peek() == '\n') return start.invalid("a quotation mark without its other");
        ASSIGN_OR_RETURN(const uint32_t point, character());
        utf8_append(point, &text);
    }
    skip(1);
    return text;
}

Status check_grammar_text(std::string_view text) {
    if (text.size() > GrammarReader::kLongestText)
        return error(BATCHLLM_ERROR_UNSUPPORTED, "a grammar of more than 1 MiB");
    if (!Automaton::any_text().matches(text))
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "the grammar is not valid UTF-8");
    return {};
}

void rewrite_left_recursion(Grammar *grammar) {
    for (NodeId rule = 0; rule < grammar->size(); ++rule) {
        const Grammar::Node node = grammar->node(rule);
        if (node.kind != Grammar::Kind::reference || node.children.empty()) continue;
        const Grammar::Node body = grammar->node(node.children[0]);
        if (body.kind != Grammar::Kind::choice) continue;
        std::vector<NodeId> starts;
        std::vector<NodeId> tails;
        for (const NodeId alternative : body.children) {
            if (alternative == rule) continue; // "a: a" adds nothing
            const Grammar::Node parts = grammar->node(alternative);
            if (parts.kind == Grammar::Kind::sequence && !parts.children.empty() &&
                parts.children[0] == rule)
                tails.push_back(
                    grammar->sequence({parts.children.begin() + 1, parts.children.end()}));
            else
                starts.push_back(alternative);
        }
        if (starts.size() == body.children.size()) continue;
        const NodeId start = grammar->choice(std::move(starts));
        const NodeId tail = grammar->repeat(grammar->choice(std::move(tails)), 0);
        grammar->define(rule, grammar->sequence({start, tail}));
    }
}

} // namespace batchllm
