#include "runtime/engine.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/printable.h"
#include "image/decode_row.h"

namespace batchllm {
namespace {

std::string name_of(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? path : path.substr(slash + 1);
}

constexpr int32_t most_supply_threads = 16;

RunLimits limits_of(const EngineOptions &options, const RowReader &reader) {
    RunLimits limits{reader.max_request_tokens(), options.seed, reader.tokenizer(),
                     options.enlarge != BATCHLLM_ENLARGE_NONE};
    if (reader.model() != nullptr) limits.picture_token = reader.model()->picture_token;
    // Beside what the backend computes with on the CPU, and without one too.
    limits.supply_threads = std::clamp(
        options.threads > 0 ? options.threads : ThreadPool::available(), 1, most_supply_threads);
    return limits;
}

PlanOptions planning_of(const EngineOptions &options, const RowReader &reader,
                        double common_prefix_cost) {
    PlanOptions planning;
    planning.enlarge = options.enlarge;
    planning.levels = options.levels;
    planning.order = options.order;
    planning.common_prefix_cost = common_prefix_cost;
    if (options.min_prefix_tokens > 0) planning.min_prefix_tokens = options.min_prefix_tokens;
    planning.tokenizer_fingerprint = reader.tokenizer_fingerprint();
    return planning;
}

SchedulerOptions scheduling_of(const EngineOptions &options, const Model *model) {
    SchedulerOptions scheduling;
    scheduling.max_requests = options.max_requests;
    if (model == nullptr) return scheduling;
    scheduling.picture_token = model->picture_token;
    scheduling.rope_axes = std::any_of(model->ropes.begin(), model->ropes.end(),
                                       [](const Rope &rope) { return !rope.axes.empty(); });
    scheduling.whole_pictures = model->pictures_see_themselves;
    return scheduling;
}

} // namespace

// ---- Creation ----

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions &options) {
    return create(options, load_model_and_backend);
}

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions &options,
                                               const ModelLoader &loader) {
    const auto start = std::chrono::steady_clock::now();
    auto observers = std::make_unique<Observers>(options);
    ASSIGN_OR_RETURN(std::unique_ptr<RowReader> reader, RowReader::open(options));
    ASSIGN_OR_RETURN(LoadedModel loaded, loader(options));
    // Not earlier: if the model cannot be loaded, the timeline of an earlier run must survive.
    if (!options.timeline_path.empty()) {
        RETURN_IF_ERROR(observers->open_timeline(options.timeline_path));
    }
    RETURN_IF_ERROR(
        reader->take_model(std::move(loaded.model), loaded.backends.front()->info(), options));
    ASSIGN_OR_RETURN(std::shared_ptr<PictureLibrary> pictures,
                     PictureLibrary::open(options.model_dir, reader->tokenizer(), {}));
    if (options.pictures != nullptr) {
        if (!options.pictures->reads_as(*pictures)) {
            return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                         "pictures: they are prepared for another model than that in %s",
                         options.model_dir.c_str());
        }
        pictures = options.pictures;
    }
    reader->take_pictures(std::move(pictures), loaded.backends.front()->info());
    Observers &watching = *observers;
    const EngineOptions &chosen = loaded.ranks > 0 ? options.with_ranks(loaded.ranks) : options;
    std::unique_ptr<Engine> engine(
        new Engine(chosen, std::move(observers), std::move(reader), std::move(loaded)));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    watching.set_load_seconds(seconds.count());
    return engine;
}

