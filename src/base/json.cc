#include "base/json.h"

#include <algorithm>

#include "base/file.h"

namespace batchllm {

namespace {

// A number in its most readable form: 4096, 0.5, 1e-06.
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

constexpr std::string_view float_key = "__float__";
constexpr std::string_view not_finite_names[] = {"Infinity", "-Infinity", "NaN"};

std::string object_of(std::string_view name) {
    return "{\"" + std::string(float_key) + "\":\"" + std::string(name) + "\"}";
}

// The text with bare non-finite numbers replaced by objects. Outside strings, JSON has no such
// words.
std::string with_objects(std::string_view text) {
    std::string out;
    bool in_string = false;
    for (size_t at = 0; at < text.size();) {
        size_t count = 1;
        if (in_string) {
            count = text[at] == '\\' ? 2 : 1;
            in_string = text[at] != '"';
        } else {
            in_string = text[at] == '"';
            const auto *name =
                std::find_if(std::begin(not_finite_names), std::end(not_finite_names),
                             [&](std::string_view n) { return text.substr(at).starts_with(n); });
            if (name != std::end(not_finite_names)) {
                out += object_of(*name);
                at += name->size();
                continue;
            }
        }
        out += text.substr(at, count);
        at += count;
    }
    return out;
}

// The reverse, for the beginning of minified text; no more is shown.
std::string with_bare_numbers(std::string text) {
    text.resize(std::min<size_t>(text.size(), 4096));
    for (const std::string_view name : not_finite_names) {
        const std::string object = object_of(name);
        for (size_t at = 0; (at = text.find(object, at)) != std::string::npos; at += name.size()) {
            text.replace(at, object.size(), name);
        }
    }
    return text;
}

} // namespace

Status JsonValue::fail(const std::string &problem) const { return refuse(source_->code, problem); }

Status JsonValue::unsupported(const std::string &what) const {
    return refuse(BATCHLLM_ERROR_UNSUPPORTED, what);
}

Status JsonValue::refuse(int32_t code, const std::string &problem) const {
    // Minifying walks the whole value, so only scalars and short values are shown.
    std::string shown;
    if (const auto name = not_finite()) {
        shown = *name;
    } else if (view_.is_object()) {
        shown = "an object";
    } else if (const auto items = view_.items(); items.has_value() && items->size() > 16) {
        shown = "a list";
    } else {
        shown = printable(with_bare_numbers(view_.text()));
    }
    const std::string name = path_.empty() ? "the document" : "\"" + path_ + "\"";
    return error(code, "%s: %s is %s: %s", source_->file.c_str(), name.c_str(), shown.c_str(),
                 problem.c_str());
}

JsonValue JsonValue::child(std::string_view key, JsonView value) const {
    std::string path = path_;
    if (!path.empty()) path += '.';
    path += printable(key, 200);
    return JsonValue(value, source_, std::move(path));
}

Result<bool> JsonValue::boolean() const {
    const std::optional<bool> value = view_.boolean();
    if (!value.has_value()) return fail("must be true or false");
    return *value;
}

Result<int64_t> JsonValue::integer(int64_t least, int64_t most) const {
    const std::optional<int64_t> value = view_.integer();
    if (!value.has_value() || *value < least || *value > most) {
        return fail("must be a whole number from " + std::to_string(least) + " to " +
                    std::to_string(most));
    }
    return *value;
}

Result<double> JsonValue::number(double least, double most) const {
    const std::optional<double> value = view_.number();
    // Written so that NaN fails.
    if (!value.has_value() || !(*value >= least) || !(*value <= most)) {
        return fail("must be a number from " + plain(least) + " to " + plain(most));
    }
    return *value;
}

std::optional<std::string_view> JsonValue::not_finite() const {
    const auto members = view_.members();
    if (!members || members->size() != 1) return std::nullopt;
    const auto name = view_.find(float_key);
    const auto text = name ? name->string() : std::nullopt;
    if (!text || std::find(std::begin(not_finite_names), std::end(not_finite_names), *text) ==
                     std::end(not_finite_names)) {
        return std::nullopt;
    }
    return text;
}

Result<std::string> JsonValue::string() const {
    const std::optional<std::string_view> value = view_.string();
    if (!value.has_value()) return fail("must be a string");
    // The parser accepts escapes of unpaired surrogates.
    if (!is_utf8(*value)) return fail("must be valid Unicode");
    return std::string(*value);
}

Result<std::vector<JsonValue>> JsonValue::elements() const {
    const std::optional<JsonItems> items = view_.items();
    if (!items.has_value()) return fail("must be a list");
    std::vector<JsonValue> out;
    for (const JsonView item : *items) {
        out.push_back(JsonValue(item, source_, path_ + "[" + std::to_string(out.size()) + "]"));
    }
    return out;
}

Result<std::vector<std::pair<std::string_view, JsonValue>>> JsonValue::members() const {
    const std::optional<JsonMembers> members = view_.members();
    if (!members.has_value() || not_finite()) return fail("must be an object");
    std::vector<std::pair<std::string_view, JsonValue>> out;
    for (const auto [key, value] : *members) out.emplace_back(key, child(key, value));
    return out;
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
    const std::optional<JsonView> found = view_.find(key);
    if (!found.has_value() || not_finite()) return std::nullopt;
    return child(key, *found);
}

Result<JsonValue> JsonValue::at(std::string_view key) const {
    if (!is_object()) return fail("must be an object");
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
    const std::optional<JsonMembers> members = view_.members();
    if (!members.has_value() || not_finite()) return fail("must be an object");
    for (const auto [key, value] : *members) {
        if (std::find(known.begin(), known.end(), key) == known.end()) {
            return child(key, value).unsupported("the key is not known");
        }
    }
    return {};
}

JsonDocument::JsonDocument(const std::string &file, int32_t code)
    : parser_(std::make_unique<JsonParser>()),
      source_(std::make_unique<JsonValue::Source>(JsonValue::Source{file, code})) {}

Status JsonDocument::check(const JsonFault &fault) const {
    const char *file = source_->file.c_str();
    if (fault.kind == JsonFault::Kind::memory) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "%s: out of memory", file);
    }
    if (fault.kind != JsonFault::Kind::none) {
        return error(source_->code, "%s: not JSON: %s", file, fault.text.c_str());
    }
    if (const auto path = find_equal_keys(root_)) {
        return error(source_->code, "%s: the key \"%s\" is given twice", file, path->c_str());
    }
    return {};
}

Result<JsonDocument> JsonDocument::parse(std::string_view text, const std::string &file,
                                         int32_t code) {
    JsonDocument document(file, code);
    RETURN_IF_ERROR(document.check(document.parser_->parse(text, false, &document.root_)));
    return document;
}

Result<JsonDocument> JsonDocument::parse_of_python(std::string_view text, const std::string &file,
                                                   int32_t code) {
    JsonDocument document(file, code);
    JsonFault fault = document.parser_->parse(text, false, &document.root_);
    if (fault.kind == JsonFault::Kind::grammar || fault.kind == JsonFault::Kind::number) {
        const std::string valid = with_objects(text);
        if (valid != text) fault = document.parser_->parse(valid, false, &document.root_);
    }
    RETURN_IF_ERROR(document.check(fault));
    return document;
}

Result<JsonDocument> JsonDocument::load(const std::string &path, size_t limit, int32_t code) {
    ASSIGN_OR_RETURN(const std::string text, read_file(path, limit));
    return parse_of_python(text, path, code);
}

} // namespace batchllm
