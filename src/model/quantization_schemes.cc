// Which scheme a module has. Apart from what reads the files, so that the CUDA library, which asks, needs no JSON.
#include <algorithm>

#include "model/quantization.h"

namespace batchllm {

bool ModuleNames::has_name(std::string_view module) const {
    if (names_.contains(std::string(module))) return true;
    if (!parts_) return false;
    for (size_t at = module.find('.'); at != std::string_view::npos;
         at = module.find('.', at + 1)) {
        if (names_.contains(std::string(module.substr(0, at))) ||
            names_.contains(std::string(module.substr(at + 1)))) {
            return true;
        }
    }
    return false;
}

bool ModuleNames::has_expression(std::string_view module) const {
    return std::any_of(expressions_.begin(), expressions_.end(),
                       [&](const Automaton &a) { return a.matches(module); });
}

std::optional<ScaleScheme> Quantization::scheme_of(std::string_view module) const {
    if (ignored_.has(module)) return std::nullopt;
    if (all_) return all_;
    // A name takes precedence over an expression, and an expression over a class.
    for (const Group &group : groups_) {
        if (group.targets.has_name(module)) return group.scheme;
    }
    for (const Group &group : groups_) {
        if (group.targets.has_expression(module)) return group.scheme;
    }
    for (const Group &group : groups_) {
        if (group.targets.all_linear()) return group.scheme;
    }
    return std::nullopt;
}

} // namespace batchllm
