#include "text/jinja/methods.h"

#include <algorithm>
#include <span>

#include "text/jinja/text_methods.h"

namespace batchllm::jinja {
namespace {

using Names = std::span<const std::string_view>;

bool is_among(std::string_view word, Names names) {
    return std::find(names.begin(), names.end(), word) != names.end();
}

constexpr std::string_view string_methods[] = {
    "capitalize", "count",  "endswith",     "find",         "index",   "isdigit", "join",
    "lower",      "lstrip", "removeprefix", "removesuffix", "replace", "rfind",   "rsplit",
    "rstrip",     "split",  "splitlines",   "startswith",   "strip",   "title",   "upper"};
constexpr std::string_view dict_methods[] = {"copy", "get", "items", "keys", "values"};
constexpr std::string_view list_methods[] = {"copy", "count", "index"};
constexpr std::string_view tuple_methods[] = {"count", "index"};

// Other attributes of Python's types. Those that would change a value are not listed: they are undefined in
// jinja2's immutable sandbox, and here.
constexpr std::string_view other_string[] = {
    "casefold", "center",     "encode",    "expandtabs",   "format",    "format_map", "isalnum",
    "isalpha",  "isascii",    "isdecimal", "isidentifier", "islower",   "isnumeric",  "isprintable",
    "isspace",  "istitle",    "isupper",   "ljust",        "maketrans", "partition",  "rindex",
    "rjust",    "rpartition", "swapcase",  "translate",    "zfill"};
constexpr std::string_view other_markup[] = {"escape", "striptags", "unescape"};
constexpr std::string_view other_dict[] = {"fromkeys"};
constexpr std::string_view other_number[] = {
    "as_integer_ratio", "bit_count", "bit_length",  "conjugate", "denominator",
    "from_bytes",       "fromhex",   "from_number", "hex",       "imag",
    "is_integer",       "numerator", "real",        "to_bytes"};
constexpr std::string_view other_view[] = {"count", "index", "isdisjoint", "mapping",
                                           "start", "stop",  "step"};

Names methods_of(const Value &value) {
    if (value.is(Kind::string)) return string_methods;
    if (value.is(Kind::dict)) return dict_methods;
    if (value.is_sequence(SequenceType::list)) return list_methods;
    if (value.is_sequence(SequenceType::tuple)) return tuple_methods;
    return {};
}

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

} // namespace

bool has_method(const Value &value, std::string_view name) {
    return is_among(name, methods_of(value));
}

bool lacks_attribute(const Value &value, std::string_view name) {
    switch (value.kind()) {
    case Kind::string:
        return is_among(name, other_string) || (value.is_markup() && is_among(name, other_markup));
    case Kind::dict:
        return is_among(name, other_dict);
    case Kind::boolean:
    case Kind::integer:
    case Kind::real:
        return is_among(name, other_number);
    case Kind::sequence:
        return !value.is_sequence(SequenceType::list) && !value.is_sequence(SequenceType::tuple) &&
               is_among(name, other_view);
    case Kind::callable:
        return true;
    default:
        return false;
    }
}

Result<Value> call_method(Evaluator *evaluator, const Value &self, std::string_view name,
                          const CallArguments &arguments) {
    if (self.is(Kind::string)) return call_string(evaluator, self, name, arguments);
    if (self.is(Kind::dict)) return call_dict(evaluator, self, name, arguments);
    if (self.is(Kind::loop)) return call_loop(evaluator, &self.loop(), name, arguments);
    return call_list(evaluator, self, name, arguments);
}

} // namespace batchllm::jinja
