#include "text/jinja/text_methods.h"

#include <algorithm>

#include "text/jinja/case.h"
#include "text/jinja/python_text.h"

namespace batchllm::jinja {
namespace {

enum class Side : uint8_t { left, right, both };

Result<Value> strip_method(Evaluator *evaluator, std::string_view text,
                           const CallArguments &arguments, Side side) {
    ASSIGN_OR_RETURN(const Parameters given, Parameters::bind("strip", arguments, {"chars"}));
    RETURN_IF_ERROR(evaluator->charge_text(text));
    if (!given.has(0) || given.get(0, {}).is(Kind::none)) {
        if (side != Side::left) text = right_strip(text);
        if (side != Side::right) text = left_strip(text);
        return Value::string(text);
    }
    ASSIGN_OR_RETURN(const std::string_view characters, given.text(0, ""));
    RETURN_IF_ERROR(evaluator->charge_product(text, characters));
    if (side != Side::left) text = right_strip(text, characters);
    if (side != Side::right) text = left_strip(text, characters);
    return Value::string(text);
}

Result<Value> list_of(Evaluator *evaluator, const std::vector<std::string_view> &parts) {
    std::vector<Value> items;
    for (const std::string_view part : parts) items.push_back(Value::string(part));
    return evaluator->heap().sequence(SequenceType::list, std::move(items));
}

Result<Value> split_method(Evaluator *evaluator, std::string_view text,
                           const CallArguments &arguments, bool from_right) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("split", arguments, {"sep", "maxsplit"}));
    ASSIGN_OR_RETURN(const int64_t most, given.integer(1, -1));
    RETURN_IF_ERROR(evaluator->charge(text.size() / 8));
    const bool spaces = !given.has(0) || given.get(0, {}).is(Kind::none);
    if (spaces) {
        if (from_right && most >= 0) {
            return template_error("rsplit with maxsplit and without sep is not supported");
        }
        RETURN_IF_ERROR(evaluator->heap().room_for_parts(text.size() / 2 + 1));
        return list_of(evaluator, split_spaces(text, most));
    }
    ASSIGN_OR_RETURN(const std::string_view separator, given.text(0, ""));
    if (separator.empty()) return template_error("split: the separator is empty");
    RETURN_IF_ERROR(evaluator->heap().room_for_parts(text.size() / separator.size() + 1));
    if (!from_right || most < 0) return list_of(evaluator, split(text, separator, most));
    RETURN_IF_ERROR(evaluator->charge_product(text, separator));
    std::vector<std::string_view> parts;
    while (static_cast<int64_t>(parts.size()) < most) {
        const size_t found = text.rfind(separator);
        if (found == std::string_view::npos) break;
        parts.push_back(text.substr(found + separator.size()));
        text = text.substr(0, found);
    }
    parts.push_back(text);
    std::reverse(parts.begin(), parts.end());
    return list_of(evaluator, parts);
}

// startswith and endswith; the affix is a text or a tuple of texts.
Result<Value> affix_method(Evaluator *evaluator, std::string_view name, std::string_view text,
                           const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given, Parameters::bind(name, arguments, {"prefix"}));
    ASSIGN_OR_RETURN(const Value wanted, given.required(0));
    std::vector<Value> choices = {wanted};
    if (wanted.is_sequence(SequenceType::tuple)) {
        ASSIGN_OR_RETURN(choices, evaluator->iterate(wanted));
    }
    bool found = false;
    for (const Value &choice : choices) {
        if (!choice.is(Kind::string)) {
            return template_error("%s needs text, not a %s", std::string(name).c_str(),
                                  choice.type_name());
        }
        RETURN_IF_ERROR(evaluator->charge_text(choice.text()));
        found |=
            name == "startswith" ? text.starts_with(choice.text()) : text.ends_with(choice.text());
    }
    return Value::boolean(found);
}

Result<Value> find_method(Evaluator *evaluator, std::string_view name, std::string_view text,
                          const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given, Parameters::bind(name, arguments, {"sub"}));
    RETURN_IF_ERROR(given.required(0).status());
    ASSIGN_OR_RETURN(const std::string_view part, given.text(0, ""));
    RETURN_IF_ERROR(evaluator->charge_text(text));
    if (name == "count") {
        return Value::integer(
            static_cast<int64_t>(part.empty() ? length(text) + 1 : count(text, part)));
    }
    if (name == "rfind") RETURN_IF_ERROR(evaluator->charge_product(text, part));
    const size_t found = name == "rfind" ? text.rfind(part) : find(text, part);
    if (found != std::string_view::npos) {
        return Value::integer(static_cast<int64_t>(length(text.substr(0, found))));
    }
    if (name == "index") return template_error("index: the text is not found");
    return Value::integer(-1);
}

Result<Value> join_method(Evaluator *evaluator, std::string_view separator,
                          const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given, Parameters::bind("join", arguments, {"iterable"}));
    ASSIGN_OR_RETURN(const Value list, given.required(0));
    ASSIGN_OR_RETURN(const std::vector<Value> items, evaluator->iterate(list));
    std::string out;
    for (size_t i = 0; i < items.size(); ++i) {
        if (!items[i].is(Kind::string)) {
            return template_error("join: item %zu is a %s, not text", i, items[i].type_name());
        }
        if (i > 0) out += separator;
        out += items[i].text();
        RETURN_IF_ERROR(evaluator->heap().room_for(out.size()));
    }
    return evaluator->heap().string(std::move(out));
}

