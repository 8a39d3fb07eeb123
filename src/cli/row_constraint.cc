#include "cli/row_constraint.h"

#include "base/printable.h"
#include "cli/row_parameters.h"

namespace batchllm::cli {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

namespace {

RowError set_text(int32_t kind, std::string text, ConstraintText *to) {
    to->kind = kind;
    to->text = std::move(text);
    to->choices.clear();
    return {};
}

} // namespace

RowError read_choices(element value, ConstraintText *to) {
    constexpr const char *wanted = "a list, not empty, of strings";
    array items;
    if (value.get(items) != simdjson::SUCCESS || items.size() == 0) {
        return type_error("choices", wanted);
    }
    std::vector<std::string> choices;
    for (const element item : items) {
        if (!item.is_string()) return type_error("choices", wanted);
        choices.push_back(to_string(item));
        if (choices.back().find('\0') != std::string::npos) {
            return parameter_error("choices holds a string with a zero byte");
        }
    }
    to->kind = BATCHLLM_CONSTRAINT_CHOICES;
    to->text.clear();
    to->choices = std::move(choices);
    return {};
}

RowError read_regex(element value, ConstraintText *to) {
    if (!value.is_string()) return type_error("regex", "a string");
    return set_text(BATCHLLM_CONSTRAINT_REGEX, to_string(value), to);
}

RowError read_json_schema(element value, ConstraintText *to) {
    if (!value.is_object() && !value.is_bool()) {
        return type_error("json_schema", "a JSON schema: an object, true or false");
    }
    return set_text(BATCHLLM_CONSTRAINT_JSON_SCHEMA, simdjson::minify(value), to);
}

RowError read_grammar(element value, ConstraintText *to) {
    if (value.is_string()) return set_text(BATCHLLM_CONSTRAINT_GBNF, to_string(value), to);
    object members;
    if (value.get(members) == simdjson::SUCCESS && members.size() == 1) {
        const auto [dialect, text] = *members.begin();
        if (text.is_string() && dialect == "gbnf") {
            return set_text(BATCHLLM_CONSTRAINT_GBNF, to_string(text), to);
        }
        if (text.is_string() && dialect == "lark") {
            return set_text(BATCHLLM_CONSTRAINT_LARK, to_string(text), to);
        }
    }
    return type_error("grammar", "a string, {\"gbnf\": \"..\"} or {\"lark\": \"..\"}");
}

RowError read_response_format(element value, ConstraintText *to) {
    object members;
    std::string_view type;
    if (value.get(members) != simdjson::SUCCESS || members["type"].get(type) != simdjson::SUCCESS) {
        return type_error("response_format", "an object with a \"type\"");
    }
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
    object inner;
    element schema;
    if (members["json_schema"].get(inner) != simdjson::SUCCESS ||
        inner["schema"].get(schema) != simdjson::SUCCESS) {
        return type_error("response_format", "with its schema under \"json_schema\", \"schema\"");
    }
    // OpenAI's words for it: a schema that is not strict is followed as far as it can be.
    element strict;
    if (inner["strict"].get(strict) == simdjson::SUCCESS && !strict.is_null()) {
        if (!strict.is_bool())
            return type_error("response_format", "with \"strict\" true or false");
        to->loose = !bool(strict);
    }
    return read_json_schema(schema, to);
}

} // namespace batchllm::cli
