#include "base/json_view.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include <simdjson.h>

#include "base/json_escape.h"
#include "base/printable.h"

namespace batchllm {
namespace {

using JsonKind = JsonNode::Kind;

// Objects with up to this many members (nearly all objects) are checked without allocating memory.
constexpr size_t few_members = 16;

bool holds_values(JsonView value) { return value.is_array() || value.is_object(); }

// The path from `value` to the key: ".rope.base", "[3].id". The parser bounds the nesting depth and
// thus the recursion.
std::optional<std::string> path_to_equal_keys(JsonView value) {
    if (const auto items = value.items()) {
        if (items->are_flat()) return std::nullopt; // such as thousands of tokens
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
        if (const auto twice = members->equal_keys()) return "." + printable(*twice);
        for (const auto [key, member] : *members) {
            if (!holds_values(member)) continue;
            if (auto path = path_to_equal_keys(member)) return "." + printable(key) + *path;
        }
    }
    return std::nullopt;
}

bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

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
    case JsonKind::null:
        *out += "null";
        return;
    case JsonKind::boolean:
        *out += *value.boolean() ? "true" : "false";
        return;
    case JsonKind::number:
        *out += *value.number_text();
        return;
    case JsonKind::string:
        append_quoted(*value.string(), out);
        return;
    case JsonKind::array: {
        *out += '[';
        const JsonItems items = *value.items();
        for (const JsonView item : items) {
            *out += std::exchange(separator, ",");
            append_text(item, out);
        }
        *out += ']';
        return;
    }
    case JsonKind::object:
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

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

namespace ondemand = simdjson::ondemand;

// -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
bool is_number(std::string_view text) {
    size_t at = 0;
    const auto take = [&](char c) { return at < text.size() && text[at] == c && ++at > 0; };
    const auto digits = [&] {
        const size_t from = at;
        while (at < text.size() && is_digit(text[at])) ++at;
        return at > from;
    };
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (take('e') || take('E')) {
        if (!take('+')) take('-');
        if (!digits()) return false;
    }
    return at == text.size();
}

// Up to 8 digits, of which there may be none, and their value. Reads 8 bytes and does not branch,
// because the lengths of tokens' numbers cannot be predicted.
int32_t first_digits(const char *at, int64_t *value) {
    static_assert(std::endian::native == std::endian::little);
    constexpr uint64_t each = 0x0101010101010101;
    uint64_t text;
    std::memcpy(&text, at, 8);
    // The high half of a digit is 3, also after 6 is added to the low half. Carries of other
    // characters spoil only what follows them.
    const uint64_t others = ((text ^ each * '0') | ((text + each * 6) ^ each * '0')) & each * 0xF0;
    const int32_t count = std::countr_zero(others) / 8;
    // The digits at the end, zeros before them.
    text = count == 0 ? 0 : (text & each * 0xF) << 8 * (8 - count);
    text = (text * 10 + (text >> 8)) & 0x00FF00FF00FF00FF;
    text = (text * 100 + (text >> 16)) & 0x0000FFFF0000FFFF;
    *value = static_cast<int64_t>((text * 10000 + (text >> 32)) & 0xFFFFFFFF);
    return count;
}

// Visits all of a text and makes nodes of it.
class Reader {
  public:
    // list: the text in brackets, because the parser treats a value in a document differently from a
    // whole document; json_padding bytes after it are readable. nodes: room for all that it can
    // have. unescape_to: called once if a string has an escape.
    Reader(ondemand::parser *parser, std::string_view list, const JsonRules &rules, JsonNode *nodes,
           const std::function<char *()> &unescape_to)
        : parser_(*parser), list_(list), rules_(rules), node_(nodes), unescape_to_(unescape_to) {}

    JsonFault read() {
        if (!whole()) return std::move(fault_);
        if (!malformed_.empty()) return {JsonFault::Kind::number, std::move(malformed_)};
        return {};
    }

  private:
    bool fail(const std::string &problem) {
        const char *at = nullptr;
        if (!iterating_ || document_.current_location().get(at) != simdjson::SUCCESS) at = nullptr;
        fault_ = {JsonFault::Kind::grammar, problem + (at != nullptr ? place(at) : "")};
        return false;
    }
    bool fail(simdjson::error_code problem) {
        if (problem == simdjson::MEMALLOC) {
            fault_.kind = JsonFault::Kind::memory;
        } else if (problem == simdjson::UTF8_ERROR) {
            fault_ = {JsonFault::Kind::utf8, "the text is not valid UTF-8"};
        } else {
            return fail(simdjson::error_message(problem));
        }
        return false;
    }
    std::string place(const char *at) const {
        const auto byte = std::clamp<ptrdiff_t>(at - list_.data() - 1, 0,
                                                static_cast<ptrdiff_t>(list_.size()) - 2);
        return " at byte " + std::to_string(byte);
    }
    // Takes the parser's result unless it is an error.
    template <typename T> bool take(simdjson::simdjson_result<T> from, T *to) {
        const simdjson::error_code problem = std::move(from).get(*to);
        return problem == simdjson::SUCCESS || fail(problem);
    }