Engine::Engine(const EngineOptions &options, std::unique_ptr<Observers> observers,
               std::unique_ptr<RowReader> reader, LoadedModel loaded)
    : model_dir_(options.model_dir), observers_(std::move(observers)), reader_(std::move(reader)),
      answers_(reader_.get()), intake_(reader_.get(), limits_of(options, *reader_), &answers_),
      agenda_(planning_of(options, *reader_, loaded.common_prefix_cost),
              limits_of(options, *reader_), intake_.rows()),
      adapters_(std::make_shared<AdapterLibrary>()),
      placement_(options.first_devices(), std::move(loaded.backends),
                 scheduling_of(options, reader_->model()), limits_of(options, *reader_),
                 reader_.get(), intake_.rows(), observers_.get(),
                 {options.drafts, std::move(loaded.step_cost)}) {
    intake_.set_devices(placement_.device_pages());
    intake_.set_whole_pictures(reader_->model() != nullptr &&
                               reader_->model()->pictures_see_themselves);
    std::vector<const Backend *> backends;
    for (const auto &lane : placement_.lanes()) backends.push_back(lane->backend());
    adapters_->open(reader_->model(), std::move(backends));
    reader_->take_adapters(adapters_.get());
}

// ---- Rows ----

Result<Intake *> Engine::intake() {
    RETURN_IF_ERROR(failed_);
    return &intake_;
}

Status Engine::check_params(const batchllm_params &params) {
    ASSIGN_OR_RETURN(const std::shared_ptr<const PreparedParams> read, reader_->read(params));
    return reader_->check(*read);
}

Result<SpecifiedConstraint> Engine::make_constraint(const ConstraintSpecification &specification) {
    ASSIGN_OR_RETURN(SpecifiedConstraint made, reader_->make_constraint(specification));
    for (const std::string &warning : made.warnings) {
        observers_->warn("a constraint is looser than its schema: " + warning);
    }
    return made;
}

Result<std::shared_ptr<const AdapterSource>> Engine::load_adapter(const std::string &name,
                                                                  const std::string &path) {
    ASSIGN_OR_RETURN(std::shared_ptr<const AdapterSource> source, adapters_->load(name, path));
    for (const std::string &warning : source->warnings) {
        observers_->warn("adapter " + in_quotes(name) + ": " + warning);
    }
    return source;
}

Status Engine::build_groups() {
    RETURN_IF_ERROR(failed_);
    return plan_rows(true);
}

Status Engine::plan_rows(bool use_given) {
    if (intake_.unplanned().empty()) return {};
    const bool groups_given = use_given && agenda_.has_groups_given();
    RETURN_IF_ERROR(agenda_.plan(&intake_, use_given));
    placement_.begin_plan();
    try {
        if (groups_given && !agenda_.knows_rows() && agenda_.waiting_tokens().prompt > 0) {
            observers_->warn("none of these rows is in the plan to be used, so they are planned "
                             "again: was it made of other prompts or with other options?");
        }
        if (!observers_->wants_advice()) return {};
        observers_->planned(agenda_.advice_text(reader_->tokenizer()), agenda_.advised_gain());
    } catch (const std::bad_alloc &) {
        // The plan is good without its advice.
    }
    return {};
}

std::unique_ptr<ResultBatch> Engine::poll(int64_t max_results) {
    std::unique_ptr<ResultBatch> results = answers_.poll(max_results);
    observers_->polled(*results);
    if (observers_->reports()) observers_->set_stats(stats());
    return results;
}

// ---- A step ----

Status Engine::run_step() {
    RETURN_IF_ERROR(failed_);
    const Observers::Step step(observers_.get());
    observers_->watch().begin("planning");
    RETURN_IF_ERROR(build_groups());
    // A failure after this point leaves requests half advanced, so the engine stays failed.
    try {
        apply_cancels();
        failed_ = place_run_answer();
        while (!failed_.ok()) {
            Lane *lost = placement_.lost_lane();
            if (lost == nullptr) break;
            failed_ = go_on_without(lost, std::move(failed_));
            if (!failed_.ok()) break;
            failed_ = place_run_answer();
        }
        if (failed_.ok()) warn_of_cut_off();
        if (failed_.ok() && all_done()) warn_of_adapter_loads();
        if (failed_.ok() && all_done()) inform_of_drafts();
        if (failed_.ok() && all_done()) inform_of_merging();
        if (failed_.ok() && all_done()) observers_->all_done();
    } catch (const std::bad_alloc &) {
        // Short enough for a std::string not to allocate.
        failed_ = Status(BATCHLLM_ERROR_OUT_OF_MEMORY, "out of memory");
    } catch (const std::exception &fault) {
        failed_ = Status(BATCHLLM_ERROR_INTERNAL, "a fault");
        failed_ = Status(BATCHLLM_ERROR_INTERNAL, fault.what());
    }
    return failed_;
}

