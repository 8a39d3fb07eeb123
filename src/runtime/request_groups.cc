#include "runtime/request_groups.h"

namespace batchllm {

std::vector<RequestGroup> request_groups(std::span<const PlanPrefix> prefixes, int32_t prefix,
                                         std::span<RowRun *const> runs, const RequestSharing &how,
                                         std::vector<Request *> *requests) {
    const int32_t shared = prefix < 0 ? 0 : prefixes[static_cast<size_t>(prefix)].length;
    // Whether a run shares more of its prompt among its own requests than the group shares.
    const auto apart = [&](const RowRun &run) {
        return how.sharing && run.sequences.size() > 1 && run.prompt_length - 1 > shared;
    };
    size_t count = 0;
    for (const RowRun *run : runs) count += run->sequences.size();
    requests->clear();
    requests->reserve(count); // the groups refer to parts of it
    const auto add = [&](RowRun *run) {
        for (Sequence &sequence : run->sequences) requests->push_back(&sequence);
    };
    const auto from = [&](size_t begin) {
        return std::span<Request *const>(*requests).subspan(begin);
    };

    std::vector<RequestGroup> groups;
    for (RowRun *run : runs) {
        if (!apart(*run)) add(run);
    }
    if (!requests->empty()) groups.push_back({prefix, 0, from(0)});
    // A prefix that only one run would have is not worth having.
    const bool droppable = prefix >= 0 && !how.prefixes_nested && !how.as_planned;
    if (droppable && runs.size() == 1) prefix = -1;
    for (RowRun *run : runs) {
        if (!apart(*run)) continue;
        const size_t begin = requests->size();
        add(run);
        groups.push_back({prefix, run->prompt_length - 1, from(begin)});
    }
    return groups;
}

} // namespace batchllm
