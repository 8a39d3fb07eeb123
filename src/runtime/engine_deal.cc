// Groups of the plan -> jobs, dealt to the lanes a few at a time.
//
// Requests are made only when a scheduler is about to want them: a row that waits costs its Row and
// its place in the plan. A step admits at most one request a token, so that a lane with as many waiting
// requests as a step has tokens never runs short. Neither does one that holds twice a step's prompt
// tokens, of which one step's may be in flight: that is mostly fewer requests, which several lanes hold
// so that little is dealt before it must be.
//
// A group goes to the lane with the least work left, counted in tokens: prompt tokens to compute, and
// tokens to generate as far as they are expected. So the lanes stay level however wrong a guess about
// some row's length was, as long as there are groups to deal. Near the end a group may be more than a
// lane's fair share of all that is left: then its rows are split between lanes, where that is more than
// the prefix costs that each of them computes.
#include <algorithm>
#include <unordered_map>

#include "runtime/engine.h"
#include "runtime/slice.h"

namespace batchllm {

namespace {

// Whether a lane with so much to do can do with more.
bool wants_more(const Lane &lane, bool alone, int64_t waiting, int64_t prompt_tokens) {
    const int64_t enough = std::max<int64_t>(lane.info().step_tokens, 256);
    return waiting < enough && (alone || prompt_tokens < 2 * enough);
}

} // namespace

// What one lane is dealt in one call.
struct Engine::Hand {
    Lane *lane;
    Slice slice;
    int64_t prompt_tokens; // that the lane has to compute, with those of the slice
    double load;           // its work left, with that of the slice
};

// Where groups go. Exists for one call of deal().
class Engine::Dealer {
  public:
    explicit Dealer(Engine *engine);

    bool wanted() const;
    void deal_group(const PlanGroup &group);
    Status hand_over();

  private:
    struct Part {
        Hand *hand;
        int64_t row_end;
    };
    Part choose(const PlanGroup &group, int64_t row_begin);
    void give(Hand *hand, const PlanGroup &group, int64_t row_begin, int64_t row_end);
    double work_of(int64_t place, int64_t shared) const;

