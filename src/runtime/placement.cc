#include "runtime/placement.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/display.h"
#include "runtime/request_groups.h"

namespace batchllm {
namespace {

using Clock = std::chrono::steady_clock;

// How often devices are polled for which of them is ready: short compared with a batch.
constexpr auto poll_interval = std::chrono::microseconds(20);

// Adds the time between its construction and destruction.
class Stopwatch {
  public:
    explicit Stopwatch(double *seconds) : seconds_(seconds), start_(Clock::now()) {}
    Stopwatch(const Stopwatch &) = delete;
    Stopwatch &operator=(const Stopwatch &) = delete;
    ~Stopwatch() { *seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

  private:
    double *seconds_;
    Clock::time_point start_;
};

bool unusual(const RowRun &run) { return run.answers.size() > 1 || run.sequences.size() > 1; }

} // namespace

Placement::Placement(const std::vector<int32_t> &devices,
                     std::vector<std::unique_ptr<Backend>> backends,
                     const SchedulerOptions &scheduling, const RunLimits &limits, RowReader *reader,
                     RowStore *rows, Observers *observers, DraftOptions drafts)
    : limits_(limits), reader_(*reader), rows_(*rows), observers_(*observers),
      masks_(reader->tokenizer()) {
    drafts.tokenizer = reader_.tokenizer();
    for (size_t i = 0; i < backends.size(); ++i) {
        lanes_.push_back(std::make_unique<Lane>(devices[i], std::move(backends[i]), scheduling,
                                                drafts, limits.supply_threads));
        const BackendInfo &info = lanes_.back()->info();
        devices_.push_back({devices[i], info});
        if (!info.warning.empty()) observers_.warn(info.warning);
        const char *no_drafts = why_no_drafts(drafts, info);
        const bool asked = drafts.when != Drafts::off && drafts.when != Drafts::on_gpu;
        if (asked && no_drafts != nullptr && i == 0)
            observers_.warn(std::string("there will be no drafts: ") + no_drafts);
        const std::string states = info.state_slots == 0
                                       ? ""
                                       : std::to_string(info.state_slots) + " state slots of " +
                                             std::to_string(info.state_bytes) + " bytes, ";
        const std::string weights =
            info.weight_bytes == 0
                ? ""
                : "weights take " + format_bytes(static_cast<double>(info.weight_bytes)) + ", ";
        observers_.inform(info.name + " (" + info.compute_type + ", " + info.device +
                          "): " + weights + std::to_string(info.pages) + " KV pages of " +
                          std::to_string(info.page_tokens) + " tokens, " + states +
                          std::to_string(info.step_tokens) + " tokens a step");
    }
}

std::vector<DevicePages> Placement::device_pages() const {
    std::vector<DevicePages> all;
    for (const auto &lane : lanes_) {
        all.push_back({lane->scheduler().longest_request(), lane->info().pages,
                       lane->info().page_tokens, &lane->scheduler(), lane->info().picture_tokens,
                       lane->info().picture_patches});
    }
    return all;
}

// ---- Rows on lanes ----

void Placement::begin_plan() {
    for (const auto &lane : lanes_) lane->scheduler().begin_plan();
}

Status Placement::place(Agenda *agenda) {
    RETURN_IF_ERROR(place_wanted(agenda));
    // Lanes take about as much of the rest each.
    const auto count = static_cast<int64_t>(lanes_.size());
    const RowTokens rest = agenda->at_end() ? RowTokens() : agenda->waiting_tokens();
    for (const auto &lane : lanes_) {
        lane->scheduler().more_to_come(rest.prompt / count, rest.generated / count);
    }
    return {};
}

Status Placement::place_wanted(Agenda *agenda) {
    if (agenda->at_end() || !any_wants_more(lanes_)) return {};
    LaneBalance balance(lanes_, *agenda, limits_);
    while (!agenda->at_end() && balance.wants_more()) {
        RETURN_IF_ERROR(place_group(agenda->next_group(), &balance, agenda));
        agenda->move_on([this](int32_t prefix) {
            for (const auto &lane : lanes_) lane->scheduler().release(prefix);
        });
    }
    return {};
}

Status Placement::place_group(const PlanGroup &group, LaneBalance *balance, Agenda *agenda) {
    const int32_t shared = agenda->length_of(group.prefix);
    for (int64_t row = group.row_begin; row < group.row_end;) {
        const LaneBalance::Part part = balance->choose(group, row);
        Lane *lane = part.work->lane;
        const int64_t before = lane->tokens_to_generate();
        placed_.clear();
        for (; row < part.row_end; ++row) {
            const std::vector<int64_t> ids = agenda->start(row);
            if (!ids.empty()) placed_.push_back(start_run(ids, lane));
        }
        if (placed_.empty()) continue;
        const int32_t missing = missing_tokens(*lane, *agenda, group.prefix);
        RowTokens tokens{missing, lane->tokens_to_generate() - before};
        for (const RowRun *run : placed_) tokens.prompt += run->computed_length - shared;
        balance->add(part.work, tokens);
        observers_.placed(placed_, *lane, shared, missing);
        RETURN_IF_ERROR(queue(lane, *agenda, group.prefix));
    }
    return {};
}

// The run for equal rows.
RowRun *Placement::start_run(const std::vector<int64_t> &rows, Lane *lane) {
    std::unique_ptr<RowRun> made = make_run(&rows_, rows, limits_);
    RowRun *run = made.get();
    run->lane = lane;
    const auto &adapter = run->params->adapter;
    const int32_t number = adapter == nullptr ? -1 : lane->adapters().use(adapter);
    if (adapter != nullptr) adapters_used_.insert(adapter->hash);
    place_pictures(run);
    for (Sequence &sequence : run->sequences) {
        sequence.adapter = number;
        sequence.logical_tokens = logical_tokens(*run, sequence);
        lane->will_generate(sequence.max_tokens);
    }
    runs_.emplace(run, std::move(made));
    rows_deduplicated_ += static_cast<int64_t>(rows.size()) - 1;
    if (unusual(*run)) ++unusual_runs_;
    return run;
}

// Equal rows have the same pictures.
void Placement::place_pictures(RowRun *run) {
    if (run->pictures == nullptr) return;
    for (const RowPictures::Place &place : run->pictures->places) {
        run->placed_pictures.push_back(
            {place.begin, place.length, run->lane->pictures().use(place.source)});
    }
    for (Sequence &sequence : run->sequences) {
        sequence.pictures = run->placed_pictures;
        sequence.rope_positions = &run->pictures->positions;
    }
    row_pictures_ += static_cast<int64_t>(run->pictures->places.size() * run->answers.size());
}

// Queues the requests of placed_, which all belong to one group of the plan.
Status Placement::queue(Lane *lane, const Agenda &agenda, int32_t prefix) {
    const RequestSharing how{limits_.sharing, agenda.prefixes_nested(), lane->info().reproducible};
    for (const RequestGroup &group :
         request_groups(agenda.prefixes(), prefix, placed_, how, &requests_)) {
        RETURN_IF_ERROR(lane->scheduler().add(agenda.prefixes(), group));
    }
    for (; prefix >= 0; prefix = agenda.parent_of(prefix)) {
        if (agenda.needed_later(prefix)) lane->scheduler().keep(prefix);
    }
    return {};
}

// ---- Batches ----

Result<const TokenBatch *> Placement::next_batch(Lane *lane, Agenda *agenda) {
    const Stopwatch watch(&schedule_seconds_);
    observers_.watch().begin("scheduling for device", lane->device());
    RETURN_IF_ERROR(place(agenda));
    return lane->next_batch();
}

Status Placement::submit(Lane *lane, const TokenBatch &batch) {
    observers_.watch().begin("handing a batch to device", lane->device(), &lane->newest().counts);
    return lane->forward(batch);
}

// Makes masks while the device computes the batch.
Status Placement::sample(Lane *lane) {
    observers_.watch().begin("making masks, and sampling, on device", lane->device(),
                             &lane->newest().counts);
    return lane->sample(
        masks_.make(lane->newest(), [this]() -> ThreadPool & { return reader_.pool(); }));
}

// If several are ready, the one that has computed for the shortest time, so that the simulated
// clocks of `sim` stay close together.
Lane *Placement::first_ready() {
    bool waits = false;
    while (true) {
        Lane *best = nullptr;
        int32_t busy = 0;
        Lane *last_busy = nullptr;
        for (const auto &lane : lanes_) {
            if (lane->in_flight() == 0) continue;
            ++busy;
            last_busy = lane.get();
            if (lane->ready() && (best == nullptr || lane->seconds() < best->seconds())) {
                best = lane.get();
            }
        }
        if (best != nullptr || busy <= 1) return best != nullptr ? best : last_busy;
        if (!waits) {
            observers_.watch().begin("waiting for all devices, among them device",
                                     last_busy->device(), &last_busy->record().counts);
        }
        waits = true;
        std::this_thread::sleep_for(poll_interval);
    }
}

Status Placement::collect(Lane *lane) {
    observers_.watch().begin("waiting for device", lane->device(), &lane->record().counts);
    RETURN_IF_ERROR(lane->collect());
    observers_.watch().begin("processing the results of device", lane->device(),
                             &lane->record().counts);
    int64_t pages_of_others = 0;
    for (const auto &other : lanes_) {
        if (other.get() != lane) pages_of_others += other->scheduler().counts().pages_used;
    }
    observers_.collected(*lane, pages_of_others);
    return {};
}

void Placement::finish_batch(Lane *lane) {
    const Stopwatch watch(&schedule_seconds_);
    lane->finish();
}

// ---- Ends of runs ----

std::vector<RowRun *> Placement::runs_with(const Cancels &cancels) const {
    std::vector<RowRun *> named;
    for (const auto &[run, owner] : runs_) {
        const bool any =
            std::any_of(run->answers.begin(), run->answers.end(), [&](const RowRun::Answer &to) {
                return !to.answered && cancels.name(to.tag, to.row);
            });
        if (any) named.push_back(run);
    }
    std::sort(named.begin(), named.end(), [](const RowRun *a, const RowRun *b) {
        return a->answers.front().row < b->answers.front().row;
    });
    return named;
}

void Placement::drop(RowRun *run) {
    for (Sequence &sequence : run->sequences) {
        if (sequence.done) continue;
        sequence.done = true;
        run->lane->will_generate(static_cast<int64_t>(sequence.output.size()) -
                                 sequence.max_tokens);
        run->lane->scheduler().drop(&sequence);
    }
}

void Placement::remove_run(RowRun *run) {
    run->lane->adapters().end_use(run->sequences.front().adapter);
    for (const PromptPicture &picture : run->placed_pictures) {
        run->lane->pictures().end_use(picture.number);
    }
    run->lane->drafts().ended(*run);
    if (unusual(*run)) --unusual_runs_;
    for (const RowRun::Answer &answer : run->answers) rows_.release(answer.row);
    runs_.erase(run);
}

Result<std::vector<RowRun *>> Placement::unreadable_runs(Lane *lane) {
    std::vector<RowRun *> found;
    ASSIGN_OR_RETURN(const bool any_adapter, lane->adapters().take_made());
    ASSIGN_OR_RETURN(const bool any_picture, lane->pictures().take_made());
    if (!any_adapter && !any_picture) return found;
    for (const auto &[run, owner] : runs_) {
        if (run->lane == lane && !why_unreadable(*run).ok()) found.push_back(run);
    }
    std::sort(found.begin(), found.end(), [](const RowRun *a, const RowRun *b) {
        return a->answers.front().row < b->answers.front().row;
    });
    return found;
}

Status Placement::why_unreadable(const RowRun &run) const {
    const int32_t adapter = run.sequences.front().adapter;
    if (adapter >= 0) RETURN_IF_ERROR(run.lane->adapters().failure(adapter));
    for (size_t i = 0; i < run.placed_pictures.size(); ++i) {
        Status failure = run.lane->pictures().failure(run.placed_pictures[i].number);
        if (!failure.ok()) return std::move(failure).within("picture " + std::to_string(i + 1));
    }
    return {};
}

// ---- Devices that fail ----

Lane *Placement::lost_lane() const {
    const auto lost = std::find_if(lanes_.begin(), lanes_.end(),
                                   [](const std::unique_ptr<Lane> &lane) { return lane->lost(); });
    return lost == lanes_.end() ? nullptr : lost->get();
}

Placement::Lost Placement::remove_lane(Lane *lane) {
    std::vector<RowRun *> runs;
    for (const auto &[run, owner] : runs_) {
        if (run->lane == lane) runs.push_back(run);
    }
    Lost lost;
    for (RowRun *run : runs) {
        bool started = false;
        for (const Sequence &sequence : run->sequences) {
            lost.generated += static_cast<int64_t>(sequence.output.size());
            if (!sequence.started) continue;
            started = true;
            lost_.logical_prompt_tokens -= sequence.logical_tokens;
        }
        ++rows_deduplicated_; // one of its rows without a result was computed
        if (unusual(*run)) --unusual_runs_;
        for (const RowRun::Answer &answer : run->answers) {
            if (answer.answered) { // cancelled, so its count stays
                if (started) lost_.logical_prompt_tokens += logical_tokens(*run, answer);
                rows_.release(answer.row);
                continue;
            }
            --rows_deduplicated_;
            Row &row = *rows_.find(answer.row);
            row.state = RowState::waiting;
            row.follower = false;
            row.next_equal = -1;
            ++lost.rows;
        }
        runs_.erase(run);
    }
    add_to(*lane, &lost_);
    std::erase_if(lanes_, [&](const std::unique_ptr<Lane> &other) { return other.get() == lane; });
    return lost;
}

// ---- Counts ----

// A row runs if one of its requests does. If every run is one row with one request, as most are,
// the schedulers' count is the number of rows.
int64_t Placement::rows_running() const {
    int64_t rows = 0;
    if (unusual_runs_ == 0) {
        for (const auto &lane : lanes_) rows += lane->scheduler().running();
        return rows;
    }
    for (const auto &[run, owner] : runs_) {
        const bool runs =
            std::any_of(run->sequences.begin(), run->sequences.end(), [](const Sequence &sequence) {
                return sequence.state != RequestState::waiting;
            });
        if (!runs) continue;
        rows += std::count_if(run->answers.begin(), run->answers.end(),
                              [](const RowRun::Answer &answer) { return !answer.answered; });
    }
    return rows;
}

int64_t Placement::pages_used() const {
    int64_t pages = 0;
    for (const auto &lane : lanes_) pages += lane->scheduler().counts().pages_used;
    return pages;
}

int64_t Placement::pages() const {
    int64_t pages = 0;
    for (const auto &lane : lanes_) pages += lane->info().pages;
    return pages;
}

RowTokens Placement::tokens_left() const {
    RowTokens left;
    for (const auto &lane : lanes_) {
        left.prompt += lane->scheduler().prompt_tokens_left();
        left.generated += lane->tokens_to_generate();
    }
    return left;
}

double Placement::device_seconds() const {
    double seconds = 0;
    for (const auto &lane : lanes_) seconds = std::max(seconds, lane->seconds());
    return seconds;
}

MaskWork Placement::mask_work() const {
    MaskWork work = masks_.work();
    for (const auto &lane : lanes_) work.waited += lane->waited_for_masks();
    return work;
}

void Placement::forget_group_runs() {
    for (auto &[key, run] : runs_) run->group_run = nullptr;
}

void Placement::add_to(const Lane &lane, batchllm_stats *stats) const {
    stats->logical_prompt_tokens += lane.scheduler().started_tokens();
    stats->kv_pages_total += lane.info().pages;
    stats->kv_pages_peak += lane.scheduler().pages_peak();
    stats->state_slots_total += lane.info().state_slots;
    stats->state_slots_peak += lane.scheduler().states_peak();
    stats->adapter_loads += lane.adapters().loads();
    stats->adapter_load_bytes += lane.adapters().loaded_bytes();
    stats->adapter_bytes_peak += std::max(lane.scheduler().adapters().bytes_peak(),
                                          lane.backend()->adapter_use().bytes_peak);
    stats->adapter_wait_seconds += lane.adapters().waited();
    stats->picture_loads += lane.pictures().loads();
    stats->picture_prepare_seconds += lane.pictures().make_seconds();
    stats->picture_wait_seconds += lane.pictures().waited();
    stats->backend_seconds = std::max(stats->backend_seconds, lane.seconds());
}

void Placement::add_to(batchllm_stats *stats) const {
    stats->kv_pages_total += lost_.kv_pages_total;
    stats->kv_pages_peak += lost_.kv_pages_peak;
    stats->state_slots_total += lost_.state_slots_total;
    stats->state_slots_peak += lost_.state_slots_peak;
    stats->adapters += static_cast<int64_t>(adapters_used_.size());
    stats->adapter_loads += lost_.adapter_loads;
    stats->adapter_load_bytes += lost_.adapter_load_bytes;
    stats->adapter_bytes_peak += lost_.adapter_bytes_peak;
    stats->adapter_wait_seconds += lost_.adapter_wait_seconds;
    stats->row_pictures += row_pictures_;
    stats->picture_loads += lost_.picture_loads;
    stats->picture_prepare_seconds += lost_.picture_prepare_seconds;
    stats->picture_wait_seconds += lost_.picture_wait_seconds;
    stats->backend_seconds = std::max(stats->backend_seconds, lost_.backend_seconds);
    for (const auto &lane : lanes_) add_to(*lane, stats);
    stats->kv_page_bytes = devices_.front().info.page_bytes;
    stats->state_slot_bytes = devices_.front().info.state_bytes;
    stats->rows_deduplicated += rows_deduplicated_;
    stats->logical_prompt_tokens += lost_.logical_prompt_tokens;
    stats->schedule_seconds += schedule_seconds_;
}

} // namespace batchllm
