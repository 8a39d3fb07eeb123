#include "text/jinja/methods.h"

#include <algorithm>
#include <ctime>
#include <span>

#include "text/jinja/case.h"
#include "text/jinja/python_text.h"

namespace batchllm::jinja {
namespace {

using Words = std::span<const std::string_view>;

bool is_one_of(std::string_view word, Words words) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

constexpr std::string_view string_methods[] = {
    "capitalize", "count",  "endswith",     "find",         "index",   "isdigit", "join",
    "lower",      "lstrip", "removeprefix", "removesuffix", "replace", "rfind",   "rsplit",
    "rstrip",     "split",  "splitlines",   "startswith",   "strip",   "title",   "upper"};
constexpr std::string_view dict_methods[] = {"copy", "get", "items", "keys", "values"};
constexpr std::string_view list_methods[] = {"copy", "count", "index"};
constexpr std::string_view tuple_methods[] = {"count", "index"};

constexpr std::string_view functions[] = {"range", "namespace", "dict", "raise_exception",
                                          "strftime_now"};

// Attributes of Python's types beyond those. The ones that would change a value are undefined in
// jinja2's immutable sandbox, and here: they are not listed.
constexpr std::string_view other_string[] = {
    "casefold", "center",     "encode",    "expandtabs",   "format",    "format_map", "isalnum",
    "isalpha",  "isascii",    "isdecimal", "isidentifier", "islower",   "isnumeric",  "isprintable",
    "isspace",  "istitle",    "isupper",   "ljust",        "maketrans", "partition",  "rindex",
    "rjust",    "rpartition", "swapcase",  "translate",    "zfill"};
constexpr std::string_view other_dict[] = {"fromkeys"};
constexpr std::string_view other_number[] = {
    "as_integer_ratio", "bit_count", "bit_length",  "conjugate", "denominator",
    "from_bytes",       "fromhex",   "from_number", "hex",       "imag",
    "is_integer",       "numerator", "real",        "to_bytes"};
constexpr std::string_view other_view[] = {"count", "index", "isdisjoint", "mapping",
                                           "start", "stop",  "step"};

Words methods_of(const Value &value) {
    if (value.is(Kind::string)) return string_methods;
    if (value.is(Kind::dict)) return dict_methods;
    if (value.is_sequence(SequenceType::list)) return list_methods;
    if (value.is_sequence(SequenceType::tuple)) return tuple_methods;
    return {};
}

// ---- text ----

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

// startswith and endswith: a text, or a tuple of them.
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

Result<Value> call_string(Evaluator *evaluator, std::string_view text, std::string_view name,
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

// ---- dictionaries and lists ----

Result<Value> call_dict(Evaluator *evaluator, const Value &self, std::string_view name,
                        const CallArguments &arguments) {
    const Dict &dict = self.dict();
    if (name == "get") {
        ASSIGN_OR_RETURN(const Parameters given,
                         Parameters::bind(name, arguments, {"key", "default"}));
        ASSIGN_OR_RETURN(const Value key, given.required(0));
        ASSIGN_OR_RETURN(const bool found, evaluator->contains(self, key));
        return found ? *dict.find(key) : given.get(1, Value::none());
    }
    RETURN_IF_ERROR(Parameters::bind(name, arguments, {}).status());
    RETURN_IF_ERROR(evaluator->charge(dict.items.size() / 8));
    if (name == "copy") return self;
    std::vector<Value> items;
    for (const auto &[key, value] : dict.items) {
        if (name != "items") {
            items.push_back(name == "keys" ? key : value);
            continue;
        }
        ASSIGN_OR_RETURN(const Value pair,
                         evaluator->heap().sequence(SequenceType::tuple, {key, value}));
        items.push_back(pair);
    }
    return evaluator->heap().sequence(name == "items"  ? SequenceType::dict_items
                                      : name == "keys" ? SequenceType::dict_keys
                                                       : SequenceType::dict_values,
                                      std::move(items));
}

Result<Value> call_list(Evaluator *evaluator, const Value &self, std::string_view name,
                        const CallArguments &arguments) {
    if (name == "copy") {
        RETURN_IF_ERROR(Parameters::bind(name, arguments, {}).status());
        return self;
    }
    ASSIGN_OR_RETURN(const Parameters given, Parameters::bind(name, arguments, {"value"}));
    ASSIGN_OR_RETURN(const Value wanted, given.required(0));
    const std::vector<Value> &items = self.sequence().items;
    int64_t found = 0;
    for (size_t i = 0; i < items.size(); ++i) {
        RETURN_IF_ERROR(evaluator->charge(1));
        ASSIGN_OR_RETURN(const bool same, evaluator->compare(Comparison::equal, items[i], wanted));
        if (same && name == "index") return Value::integer(static_cast<int64_t>(i));
        found += same ? 1 : 0;
    }
    if (name == "index") return template_error("index: the value is not in the list");
    return Value::integer(found);
}

Result<Value> call_loop(Evaluator *evaluator, Loop *loop, std::string_view name,
                        const CallArguments &arguments) {
    if (!arguments.named.empty())
        return template_error("loop.%s takes no named arguments", std::string(name).c_str());
    if (name == "cycle") {
        if (arguments.positional.empty()) return template_error("no items for cycling given");
        return arguments.positional[loop->index % arguments.positional.size()];
    }
    bool same = loop->asked_changed && loop->changed.size() == arguments.positional.size();
    for (size_t i = 0; same && i < loop->changed.size(); ++i) {
        ASSIGN_OR_RETURN(
            same, evaluator->compare(Comparison::equal, loop->changed[i], arguments.positional[i]));
    }
    loop->asked_changed = true;
    if (!same) loop->changed = arguments.positional;
    return Value::boolean(!same);
}

// ---- functions ----

Result<Value> range(Evaluator *evaluator, const CallArguments &arguments) {
    constexpr int64_t most_items = 100000; // as in jinja2's sandbox
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("range", arguments, {"start", "stop", "step"}));
    RETURN_IF_ERROR(given.required(0).status());
    ASSIGN_OR_RETURN(int64_t start, given.integer(0, 0));
    ASSIGN_OR_RETURN(int64_t stop, given.integer(1, 0));
    ASSIGN_OR_RETURN(const int64_t step, given.integer(2, 1));
    if (!arguments.named.empty()) return template_error("range takes no named arguments");
    if (!given.has(1)) {
        stop = start;
        start = 0;
    }
    if (step == 0) return template_error("range: the step is 0");
    std::vector<Value> items;
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
        if (static_cast<int64_t>(items.size()) == most_items) {
            return template_error("range has more than %lld items",
                                  static_cast<long long>(most_items));
        }
        items.push_back(Value::integer(i));
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    RETURN_IF_ERROR(evaluator->charge(items.size() / 8));
    return evaluator->heap().sequence(SequenceType::range, std::move(items));
}

// What dict() and namespace() are given: a mapping or pairs, and named values.
Result<std::unique_ptr<Dict>> named_values(Evaluator *evaluator, std::string_view function,
                                           const CallArguments &arguments) {
    auto dict = std::make_unique<Dict>();
    if (arguments.positional.size() > 1) {
        return template_error("%s takes one argument, and named ones",
                              std::string(function).c_str());
    }
    if (!arguments.positional.empty()) {
        const Value &given = arguments.positional[0];
        if (!given.is(Kind::dict)) {
            return template_error("%s of a %s is not supported", std::string(function).c_str(),
                                  given.type_name());
        }
        RETURN_IF_ERROR(evaluator->charge(given.dict().items.size()));
        for (const auto &[key, value] : given.dict().items) {
            RETURN_IF_ERROR(evaluator->charge_lookup(*dict, key));
            dict->set(key, value);
        }
    }
    for (const auto &[name, value] : arguments.named) dict->set(Value::string(name), value);
    return dict;
}

Result<Value> make_namespace(Evaluator *evaluator, const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Dict> values,
                     named_values(evaluator, "namespace", arguments));
    ASSIGN_OR_RETURN(Namespace *const space, evaluator->heap().make<Namespace>());
    for (const auto &[key, value] : values->items) {
        if (!key.is(Kind::string) || key.text().starts_with('_')) {
            return template_error("a namespace cannot hold a name that begins with '_'");
        }
    }
    space->attributes = std::move(*values);
    return Value(space);
}

Result<Value> format_now(Evaluator *evaluator, const CallArguments &arguments) {
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("strftime_now", arguments, {"format"}));
    RETURN_IF_ERROR(given.required(0).status());
    ASSIGN_OR_RETURN(const std::string_view format, given.text(0, ""));
    static constexpr std::string_view known = "aAbBcdHIjmMpSUwWxXyYGuVDeFhnrRtTC%";
    for (size_t i = 0; i < format.size(); ++i) {
        if (format[i] != '%') continue;
        if (i + 1 == format.size() || known.find(format[i + 1]) == std::string_view::npos) {
            return template_error("strftime_now: format '%s' is not supported",
                                  std::string(cut(format, 40)).c_str());
        }
        ++i;
    }
    if (format.empty()) return Value::string("");
    if (format.size() > 512) return template_error("strftime_now: the format is too long");
    char text[16384];
    const std::string terminated(format);
    const size_t bytes = std::strftime(text, sizeof text, terminated.c_str(), &evaluator->now());
    return evaluator->heap().string(std::string(text, bytes));
}

} // namespace

