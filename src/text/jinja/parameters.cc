#include <algorithm>

#include "text/jinja/evaluator.h"

namespace batchllm::jinja {

Result<Parameters> Parameters::bind(std::string_view function, const CallArguments &arguments,
                                    std::initializer_list<std::string_view> names) {
    Parameters bound;
    bound.function_ = function;
    bound.names_ = names;
    bound.values_.resize(names.size());
    const std::string shown(function);
    if (arguments.positional.size() > names.size()) {
        return template_error("%s takes no more than %zu arguments", shown.c_str(), names.size());
    }
    for (size_t i = 0; i < arguments.positional.size(); ++i) {
        bound.values_[i] = arguments.positional[i];
    }
    for (const auto &[name, value] : arguments.named) {
        const auto place = std::find(names.begin(), names.end(), name);
        if (place == names.end()) {
            return template_error("%s has no argument '%s'", shown.c_str(),
                                  std::string(name).c_str());
        }
        auto &held = bound.values_[static_cast<size_t>(place - names.begin())];
        if (held.has_value()) {
            return template_error("%s got argument '%s' twice", shown.c_str(),
                                  std::string(name).c_str());
        }
        held = value;
    }
    return bound;
}

Result<Value> Parameters::required(size_t i) const {
    if (has(i)) return *values_[i];
    return template_error("%s needs an argument '%s'", std::string(function_).c_str(),
                          std::string(names_[i]).c_str());
}

Result<int64_t> Parameters::integer(size_t i, int64_t otherwise) const {
    if (!has(i)) return otherwise;
    if (values_[i]->is_integral()) return values_[i]->integer();
    return template_error("%s: '%s' must be a whole number, not a %s",
                          std::string(function_).c_str(), std::string(names_[i]).c_str(),
                          values_[i]->type_name());
}

Result<std::string_view> Parameters::text(size_t i, std::string_view otherwise) const {
    if (!has(i)) return otherwise;
    if (values_[i]->is(Kind::string)) return values_[i]->text();
    return template_error("%s: '%s' must be text, not a %s", std::string(function_).c_str(),
                          std::string(names_[i]).c_str(), values_[i]->type_name());
}

} // namespace batchllm::jinja
