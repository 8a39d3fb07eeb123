#include "text/jinja/functions.h"

#include <algorithm>
#include <ctime>
#include <span>

#include "text/jinja/python_text.h"

namespace batchllm::jinja {
namespace {

constexpr std::string_view functions[] = {"range", "namespace", "dict", "raise_exception",
                                          "strftime_now"};
// What else a template finds in jinja2's environment. They are no errors before they are used.
constexpr std::string_view not_supported_functions[] = {"cycler", "joiner", "lipsum", "self"};

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

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

// The arguments of dict() and namespace(): a mapping or pairs, and named values.
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

bool has_function(std::string_view name) {
    return is_one_of(name, functions) || is_one_of(name, not_supported_functions);
}

Result<Value> call_function(Evaluator *evaluator, std::string_view name,
                            const CallArguments &arguments) {
    if (name == "range") return range(evaluator, arguments);
    if (name == "namespace") return make_namespace(evaluator, arguments);
    if (name == "strftime_now") return format_now(evaluator, arguments);
    if (name == "dict") {
        ASSIGN_OR_RETURN(std::unique_ptr<Dict> dict, named_values(evaluator, "dict", arguments));
        return evaluator->heap().dict(std::move(dict));
    }
    if (is_one_of(name, not_supported_functions)) {
        return template_error("not supported: function '%s'", std::string(name).c_str());
    }
    ASSIGN_OR_RETURN(const Parameters given,
                     Parameters::bind("raise_exception", arguments, {"message"}));
    ASSIGN_OR_RETURN(const Value message, given.required(0));
    ASSIGN_OR_RETURN(const std::string_view text, evaluator->to_text(message));
    return Status(BATCHLLM_ERROR_ROW_TEMPLATE,
                  "the template refuses: " + std::string(cut(text, 4000)));
}

} // namespace batchllm::jinja