bool has_method(const Value &value, std::string_view name) {
    return is_one_of(name, methods_of(value));
}

bool lacks_attribute(const Value &value, std::string_view name) {
    switch (value.kind()) {
    case Kind::string:
        return is_one_of(name, other_string);
    case Kind::dict:
        return is_one_of(name, other_dict);
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
        return is_one_of(name, other_number);
    case Kind::sequence:
        return !value.is_sequence(SequenceType::list) && !value.is_sequence(SequenceType::tuple) &&
               is_one_of(name, other_view);
    case Kind::callable:
        return true;
    default:
        return false;
    }
}

bool is_refused_method(std::string_view name) {
    return is_one_of(name, other_string) || is_one_of(name, other_dict) ||
           is_one_of(name, other_number);
}

Result<Value> call_method(Evaluator *evaluator, const Value &self, std::string_view name,
                          const CallArguments &arguments) {
    if (self.is(Kind::string)) return call_string(evaluator, self.text(), name, arguments);
    if (self.is(Kind::dict)) return call_dict(evaluator, self, name, arguments);
    if (self.is(Kind::loop)) return call_loop(evaluator, &self.loop(), name, arguments);
    return call_list(evaluator, self, name, arguments);
}

bool has_function(std::string_view name) { return is_one_of(name, functions); }

Result<Value> call_function(Evaluator *evaluator, std::string_view name,
                            const CallArguments &arguments) {
    if (name == "range") return range(evaluator, arguments);
    if (name == "namespace") return make_namespace(evaluator, arguments);
    if (name == "strftime_now") return format_now(evaluator, arguments);
    if (name == "dict") {
        ASSIGN_OR_RETURN(std::unique_ptr<Dict> dict, named_values(evaluator, "dict", arguments));
        return evaluator->heap().dict(std::move(dict));
    }
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("raise_exception", arguments, {"message"}));
    ASSIGN_OR_RETURN(const Value message, given.required(0));
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(message));
    return Status(BATCHLLM_ERROR_ROW_TEMPLATE,
                  "the template refuses: " + std::string(cut(text, 4000)));
}

} // namespace batchllm::jinja
