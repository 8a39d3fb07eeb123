// Groups of the plan -> jobs, placed on the lanes a few at a time.
//
// Requests are created only shortly before a scheduler needs them; until then, a row takes only its
// Row and its place in the plan. A step admits at most one request per token, so a lane with as
// many waiting requests as a step has tokens never runs short. Nor does a lane with prompt tokens
// for two steps, one of which may be in flight. That is usually fewer requests, so with several
// lanes it is the limit: rows that have not been placed can still go to any lane.
//
// A group goes to the lane with the least work left, counted in tokens: prompt tokens to compute
// plus tokens expected to be generated. So while there are groups to place, the lanes stay balanced
// even if the expected lengths are wrong. Near the end, a group may be more than a lane's fair
// share of the remaining work. Its rows are then split between lanes, if that saves more than
// computing the prefix again costs.
//
// Groups below a common head prefer a lane that already has it. Another lane computes the head as
// well once it would otherwise fall behind by many times the head's tokens. So a small head stays
// on one lane, and a head with most of the rows is on all of them. A lane keeps a head until the
// head's last group has been placed, even if that happens in a later call.
#include <algorithm>

#include "runtime/engine.h"
#include "runtime/request_groups.h"

namespace batchllm {

namespace {

// A head is computed again if that balances at least this many times its tokens.
constexpr double head_again = 16;

// Whether a lane with this much work needs more.
bool wants_more(const Lane &lane, bool alone, int64_t waiting, int64_t prompt_tokens) {
    const int64_t enough = std::max<int64_t>(lane.info().step_tokens, 256);
    return waiting < enough && (alone || prompt_tokens < 2 * enough);
}

} // namespace

// A lane, and the work that it has.
struct Engine::LaneShare {
    Lane *lane;
    int64_t prompt_tokens; // that the lane has to compute
    double load;           // work left on the lane
};

// Decides where groups go, during one call of place_groups().
class Engine::Placement {
  public:
    explicit Placement(Engine *engine);

    bool wanted() const;
    Status place_group(const PlanGroup &group);

  private:
    struct Part {
        LaneShare *share;
        int64_t row_end;
    };
    Part choose(const PlanGroup &group, int64_t row_begin);
    LaneShare *lane_for(const PlanGroup &group);
    Status place_rows(LaneShare *share, const PlanGroup &group, int64_t row_begin, int64_t row_end);
    Status queue(Lane *lane, int32_t prefix);
    int32_t length_of(int32_t prefix) const;
    int32_t missing_tokens(const Lane &lane, int32_t prefix) const;
    double work_of(int64_t place, int64_t shared) const;