Status Engine::place_run_answer() {
    for (const auto &lane : placement_.lanes()) RETURN_IF_ERROR(run_ahead(lane.get()));
    if (Lane *lane = placement_.first_ready()) RETURN_IF_ERROR(answer_batch(lane));
    // Between two steps, no batch is left without its masks.
    for (const auto &lane : placement_.lanes()) {
        if (lane->unsampled()) RETURN_IF_ERROR(answer_batch(lane.get()));
    }
    if (!all_done()) return {};
    // Whatever is still in flight belongs to rows that have ended.
    for (const auto &lane : placement_.lanes()) {
        while (lane->in_flight() > 0) RETURN_IF_ERROR(answer_batch(lane.get()));
    }
    return {};
}

// Puts in flight as many batches as the lane takes.
Status Engine::run_ahead(Lane *lane) {
    while (lane->takes_another()) {
        RETURN_IF_ERROR(fail_unreadable(lane));
        ASSIGN_OR_RETURN(const TokenBatch *batch, placement_.next_batch(lane, &agenda_));
        if (batch->tokens.empty() && lane->in_flight() == 0 && lane->waits_for_adapter()) {
            observers_->watch().begin("reading an adapter for device", lane->device());
            lane->adapters().wait();
            continue;
        }
        if (batch->tokens.empty() && lane->in_flight() == 0 && lane->waits_for_picture()) {
            observers_->watch().begin("preparing a picture for device", lane->device());
            lane->pictures().wait();
            continue;
        }
        if (batch->tokens.empty()) break;
        RETURN_IF_ERROR(placement_.submit(lane, *batch));
        // If the masks depend on the previous batch, this one is sampled once that one has been
        // answered.
        if (lane->in_flight() == 1 || !RowMasks::wait_for_samples(lane->newest())) {
            RETURN_IF_ERROR(sample(lane));
        }
    }
    return {};
}

// Answers the rows whose adapters or pictures could not be read.
Status Engine::fail_unreadable(Lane *lane) {
    ASSIGN_OR_RETURN(const std::vector<RowRun *> runs, placement_.unreadable_runs(lane));
    for (RowRun *run : runs) {
        placement_.drop(run);
        answers_.fail(run, placement_.why_unreadable(*run));
    }
    for (RowRun *run : answers_.take_ended()) end_run(run);
    return {};
}

Status Engine::sample(Lane *lane) {
    RETURN_IF_ERROR(placement_.sample(lane));
    for (Sequence *sequence : placement_.forced()) {
        lane->scheduler().discard_sample(sequence);
        lane->will_generate(-answers_.accept_forced(sequence));
        if (sequence->done) lane->scheduler().drop(sequence);
    }
    for (RowRun *run : answers_.take_ended()) end_run(run);
    return {};
}

Status Engine::answer_batch(Lane *lane) {
    RETURN_IF_ERROR(placement_.collect(lane));
    const auto hidden = static_cast<size_t>(lane->info().hidden);
    lane->will_generate(-answers_.accept(lane->record(), lane->output(), hidden));
    placement_.finish_batch(lane);
    for (RowRun *run : answers_.take_ended()) end_run(run);
    return lane->unsampled() ? sample(lane) : Status();
}

// Nothing is left to compute for the run, and the scheduler has released it.
void Engine::end_run(RowRun *run) {
    answers_.answer(run);
    observers_->ended(*run);
    placement_.remove_run(run);
}

void Engine::apply_cancels() {
    const std::optional<Cancels> cancels = intake_.take_cancels();
    if (!cancels.has_value()) return;
    for (RowRun *run : placement_.runs_with(*cancels)) {
        answers_.cancel(run, *cancels);
        if (run->any_answer_left()) continue;
        placement_.drop(run);
        end_run(run);
    }
    agenda_.cancel(*cancels, [this](const Row &row) { answers_.cancel(row); });
}

