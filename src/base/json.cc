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
// Stands for the value of a key that is given twice: a number that no type can hold, so that it is
// neither null nor of a type that a caller asks for.
JsonView given_twice() {
    static constexpr JsonNode node = {
        .text = "?", .integer = 0, .size = 1, .kind = JsonNode::Kind::number, .is_short = false};
    return JsonView(&node);
}

constexpr std::string_view not_finite_names[] = {"Infinity", "-Infinity", "NaN"};

} // namespace

bool JsonValue::is_given_twice() const { return view_.number_text() == "?"; }

Status JsonValue::fail(const std::string &problem) const { return refuse(source_->code, problem); }

Status JsonValue::unsupported(const std::string &what) const {
    return refuse(BATCHLLM_ERROR_UNSUPPORTED, what);
}

Status JsonValue::refuse(int32_t code, const std::string &problem) const {
    if (is_given_twice()) {
        return error(source_->code, "%s: the key \"%s\" is given twice", source_->file.c_str(),
                     path_.c_str());
    }
    // Minifying walks the whole value, so only scalars and short values are shown.
    std::string shown;
    if (const auto name = not_finite()) {
        shown = *name;
    } else if (view_.is_object()) {
        shown = "an object";
    } else if (const auto items = view_.items(); items.has_value() && items->size() > 16) {
        shown = "a list";
    } else {
        shown = printable(view_.text());
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
    if (const auto value = view_.boolean()) return *value;
    const std::optional<int64_t> value = source_->python ? view_.integer() : std::nullopt;
    if (value != 0 && value != 1) return fail("must be true or false");
    return *value == 1;
}

Result<int64_t> JsonValue::integer(int64_t least, int64_t most) const {
    std::optional<int64_t> value = view_.integer();
    if (!source_->python && !view_.is_integer()) value.reset();
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
    std::optional<std::string_view> name = view_.number_text();
    if (const auto members = view_.members(); members && members->size() == 1) {
        const auto named = view_.find(float_key);
        if (named.has_value()) name = named->string();
    }
    if (!name || std::find(std::begin(not_finite_names), std::end(not_finite_names), *name) ==
                     std::end(not_finite_names)) {
        return std::nullopt;
    }
    return name;
}

Result<std::string> JsonValue::string() const {
    const std::optional<std::string_view> value = view_.string();
    if (!value.has_value()) return fail("must be a string");
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
    if (const auto key = members->equal_keys()) return child(*key, given_twice()).fail("");
    std::vector<std::pair<std::string_view, JsonValue>> out;
    for (const auto [key, value] : *members) out.emplace_back(key, child(key, value));
    return out;
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
    const std::optional<JsonMembers> members = view_.members();
    if (!members.has_value() || not_finite()) return std::nullopt;
    std::optional<JsonView> found;
    for (const auto [name, value] : *members) {
        if (name != key) continue;
        found = found.has_value() ? given_twice() : value;
    }
    if (!found.has_value()) return std::nullopt;
    return child(key, *found);
}

Result<JsonValue> JsonValue::at(std::string_view key) const {
    if (!is_object()) return fail("must be an object");
    if (auto value = find(key)) {
        if (value->is_given_twice()) return value->fail("");
        return *std::move(value);
    }
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

Result<JsonDocument> JsonDocument::read(std::string_view text, bool python, const std::string &file,
                                        int32_t code) {
    JsonDocument document;
    document.contents_ = std::make_unique<Contents>(Contents{{}, {file, code, python}});
    const JsonFault fault =
        document.contents_->parser.parse(text, &document.root_, {.python = python});
    if (fault.kind == JsonFault::Kind::memory) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "%s: out of memory", file.c_str());
    }
    if (fault.kind != JsonFault::Kind::none && is_git_lfs_pointer(text)) {
        return git_lfs_error(file, code);
    }
    if (fault.kind != JsonFault::Kind::none) {
        return error(code, "%s: not JSON: %s", file.c_str(), fault.text.c_str());
    }
    return document;
}

Result<JsonDocument> JsonDocument::parse(std::string_view text, const std::string &file,
                                         int32_t code) {
    ASSIGN_OR_RETURN(JsonDocument document, read(text, false, file, code));
    if (const auto path = find_equal_keys(document.root_)) {
        return error(code, "%s: the key \"%s\" is given twice", file.c_str(), path->c_str());
    }
    return document;
}

Result<JsonDocument> JsonDocument::parse_large(std::string_view text, const std::string &file,
                                               int32_t code) {
    return read(text, false, file, code);
}

Result<JsonDocument> JsonDocument::parse_of_python(std::string_view text, const std::string &file,
                                                   int32_t code) {
    return read(text, true, file, code);
}

Result<JsonDocument> JsonDocument::load(const std::string &path, int32_t code, size_t limit) {
    ASSIGN_OR_RETURN(const std::string text, read_file(path, limit));
    return parse_of_python(text, path, code);
}

} // namespace batchllm
