#include "text/jinja/filters.h"

#include <algorithm>
#include <charconv>

#include "text/jinja/filter_functions.h"
#include "text/jinja/python_text.h"

namespace batchllm::jinja {
namespace filters {

Result<Value> attribute_path(Evaluator *evaluator, Value value, const Value &path) {
    if (path.is_integral()) return evaluator->item(value, path);
    if (!path.is(Kind::string)) {
        return template_error("an attribute's name must be text, not a %s", path.type_name());
    }
    size_t end = 0;
    for (size_t begin = 0; end != std::string_view::npos; begin = end + 1) {
        end = path.text().find('.', begin);
        const std::string_view name = path.text().substr(begin, end - begin);
        RETURN_IF_ERROR(evaluator->charge(1 + name.size() / 64));
        int64_t index = 0;
        const auto read = std::from_chars(name.data(), name.data() + name.size(), index);
        const bool number = read.ec == std::errc() && read.ptr == name.data() + name.size() &&
                            !name.starts_with('-');
        ASSIGN_OR_RETURN(
            value, evaluator->item(value, number ? Value::integer(index) : Value::string(name)));
    }
    return value;
}

Status no_arguments(std::string_view filter, const CallArguments &arguments) {
    return Parameters::bind(filter, arguments, {}).status();
}

} // namespace filters

namespace {

Result<Value> default_value(Evaluator *evaluator, const Value &value,
                            const CallArguments &arguments) {
    (void)evaluator;
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("default", arguments, {"default_value", "boolean"}));
    const bool replaces = value.is(Kind::undefined) || (given.flag(1, false) && !value.truth());
    return replaces ? given.get(0, Value::string("")) : value;
}

struct Named {
    std::string_view name;
    filters::Filter *apply;
};

constexpr Named supported[] = {
    {"abs", filters::absolute},
    {"attr", filters::attribute_of},
    {"batch", filters::batch},
    {"capitalize", filters::capitalized},
    {"center", filters::center},
    {"count", filters::length_of},
    {"d", default_value},
    {"default", default_value},
    {"dictsort", filters::dictsort},
    {"e", filters::escape},
    {"escape", filters::escape},
    {"first", filters::first},
    {"float", filters::to_float},
    {"forceescape", filters::force_escape},
    {"from_json", filters::from_json},
    {"indent", filters::indent},
    {"int", filters::to_int},
    {"items", filters::items_of},
    {"join", filters::join},
    {"last", filters::last},
    {"length", filters::length_of},
    {"list", filters::list},
    {"lower", filters::lower},
    {"map", filters::map},
    {"max", filters::most},
    {"min", filters::least},
    {"reject", filters::reject},
    {"rejectattr", filters::rejectattr},
    {"replace", filters::replace_text},
    {"reverse", filters::reverse},
    {"round", filters::rounded},
    {"safe", filters::safe},
    {"select", filters::select},
    {"selectattr", filters::selectattr},
    {"slice", filters::slices},
    {"sort", filters::sort},
    {"string", filters::string},
    {"sum", filters::sum},
    {"title", filters::title},
    {"tojson", filters::tojson},
    {"trim", filters::trim},
    {"truncate", filters::truncate},
    {"unique", filters::unique},
    {"upper", filters::upper},
};

// The other filters of jinja2.
constexpr std::string_view not_supported_filters[] = {
    "filesizeformat", "format", "groupby",   "pprint",   "random", "striptags",
    "urlencode",      "urlize", "wordcount", "wordwrap", "xmlattr"};

} // namespace

Status no_filter(std::string_view name) {
    const bool known = std::find(std::begin(not_supported_filters), std::end(not_supported_filters),
                                 name) != std::end(not_supported_filters);
    return template_error(known ? "not supported: filter '%s'" : "there is no filter '%s'",
                          std::string(cut(name, 80)).c_str());
}

int32_t find_filter(std::string_view name) {
    const auto found = std::find_if(std::begin(supported), std::end(supported),
                                    [&](const Named &filter) { return filter.name == name; });
    return found == std::end(supported) ? -1 : static_cast<int32_t>(found - std::begin(supported));
}

Result<Value> apply_filter(Evaluator *evaluator, int32_t filter, const Value &value,
                           const CallArguments &arguments) {
    return supported[filter].apply(evaluator, value, arguments);
}

} // namespace batchllm::jinja
