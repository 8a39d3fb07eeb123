// Records what the engine does in a report. Nothing here can fail a step.
#include <algorithm>
#include <chrono>

#include "runtime/engine.h"

namespace batchllm {
namespace {

constexpr const char *modelling_backend = "sim"; // the only one with simulated seconds

std::string name_of(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? path : path.substr(slash + 1);
}

} // namespace

Status Engine::set_report(std::shared_ptr<JobRecord> report) {
    if (report != nullptr && report->writer() != nullptr && report->writer() != this) {
        return error(BATCHLLM_ERROR_STATE, "the report is another engine's");
    }
    if (report_ != nullptr) report_->detach();
    report_ = nullptr;
    // Groups that are running now began on the other report's clock, so neither report lists them
    // as slow.
    for (auto &[key, job] : jobs_) job->group_run = nullptr;
    if (report == nullptr) return {};
    const BackendInfo &info = devices_.front().info;
    EngineFacts facts;
    facts.backend = info.name;
    facts.device = info.device;
    facts.compute_type = info.compute_type;
    facts.model = name_of(options_.model_dir);
    facts.devices = static_cast<int32_t>(devices_.size());
    facts.step_tokens = info.step_tokens;
    facts.page_tokens = info.page_tokens;
    facts.kv_page_bytes = info.page_bytes;
    for (const Device &device : devices_) facts.kv_pages += device.info.pages;
    facts.modelled = info.name == modelling_backend;
    TokenDecoder decoder;
    if (tokenizer_ != nullptr) {
        decoder = [tokenizer = tokenizer_](std::span<const int32_t> tokens) {
            Result<std::string> words = tokenizer->decode(tokens, false);
            return words.ok() ? std::move(words).value() : std::string();
        };
    }
    report_start_ = clock_now();
    report->attach(this, facts, stats(), std::move(decoder));
    report->set_stats(stats());
    report_ = std::move(report);
    return {};
}

// The engine's seconds: by the clock since its first step, or the simulated time of the devices.
double Engine::clock_now() const {
    if (devices_.front().info.name != modelling_backend) {
        if (!first_step_) return 0;
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - *first_step_)
            .count();
    }
    double seconds = 0;
    for (const auto &lane : lanes_) seconds = std::max(seconds, lane->seconds());
    return seconds;
}

double Engine::report_clock(const Lane &lane) const {
    const bool modelled = lane.info().name == modelling_backend;
    return (modelled ? lane.seconds() : clock_now()) - report_start_;
}

// Records jobs of one group on one lane before they are queued. All begin with the same `shared`
// tokens; the last new_tokens of those are computed for them.
void Engine::report_group(const std::vector<Job *> &jobs, int64_t shared, int64_t new_tokens) {
    GroupRun run;
    run.started = report_clock(*jobs.front()->lane);
    run.unfinished = static_cast<int64_t>(jobs.size());
    for (const Job *job : jobs) {
        run.rows += static_cast<int64_t>(job->answers.size());
        for (const Job::Answer &answer : job->answers) run.prompt_tokens += answer.prompt_length;
    }
    const TokenRow &row = jobs.front()->sequences.front().prompt;
    const std::shared_ptr<GroupRun> kept = report_->start_group(
        {row.tokens, static_cast<size_t>(row.length)}, shared, shared - new_tokens, run);
    for (Job *job : jobs) job->group_run = kept;
}

void Engine::report_batch(const Lane &lane) {
    const StepCounts &counts = lane.record().counts;
    BatchTokens batch{counts.decode_tokens, counts.own_tokens, counts.prefix_tokens,
                      counts.pages_used};
    for (const auto &other : lanes_) {
        if (other.get() != &lane) batch.pages += other->scheduler().counts().pages_used;
    }
    report_->add_batch(report_clock(lane), lane.batch_seconds(), batch);
}

void Engine::report_end(const Job &job) {
    if (report_ == nullptr) return;
    int64_t generated = 0, longest = 0;
    for (const Sequence &sequence : job.sequences) {
        const auto tokens = static_cast<int64_t>(sequence.output.size());
        generated += tokens;
        longest = std::max(longest, tokens);
    }
    report_->end_job(job.group_run.get(), generated, longest, report_clock(*job.lane));
}

} // namespace batchllm