    Engine &engine_;
    double expected_share_ = 1; // share of max_tokens that a row is expected to generate
    double fair_ = 0;           // load of each lane once everything has been placed
    std::vector<LaneShare> shares_;
    std::vector<Job *> jobs_;         // scratch
    std::vector<Request *> requests_; // scratch
};

Engine::Placement::Placement(Engine *engine) : engine_(*engine) {
    const auto lanes = static_cast<double>(engine_.lanes_.size());
    double expected_share = 0;
    int64_t generation = engine_.intake_.generation; // of rows that are on no lane
    for (const auto &lane : engine_.lanes_) {
        expected_share += lane->scheduler().expected_length_share();
        generation -= lane->generation;
    }
    expected_share_ = expected_share / lanes;
    double load = static_cast<double>(engine_.plan_tokens_left_) +
                  expected_share_ * static_cast<double>(generation);
    for (const auto &lane : engine_.lanes_) {
        const int64_t prompt_tokens = lane->scheduler().prompt_tokens_left();
        shares_.push_back({lane.get(), prompt_tokens,
                           static_cast<double>(prompt_tokens) +
                               expected_share_ * static_cast<double>(lane->generation)});
        load += shares_.back().load;
    }
    fair_ = load / lanes;
}

bool Engine::Placement::wanted() const {
    return std::any_of(shares_.begin(), shares_.end(), [this](const LaneShare &share) {
        return wants_more(*share.lane, shares_.size() == 1, share.lane->scheduler().waiting(),
                          share.prompt_tokens);
    });
}

Status Engine::Placement::place_group(const PlanGroup &group) {
    for (int64_t row = group.row_begin; row < group.row_end;) {
        const Part part =
            shares_.size() == 1 ? Part{shares_.data(), group.row_end} : choose(group, row);
        RETURN_IF_ERROR(place_rows(part.share, group, row, part.row_end));
        row = part.row_end;
    }
    return {};
}

int32_t Engine::Placement::length_of(int32_t prefix) const {
    return prefix < 0 ? 0 : engine_.plan_.prefixes[static_cast<size_t>(prefix)].length;
}

// How many of the prefix's tokens the lane would have to compute.
int32_t Engine::Placement::missing_tokens(const Lane &lane, int32_t prefix) const {
    const int32_t length = length_of(prefix);
    while (prefix >= 0 && !lane.scheduler().has(prefix)) {
        prefix = engine_.plan_.prefixes[static_cast<size_t>(prefix)].parent;
    }
    return length - length_of(prefix);
}

// The lane with the least work. Below a head, a lane that has the head, unless the others fall too
// far behind it.
Engine::LaneShare *Engine::Placement::lane_for(const PlanGroup &group) {
    LaneShare *least = nullptr, *nearest = nullptr;
    int64_t missing = 0; // tokens of the group's prefix that the least loaded lane lacks
    for (LaneShare &share : shares_) {
        if (least == nullptr || share.load < least->load) least = &share;
    }
    if (group.prefix < 0 || engine_.last_group_of_.empty()) return least;
    missing = missing_tokens(*least->lane, group.prefix);
    for (LaneShare &share : shares_) {
        if (missing_tokens(*share.lane, group.prefix) >= missing) continue;
        if (nearest == nullptr || share.load < nearest->load) nearest = &share;
    }
    if (nearest == nullptr) return least;
    const auto head = static_cast<double>(missing - missing_tokens(*nearest->lane, group.prefix));
    const auto queued = static_cast<double>(2 * least->lane->info().step_tokens);
    // Near the end there are no more groups to even out a lane's surplus.
    const double lag = nearest->load < fair_ ? std::max(head_again * head, queued) : head;
    return nearest->load - least->load > lag ? least : nearest;
}

// The lane for the group's next rows, and how many of them it takes.
Engine::Placement::Part Engine::Placement::choose(const PlanGroup &group, int64_t row_begin) {
    LaneShare *to = lane_for(group);
    const int64_t shared = length_of(group.prefix);
    const double room =
        fair_ - to->load - static_cast<double>(missing_tokens(*to->lane, group.prefix));
    double work = 0;
    int64_t fitting = row_begin + 1;
    for (int64_t row = row_begin; row < group.row_end; ++row) {
        work += work_of(row, shared);
        if (work <= room) fitting = row + 1;
    }
    const auto again = static_cast<double>(shared);
    if (fitting == group.row_end || work - room <= again) return {to, group.row_end};
    fair_ += again / static_cast<double>(shares_.size());
    return {to, fitting};
}

// The tokens to compute for the row at this place of the plan, beyond the prefix.
double Engine::Placement::work_of(int64_t place, int64_t shared) const {
    const int64_t id =
        engine_.plan_ids_[static_cast<size_t>(engine_.plan_.rows[static_cast<size_t>(place)])];
    const Row *row = id < 0 ? nullptr : engine_.intake_.rows.find(id);
    if (row == nullptr || row->follower || row->state != RowState::waiting) return 0;
    return static_cast<double>(row->computed_length() - shared) +
           expected_share_ * static_cast<double>(engine_.generation_of(*row));
}

Status Engine::Placement::place_rows(LaneShare *share, const PlanGroup &group, int64_t row_begin,
                                     int64_t row_end) {
    jobs_.clear();
    const int64_t generation = share->lane->generation;
    for (int64_t i = row_begin; i < row_end; ++i) {
        const int64_t id =
            engine_.plan_ids_[static_cast<size_t>(engine_.plan_.rows[static_cast<size_t>(i)])];
        const Row *row = id < 0 ? nullptr : engine_.intake_.rows.find(id);
        if (row == nullptr || row->follower || row->state == RowState::started) continue;
        if (Job *job = engine_.start_job(id, share->lane)) jobs_.push_back(job);
    }
    if (jobs_.empty()) return {};
    const int64_t shared = length_of(group.prefix);
    const int32_t missing = missing_tokens(*share->lane, group.prefix);
    int64_t tokens = missing;
    for (const Job *job : jobs_) tokens += job->computed_length - shared;
    share->prompt_tokens += tokens;
    share->load += static_cast<double>(tokens) +
                   expected_share_ * static_cast<double>(share->lane->generation - generation);
    if (engine_.report_ != nullptr) engine_.report_group(jobs_, shared, missing);
    return queue(share->lane, group.prefix);
}

// Queues the jobs' requests. Prefixes that groups after this one continue stay on the lane.
Status Engine::Placement::queue(Lane *lane, int32_t prefix) {
    const bool nested = !engine_.last_group_of_.empty();
    const std::vector<PlanPrefix> &prefixes = engine_.plan_.prefixes;
    const RequestSharing how{engine_.sharing(), nested, lane->info().reproducible};
    for (const RequestGroup &group : request_groups(prefixes, prefix, jobs_, how, &requests_)) {
        RETURN_IF_ERROR(lane->scheduler().add(prefixes, group));
    }
    for (; nested && prefix >= 0; prefix = prefixes[static_cast<size_t>(prefix)].parent) {
        if (engine_.last_group_of_[static_cast<size_t>(prefix)] > engine_.next_group_) {
            lane->scheduler().keep(prefix);
        }
    }
    return {};
}

Status Engine::place_groups() {
    const int64_t groups = static_cast<int64_t>(plan_.groups.size());
    const auto wants = [this](const std::unique_ptr<Lane> &lane) {
        const Scheduler &scheduler = lane->scheduler();
        return wants_more(*lane, lanes_.size() == 1, scheduler.waiting(),
                          scheduler.prompt_tokens_left());
    };
    if (next_group_ == groups || std::none_of(lanes_.begin(), lanes_.end(), wants)) return {};

    Placement placement(this);
    while (next_group_ < groups && placement.wanted()) {
        const PlanGroup &group = plan_.groups[static_cast<size_t>(next_group_)];
        stats_.groups += group.prefix >= 0;
        RETURN_IF_ERROR(placement.place_group(group));
        plan_tokens_left_ -= tokens_of_group(group);
        for (int32_t prefix = group.prefix; prefix >= 0 && !last_group_of_.empty();) {
            if (last_group_of_[static_cast<size_t>(prefix)] == next_group_) {
                for (const auto &lane : lanes_) lane->scheduler().release(prefix);
            }
            prefix = plan_.prefixes[static_cast<size_t>(prefix)].parent;
        }
        ++next_group_;
    }
    return {};
}

// The job for a row and the rows equal to it; null if all of them have been answered.
Job *Engine::start_job(int64_t id, Lane *lane) {
    std::vector<int64_t> live;
    std::vector<int64_t> ended;
    for (int64_t next = id; next >= 0;) {
        const Row &row = *intake_.rows.find(next);
        (row.state == RowState::waiting ? live : ended).push_back(next);
        next = row.next_equal;
    }
    for (const int64_t gone : ended) intake_.rows.release(gone);
    if (live.empty()) return nullptr;

    std::unique_ptr<Job> job = make_job(
        &intake_.rows, live, {max_request_tokens_, options_.seed, tokenizer_.get(), sharing()});
    Job *started = job.get();
    started->lane = lane;
    for (const Sequence &sequence : started->sequences) lane->generation += sequence.max_tokens;
    jobs_.emplace(started, std::move(job));
    for (size_t i = 0; i < live.size(); ++i) {
        Row &row = *intake_.rows.find(live[i]);
        row.state = RowState::started;
        if (i == 0) continue;
        ++stats_.rows_deduplicated;
        intake_.generation -= generation_of(row);
    }
    if (started->answers.size() > 1 || started->sequences.size() > 1) ++unusual_jobs_;
    stats_.logical_prompt_tokens += logical_tokens(*started);
    return started;
}

// The prompt tokens of a group. Each prefix counts with the first group that needs it.
int64_t Engine::tokens_of_group(const PlanGroup &group) {
    int64_t tokens = 0;
    const int64_t shared =
        group.prefix < 0 ? 0 : plan_.prefixes[static_cast<size_t>(group.prefix)].length;
    for (int64_t i = group.row_begin; i < group.row_end; ++i) {
        const size_t row = static_cast<size_t>(plan_.rows[static_cast<size_t>(i)]);
        tokens += plan_.lengths[row] - shared;
    }
    for (int32_t prefix = group.prefix; prefix >= 0;) {
        char &counted = prefix_counted_[static_cast<size_t>(prefix)];
        if (counted) break;
        counted = 1;
        const PlanPrefix &part = plan_.prefixes[static_cast<size_t>(prefix)];
        tokens += part.length;
        if (part.parent >= 0) tokens -= plan_.prefixes[static_cast<size_t>(part.parent)].length;
        prefix = part.parent;
    }
    return tokens;
}

int64_t Engine::generation_of(const Row &row) const {
    return row.task() == Task::generate ? generation_of(*row.params, row.length) : 0;
}

int64_t Engine::generation_of(const PreparedParams &params, int64_t prompt_length) const {
    if (params.task != Task::generate) return 0;
    return int64_t{clipped_max_tokens(params, prompt_length, max_request_tokens_)} *
           computed_samples(params, sharing());
}

} // namespace batchllm
