#include "runtime/observers.h"

#include <algorithm>
#include <utility>

namespace batchllm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

} // namespace

Observers::Observers(const EngineOptions &options)
    : log_(options.log), watch_(log_, options.long_step_seconds) {}

Observers::~Observers() {
    if (report_ != nullptr) report_->detach();
}

Status Observers::open_timeline(const std::string &path) {
    ASSIGN_OR_RETURN(timeline_, Timeline::open(path));
    return {};
}

Status Observers::set_report(std::shared_ptr<JobRecord> report, const EngineFacts &facts,
                             const batchllm_stats &now, double device_seconds,
                             TokenDecoder decoder) {
    if (report != nullptr && report->writer() != nullptr && report->writer() != this) {
        return error(BATCHLLM_ERROR_STATE, "the report is another engine's");
    }
    if (report_ != nullptr) report_->detach();
    report_ = nullptr;
    if (report == nullptr) return {};
    modelled_ = facts.modelled;
    report_start_ = modelled_ ? device_seconds : seconds();
    report->attach(this, facts, now, std::move(decoder));
    report->set_stats(now);
    report_ = std::move(report);
    return {};
}

// ---- A step ----

Observers::Step::Step(Observers *observers) : observers_(*observers), start_(Clock::now()) {
    if (!observers_.first_step_) observers_.first_step_ = Clock::now();
    observers_.step_ = {};
    observers_.watch_.start();
}

Observers::Step::~Step() {
    observers_.watch_.end();
    observers_.run_seconds_ += seconds_since(start_);
}

double Observers::seconds() const { return first_step_ ? seconds_since(*first_step_) : 0; }

// The engine's seconds since the report began: by the clock, or the simulated time of the device.
double Observers::clock(const Lane &lane) const {
    return (modelled_ ? lane.seconds() : seconds()) - report_start_;
}

void Observers::planned(const std::string &advice, double gain) {
    if (advice.empty()) return;
    if (!std::exchange(advised_, true)) warn(advice);
    if (report_ != nullptr) report_->add_advice(advice, gain);
}

void Observers::placed(std::span<RowRun *const> runs, const Lane &lane, int64_t shared,
                       int64_t new_tokens) {
    if (report_ == nullptr) return;
    GroupRun group;
    group.started = clock(lane);
    group.unfinished = static_cast<int64_t>(runs.size());
    for (const RowRun *run : runs) {
        group.rows += static_cast<int64_t>(run->answers.size());
        for (const RowRun::Answer &answer : run->answers)
            group.prompt_tokens += answer.prompt_length;
    }
    const TokenRow &row = runs.front()->sequences.front().prompt;
    const std::shared_ptr<GroupRun> kept = report_->start_group(
        {row.tokens, static_cast<size_t>(row.length)}, shared, shared - new_tokens, group);
    for (RowRun *run : runs) run->group_run = kept;
}

void Observers::collected(const Lane &lane, int64_t pages_of_others) {
    const StepCounts &counts = lane.record().counts;
    ++batches_;
    preemptions_ += counts.preemptions;
    recomputed_tokens_ += counts.recomputed_tokens;
    prompt_tokens_ += counts.prompt_tokens;
    step_.decode_tokens += counts.decode_tokens;
    step_.own_tokens += counts.own_tokens;
    step_.prefix_tokens += counts.prefix_tokens;
    if (timeline_) {
        const Status written =
            timeline_->write(batches_, lane.batch_seconds() * 1e3, counts, lane.device());
        if (!written.ok()) warn(written.message());
    }
    if (report_ == nullptr) return;
    report_->add_batch(clock(lane), lane.batch_seconds(),
                       {counts.decode_tokens, counts.own_tokens, counts.prefix_tokens,
                        counts.pages_used + pages_of_others});
}

void Observers::ended(const RowRun &run) {
    if (report_ == nullptr || run.group_run == nullptr) return;
    int64_t generated = 0, longest = 0;
    for (const Sequence &sequence : run.sequences) {
        const auto tokens = static_cast<int64_t>(sequence.output.size());
        generated += tokens;
        longest = std::max(longest, tokens);
    }
    report_->end_run(run.group_run.get(), generated, longest, clock(*run.lane));
}

void Observers::all_done() {
    if (!timeline_) return;
    const Status flushed = timeline_->flush();
    if (!flushed.ok()) warn(flushed.message());
}

void Observers::polled(const ResultBatch &results) {
    if (report_ != nullptr) report_->add_results(results);
}

void Observers::set_stats(const batchllm_stats &stats) {
    if (report_ != nullptr) report_->set_stats(stats);
}

void Observers::add_to(batchllm_stats *stats) const {
    stats->load_seconds += load_seconds_;
    stats->run_seconds += run_seconds_;
    stats->steps += batches_;
    stats->preemptions += preemptions_;
    stats->recomputed_tokens += recomputed_tokens_;
    stats->processed_prompt_tokens += prompt_tokens_;
}

} // namespace batchllm
