#include <algorithm>
#include <functional>
#include <optional>

#include "base/json.h"
#include "text/jinja/case.h"
#include "text/jinja/filter_functions.h"
#include "text/jinja/json_text.h"
#include "text/jinja/python_text.h"
#include "text/jinja/template.h"

namespace batchllm::jinja::filters {
namespace {

Result<Value> with_text(Evaluator *evaluator, const Value &value,
                        const std::function<std::string(std::string_view)> &change) {
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(value));
    RETURN_IF_ERROR(evaluator->charge(text.size() / 8));
    ASSIGN_OR_RETURN(const Value changed, evaluator->heap().string(change(text)));
    return value.typed(changed);
}

// Owns the text of the values made from it.
struct ParsedJson : Object {
    std::optional<JsonDocument> document;
};

} // namespace

Result<Value> trim(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given, Parameters::bind("trim", arguments, {"chars"}));
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(value));
    RETURN_IF_ERROR(evaluator->charge_text(text));
    if (!given.has(0) || given.get(0, {}).is(Kind::none)) return value.typed(strip(text));
    ASSIGN_OR_RETURN(const std::string_view characters, given.text(0, ""));
    RETURN_IF_ERROR(evaluator->charge_product(text, characters));
    return value.typed(left_strip(right_strip(text, characters), characters));
}

Result<Value> string(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("string", arguments));
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(value));
    return value.typed(text);
}

Result<Value> safe(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("safe", arguments));
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(value));
    return Value::markup(text);
}

Result<Value> escape(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("escape", arguments));
    if (value.is_markup()) return value;
    return force_escape(evaluator, value, arguments);
}

Result<Value> force_escape(Evaluator *evaluator, const Value &value,
                           const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("forceescape", arguments));
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(value));
    RETURN_IF_ERROR(evaluator->charge(text.size() / 8));
    RETURN_IF_ERROR(evaluator->heap().room_for(6 * text.size()));
    ASSIGN_OR_RETURN(const Value escaped, evaluator->heap().string(escape_html(text)));
    return Value::markup(escaped.text());
}

Result<Value> center(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given, Parameters::bind("center", arguments, {"width"}));
    ASSIGN_OR_RETURN(const int64_t width, given.integer(0, 80));
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(value));
    RETURN_IF_ERROR(evaluator->charge_text(text));
    const auto size = static_cast<int64_t>(length(text));
    if (width <= size) return value.typed(text);
    const auto spaces = static_cast<size_t>(width - size);
    RETURN_IF_ERROR(evaluator->heap().room_for(spaces));
    // As in Python, the odd space goes to the left if the width is odd, and else to the right.
    const size_t left = spaces / 2 + (spaces & static_cast<size_t>(width) & 1);
    std::string out(left, ' ');
    out += text;
    out.append(spaces - left, ' ');
    ASSIGN_OR_RETURN(const Value made, evaluator->heap().string(std::move(out)));
    return value.typed(made);
}

Result<Value> truncate(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    ASSIGN_OR_RETURN(
        const Parameters given,
        Parameters::bind("truncate", arguments, {"length", "killwords", "end", "leeway"}));
    ASSIGN_OR_RETURN(const int64_t most, given.integer(0, 255));
    ASSIGN_OR_RETURN(const std::string_view end, given.text(2, "..."));
    const bool has_leeway = given.has(3) && !given.get(3, {}).is(Kind::none);
    ASSIGN_OR_RETURN(const int64_t leeway, has_leeway ? given.integer(3, 0) : int64_t{5});
    ASSIGN_OR_RETURN(const int64_t size, evaluator->length(value));
    const auto end_size = static_cast<int64_t>(length(end));
    if (most < end_size || leeway < 0) {
        return template_error(
            "truncate: the length must be that of the end or more, and the leeway positive");
    }
    if (size <= leeway || size - leeway <= most) return value;
    if (!value.is(Kind::string)) {
        return template_error("not supported: truncate for a %s", value.type_name());
    }
    const std::string_view text = value.text();
    std::string_view kept =
        text.substr(0, byte_of(text, static_cast<size_t>(std::min(size, most - end_size))));
    const size_t space = kept.rfind(' ');
    if (!given.flag(1, false) && space != std::string_view::npos) kept = kept.substr(0, space);
    return evaluator->binary(Operation::add, value.typed(kept), given.get(2, Value::string(end)));
}

// Not a filter of jinja2: templates written for other engines parse the arguments of a call with it. What is not text
// is taken as parsed.
Result<Value> from_json(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("from_json", arguments));
    if (value.is(Kind::undefined)) return undefined_error(value);
    if (!value.is(Kind::string)) return value;
    const std::string_view text = value.text();
    RETURN_IF_ERROR(evaluator->charge(1 + text.size() / 8));
    RETURN_IF_ERROR(evaluator->heap().room_for(16 * text.size())); // what the parser needs
    ASSIGN_OR_RETURN(ParsedJson *const parsed, evaluator->heap().make<ParsedJson>());
    ASSIGN_OR_RETURN(parsed->document,
                     JsonDocument::parse(text, "from_json", BATCHLLM_ERROR_ROW_TEMPLATE));
    return to_value(&evaluator->heap(), parsed->document->root().view());
}

Result<Value> upper(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("upper", arguments));
    return with_text(evaluator, value, to_upper);
}