// If memory runs out, the warning is left out.
void Engine::warn_of_cut_off() {
    try {
        const std::string warning = answers_.take_warning(all_done());
        if (!warning.empty()) observers_->warn(warning);
    } catch (const std::bad_alloc &) {}
}

// If memory runs out, the warning is left out.
void Engine::warn_of_adapter_loads() {
    batchllm_stats stats{};
    placement_.add_to(&stats);
    constexpr int64_t many = 4; // loads of an adapter on a device
    const auto devices = static_cast<int64_t>(placement_.devices().size());
    if (warned_of_loads_ || stats.adapter_loads <= many * devices * stats.adapters) return;
    warned_of_loads_ = true;
    try {
        observers_->warn(std::to_string(stats.adapters) + " adapters were loaded " +
                         std::to_string(stats.adapter_loads) + " times, " +
                         std::to_string(stats.adapter_load_bytes >> 20) +
                         " MiB in all: with more adapter_memory_bytes (--adapter-memory), or more "
                         "rows added at a time, they would be loaded less often");
    } catch (const std::bad_alloc &) {}
}

// If memory runs out, the line is left out.
void Engine::inform_of_drafts() {
    const auto [proposed, accepted] = draft_work();
    if (std::exchange(informed_of_drafts_, proposed) == proposed) return;
    try {
        observers_->inform("drafts: " + std::to_string(proposed) + " tokens proposed so far, " +
                           std::to_string(accepted) + " of them right");
    } catch (const std::bad_alloc &) {}
}

// If memory runs out, the line is left out.
void Engine::inform_of_merging() {
    int64_t steps = 0;
    for (const auto &lane : placement_.lanes()) {
        steps += lane->backend()->adapter_use().merged_batches;
    }
    if (steps <= informed_of_merging_) return; // fewer: a device has been lost
    informed_of_merging_ = steps;
    try {
        observers_->inform("adapters: " + std::to_string(steps) +
                           " steps so far ran on layers merged with their one adapter");
    } catch (const std::bad_alloc &) {}
}

// The other devices compute what the lost one had.
Status Engine::go_on_without(Lane *lost, Status why) {
    const std::string device = "device " + std::to_string(lost->device());
    if (placement_.devices().size() > 1) why = std::move(why).within(device);
    if (placement_.lanes().size() == 1) return why;
    adapters_->forget(lost->backend());
    const Placement::Lost had = placement_.remove_lane(lost);
    answers_.lose_tokens(had.generated);
    observers_->warn(why.message() + "; the job goes on without it, and " +
                     std::to_string(had.rows) + " rows that it had are computed again");
    intake_.set_devices(placement_.device_pages());
    intake_.unplan_all();
    agenda_.clear();
    placement_.begin_plan(); // also if no row is left to plan
    // A plan from use_plan is for rows that have not been added yet.
    return plan_rows(false);
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
        if (observers_->reports()) observers_->set_stats(stats());
        fill_progress(&progress);
        const bool stop = callback != nullptr && callback(user, &progress) != 0;
        if (interrupted_.exchange(false, std::memory_order_relaxed)) {
            return error(BATCHLLM_ERROR_STOPPED, "stopped by batchllm_interrupt");
        }
        if (stop) return error(BATCHLLM_ERROR_STOPPED, "stopped by the callback");
        // The callback may have added rows.
    } while (!all_done());
    return {};
}

Status Engine::step(batchllm_progress *progress) {
    if (running_) {
        return error(BATCHLLM_ERROR_STATE, "batchllm_step was called from batchllm_run's callback");
    }
    RETURN_IF_ERROR(run_step());
    if (observers_->reports()) observers_->set_stats(stats());
    if (progress != nullptr) fill_progress(progress);
    return {};
}

// ---- What others are told ----

