#include "cli/row_constraint.h"

#include "base/printable.h"
#include "cli/row_parameters.h"

namespace batchllm::cli {

namespace {

RowError set_text(int32_t kind, std::string text, ConstraintText *to) {
    to->kind = kind;
    to->text = std::move(text);
    to->choices.clear();
    return {};
}

} // namespace

RowError read_choices(JsonView value, ConstraintText *to) {
    constexpr const char *wanted = "a list, not empty, of strings";
    const std::optional<JsonItems> items = value.items();
    if (!items.has_value() || items->empty()) return type_error("choices", wanted);
    std::vector<std::string> choices;
    for (const JsonView item : *items) {
        if (!item.is_string()) return type_error("choices", wanted);
        choices.push_back(std::string(*item.string()));
        if (choices.back().find('\0') != std::string::npos) {
            return parameter_error("choices holds a string with a zero byte");
        }
    }
    to->kind = BATCHLLM_CONSTRAINT_CHOICES;
    to->text.clear();
    to->choices = std::move(choices);
    return {};
}

RowError read_regex(JsonView value, ConstraintText *to) {
    if (!value.is_string()) return type_error("regex", "a string");
    return set_text(BATCHLLM_CONSTRAINT_REGEX, std::string(*value.string()), to);
}

RowError read_json_schema(JsonView value, ConstraintText *to) {
    if (!value.is_object() && !value.is_boolean()) {
        return type_error("json_schema", "a JSON schema: an object, true or false");
    }
    return set_text(BATCHLLM_CONSTRAINT_JSON_SCHEMA, value.text(), to);
}

RowError read_grammar(JsonView value, ConstraintText *to) {
    if (value.is_string())
        return set_text(BATCHLLM_CONSTRAINT_GBNF, std::string(*value.string()), to);
    const std::optional<JsonMembers> members = value.members();
    if (members.has_value() && members->size() == 1) {
        const auto [dialect, text] = *members->begin();
        if (text.is_string() && dialect == "gbnf") {
            return set_text(BATCHLLM_CONSTRAINT_GBNF, std::string(*text.string()), to);
        }
        if (text.is_string() && dialect == "lark") {
            return set_text(BATCHLLM_CONSTRAINT_LARK, std::string(*text.string()), to);
        }
    }
    return type_error("grammar", "a string, {\"gbnf\": \"..\"} or {\"lark\": \"..\"}");
}

RowError read_response_format(JsonView value, ConstraintText *to,
                              std::optional<bool> *strict_given) {
    const std::optional<JsonView> name = value.find("type");
    if (!name.has_value() || !name->is_string()) {
        return type_error("response_format", "an object with a \"type\"");
    }
    const std::string_view type = *name->string();
    if (type == "text") {
        *to = ConstraintText();
        return {};
    }
    if (type == "json_object") {
        return set_text(BATCHLLM_CONSTRAINT_JSON_SCHEMA, R"({"type":"object"})", to);
    }
    if (type != "json_schema") {
        return parameter_error("response_format has the type " + in_quotes(type) +
                               ": it must be text, json_object or json_schema");
    }
    const std::optional<JsonView> inner = value.find("json_schema");
    const std::optional<JsonView> schema = inner.has_value() ? inner->find("schema") : std::nullopt;
    if (!schema.has_value()) {
        return type_error("response_format",
                          "an object with its schema under \"json_schema\", \"schema\"");
    }
    // In OpenAI's interface, a schema that is not strict is followed as far as possible.
    const std::optional<JsonView> strict = inner->find("strict");
    if (strict.has_value() && !strict->is_null()) {
        const std::optional<bool> yes = strict->boolean();
        if (!yes.has_value()) {
            return type_error("response_format", "an object whose \"strict\" is true or false");
        }
        *strict_given = *yes;
    }
    return read_json_schema(*schema, to);
}

} // namespace batchllm::cli
