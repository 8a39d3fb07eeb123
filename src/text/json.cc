#include "text/json.h"

#include <algorithm>

namespace batchllm {
namespace {

// Where the member of an object stands; the file itself is "name: ".
std::string member_of(const std::string &where, std::string_view key) {
    return where + (where.ends_with(": ") ? "" : ".") + std::string(key);
}

} // namespace

std::string quote_for_error(std::string_view text) {
    std::string result = "\"";
    for (const char c : text.substr(0, 64)) {
        result.push_back(static_cast<unsigned char>(c) < 0x20 ? '?' : c);
    }
    return result + (text.size() > 64 ? "...\"" : "\"");
}

Status JsonValue::malformed(const std::string &what) const {
    return Status(BATCHLLM_ERROR_TOKENIZER_FORMAT,
                  where_ + (where_.ends_with(": ") ? "" : ": ") + what);
}

Status JsonValue::unsupported(const std::string &what) const {
    return Status(BATCHLLM_ERROR_UNSUPPORTED, where_ + (where_.ends_with(": ") ? "" : ": ") + what);
}

Result<std::string> JsonValue::string() const {
    std::string_view text;
    if (value_.get(text) != simdjson::SUCCESS) return malformed("not a string");
    // A lone surrogate escape gets through the parser.
    if (!simdjson::validate_utf8(text.data(), text.size())) return malformed("not valid Unicode");
    return std::string(text);
}

Result<bool> JsonValue::boolean() const {
    bool value = false;
    if (value_.get(value) != simdjson::SUCCESS) return malformed("neither true nor false");
    return value;
}

Result<int64_t> JsonValue::integer(int64_t least, int64_t most) const {
    int64_t value = 0;
    if (!value_.is_number() || value_.get(value) != simdjson::SUCCESS || value < least ||
        value > most) {
        return malformed("not an integer from " + std::to_string(least) + " to " +
                         std::to_string(most));
    }
    return value;
}

Result<std::vector<JsonValue>> JsonValue::array() const {
    simdjson::dom::array items;
    if (value_.get(items) != simdjson::SUCCESS) return malformed("not an array");
    std::vector<JsonValue> result;
    for (const simdjson::dom::element item : items) {
        result.emplace_back(item, where_ + "[" + std::to_string(result.size()) + "]");
    }
    return result;
}

Result<JsonObject> JsonObject::open(const JsonValue &value,
                                    std::initializer_list<std::string_view> known) {
    simdjson::dom::object object;
    if (value.raw().get(object) != simdjson::SUCCESS) return value.malformed("not an object");
    JsonObject result(value);
    for (const auto [key, element] : object) {
        if (std::find(known.begin(), known.end(), key) == known.end()) {
            return value.unsupported("key " + quote_for_error(key) + " is not known");
        }
        for (const auto &[earlier, unused] : result.members_) {
            if (earlier == key)
                return value.malformed("key " + quote_for_error(key) + " is given twice");
        }
        result.members_.emplace_back(key, element);
    }
    return result;
}

bool JsonObject::has(std::string_view key) const {
    return std::any_of(members_.begin(), members_.end(), [&](const auto &member) {
        return member.first == key && !member.second.is_null();
    });
}

JsonValue JsonObject::operator[](std::string_view key) const {
    for (const auto &[name, element] : members_) {
        if (name == key) return {element, member_of(value_.where(), key)};
    }
    return {simdjson::dom::element(), member_of(value_.where(), key)};
}

Result<JsonValue> JsonObject::get(std::string_view key) const {
    for (const auto &[name, element] : members_) {
        if (name == key) return JsonValue(element, member_of(value_.where(), key));
    }
    return value_.malformed("key \"" + std::string(key) + "\" is missing");
}

Result<std::string> JsonObject::string(std::string_view key) const {
    ASSIGN_OR_RETURN(const JsonValue member, get(key));
    return member.string();
}

Result<bool> JsonObject::boolean(std::string_view key) const {
    ASSIGN_OR_RETURN(const JsonValue member, get(key));
    return member.boolean();
}

Result<bool> JsonObject::boolean(std::string_view key, bool otherwise) const {
    return has(key) ? (*this)[key].boolean() : Result<bool>(otherwise);
}

} // namespace batchllm