Status Engine::set_report(std::shared_ptr<JobRecord> report) {
    const BackendInfo &info = placement_.devices().front().info;
    EngineFacts facts;
    facts.backend = info.name;
    facts.device = info.device;
    facts.compute_type = info.compute_type;
    facts.model = name_of(model_dir_);
    facts.devices = static_cast<int32_t>(placement_.devices().size());
    facts.step_tokens = info.step_tokens;
    facts.page_tokens = info.page_tokens;
    facts.kv_page_bytes = info.page_bytes;
    for (const Placement::Device &device : placement_.devices()) {
        facts.kv_pages += device.info.pages;
    }
    facts.modelled = info.computes_on.kind == DeviceKind::none;
    TokenDecoder decoder;
    if (reader_->tokenizer() != nullptr) {
        decoder = [tokenizer = reader_->shared_tokenizer()](std::span<const int32_t> tokens) {
            Result<std::string> words = decode_row(*tokenizer, tokens);
            return words.ok() ? std::move(words).value() : std::string();
        };
    }
    RETURN_IF_ERROR(observers_->set_report(std::move(report), facts, stats(),
                                           placement_.device_seconds(), std::move(decoder)));
    // Groups that are running now began on the other report's clock, so neither report lists them
    // as slow.
    placement_.forget_group_runs();
    return {};
}

Result<batchllm_info> Engine::info(int32_t device) const {
    const auto devices = static_cast<int32_t>(placement_.devices().size());
    if (device < 0 || device >= devices) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "device is %d: the engine has %d", device,
                     devices);
    }
    const auto &[number, of] = placement_.devices()[static_cast<size_t>(device)];
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
    info.common_prefix_cost = agenda_.options().common_prefix_cost;
    info.kv_pages = of.pages;
    info.kv_page_bytes = of.page_bytes;
    info.step_tokens = of.step_tokens;
    info.max_request_tokens = reader_->max_request_tokens();
    info.state_slots = of.state_slots;
    info.state_slot_bytes = of.state_bytes;
    info.adapter_memory_bytes = of.adapter_bytes;
    info.adapter_slots = of.adapter_slots;
    info.picture_slots = of.picture_slots;
    info.picture_tokens = of.picture_tokens;
    info.weight_bytes = of.weight_bytes;
    return info;
}

std::span<const std::string> Engine::labels() const {
    if (!reader_->classifier()) return {};
    return reader_->classifier()->labels();
}

void Engine::fill_progress(batchllm_progress *progress) const {
    progress->rows_done = answers_.rows_done();
    const int64_t left = intake_.added() - answers_.rows_done();
    progress->rows_running = std::min(left, placement_.rows_running());
    progress->rows_waiting = left - progress->rows_running;
    progress->decode_tokens = observers_->step().decode_tokens;
    progress->own_tokens = observers_->step().own_tokens;
    progress->prefix_tokens = observers_->step().prefix_tokens;
    progress->pages_used = placement_.pages_used();
    progress->pages_total = placement_.pages();
    progress->tokens_left = 0;
    for (const RowTokens &tokens :
         {intake_.waiting_tokens(), agenda_.waiting_tokens(), placement_.tokens_left()}) {
        progress->tokens_left += tokens.prompt + tokens.generated;
    }
    progress->tokens_done = observers_->prompt_tokens() + answers_.generated_tokens();
    progress->seconds = observers_->seconds();
}

batchllm_stats Engine::stats() const {
    batchllm_stats stats{};
    stats.rows = intake_.added();
    stats.tokenize_seconds = intake_.tokenize_seconds();
    stats.groups = agenda_.groups_started();
    stats.plan_seconds = agenda_.plan_seconds();
    placement_.add_to(&stats);
    answers_.add_to(&stats);
    observers_->add_to(&stats);
    stats.shared_prompt_tokens =
        std::max<int64_t>(0, stats.logical_prompt_tokens - stats.processed_prompt_tokens);
    if (stats.logical_prompt_tokens > 0) {
        stats.saving_ratio = static_cast<double>(stats.shared_prompt_tokens) /
                             static_cast<double>(stats.logical_prompt_tokens);
    }
    return stats;
}

} // namespace batchllm
