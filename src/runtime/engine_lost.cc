// Devices that fail. What a device computes depends only on its rows, so another device can compute
// it: the rows placed on the failed device wait again, as if they had never started, and are
// planned with all other waiting rows.
#include <algorithm>
#include <utility>

#include "runtime/engine.h"

namespace batchllm {

// Calls run_lanes() until no device fails, or the last one does.
Status Engine::run_on_what_is_left() {
    Status status = run_lanes();
    while (!status.ok()) {
        const auto lost =
            std::find_if(lanes_.begin(), lanes_.end(),
                         [](const std::unique_ptr<Lane> &lane) { return lane->lost(); });
        if (lost == lanes_.end()) return status;
        const std::string device = "device " + std::to_string((*lost)->device());
        if (options_.devices.size() > 1) status = std::move(status).within(device);
        if (lanes_.size() == 1) return status;
        const int64_t rows = take_back_rows(lost->get());
        log_(BATCHLLM_LOG_WARNING, status.message() + "; the job goes on without it, and " +
                                       std::to_string(rows) +
                                       " rows that it had are computed again");
        stats_.kv_pages_total += (*lost)->info().pages;
        stats_.kv_pages_peak += (*lost)->scheduler().pages_peak();
        stats_.state_slots_total += (*lost)->info().state_slots;
        stats_.state_slots_peak += (*lost)->scheduler().states_peak();
        stats_.backend_seconds = std::max(stats_.backend_seconds, (*lost)->seconds());
        lanes_.erase(lost);
        RETURN_IF_ERROR(plan_again());
        status = run_lanes();
    }
    return status;
}

// Makes all rows on the lane without a result wait again, and returns how many. The lane's
// scheduler must not be used any more.
int64_t Engine::take_back_rows(const Lane *lane) {
    std::vector<Job *> jobs;
    for (const auto &[job, owner] : jobs_) {
        if (job->lane == lane) jobs.push_back(job);
    }
    int64_t rows = 0;
    for (Job *job : jobs) {
        for (const Sequence &sequence : job->sequences) {
            const auto generated = static_cast<int64_t>(sequence.output.size());
            stats_.completion_tokens -= generated;
            lost_tokens_ += generated;
            if (!sequence.done) intake_.generation -= sequence.max_tokens - generated;
        }
        stats_.logical_prompt_tokens -= logical_tokens(*job);
        ++stats_.rows_deduplicated; // one of its rows without a result was computed
        if (job->answers.size() > 1 || job->sequences.size() > 1) --unusual_jobs_;
        for (const Job::Answer &answer : job->answers) {
            if (answer.given) { // cancelled, so its count stays
                stats_.logical_prompt_tokens +=
                    int64_t{answer.samples} * job->sequences.front().prompt.length;
                intake_.rows.release(answer.row);
                continue;
            }
            --stats_.rows_deduplicated;
            Row &row = *intake_.rows.find(answer.row);
            row.state = RowState::waiting;
            row.follower = false;
            row.next_equal = -1;
            intake_.generation += generation_of(row);
            ++rows;
        }
        jobs_.erase(job);
    }
    return rows;
}

// Plans all waiting rows, whatever plan they were in.
Status Engine::plan_again() {
    std::vector<int64_t> waiting, ended;
    intake_.rows.for_each([&](int64_t id, const Row &row) {
        if (row.state == RowState::waiting) waiting.push_back(id);
        if (row.state == RowState::answered) ended.push_back(id);
    });
    for (const int64_t id : ended) intake_.rows.release(id);
    next_group_ = static_cast<int64_t>(plan_.groups.size());
    plan_tokens_left_ = 0;
    intake_.unplanned = std::move(waiting);
    // A plan from use_plan is for rows that have not been added yet.
    std::optional<Plan> given = std::exchange(next_plan_, std::nullopt);
    RETURN_IF_ERROR(build_groups());
    next_plan_ = std::move(given);
    return {};
}

} // namespace batchllm
