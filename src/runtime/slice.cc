#include "runtime/slice.h"

namespace batchllm {

int32_t Slice::length_of(int32_t index) const {
    return index < 0 ? 0 : from_.prefixes[static_cast<size_t>(index)].length;
}

int32_t Slice::new_prefix_tokens(int32_t prefix) const {
    const int32_t length = length_of(prefix);
    while (prefix >= 0 && !has(prefix)) {
        prefix = from_.prefixes[static_cast<size_t>(prefix)].parent;
    }
    return length - length_of(prefix);
}

bool Slice::has(int32_t prefix) const {
    return taken_.contains(prefix) || (options_.kept != nullptr && options_.kept->contains(prefix));
}

// The slice's copy of a prefix of the plan, created with its parents when first needed. Its tokens
// come from `row`, a request in the slice that has the prefix.
int32_t Slice::take_prefix(int32_t index, int64_t row) {
    if (index < 0) return -1;
    const auto found = taken_.find(index);
    if (found != taken_.end()) return found->second;
    const PlanPrefix &prefix = from_.prefixes[static_cast<size_t>(index)];
    const int32_t parent = take_prefix(prefix.parent, row);
    const int32_t copy = static_cast<int32_t>(plan_.prefixes.size());
    plan_.prefixes.push_back({row, prefix.length, parent});
    taken_.emplace(index, copy);
    return copy;
}

std::vector<KeptPrefix> Slice::kept(const std::function<bool(int32_t)> &lasts) const {
    std::vector<KeptPrefix> kept(plan_.prefixes.size(), not_kept);
    for (const auto &[prefix, copy] : taken_) {
        KeptPrefix &here = kept[static_cast<size_t>(copy)];
        const bool before = options_.kept != nullptr && options_.kept->contains(prefix);
        if (before) {
            here = options_.kept->at(prefix);
        } else if (lasts(prefix)) {
            here = to_be_kept;
        }
    }
    return kept;
}

void Slice::put_kept(std::span<const KeptPrefix> kept,
                     std::unordered_map<int32_t, KeptPrefix> *to) const {
    for (const auto &[prefix, copy] : taken_) {
        const KeptPrefix here = kept[static_cast<size_t>(copy)];
        if (here >= 0) to->emplace(prefix, here);
    }
}

void Slice::add_requests(Job *job) {
    for (Sequence &sequence : job->sequences) {
        plan_.rows.push_back(static_cast<int64_t>(requests_.size()));
        plan_.lengths.push_back(sequence.prompt.length);
        requests_.push_back(&sequence);
    }
}

void Slice::close_group(int32_t prefix, int64_t row_begin) {
    if (row_begin == size()) return;
    if (prefix >= 0) {
        plan_.groups.push_back({prefix, row_begin, size()});
        return;
    }
    for (int64_t row = row_begin; row < size(); ++row) {
        plan_.groups.push_back({-1, row, row + 1});
    }
}

void Slice::add_group(const PlanGroup &group, const std::vector<Job *> &jobs) {
    const int32_t shared = length_of(group.prefix);
    // Whether a job shares more of its prompt among its own requests than the group shares.
    const auto apart = [&](const Job &job) {
        return options_.sharing && job.sequences.size() > 1 && job.prompt_length - 1 > shared;
    };

    const int64_t begin = size();
    for (Job *job : jobs) {
        if (!apart(*job)) add_requests(job);
    }
    int32_t prefix = group.prefix;
    // A prefix that only one job would have is not worth having.
    const bool droppable = prefix >= 0 && !options_.heads && !options_.as_planned;
    if (droppable && jobs.size() == 1 && apart(*jobs.front())) {
        prefix = from_.prefixes[static_cast<size_t>(prefix)].parent;
    }
    if (size() > begin) close_group(take_prefix(prefix, begin), begin);

    for (Job *job : jobs) {
        job->shared_tokens = shared;
        if (!apart(*job)) continue;
        const int64_t row = size();
        add_requests(job);
        const int32_t parent = take_prefix(prefix, row);
        plan_.prefixes.push_back({row, job->prompt_length - 1, parent});
        close_group(static_cast<int32_t>(plan_.prefixes.size()) - 1, row);
        job->shared_tokens = job->prompt_length - 1;
    }
    for (Job *job : jobs) {
        // Equal rows and equal samples are answered by one computation of the whole prompt.
        if (job->answers.size() > 1 || job->answers.front().samples > 1) {
            if (job->score == nullptr && job->sequences.size() == 1) {
                job->shared_tokens = job->prompt_length;
            }
        }
    }
}

} // namespace batchllm
