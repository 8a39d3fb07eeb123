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

// The longest request if no model states one: that of the shape that `sim` then uses.
constexpr int64_t default_max_request_tokens = 8192;

} // namespace

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions &options) {
    return create(options, load_model_and_backend);
}

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions &options,
                                               const ModelLoader &loader) {
    std::unique_ptr<Engine> engine(new Engine);
    const Clock::time_point start = Clock::now();
    RETURN_IF_ERROR(engine->load(options, loader));
    engine->stats_.load_seconds = seconds_since(start);
    return engine;
}

Engine::~Engine() {
    if (report_ != nullptr) report_->detach();
}

Status Engine::load(const EngineOptions &options, const ModelLoader &loader) {
    options_ = options;
    log_ = options.log;
    watch_.emplace(log_, options.long_step_seconds);
    if (!options.model_dir.empty()) {
        ASSIGN_OR_RETURN(const bool reads_text, file_exists(options.model_dir + "/tokenizer.json"));
        if (reads_text) {
            ASSIGN_OR_RETURN(tokenizer_, Tokenizer::load(options.model_dir));
            if (!tokenizer_->note().empty()) log_(BATCHLLM_LOG_INFO, tokenizer_->note());
            ASSIGN_OR_RETURN(chat_, ChatTemplate::load(options.model_dir));
        }
    }
    ASSIGN_OR_RETURN(LoadedModel loaded, loader(options));
    model_ = std::move(loaded.model);
    head_cost_ = loaded.head_cost;
    // Not earlier: if the model cannot be loaded, the timeline of an earlier run must survive.
    if (!options.timeline_path.empty()) {
        ASSIGN_OR_RETURN(timeline_, Timeline::open(options.timeline_path));
    }

    max_request_tokens_ = default_max_request_tokens;
    if (model_ != nullptr) {
        max_request_tokens_ = model_->max_positions;
        eos_tokens_ = model_->eos_tokens;
        if (options.max_request_tokens > max_request_tokens_) {
            return error(
                BATCHLLM_ERROR_INVALID_ARGUMENT,
                "max_request_tokens is %" PRId64 ", but the model in %s has %" PRId64 " positions",
                options.max_request_tokens, options.model_dir.c_str(), max_request_tokens_);
        }
    }
    if (options.max_request_tokens > 0) max_request_tokens_ = options.max_request_tokens;

    SchedulerOptions scheduling;
    scheduling.max_requests = options.max_requests;
    scheduling.order = options.order;
    for (size_t i = 0; i < loaded.backends.size(); ++i) {
        lanes_.push_back(
            std::make_unique<Lane>(options.devices[i], std::move(loaded.backends[i]), scheduling));
        const BackendInfo &info = lanes_.back()->info();
        devices_.push_back({options.devices[i], info});
        if (!info.warning.empty()) log_(BATCHLLM_LOG_WARNING, info.warning);
        const std::string states = info.state_slots == 0
                                       ? ""
                                       : std::to_string(info.state_slots) + " state slots of " +
                                             std::to_string(info.state_bytes) + " bytes, ";
        log_(BATCHLLM_LOG_INFO, info.name + " (" + info.compute_type + ", " + info.device +
                                    "): " + std::to_string(info.pages) + " KV pages of " +
                                    std::to_string(info.page_tokens) + " tokens, " + states +
                                    std::to_string(info.step_tokens) + " tokens a step");
    }
    masks_ = RowMasks(tokenizer_.get());
    const BackendInfo &info = lanes_.front()->info();
    if (model_ != nullptr && model_->classifier) classifier_.emplace(*model_);
    if (info.eos_token >= 0) eos_tokens_.push_back(info.eos_token);
    ASSIGN_OR_RETURN(const ModelTasks tasks, model_tasks(info));
    params_.emplace(tasks);
    score_params_ = std::make_shared<const PreparedParams>();
    return {};
}

Result<ModelTasks> Engine::model_tasks(const BackendInfo &info) const {
    ModelTasks tasks;
    tasks.vocabulary = info.vocabulary;
    tasks.hidden = info.hidden;
    tasks.eos_tokens = eos_tokens_;
    tasks.tokenizer = tokenizer_;
    if (model_ == nullptr) return tasks;
    tasks.text = bool(model_->head);
    tasks.labels = classifier_.has_value();
    // A model whose directory requires an unsupported kind of vector can still do everything else.
    Result<EmbeddingForm> form = read_embedding_form(options_.model_dir, info.hidden);
    if (is_failure_of_process(form.status().code())) return form.status();
    tasks.form_status = form.status();
    if (form.ok()) tasks.form = *form;
    return tasks;
}

