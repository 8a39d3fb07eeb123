#include "cli/constraint_cache.h"

#include <string_view>

namespace batchllm::cli {

std::string ConstraintText::key() const {
    std::string key;
    const auto add = [&](std::string_view part) {
        key += std::to_string(part.size());
        key += ':';
        key += part;
    };
    key += std::to_string(kind);
    key += flexible_whitespace ? 'f' : 'c';
    key += any_member_order ? 'a' : 'd';
    key += loose ? 'l' : 'e';
    if (any_numbers) key += 'n';
    add(start_after);
    add(text);
    for (const std::string &choice : choices) add(choice);
    return key;
}

Result<SharedConstraint> ConstraintCache::make(const ConstraintText &wanted) const {
    std::vector<const char *> choices;
    for (const std::string &choice : wanted.choices) choices.push_back(choice.c_str());
    batchllm_constraint_options options;
    batchllm_constraint_options_init(&options, sizeof options);
    options.kind = wanted.kind;
    options.text = wanted.text.c_str();
    options.text_bytes = static_cast<int64_t>(wanted.text.size());
    options.choices = choices.data();
    options.choice_count = static_cast<int64_t>(choices.size());
    options.start_after = wanted.start_after.c_str();
    options.whitespace =
        wanted.flexible_whitespace ? BATCHLLM_WHITESPACE_FLEXIBLE : BATCHLLM_WHITESPACE_COMPACT;
    options.member_order =
        wanted.any_member_order ? BATCHLLM_MEMBERS_ANY : BATCHLLM_MEMBERS_DECLARED;
    options.numbers = wanted.any_numbers ? BATCHLLM_NUMBERS_ANY : BATCHLLM_NUMBERS_PLAIN;
    options.loose = wanted.loose ? 1 : 0;
    batchllm_constraint *made = nullptr;
    RETURN_IF_ERROR(call_status(batchllm_constraint_create(engine_, &options, &made)));
    return SharedConstraint(made, [](batchllm_constraint *c) { batchllm_constraint_destroy(c); });
}

Result<SharedConstraint> ConstraintCache::get(const ConstraintText &wanted) {
    std::string key = wanted.key();
    auto found = entries_.find(key);
    if (found == entries_.end()) {
        if (entries_.size() >= most_entries) entries_.clear();
        Result<SharedConstraint> made = make(wanted);
        Entry entry;
        if (made.ok()) {
            entry.constraint = std::move(made).value();
        } else {
            entry.status = std::move(made).status();
        }
        found = entries_.emplace(std::move(key), std::move(entry)).first;
    }
    if (!found->second.status.ok()) return found->second.status;
    return found->second.constraint;
}

} // namespace batchllm::cli
