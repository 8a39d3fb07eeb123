#include "runtime/request_groups.h"

namespace batchllm {

std::vector<RequestGroup> request_groups(std::span<const PlanPrefix> prefixes, int32_t prefix,
                                         std::span<Job *const> jobs, const RequestSharing &how,
                                         std::vector<Request *> *requests) {
    const int32_t shared = prefix < 0 ? 0 : prefixes[static_cast<size_t>(prefix)].length;
    // Whether a job shares more of its prompt among its own requests than the group shares.
    const auto apart = [&](const Job &job) {
        return how.sharing && job.sequences.size() > 1 && job.prompt_length - 1 > shared;
    };
    size_t count = 0;
    for (const Job *job : jobs) count += job->sequences.size();
    requests->clear();
    requests->reserve(count); // the groups refer to parts of it
    const auto add = [&](Job *job) {
        for (Sequence &sequence : job->sequences) requests->push_back(&sequence);
    };
    const auto from = [&](size_t begin) {
        return std::span<Request *const>(*requests).subspan(begin);
    };

    std::vector<RequestGroup> groups;
    for (Job *job : jobs) {
        job->shared_tokens = apart(*job) ? job->prompt_length - 1 : shared;
        if (!apart(*job)) add(job);
    }
    if (!requests->empty()) groups.push_back({prefix, 0, from(0)});
    // A prefix that only one job would have is not worth having.
    const bool droppable = prefix >= 0 && !how.prefixes_nested && !how.as_planned;
    if (droppable && jobs.size() == 1) prefix = -1;
    for (Job *job : jobs) {
        if (!apart(*job)) continue;
        const size_t begin = requests->size();
        add(job);
        groups.push_back({prefix, job->prompt_length - 1, from(begin)});
    }
    for (Job *job : jobs) {
        // Equal rows and equal samples are answered by one computation of the whole prompt.
        if (job->answers.size() > 1 || job->answers.front().samples > 1) {
            if (job->score == nullptr && job->sequences.size() == 1) {
                job->shared_tokens = job->prompt_length;
            }
        }
    }
    return groups;
}

} // namespace batchllm
