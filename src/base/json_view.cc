#include "base/json_view.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "base/json_escape.h"
#include "base/printable.h"

namespace batchllm {
namespace {

using Kind = JsonNode::Kind;

// Objects with up to this many members (nearly all objects) are checked without allocating memory.
constexpr size_t few_members = 16;

bool holds_values(JsonView value) { return value.is_array() || value.is_object(); }

// A key that occurs twice in the object.
std::optional<std::string_view> equal_keys_of(const JsonMembers &members) {
    std::array<std::string_view, few_members> few;
    std::vector<std::string_view> many;
    size_t count = 0;
    for (const auto [key, member] : members) {
        if (count < few_members) {
            if (std::find(few.begin(), few.begin() + count, key) != few.begin() + count) return key;
            few[count++] = key;
        } else {
            many.push_back(key);
        }
    }
    if (many.empty()) return std::nullopt;
    many.insert(many.end(), few.begin(), few.end());
    std::sort(many.begin(), many.end());
    const auto twice = std::adjacent_find(many.begin(), many.end());
    return twice == many.end() ? std::nullopt : std::optional(*twice);
}

// The path from `value` to the key: ".rope.base", "[3].id". The parser bounds the nesting depth and
// thus the recursion.
std::optional<std::string> path_to_equal_keys(JsonView value) {
    if (const auto items = value.items()) {
        size_t index = 0;
        for (const JsonView item : *items) {
            if (holds_values(item)) {
                if (auto path = path_to_equal_keys(item)) {
                    return "[" + std::to_string(index) + "]" + *path;
                }
            }
            ++index;
        }
    } else if (const auto members = value.members()) {
        if (const auto twice = equal_keys_of(*members)) return "." + printable(*twice);
        for (const auto [key, member] : *members) {
            if (!holds_values(member)) continue;
            if (auto path = path_to_equal_keys(member)) return "." + printable(key) + *path;
        }
    }
    return std::nullopt;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Whether a number, which is not zero, is less than 1. It lies outside the range of a double.
bool is_tiny(std::string_view text) {
    // The number is 0.d.. * 10^exponent, where d is its first digit that is not 0.
    constexpr int64_t enough = int64_t{1} << 40; // more digits than a text has
    int64_t exponent = 0;
    bool point = false;
    bool leading = true;
    size_t at = text.front() == '-' ? 1 : 0;
    for (; at < text.size() && (is_digit(text[at]) || text[at] == '.'); ++at) {
        if (text[at] == '.') {
            point = true;
            continue;
        }
        leading = leading && text[at] == '0';
        if (!leading && !point) ++exponent;
        if (leading && point) --exponent;
    }
    if (at < text.size()) {
        const bool minus = text[++at] == '-';
        if (minus || text[at] == '+') ++at;
        int64_t written = 0;
        for (; at < text.size(); ++at) written = std::min(written * 10 + (text[at] - '0'), enough);
        exponent += minus ? -written : written;
    }
    return exponent <= 0;
}

void append_quoted(std::string_view text, std::string *out) {
    *out += '"';
    append_json_escaped(out, text);
    *out += '"';
}

// Recursion is bounded as above.
void append_text(JsonView value, std::string *out) {
    const char *separator = "";
    switch (value.kind()) {
    case Kind::null:
        *out += "null";
        return;
    case Kind::boolean:
        *out += *value.boolean() ? "true" : "false";
        return;
    case Kind::number:
        *out += *value.number_text();
        return;
    case Kind::string:
        append_quoted(*value.string(), out);
        return;
    case Kind::array: {
        *out += '[';
        const JsonItems items = *value.items();
        for (const JsonView item : items) {
            *out += std::exchange(separator, ",");
            append_text(item, out);
        }
        *out += ']';
        return;
    }
    case Kind::object:
        *out += '{';
        const JsonMembers members = *value.members();
        for (const auto [key, member] : members) {
            *out += std::exchange(separator, ",");
            append_quoted(key, out);
            *out += ':';
            append_text(member, out);
        }
        *out += '}';
    }
}

template <typename T> std::optional<T> integer_of(std::string_view text) {
    T value{};
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Whether 8 characters contain one that ends a run inside a string: a quotation mark, a backslash
// or a control character.
bool has_mark(uint64_t characters) {
    constexpr uint64_t ones = 0x0101010101010101;
    constexpr uint64_t highs = ones * 0x80;
    const auto zero_byte = [](uint64_t bytes) { return (bytes - ones) & ~bytes & highs; };
    const uint64_t controls = (characters - ones * 0x20) & ~characters & highs;
    return (zero_byte(characters ^ ones * '"') | zero_byte(characters ^ ones * '\\') | controls) !=
           0;
}

void append_utf8(uint32_t point, char **to) {
    const auto put = [&](uint32_t byte) { *(*to)++ = static_cast<char>(byte); };
    if (point < 0x80) {
        put(point);
        return;
    }
    if (point < 0x800) {
        put(0xC0 | point >> 6);
    } else {
        if (point < 0x10000) {
            put(0xE0 | point >> 12);
        } else {
            put(0xF0 | point >> 18);
            put(0x80 | (point >> 12 & 0x3F));
        }
        put(0x80 | (point >> 6 & 0x3F));
    }
    put(0x80 | (point & 0x3F));
}

// Reads one text into nodes.
class Reader {
  public:
    // open: memory for the reader's own use. unescape_to: called once if a string has an escape;
    // returns as many bytes as the text has.
    Reader(std::string_view text, const JsonRules &rules, std::vector<JsonNode> *nodes,
           std::vector<uint32_t> *open, const std::function<char *()> &unescape_to)
        : begin_(text.data()), end_(text.data() + text.size()), at_(begin_), rules_(rules),
          nodes_(*nodes), open_(*open), unescape_to_(unescape_to) {}

    JsonFault read() {
        nodes_.clear();
        open_.clear();
        if (std::string_view(begin_, end_).starts_with("\xEF\xBB\xBF")) at_ += 3;
        if (!values()) return {JsonFault::Kind::grammar, std::move(problem_)};
        if (!malformed_.empty()) return {JsonFault::Kind::number, std::move(malformed_)};
        return {};
    }

  private:
    std::string place(const char *at) const { return " at byte " + std::to_string(at - begin_); }
    bool fail(const std::string &what) {
        problem_ = (at_ == end_ ? "the text ends too early" : what) + place(at_);
        return false;
    }

    char peek() const { return at_ < end_ ? *at_ : '\0'; }
    void skip_space() {
        while (at_ < end_ && is_space(*at_)) ++at_;
    }

    // Without recursion, so that nesting needs no stack.
    bool values() {
        for (;;) {
            if (!open_.empty() && nodes_[open_.back()].kind == Kind::object && !key()) return false;
            skip_space();
            bool entered = false;
            if (!value(&entered)) return false;
            if (entered) continue; // the next value is the first in this one
            for (;;) {
                skip_space();
                if (open_.empty()) return at_ == end_ || fail("something after the value");
                JsonNode &around = nodes_[open_.back()];
                ++around.size;
                const bool of_array = around.kind == Kind::array;
                const char next = peek();
                if (next == ',') {
                    ++at_;
                    break;
                }
                if (next != (of_array ? ']' : '}')) {
                    return fail(of_array ? "neither a comma nor ]" : "neither a comma nor }");
                }
                ++at_;
                around.nodes = static_cast<uint32_t>(nodes_.size()) - open_.back();
                open_.pop_back();
            }
        }
    }

    JsonNode &add(Kind kind) {
        JsonNode &node = nodes_.emplace_back();
        node.kind = kind;
        return node;
    }

    bool value(bool *entered) {
        switch (peek()) {
        case '{':
            return enter(Kind::object, '}', entered);
        case '[':
            return enter(Kind::array, ']', entered);
        case '"':
            return string();
        case 't':
            if (!word("true")) break;
            add(Kind::boolean).truth = true;
            return true;
        case 'f':
            if (!word("false")) break;
            add(Kind::boolean).truth = false;
            return true;
        case 'n':
            if (!word("null")) break;
            add(Kind::null);
            return true;
        default:
            if (number()) return true;
        }
        return fail("no value");
    }

    bool enter(Kind kind, char close, bool *entered) {
        if (open_.size() >= rules_.most_depth) {
            return fail("nested more than " + std::to_string(rules_.most_depth) + " levels deep");
        }
        ++at_;
        skip_space();
        JsonNode &node = add(kind);
        node.size = 0;
        node.nodes = 1;
        *entered = peek() != close;
        if (*entered) {
            open_.push_back(static_cast<uint32_t>(nodes_.size() - 1));
        } else {
            ++at_;
        }
        return true;
    }

    bool key() {
        skip_space();
        if (peek() != '"') return fail("no key");
        if (!string()) return false;
        skip_space();
        if (peek() != ':') return fail("no colon after a key");
        ++at_;
        return true;
    }

    bool word(std::string_view name) {
        if (!std::string_view(at_, end_).starts_with(name)) return false;
        at_ += name.size();
        return true;
    }

    // What begins like a number and is none is noted, and the reader goes on after it.
    bool number() {
        const char *const from = at_;
        if (rules_.python && (word("NaN") || word("Infinity") || word("-Infinity"))) {
            add_text(Kind::number, from, at_);
            return true;
        }
        const char first = peek();
        if (!is_digit(first) && first != '-' && first != '+' && first != '.') return false;
        if (first == '-') ++at_;
        bool well_formed = peek() == '0' ? (++at_, true) : digits();
        if (peek() == '.') {
            ++at_;
            well_formed &= digits();
        }
        if (peek() == 'e' || peek() == 'E') {
            ++at_;
            if (peek() == '-' || peek() == '+') ++at_;
            well_formed &= digits();
        }
        const char *const end = at_;
        while (at_ < end_ && !is_space(*at_) && !std::strchr(",:]}[{\"", *at_)) ++at_;
        well_formed &= at_ == end;
        if (well_formed) {
            add_text(Kind::number, from, at_);
        } else {
            if (malformed_.empty()) malformed_ = "a malformed number" + place(from);
            add(Kind::null);
        }
        return true;
    }

    bool digits() {
        const char *const from = at_;
        while (at_ < end_ && is_digit(*at_)) ++at_;
        return at_ > from;
    }

    void add_text(Kind kind, const char *from, const char *to) {
        JsonNode &node = add(kind);
        node.text = from;
        node.size = static_cast<uint32_t>(to - from);
    }

    // Moves to the next quotation mark, backslash or control character of a string.
    void skip_plain() {
        for (; end_ - at_ >= 8; at_ += 8) {
            uint64_t characters;
            std::memcpy(&characters, at_, 8);
            if (has_mark(characters)) break;
        }
        while (at_ < end_ && *at_ != '"' && *at_ != '\\' &&
               static_cast<unsigned char>(*at_) >= 0x20) {
            ++at_;
        }
    }

    bool string() {
        const char *const from = ++at_;
        skip_plain();
        if (peek() == '"') {
            add_text(Kind::string, from, at_++);
            return true;
        }
        return string_with_escapes(from);
    }

    bool string_with_escapes(const char *plain) {
        if (unescaped_ == nullptr) unescaped_ = unescape_to_();
        const char *const from = unescaped_;
        for (;;) {
            const auto run = static_cast<size_t>(at_ - plain);
            std::memcpy(unescaped_, plain, run);
            unescaped_ += run;
            if (peek() == '"') break;
            if (peek() != '\\') return fail("a control character in a string");
            if (!escape()) return false;
            plain = at_;
            skip_plain();
        }
        ++at_;
        add_text(Kind::string, from, unescaped_);
        return true;
    }

    bool escape() {
        constexpr std::string_view names = "\"\\/bfnrt";
        constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
        const char *const from = at_++;
        const size_t which = at_ < end_ ? names.find(*at_) : std::string_view::npos;
        if (which != std::string_view::npos) {
            *unescaped_++ = meanings[which];
            ++at_;
            return true;
        }
        if (peek() != 'u') return fail("an escape that JSON does not have");
        uint32_t point = 0;
        if (!code_unit(&point)) return false;
        if (point >= 0xD800 && point < 0xDC00 && peek() == '\\') {
            uint32_t low = 0;
            ++at_;
            if (peek() != 'u' || !code_unit(&low)) low = 0;
            point = low >= 0xDC00 && low < 0xE000
                        ? 0x10000 + ((point - 0xD800) << 10 | (low - 0xDC00))
                        : point;
        }
        if (point >= 0xD800 && point < 0xE000) {
            at_ = from;
            return fail("an escape of half a surrogate pair");
        }
        append_utf8(point, &unescaped_);
        return true;
    }

    // u0041.
    bool code_unit(uint32_t *unit) {
        if (end_ - at_ < 5) {
            at_ = end_;
            return fail("");
        }
        const auto [stop, failure] = std::from_chars(at_ + 1, at_ + 5, *unit, 16);
        if (failure != std::errc() || stop != at_ + 5) return fail("a malformed \\u escape");
        at_ += 5;
        return true;
    }

    const char *const begin_;
    const char *const end_;
    const char *at_;
    const JsonRules &rules_;
    std::vector<JsonNode> &nodes_;
    std::vector<uint32_t> &open_;
    const std::function<char *()> &unescape_to_;
    char *unescaped_ = nullptr;
    std::string problem_;
    std::string malformed_;
};

} // namespace

std::optional<bool> JsonView::boolean() const {
    if (!is_boolean()) return std::nullopt;
    return node_->truth;
}

std::optional<int64_t> JsonView::integer() const {
    return is_number() ? integer_of<int64_t>(node_->view()) : std::nullopt;
}

std::optional<uint64_t> JsonView::unsigned_integer() const {
    return is_number() ? integer_of<uint64_t>(node_->view()) : std::nullopt;
}

std::optional<double> JsonView::number() const {
    if (!is_number()) return std::nullopt;
    const std::string_view text = node_->view();
    double value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure == std::errc::result_out_of_range) {
        if (!is_tiny(text)) return std::nullopt;
        return text.front() == '-' ? -0.0 : 0.0;
    }
    if (failure != std::errc() || !std::isfinite(value)) return std::nullopt; // NaN
    return value;
}

std::optional<std::string_view> JsonView::number_text() const {
    if (!is_number()) return std::nullopt;
    return node_->view();
}

std::optional<std::string_view> JsonView::string() const {
    if (!is_string()) return std::nullopt;
    return node_->view();
}

std::optional<JsonItems> JsonView::items() const {
    if (!is_array()) return std::nullopt;
    return JsonItems(node_);
}

std::optional<JsonMembers> JsonView::members() const {
    if (!is_object()) return std::nullopt;
    return JsonMembers(node_);
}

std::optional<JsonView> JsonView::find(std::string_view key) const {
    return is_object() ? JsonMembers(node_).find(key) : std::nullopt;
}

std::string JsonView::text() const {
    std::string out;
    append_text(*this, &out);
    return out;
}

std::optional<JsonView> JsonItems::first() const {
    if (empty()) return std::nullopt;
    return *begin();
}

std::optional<JsonView> JsonMembers::find(std::string_view key) const {
    for (const auto [name, value] : *this) {
        if (name == key) return value;
    }
    return std::nullopt;
}

std::optional<std::string> find_equal_keys(JsonView value) {
    std::optional<std::string> path = path_to_equal_keys(value);
    if (path.has_value() && path->front() == '.') path->erase(0, 1);
    return path;
}

JsonFault JsonParser::parse(std::string_view text, JsonView *root, const JsonRules &rules) {
    constexpr size_t most_bytes = UINT32_MAX; // what nodes can count
    if (text.size() > most_bytes)
        return {JsonFault::Kind::grammar, "the text is longer than 4 GiB"};
    if (!is_utf8(text)) return {JsonFault::Kind::utf8, "the text is not valid UTF-8"};
    const auto unescape_to = [&] {
        if (unescaped_bytes_ < text.size()) {
            unescaped_bytes_ = 0;
            unescaped_.reset();
            unescaped_.reset(new char[text.size()]);
            unescaped_bytes_ = text.size();
        }
        return unescaped_.get();
    };
    try {
        JsonFault fault = Reader(text, rules, &nodes_, &open_, unescape_to).read();
        *root = JsonView(nodes_.data());
        return fault;
    } catch (const std::bad_alloc &) {
        return {JsonFault::Kind::memory, ""}; // a text would need memory
    }
}

} // namespace batchllm