Result<batchllm_info> Engine::info(int32_t device) const {
    const auto devices = static_cast<int32_t>(devices_.size());
    if (device < 0 || device >= devices) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "device is %d: the engine has %d", device,
                     devices);
    }
    const auto &[number, of] = devices_[static_cast<size_t>(device)];
    batchllm_info info{};
    info.struct_size = sizeof info;
    info.device_count = devices;
    info.backend = of.name.c_str();
    info.compute_type = of.compute_type.c_str();
    info.device = of.device.c_str();
    info.device_number = number;
    info.vocabulary = of.vocabulary;
    info.hidden = of.hidden;
    info.page_tokens = of.page_tokens;
    info.kv_groups = static_cast<int32_t>(of.kv_windows.size());
    info.reproducible = of.reproducible ? 1 : 0;
    info.head_cost = head_cost_;
    info.kv_pages = of.pages;
    info.kv_page_bytes = of.page_bytes;
    info.step_tokens = of.step_tokens;
    info.max_request_tokens = max_request_tokens_;
    info.state_slots = of.state_slots;
    info.state_slot_bytes = of.state_bytes;
    return info;
}

std::span<const std::string> Engine::labels() const {
    return classifier_ ? std::span<const std::string>(classifier_->labels())
                       : std::span<const std::string>();
}

Result<SpecifiedConstraint> Engine::make_constraint(const ConstraintSpecification &specification) {
    RETURN_IF_ERROR(need_tokenizer());
    std::shared_ptr<const TokenVocabulary> vocabulary;
    {
        const std::lock_guard lock(vocabulary_mutex_);
        if (vocabulary_ == nullptr) {
            ASSIGN_OR_RETURN(vocabulary_, TokenVocabulary::make(*tokenizer_, eos_tokens_,
                                                                devices_.front().info.vocabulary));
        }
        vocabulary = vocabulary_;
    }
    ASSIGN_OR_RETURN(SpecifiedConstraint made,
                     batchllm::make_constraint(specification, std::move(vocabulary)));
    for (const std::string &warning : made.warnings) {
        log_(BATCHLLM_LOG_WARNING, "a constraint is looser than its schema: " + warning);
    }
    return made;
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
        if (report_ != nullptr) report_->set_stats(stats());
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
    if (report_ != nullptr) report_->set_stats(stats());
    if (progress != nullptr) fill_progress(progress);
    return {};
}

std::unique_ptr<ResultBatch> Engine::poll(int64_t max_results) {
    std::unique_ptr<ResultBatch> results = ResultBatch::take(&intake_.outcomes, max_results);
    if (report_ != nullptr) {
        report_->add_results(*results);
        report_->set_stats(stats());
    }
    return results;
}

void Engine::cancel(uint64_t tag) {
    std::lock_guard lock(cancel_mutex_);
    int64_t &below = cancels_.below[tag];
    below = std::max(below, next_id_.load(std::memory_order_relaxed));
    cancels_waiting_.store(true, std::memory_order_release);
}

void Engine::cancel_all() {
    std::lock_guard lock(cancel_mutex_);
    cancels_.all_below = next_id_.load(std::memory_order_relaxed);
    cancels_waiting_.store(true, std::memory_order_release);
}

// A row runs if one of its requests does. If every job is one row with one request, as most are,
// the schedulers' count is the number of rows.
int64_t Engine::rows_running() const {
    int64_t rows = 0;
    if (unusual_jobs_ == 0) {
        for (const auto &lane : lanes_) rows += lane->scheduler().running();
        return rows;
    }
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
    progress->pages_used = progress->pages_total = 0;
    progress->tokens_left = intake_.prompt_tokens + plan_tokens_left_ + intake_.generation;
    for (const auto &lane : lanes_) {
        progress->pages_used += lane->scheduler().counts().pages_used;
        progress->pages_total += lane->info().pages;
        progress->tokens_left += lane->scheduler().prompt_tokens_left();
    }
    progress->tokens_done = prompt_tokens_done_ + stats_.completion_tokens + lost_tokens_;
    progress->seconds = first_step_ ? seconds_since(*first_step_) : 0;
}

batchllm_stats Engine::stats() const {
    batchllm_stats stats = stats_;
    stats.rows = intake_.added;
    stats.rows_done = rows_done();
    stats.rows_failed += intake_.bad;
    stats.constrained_results = cut_off_.constrained();
    stats.cut_off_results = cut_off_.cut();
    stats.processed_prompt_tokens = prompt_tokens_done_;
    stats.shared_prompt_tokens =
        std::max<int64_t>(0, stats.logical_prompt_tokens - stats.processed_prompt_tokens);
    stats.kv_page_bytes = devices_.front().info.page_bytes;
    stats.state_slot_bytes = devices_.front().info.state_bytes;
    for (const auto &lane : lanes_) {
        stats.kv_pages_total += lane->info().pages;
        stats.kv_pages_peak += lane->scheduler().pages_peak();
        stats.state_slots_total += lane->info().state_slots;
        stats.state_slots_peak += lane->scheduler().states_peak();
        stats.backend_seconds = std::max(stats.backend_seconds, lane->seconds());
    }
    if (stats.logical_prompt_tokens > 0) {
        stats.saving_ratio = 1.0 - static_cast<double>(stats.processed_prompt_tokens) /
                                       static_cast<double>(stats.logical_prompt_tokens);
    }
    return stats;
}

MaskWork Engine::mask_work() const {
    MaskWork work = masks_.work();
    for (const auto &lane : lanes_) work.waited += lane->waited_for_masks();
    return work;
}

} // namespace batchllm