    bool whole() {
        const size_t padded = list_.size() + simdjson::SIMDJSON_PADDING;
        if (!take(parser_.iterate(list_.data(), list_.size(), padded), &document_)) return false;
        iterating_ = true;
        ondemand::array list;
        if (!take(document_.get_array(), &list)) return false;
        size_t values = 0;
        for (auto item : list) {
            ondemand::value one;
            if (!take(std::move(item), &one)) return false;
            if (++values > 1) return fail("something after the value");
            if (!value(one, 0)) return false;
        }
        if (values == 0) return fail("no value");
        return document_.current_location().error() == simdjson::OUT_OF_BOUNDS ||
               fail("something after the value");
    }

    bool value(ondemand::value from, uint32_t depth) {
        std::string_view token = from.raw_json_token();
        switch (token.front()) {
        case '{':
        case '[':
            if (depth >= rules_.most_depth) {
                return fail("nested more than " + std::to_string(rules_.most_depth) +
                            " levels deep");
            }
            if (token.front() == '{') return object(from, depth);
            return list_of_integers(token.data()) || array(from, depth);
        case '"': {
            ondemand::raw_json_string raw;
            return take(from.get_raw_json_string(), &raw) && string(raw);
        }
        default:
            return short_integer(token.data()) != nullptr || scalar(token);
        }
    }

    // A number of up to 18 digits without a fraction or an exponent, as most numbers are, and the
    // white space after it. Returns the comma or bracket behind it; null: it is another number.
    const char *short_integer(const char *const from) {
        const bool minus = *from == '-';
        const char *const digits = from + (minus ? 1 : 0);
        int64_t value = 0;
        const char *at = digits + first_digits(digits, &value);
        if (at == digits + 8) {
            for (; is_digit(*at) && at < digits + 18; ++at) value = value * 10 + (*at - '0');
        }
        if (at == digits || (*digits == '0' && at > digits + 1)) return nullptr;
        const auto size = static_cast<size_t>(at - from);
        while (is_space(*at)) ++at;
        if (*at != ',' && *at != ']' && *at != '}') return nullptr;
        node_->integer = minus ? -value : value;
        node_->is_short = true;
        add(JsonKind::number, {from, size});
        return at;
    }

    // Reads [1, 2, 3]: lists of tokens are long, and the parser takes three times as long for them,
    // which here has only to skip the list. False, without any effect, if it is another array.
    bool list_of_integers(const char *at) {
        JsonNode *const before = node_;
        JsonNode *const node = open(JsonKind::array);
        do {
            ++at;
            while (is_space(*at)) ++at;
            at = short_integer(at);
            if (at == nullptr || *at == '}') {
                node_ = before;
                return false;
            }
            ++node->size;
        } while (*at == ',');
        node->nodes = static_cast<uint32_t>(node_ - node);
        return true;
    }

    // The parser takes any word for a value.
    bool scalar(std::string_view token) {
        while (is_space(token.back())) token.remove_suffix(1);
        const char first = token.front();
        if (is_digit(first) || first == '-' || first == '+' || first == '.') {
            if (is_number(token) || (rules_.python && token == "-Infinity")) {
                node_->is_short = false;
                add(JsonKind::number, token);
                return true;
            }
            if (malformed_.empty()) malformed_ = "a malformed number" + place(token.data());
            node_++->kind = JsonKind::null;
        } else if (token == "true" || token == "false") {
            node_->kind = JsonKind::boolean;
            node_++->truth = token == "true";
        } else if (token == "null") {
            node_++->kind = JsonKind::null;
        } else if (rules_.python && (token == "NaN" || token == "Infinity")) {
            node_->is_short = false;
            add(JsonKind::number, token);
        } else {
            return fail("no value");
        }
        return true;
    }

    bool array(ondemand::value from, uint32_t depth) {
        ondemand::array list;
        if (!take(from.get_array(), &list)) return false;
        JsonNode *const node = open(JsonKind::array);
        for (auto item : list) {
            ondemand::value one;
            if (!take(std::move(item), &one) || !value(one, depth + 1)) return false;
            ++node->size;
        }
        node->nodes = static_cast<uint32_t>(node_ - node);
        return true;
    }

    bool object(ondemand::value from, uint32_t depth) {
        ondemand::object list;
        if (!take(from.get_object(), &list)) return false;
        JsonNode *const node = open(JsonKind::object);
        for (auto item : list) {
            ondemand::field field;
            if (!take(std::move(item), &field) || !string(field.key()) ||
                !value(field.value(), depth + 1)) {
                return false;
            }
            ++node->size;
        }
        node->nodes = static_cast<uint32_t>(node_ - node);
        return true;
    }

