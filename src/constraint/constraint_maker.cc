#include "constraint/constraint_maker.h"

#include <utility>

namespace batchllm {
namespace {

std::string key_of(const ConstraintSpecification &wanted) {
    const JsonSchemaOptions &json = wanted.json;
    std::string key;
    for (const int part : {static_cast<int>(wanted.kind), static_cast<int>(json.spacing),
                           static_cast<int>(json.order), static_cast<int>(json.numbers),
                           int{json.formats}, int{json.loose}}) {
        key += static_cast<char>('0' + part);
    }
    const auto add = [&](const std::string &text) {
        key += std::to_string(text.size()) + ':' + text;
    };
    add(wanted.options.start_after);
    add(wanted.text);
    for (const std::string &choice : wanted.choices) add(choice);
    return key;
}

} // namespace

Result<SpecifiedConstraint>
ConstraintMaker::make(const ConstraintSpecification &specification,
                      std::shared_ptr<const TokenVocabulary> vocabulary) {
    std::string key = key_of(specification);
    ConstraintSpecification wanted = specification;
    bool too_large = false;
    bool less = false;
    {
        const std::lock_guard lock(mutex_);
        const auto found = verdicts_.find(key);
        if (found != verdicts_.end()) return found->second;
        ++asked_;
        less = refused_ >= kAllowed + asked_ / kAsked;
    }
    wanted.options.budget = less ? Budget::part(kPart, &too_large) : Budget::part(1, &too_large);
    Result<SpecifiedConstraint> made = make_constraint(wanted, std::move(vocabulary));
    if (made.ok() || !too_large) return made;
    Status refused = std::move(made).status();
    if (less) {
        refused = error(refused.code(),
                        "%s (many constraints of this engine were too large, so each has less)",
                        refused.message().c_str());
    }
    const std::lock_guard lock(mutex_);
    if (!less) ++refused_;
    if (key.size() > kMostKeptBytes) return refused;
    if (verdicts_.size() >= kMostKept) verdicts_.clear();
    verdicts_.emplace(std::move(key), refused);
    return refused;
}

} // namespace batchllm