Result<Value> changed_case(Evaluator *evaluator, std::string_view name, std::string_view text,
                           const CallArguments &arguments) {
    RETURN_IF_ERROR(Parameters::bind(name, arguments, {}).status());
    RETURN_IF_ERROR(evaluator->charge(text.size() / 8));
    return evaluator->heap().string(name == "upper"   ? to_upper(text)
                                    : name == "lower" ? to_lower(text)
                                    : name == "title" ? to_title(text)
                                                      : capitalize(text));
}

Result<Value> replace_method(Evaluator *evaluator, std::string_view text,
                             const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("replace", arguments, {"old", "new", "count"}));
    RETURN_IF_ERROR(given.required(1).status());
    ASSIGN_OR_RETURN(const std::string_view part, given.text(0, ""));
    ASSIGN_OR_RETURN(const std::string_view by, given.text(1, ""));
    ASSIGN_OR_RETURN(const int64_t most, given.integer(2, -1));
    return evaluator->replace(text, part, by, most);
}

Result<Value> call_plain(Evaluator *evaluator, std::string_view text, std::string_view name,
                         const CallArguments &arguments) {
    if (name == "strip") return strip_method(evaluator, text, arguments, Side::both);
    if (name == "lstrip") return strip_method(evaluator, text, arguments, Side::left);
    if (name == "rstrip") return strip_method(evaluator, text, arguments, Side::right);
    if (name == "split") return split_method(evaluator, text, arguments, false);
    if (name == "rsplit") return split_method(evaluator, text, arguments, true);
    if (name == "startswith" || name == "endswith")
        return affix_method(evaluator, name, text, arguments);
    if (name == "find" || name == "rfind" || name == "index" || name == "count") {
        return find_method(evaluator, name, text, arguments);
    }
    if (name == "join") return join_method(evaluator, text, arguments);
    if (name == "replace") return replace_method(evaluator, text, arguments);
    if (name == "splitlines") {
        RETURN_IF_ERROR(Parameters::bind(name, arguments, {}).status());
        RETURN_IF_ERROR(evaluator->charge(text.size() / 8));
        RETURN_IF_ERROR(evaluator->heap().room_for_parts(text.size()));
        return list_of(evaluator, split_lines(text));
    }
    if (name == "removeprefix" || name == "removesuffix") {
        ASSIGN_OR_RETURN(const Parameters given, Parameters::bind(name, arguments, {"affix"}));
        RETURN_IF_ERROR(given.required(0).status());
        ASSIGN_OR_RETURN(const std::string_view affix, given.text(0, ""));
        RETURN_IF_ERROR(evaluator->charge_text(affix));
        if (name == "removeprefix" && text.starts_with(affix)) text.remove_prefix(affix.size());
        if (name == "removesuffix" && text.ends_with(affix)) text.remove_suffix(affix.size());
        return Value::string(text);
    }
    if (name == "isdigit") {
        RETURN_IF_ERROR(Parameters::bind(name, arguments, {}).status());
        RETURN_IF_ERROR(evaluator->charge_text(text));
        if (!is_ascii(text)) return template_error("isdigit is supported for ASCII alone");
        return Value::boolean(!text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
            return c >= '0' && c <= '9';
        }));
    }
    return changed_case(evaluator, name, text, arguments);
}

Result<Value> escaped(Evaluator *evaluator, const Value &value) {
    if (value.is_markup()) return value;
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(value));
    RETURN_IF_ERROR(evaluator->charge(text.size() / 8));
    RETURN_IF_ERROR(evaluator->heap().room_for(5 * text.size()));
    return evaluator->heap().string(escape_html(text));
}

// The arguments of a method of Markup, escaped if the method does so.
Result<CallArguments> escaped_arguments(Evaluator *evaluator, std::string_view name,
                                        const CallArguments &given) {
    CallArguments arguments = given;
    if (name == "replace" && arguments.positional.size() > 1) {
        ASSIGN_OR_RETURN(arguments.positional[1], escaped(evaluator, arguments.positional[1]));
    } else if (name == "join" && arguments.positional.size() == 1) {
        ASSIGN_OR_RETURN(std::vector<Value> items, evaluator->iterate(arguments.positional[0]));
        for (Value &item : items) {
            ASSIGN_OR_RETURN(item, escaped(evaluator, item));
        }
        ASSIGN_OR_RETURN(arguments.positional[0],
                         evaluator->heap().sequence(SequenceType::list, std::move(items)));
    }
    return arguments;
}

} // namespace

Result<Value> call_string(Evaluator *evaluator, const Value &self, std::string_view name,
                          const CallArguments &arguments) {
    if (!self.is_markup()) return call_plain(evaluator, self.text(), name, arguments);
    ASSIGN_OR_RETURN(const CallArguments given, escaped_arguments(evaluator, name, arguments));
    ASSIGN_OR_RETURN(const Value made, call_plain(evaluator, self.text(), name, given));
    if (made.is(Kind::string)) return self.typed(made);
    if (!made.is(Kind::sequence)) return made;
    for (Value &part : made.sequence().items) part = self.typed(part);
    return made;
}

} // namespace batchllm::jinja