    // The parser has checked that the string ends, and its characters.
    bool string(ondemand::raw_json_string raw) {
        const char *const from = raw.raw();
        const auto left = static_cast<size_t>(list_.data() + list_.size() - from);
        const auto *const end = static_cast<const char *>(std::memchr(from, '"', left));
        std::string_view text(from, static_cast<size_t>(end - from));
        if (text.find('\\') != std::string_view::npos) {
            if (unescaped_ == nullptr) unescaped_ = reinterpret_cast<uint8_t *>(unescape_to_());
            if (!take(parser_.unescape(raw, unescaped_), &text)) return false;
            // The parser accepts escapes of unpaired surrogates.
            if (!is_utf8(text)) return fail("an escape of half a surrogate pair");
        }
        add(JsonKind::string, text);
        return true;
    }

    void add(JsonKind kind, std::string_view text) {
        node_->text = text.data();
        node_->size = static_cast<uint32_t>(text.size());
        node_++->kind = kind;
    }

    JsonNode *open(JsonKind kind) {
        node_->kind = kind;
        node_->size = 0;
        return node_++;
    }

    ondemand::parser &parser_;
    const std::string_view list_;
    const JsonRules &rules_;
    JsonNode *node_; // the next one
    const std::function<char *()> &unescape_to_;
    uint8_t *unescaped_ = nullptr; // where the next string with escapes goes
    ondemand::document document_;
    bool iterating_ = false; // the document can be asked for its position
    JsonFault fault_;
    std::string malformed_;
};

} // namespace

std::optional<bool> JsonView::boolean() const {
    if (!is_boolean()) return std::nullopt;
    return node_->truth;
}

template <typename T> std::optional<T> JsonView::other_integer() const {
    const std::string_view text = node_->view();
    if (is_integer()) {
        T value = 0;
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
        return value;
    }
    // 1.0 and 1e3, as far as a double is exact.
    const std::optional<double> real = number();
    if (!real || *real != std::floor(*real) || std::fabs(*real) > 0x1p53) return std::nullopt;
    if (*real < 0 && !std::is_signed_v<T>) return std::nullopt;
    return static_cast<T>(*real);
}
template std::optional<int64_t> JsonView::other_integer() const;
template std::optional<uint64_t> JsonView::other_integer() const;

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

bool JsonView::is_integer() const {
    return is_number() && node_->view().find_first_of(".eENI") == std::string_view::npos;
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

std::optional<std::string_view> JsonMembers::equal_keys() const {
    std::array<std::string_view, few_members> few;
    std::vector<std::string_view> many;
    size_t count = 0;
    for (const auto [key, member] : *this) {
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

std::optional<std::string> find_equal_keys(JsonView value) {
    std::optional<std::string> path = path_to_equal_keys(value);
    if (path.has_value() && path->front() == '.') path->erase(0, 1);
    return path;
}

struct JsonParser::Memory {
    // Without values, so that pages that no text has needed are never touched.
    template <typename T> struct Room {
        std::unique_ptr<T[]> items;
        size_t capacity = 0;
        T *grow_to(size_t count) {
            if (capacity < count) {
                capacity = 0;
                items.reset();
                items.reset(new T[count]);
                capacity = count;
            }
            return items.get();
        }
    };
    ondemand::parser parser;
    Room<char> list;      // the text, in brackets
    Room<char> unescaped; // strings that had escapes
    Room<JsonNode> nodes;
};

JsonParser::JsonParser() = default;
JsonParser::JsonParser(JsonParser &&) noexcept = default;
JsonParser &JsonParser::operator=(JsonParser &&) noexcept = default;
JsonParser::~JsonParser() = default;

JsonFault JsonParser::parse(std::string_view text, JsonView *root, const JsonRules &rules) {
    constexpr size_t most_bytes = UINT32_MAX - 2 * simdjson::SIMDJSON_PADDING; // the parser's limit
    constexpr std::string_view mark = "\xEF\xBB\xBF";
    if (text.size() > most_bytes) return {JsonFault::Kind::grammar, "longer than 4 GiB"};
    try {
        if (memory_ == nullptr) memory_ = std::make_unique<Memory>();
        const size_t bytes = text.size() + 2;
        const size_t padded = bytes + simdjson::SIMDJSON_PADDING;
        char *const list = memory_->list.grow_to(padded);
        list[0] = '[';
        std::memcpy(list + 1, text.data(), text.size());
        if (text.starts_with(mark)) std::memset(list + 1, ' ', mark.size());
        list[bytes - 1] = ']';
        std::memset(list + bytes, ' ', simdjson::SIMDJSON_PADDING);
        if (memory_->parser.capacity() < bytes) {
            const size_t levels = rules.most_depth + 8; // which only a debug build counts
            if (memory_->parser.allocate(bytes, levels) != simdjson::SUCCESS)
                throw std::bad_alloc();
        }
        // A value takes two bytes, with the comma or bracket after it, unless the text ends early.
        JsonNode *const nodes = memory_->nodes.grow_to(bytes / 2 + rules.most_depth + 2);
        const auto unescape_to = [&] { return memory_->unescaped.grow_to(padded); };
        *root = JsonView(nodes);
        return Reader(&memory_->parser, {list, bytes}, rules, nodes, unescape_to).read();
    } catch (const std::bad_alloc &) {
        return {JsonFault::Kind::memory, ""}; // a text would need memory
    }
}

} // namespace batchllm
