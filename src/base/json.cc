#include "base/json.h"

#include <algorithm>

#include "base/file.h"

namespace batchllm {

namespace {

using simdjson::dom::element;

// By value: what get_array() and get_object() hand out refers to a temporary.
simdjson::dom::array array_of(element value) {
    simdjson::dom::array out;
    const auto problem = value.get(out); // none: callers have checked the type
    return problem == simdjson::SUCCESS ? out : decltype(out){};
}

simdjson::dom::object object_of(element value) {
    simdjson::dom::object out;
    const auto problem = value.get(out); // none: callers have checked the type
    return problem == simdjson::SUCCESS ? out : decltype(out){};
}

// The path of the first object that has two equal keys, "" when none has. The parser bounds the
// depth of nesting, and with it the recursion.
std::optional<std::string> find_duplicate_key(element value) {
    if (value.is_array()) {
        size_t index = 0;
        for (const element item : array_of(value)) {
            if (auto path = find_duplicate_key(item)) {
                return "[" + std::to_string(index) + "]" + *path;
            }
            ++index;
        }
    } else if (value.is_object()) {
        std::vector<std::string_view> keys;
        for (const auto field : object_of(value)) keys.push_back(field.key);
        std::sort(keys.begin(), keys.end());
        const auto twice = std::adjacent_find(keys.begin(), keys.end());
        if (twice != keys.end()) return "." + printable(*twice);
        for (const auto field : object_of(value)) {
            if (auto path = find_duplicate_key(field.value)) {
                return "." + printable(field.key) + *path;
            }
        }
    }
    return std::nullopt;
}

// A number as it is best read: 4096, 0.5, 1e-06.
std::string plain(double value) {
    char buffer[40];
    std::snprintf(buffer, sizeof buffer, "%.17g", value);
    for (int digits = 1; digits < 17; ++digits) {
        char shorter[40];
        std::snprintf(shorter, sizeof shorter, "%.*g", digits, value);
        if (std::strtod(shorter, nullptr) == value) return shorter;
    }
    return buffer;
}

} // namespace

Status JsonValue::fail(const std::string &problem) const { return refuse(source_->code, problem); }

Status JsonValue::unsupported(const std::string &what) const {
    return refuse(BATCHLLM_ERROR_UNSUPPORTED, what);
}

Status JsonValue::refuse(int32_t code, const std::string &problem) const {
    // Minifying walks the whole value: only scalars and what is short are shown.
    std::string shown;
    if (element_.is_object()) {
        shown = "an object";
    } else if (element_.is_array()) {
        const auto array = array_of(element_);
        shown = array.size() <= 16 ? printable(simdjson::minify(array)) : "a list";
    } else {
        shown = printable(simdjson::minify(element_));
    }
    const std::string name = path_.empty() ? "the document" : "\"" + path_ + "\"";
    return error(code, "%s: %s is %s: %s", source_->file.c_str(), name.c_str(), shown.c_str(),
                 problem.c_str());
}

JsonValue JsonValue::child(std::string_view key, element value) const {
    std::string path = path_;
    if (!path.empty()) path += '.';
    path += printable(key, 200);
    return JsonValue(value, source_, std::move(path));
}

Result<bool> JsonValue::boolean() const {
    bool value = false;
    if (element_.get(value) != simdjson::SUCCESS) return fail("must be true or false");
    return value;
}

Result<int64_t> JsonValue::integer(int64_t least, int64_t most) const {
    int64_t value = 0;
    if (element_.get(value) != simdjson::SUCCESS || value < least || value > most) {
        return fail("must be a whole number from " + std::to_string(least) + " to " +
                    std::to_string(most));
    }
    return value;
}

Result<double> JsonValue::number(double least, double most) const {
    double value = 0;
    // Comparisons that a NaN fails.
    if (element_.get(value) != simdjson::SUCCESS || !(value >= least) || !(value <= most)) {
        return fail("must be a number from " + plain(least) + " to " + plain(most));
    }
    return value;
}

Result<std::string> JsonValue::string() const {
    std::string_view value;
    if (element_.get(value) != simdjson::SUCCESS) return fail("must be a string");
    // The escape of half a character gets through the parser.
    if (!simdjson::validate_utf8(value.data(), value.size())) return fail("must be valid Unicode");
    return std::string(value);
}

Result<std::vector<JsonValue>> JsonValue::elements() const {
    if (!element_.is_array()) return fail("must be a list");
    std::vector<JsonValue> out;
    for (const element item : array_of(element_)) {
        out.push_back(JsonValue(item, source_, path_ + "[" + std::to_string(out.size()) + "]"));
    }
    return out;
}

Result<std::vector<std::pair<std::string_view, JsonValue>>> JsonValue::members() const {
    if (!element_.is_object()) return fail("must be an object");
    std::vector<std::pair<std::string_view, JsonValue>> out;
    for (const auto field : object_of(element_)) {
        out.emplace_back(field.key, child(field.key, field.value));
    }
    return out;
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
    if (!element_.is_object()) return std::nullopt;
    element value;
    if (object_of(element_).at_key(key).get(value) != simdjson::SUCCESS) {
        return std::nullopt;
    }
    return child(key, value);
}

Result<JsonValue> JsonValue::at(std::string_view key) const {
    if (!element_.is_object()) return fail("must be an object");
    if (auto value = find(key)) return *std::move(value);
    std::string path = path_.empty() ? "" : path_ + ".";
    path += key;
    return error(source_->code, "%s: \"%s\" is missing", source_->file.c_str(), path.c_str());
}

std::optional<JsonValue> JsonValue::given(std::string_view key) const {
    std::optional<JsonValue> value = find(key);
    if (value.has_value() && value->is_null()) value.reset();
    return value;
}

Result<std::string> JsonValue::string(std::string_view key) const {
    ASSIGN_OR_RETURN(const JsonValue value, at(key));
    return value.string();
}

Result<bool> JsonValue::boolean(std::string_view key) const {
    ASSIGN_OR_RETURN(const JsonValue value, at(key));
    return value.boolean();
}

Result<bool> JsonValue::boolean_or(std::string_view key, bool otherwise) const {
    const std::optional<JsonValue> value = given(key);
    return value.has_value() ? value->boolean() : Result<bool>(otherwise);
}

Status JsonValue::only_keys(std::initializer_list<std::string_view> known) const {
    if (!element_.is_object()) return fail("must be an object");
    for (const auto field : object_of(element_)) {
        if (std::find(known.begin(), known.end(), field.key) == known.end()) {
            return child(field.key, field.value).unsupported("the key is not known");
        }
    }
    return {};
}

Result<JsonDocument> JsonDocument::parse(std::string_view text, const std::string &file,
                                         int32_t code) {
    JsonDocument document;
    document.parser_ = std::make_unique<simdjson::dom::parser>();
    document.source_ = std::make_unique<JsonValue::Source>(JsonValue::Source{file, code});
    const auto problem = document.parser_->parse(text.data(), text.size()).get(document.root_);
    if (problem == simdjson::MEMALLOC) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "%s: out of memory", file.c_str());
    }
    if (problem != simdjson::SUCCESS) {
        return error(code, "%s: not valid JSON: %s", file.c_str(),
                     simdjson::error_message(problem));
    }
    if (auto path = find_duplicate_key(document.root_)) {
        if (path->front() == '.') path->erase(0, 1);
        return error(code, "%s: \"%s\" stands twice in one object", file.c_str(), path->c_str());
    }
    return document;
}

Result<JsonDocument> JsonDocument::load(const std::string &path, size_t limit, int32_t code) {
    ASSIGN_OR_RETURN(const std::string text, read_file(path, limit));
    return parse(text, path, code);
}

} // namespace batchllm