    Engine &engine_;
    double share_ = 1; // of max_tokens, that a row is expected to generate
    double fair_ = 0;  // load of each lane when all has been dealt
    std::vector<Hand> hands_;
    std::unordered_map<int64_t, size_t> homes_; // last group below a head -> hand that has the head
    std::vector<Job *> jobs_;                   // scratch
};

Engine::Dealer::Dealer(Engine *engine) : engine_(*engine) {
    const auto lanes = static_cast<double>(engine_.lanes_.size());
    double share = 0;
    int64_t generation = engine_.intake_.generation; // of rows that no lane has
    for (const auto &lane : engine_.lanes_) {
        share += lane->scheduler().expected_length_share();
        generation -= lane->generation;
    }
    share_ = share / lanes;
    double load =
        static_cast<double>(engine_.plan_tokens_left_) + share_ * static_cast<double>(generation);
    for (const auto &lane : engine_.lanes_) {
        const int64_t prompt_tokens = lane->scheduler().prompt_tokens_left();
        hands_.push_back(
            {lane.get(), Slice(engine_.plan_, engine_.sharing()), prompt_tokens,
             static_cast<double>(prompt_tokens) + share_ * static_cast<double>(lane->generation)});
        load += hands_.back().load;
    }
    fair_ = load / lanes;
}

bool Engine::Dealer::wanted() const {
    return std::any_of(hands_.begin(), hands_.end(), [this](const Hand &hand) {
        return wants_more(*hand.lane, hands_.size() == 1,
                          hand.lane->scheduler().waiting() + hand.slice.size(), hand.prompt_tokens);
    });
}

void Engine::Dealer::deal_group(const PlanGroup &group) {
    for (int64_t row = group.row_begin; row < group.row_end;) {
        const Part part =
            hands_.size() == 1 ? Part{hands_.data(), group.row_end} : choose(group, row);
        give(part.hand, group, row, part.row_end);
        row = part.row_end;
    }
}

// The lane for the group's next rows, and how many of them it takes.
Engine::Dealer::Part Engine::Dealer::choose(const PlanGroup &group, int64_t row_begin) {
    const auto less = [](const Hand &a, const Hand &b) { return a.load < b.load; };
    Hand *to = &*std::min_element(hands_.begin(), hands_.end(), less);
    // A common head stays where it is computed, while that is fair.
    if (group.prefix >= 0 && !engine_.last_group_of_.empty()) {
        const int64_t root = engine_.last_group_of_[static_cast<size_t>(group.prefix)];
        const auto least = static_cast<size_t>(to - hands_.data());
        size_t &home = homes_.try_emplace(root, least).first->second;
        if (hands_[home].load >= fair_) home = least;
        to = &hands_[home];
    }
    const int64_t shared = to->slice.length_of(group.prefix);
    const double room =
        fair_ - to->load - static_cast<double>(to->slice.new_prefix_tokens(group.prefix));
    double work = 0;
    int64_t fitting = row_begin + 1;
    for (int64_t row = row_begin; row < group.row_end; ++row) {
        work += work_of(row, shared);
        if (work <= room) fitting = row + 1;
    }
    const auto again = static_cast<double>(shared);
    if (fitting == group.row_end || work - room <= again) return {to, group.row_end};
    fair_ += again / static_cast<double>(hands_.size());
    return {to, fitting};
}

// Tokens to compute for the row at this place of the plan, beyond the prefix.
double Engine::Dealer::work_of(int64_t place, int64_t shared) const {
    const int64_t id =
        engine_.plan_ids_[static_cast<size_t>(engine_.plan_.rows[static_cast<size_t>(place)])];
    const Row *row = id < 0 ? nullptr : engine_.intake_.rows.find(id);
    if (row == nullptr || row->follower || row->state != RowState::waiting) return 0;
    return static_cast<double>(row->length - shared) +
           share_ * static_cast<double>(engine_.generation_of(*row));
}

void Engine::Dealer::give(Hand *hand, const PlanGroup &group, int64_t row_begin, int64_t row_end) {
    jobs_.clear();
    const int64_t generation = hand->lane->generation;
    for (int64_t i = row_begin; i < row_end; ++i) {
        const int64_t id =
            engine_.plan_ids_[static_cast<size_t>(engine_.plan_.rows[static_cast<size_t>(i)])];
        const Row *row = id < 0 ? nullptr : engine_.intake_.rows.find(id);
        if (row == nullptr || row->follower || row->state == RowState::started) continue;
        if (Job *job = engine_.start_job(id, hand->lane)) jobs_.push_back(job);
    }
    if (jobs_.empty()) return;
    const int64_t shared = hand->slice.length_of(group.prefix);
    int64_t tokens = hand->slice.new_prefix_tokens(group.prefix);
    for (const Job *job : jobs_) tokens += job->prompt_length - shared;
    hand->prompt_tokens += tokens;
    hand->load += static_cast<double>(tokens) +
                  share_ * static_cast<double>(hand->lane->generation - generation);
    hand->slice.add_group(group, jobs_);
}

Status Engine::Dealer::hand_over() {
    for (const Hand &hand : hands_) {
        if (hand.slice.empty()) continue;
        RETURN_IF_ERROR(hand.lane->scheduler().add(hand.slice.plan(), hand.slice.requests()));
    }
    return {};
}

Status Engine::deal() {
    const int64_t groups = static_cast<int64_t>(plan_.groups.size());
    const auto wants = [this](const std::unique_ptr<Lane> &lane) {
        const Scheduler &scheduler = lane->scheduler();
        return wants_more(*lane, lanes_.size() == 1, scheduler.waiting(),
                          scheduler.prompt_tokens_left());
    };
    if (next_group_ == groups || std::none_of(lanes_.begin(), lanes_.end(), wants)) return {};

    Dealer dealer(this);
    int64_t keep_together_until = -1; // groups up to it have a common head with one that was dealt
    while (next_group_ < groups && (next_group_ <= keep_together_until || dealer.wanted())) {
        const PlanGroup &group = plan_.groups[static_cast<size_t>(next_group_)];
        if (group.prefix >= 0) {
            ++stats_.groups;
            // Dealt in one call, so that the head is computed once.
            if (!last_group_of_.empty()) {
                keep_together_until = std::max(keep_together_until,
                                               last_group_of_[static_cast<size_t>(group.prefix)]);
            }
        }
        dealer.deal_group(group);
        plan_tokens_left_ -= tokens_of_group(group);
        ++next_group_;
    }
    return dealer.hand_over();
}

// The job of a row and the rows that equal it, unless all of them have been answered.
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

// Prompt tokens of a group, each prefix with the first group that needs it.
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
    return row.score != nullptr ? 0 : generation_of(*row.params, row.length);
}

int64_t Engine::generation_of(const SamplingParams &params, int64_t prompt_length) const {
    return int64_t{clipped_max_tokens(params, prompt_length, max_request_tokens_)} *
           computed_samples(params, sharing());
}

} // namespace batchllm
