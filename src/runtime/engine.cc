#include "runtime/engine.h"

#include <algorithm>
#include <cinttypes>

#include "base/file.h"
#include "runtime/backend_choice.h"

namespace batchllm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// The longest request where no model states it: what the shape that `sim` takes then was made for.
constexpr int64_t default_max_request_tokens = 8192;

} // namespace

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions &options) {
    std::unique_ptr<Engine> engine(new Engine);
    const Clock::time_point start = Clock::now();
    RETURN_IF_ERROR(engine->load(options));
    engine->stats_.load_seconds = seconds_since(start);
    return engine;
}

Engine::~Engine() = default;

Status Engine::load(const EngineOptions &options) {
    options_ = options;
    log_ = options.log;
    if (!options.timeline_path.empty()) {
        ASSIGN_OR_RETURN(timeline_, Timeline::open(options.timeline_path));
    }
    if (!options.model_dir.empty() && file_exists(options.model_dir + "/tokenizer.json")) {
        ASSIGN_OR_RETURN(tokenizer_, Tokenizer::load(options.model_dir));
        chat_ = ChatTemplate::load(options.model_dir);
    }
    ASSIGN_OR_RETURN(LoadedModel loaded, load_model_and_backend(options));
    model_ = std::move(loaded.model);
    config_ = std::move(loaded.config);
    backend_ = std::move(loaded.backend);

    max_request_tokens_ = default_max_request_tokens;
    if (config_ != nullptr) {
        max_request_tokens_ = config_->max_positions;
        eos_tokens_ = config_->eos_tokens;
        if (options.max_request_tokens > max_request_tokens_) {
            return error(
                BATCHLLM_ERROR_INVALID_ARGUMENT,
                "max_request_tokens is %" PRId64 ", but the model in %s has %" PRId64 " positions",
                options.max_request_tokens, options.model_dir.c_str(), max_request_tokens_);
        }
    }
    if (options.max_request_tokens > 0) max_request_tokens_ = options.max_request_tokens;

    const BackendInfo &info = backend_->info();
    params_.emplace(info.vocabulary);
    score_params_ = std::make_shared<const PreparedParams>();
    if (info.eos_token >= 0) eos_tokens_.push_back(info.eos_token);
    SchedulerOptions scheduling;
    scheduling.pages = info.pages;
    scheduling.page_tokens = info.page_tokens;
    scheduling.step_tokens = info.step_tokens;
    scheduling.max_requests = options.max_requests;
    scheduling.order = options.order;
    scheduler_ = std::make_unique<Scheduler>(scheduling);
    log_(BATCHLLM_LOG_INFO, info.name + " (" + info.compute_type + ", " + info.device +
                                "): " + std::to_string(info.pages) + " KV pages of " +
                                std::to_string(info.page_tokens) + " tokens, " +
                                std::to_string(info.step_tokens) + " tokens a step");
    return {};
}

Status Engine::run(batchllm_progress_function callback, void *user) {
    if (running_) {
        return error(BATCHLLM_ERROR_STATE, "batchllm_run was called from its own callback");
    }
    running_ = true;
    struct Leave {
        bool *flag;
        ~Leave() { *flag = false; }
    } leave{&running_};

    batchllm_progress progress{};
    do {
        progress.struct_size = sizeof progress;
        RETURN_IF_ERROR(run_step());
        fill_progress(&progress);
        const bool stop = callback != nullptr && callback(user, &progress) != 0;
        if (interrupted_.exchange(false, std::memory_order_relaxed)) {
            return error(BATCHLLM_ERROR_STOPPED, "stopped by batchllm_interrupt");
        }
        if (stop) return error(BATCHLLM_ERROR_STOPPED, "stopped by the callback");
        // The callback may have added rows.
    } while (rows_done() < intake_.added);
    return {};
}

Status Engine::step(batchllm_progress *progress) {
    if (running_) {
        return error(BATCHLLM_ERROR_STATE, "batchllm_step was called from batchllm_run's callback");
    }
    RETURN_IF_ERROR(run_step());
    if (progress != nullptr) fill_progress(progress);
    return {};
}

std::unique_ptr<ResultBatch> Engine::poll(int64_t max_results) {
    return ResultBatch::take(&intake_.outcomes, max_results);
}

void Engine::cancel(uint64_t tag) {
    std::lock_guard lock(cancel_mutex_);
    int64_t &below = cancels_[tag];
    below = std::max(below, next_id_.load(std::memory_order_relaxed));
    cancels_waiting_.store(true, std::memory_order_release);
}

// A row runs when one of its requests does. Where jobs are one row and one request each, as most
// are, the scheduler's count is the rows'.
int64_t Engine::rows_running() const {
    if (unusual_jobs_ == 0) return scheduler_->running();
    int64_t rows = 0;
    for (const auto &[job, owner] : jobs_) {
        const bool runs =
            std::any_of(job->sequences.begin(), job->sequences.end(), [](const Sequence &sequence) {
                return sequence.state != RequestState::waiting;
            });
        if (!runs) continue;
        rows += std::count_if(job->answers.begin(), job->answers.end(),
                              [](const Job::Answer &answer) { return !answer.given; });
    }
    return rows;
}

void Engine::fill_progress(batchllm_progress *progress) const {
    progress->rows_done = rows_done();
    const int64_t left = intake_.added - rows_done();
    progress->rows_running = std::min(left, rows_running());
    progress->rows_waiting = left - progress->rows_running;
    progress->decode_tokens = last_counts_.decode_tokens;
    progress->own_tokens = last_counts_.own_tokens;
    progress->prefix_tokens = last_counts_.prefix_tokens;
    progress->pages_used = last_counts_.pages_used;
    progress->pages_total = backend_->info().pages;
    progress->tokens_left = intake_.prompt_tokens + plan_tokens_left_ +
                            scheduler_->prompt_tokens_left() + intake_.generation;
    progress->tokens_done = prompt_tokens_done_ + stats_.completion_tokens;
    progress->seconds = first_step_ ? seconds_since(*first_step_) : 0;
}

batchllm_stats Engine::stats() const {
    batchllm_stats stats = stats_;
    stats.rows = intake_.added;
    stats.rows_done = rows_done();
    stats.rows_failed += intake_.bad;
    stats.processed_prompt_tokens = prompt_tokens_done_;
    stats.shared_prompt_tokens =
        std::max<int64_t>(0, stats.logical_prompt_tokens - stats.processed_prompt_tokens);
    stats.kv_pages_total = backend_->info().pages;
    stats.kv_page_bytes = backend_->info().page_bytes;
    stats.kv_pages_peak = scheduler_->pages_peak();
    if (stats.logical_prompt_tokens > 0) {
        stats.saving_ratio = 1.0 - static_cast<double>(stats.processed_prompt_tokens) /
                                       static_cast<double>(stats.logical_prompt_tokens);
    }
    return stats;
}

} // namespace batchllm