Result<Value> lower(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("lower", arguments));
    return with_text(evaluator, value, to_lower);
}

Result<Value> capitalized(Evaluator *evaluator, const Value &value,
                          const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("capitalize", arguments));
    return with_text(evaluator, value, capitalize);
}

Result<Value> title(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    RETURN_IF_ERROR(no_arguments("title", arguments));
    ASSIGN_OR_RETURN(const Value titled, with_text(evaluator, value, title_words));
    return Value::string(titled.text()); // a plain text, since it is joined from parts
}

Result<Value> replace_text(Evaluator *evaluator, const Value &value,
                           const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("replace", arguments, {"old", "new", "count"}));
    ASSIGN_OR_RETURN(const Value old_value, given.required(0));
    ASSIGN_OR_RETURN(const Value new_value, given.required(1));
    ASSIGN_OR_RETURN(const std::string_view part, evaluator->to_text(old_value));
    ASSIGN_OR_RETURN(const std::string_view by, evaluator->to_text(new_value));
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(value));
    int64_t most = -1;
    if (given.has(2) && !given.get(2, {}).is(Kind::none)) {
        ASSIGN_OR_RETURN(most, given.integer(2, -1));
    }
    return evaluator->replace(text, part, by, most);
}

Result<Value> indent(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("indent", arguments, {"width", "first", "blank"}));
    std::string by;
    if (given.has(0) && given.get(0, {}).is(Kind::string)) {
        by = given.get(0, {}).text();
    } else {
        ASSIGN_OR_RETURN(const int64_t width, given.integer(0, 4));
        RETURN_IF_ERROR(
            evaluator->heap().room_for(static_cast<size_t>(std::max<int64_t>(0, width))));
        by.assign(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
    }
    if (!value.is(Kind::string)) {
        return template_error("indent needs text, not a %s", value.type_name());
    }
    RETURN_IF_ERROR(evaluator->charge(value.text().size() / 8));
    RETURN_IF_ERROR(evaluator->heap().room_for_parts(value.text().size() + 1));
    // jinja2 appends a line end, so a line end at the end of the text starts one more line.
    std::string text(value.text());
    text += '\n';
    const std::vector<std::string_view> lines = split_lines(text);
    size_t bytes = 0;
    if (__builtin_mul_overflow(lines.size(), by.size(), &bytes)) bytes = SIZE_MAX / 2;
    RETURN_IF_ERROR(evaluator->heap().room_for(bytes + text.size()));
    std::string out;
    for (size_t i = 0; i < lines.size(); ++i) {
        if (i > 0) out += '\n';
        const bool indented =
            i == 0 ? given.flag(1, false) : given.flag(2, false) || !lines[i].empty();
        if (indented) out += by;
        out += lines[i];
    }
    ASSIGN_OR_RETURN(const Value made, evaluator->heap().string(std::move(out)));
    return value.typed(made);
}

Result<Value> tojson(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("tojson", arguments,
                                      {"ensure_ascii", "indent", "separators", "sort_keys"}));
    JsonStyle style;
    style.ensure_ascii = given.flag(0, false);
    style.sort_keys = given.flag(3, false);
    if (given.has(1) && !given.get(1, {}).is(Kind::none)) {
        style.indented = true;
        style.item_separator.assign(1, ',');
        if (given.get(1, {}).is(Kind::string)) {
            style.indent = given.get(1, {}).text();
        } else {
            ASSIGN_OR_RETURN(const int64_t width, given.integer(1, 0));
            RETURN_IF_ERROR(
                evaluator->heap().room_for(static_cast<size_t>(std::max<int64_t>(0, width))));
            style.indent.assign(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
        }
        RETURN_IF_ERROR(evaluator->charge(style.indent.size() / 8));
        if (style.indent.size() > 1024) {
            return template_error("tojson: an indent of more than 1024 bytes is not supported");
        }
    }
    const Value separators = given.get(2, Value::none());
    if (!separators.is(Kind::none)) {
        ASSIGN_OR_RETURN(const std::vector<Value> pair, evaluator->iterate(separators));
        if (pair.size() != 2 || !pair[0].is(Kind::string) || !pair[1].is(Kind::string)) {
            return template_error("tojson: separators must be two texts");
        }
        style.item_separator = pair[0].text();
        style.key_separator = pair[1].text();
    }
    std::string out;
    RETURN_IF_ERROR(append_json(evaluator, style, value, &out));
    return evaluator->heap().string(std::move(out));
}

Result<Value> join(Evaluator *evaluator, const Value &value, const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("join", arguments, {"d", "attribute"}));
    std::string_view separator;
    if (given.has(0)) {
        ASSIGN_OR_RETURN(separator, evaluator->to_text(given.get(0, {})));
    }
    ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(value));
    std::string out;
    for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out += separator;
        Value item = items[i];
        if (given.has(1) && !given.get(1, {}).is(Kind::none)) {
            ASSIGN_OR_RETURN(item, attribute_path(evaluator, item, given.get(1, {})));
        }
        RETURN_IF_ERROR(evaluator->append_string(item, &out));
        RETURN_IF_ERROR(evaluator->heap().room_for(out.size()));
    }
    return evaluator->heap().string(std::move(out));
}

} // namespace batchllm::jinja::filters
