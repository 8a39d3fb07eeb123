#include "runtime/lane_balance.h"

#include <algorithm>

namespace batchllm {
namespace {

// A common prefix is computed again if that balances at least this many times its tokens.
constexpr double prefix_again = 16;

// Rows are placed only shortly before a scheduler needs them; until then, a row takes only its Row
// and its place in the plan. A step admits at most one request per token, so a lane with as many
// waiting requests as a step has tokens never runs short. Nor does a lane with prompt tokens for
// two steps, one of which may be in flight. That is usually fewer requests, so with several lanes
// it is the limit: rows that have not been placed can still go to any lane.
bool wants_more(const Lane &lane, bool alone, int64_t prompt_tokens) {
    const int64_t enough = std::max<int64_t>(lane.info().step_tokens, 256);
    return lane.scheduler().waiting() < enough && (alone || prompt_tokens < 2 * enough);
}

} // namespace

bool any_wants_more(const Lanes &lanes) {
    return std::any_of(lanes.begin(), lanes.end(), [&](const std::unique_ptr<Lane> &lane) {
        return wants_more(*lane, lanes.size() == 1, lane->scheduler().prompt_tokens_left());
    });
}

int32_t missing_tokens(const Lane &lane, const Agenda &agenda, int32_t prefix) {
    const int32_t length = agenda.length_of(prefix);
    while (prefix >= 0 && !lane.scheduler().has(prefix)) prefix = agenda.parent_of(prefix);
    return length - agenda.length_of(prefix);
}

LaneBalance::LaneBalance(const Lanes &lanes, const Agenda &agenda, const RunLimits &limits)
    : agenda_(agenda), limits_(limits) {
    const auto count = static_cast<double>(lanes.size());
    double expected_share = 0;
    for (const auto &lane : lanes) expected_share += lane->scheduler().expected_length_share();
    expected_share_ = expected_share / count;
    const RowTokens &waiting = agenda.waiting_tokens();
    double all = static_cast<double>(waiting.prompt) +
                 expected_share_ * static_cast<double>(waiting.generated);
    for (const auto &lane : lanes) {
        const int64_t prompt_tokens = lane->scheduler().prompt_tokens_left();
        lanes_.push_back({lane.get(), prompt_tokens,
                          static_cast<double>(prompt_tokens) +
                              expected_share_ * static_cast<double>(lane->tokens_to_generate())});
        all += lanes_.back().tokens;
    }
    fair_ = all / count;
}

bool LaneBalance::wants_more() const {
    return std::any_of(lanes_.begin(), lanes_.end(), [this](const LaneWork &work) {
        return batchllm::wants_more(*work.lane, lanes_.size() == 1, work.prompt_tokens);
    });
}

// The lane with the least work. Of groups that continue a common prefix, a lane that has it, unless
// the others fall too far behind it. An adapter that a lane lacks counts as one token.
LaneBalance::LaneWork *LaneBalance::lane_for(const PlanGroup &group, int64_t row_begin) {
    LaneWork *least = nullptr, *nearest = nullptr;
    for (LaneWork &work : lanes_) {
        if (least == nullptr || work.tokens < least->tokens) least = &work;
    }
    const Row *row = agenda_.row_at(row_begin); // a group's rows have the same adapter
    const AdapterSource *adapter = row == nullptr ? nullptr : row->params->adapter.get();
    const bool nested = group.prefix >= 0 && agenda_.prefixes_nested();
    if (!nested && adapter == nullptr) return least;
    const auto missing_on = [&](const LaneWork &work) {
        const int32_t tokens = nested ? missing_tokens(*work.lane, agenda_, group.prefix) : 0;
        return tokens + (adapter != nullptr && !work.lane->adapters().knows(*adapter) ? 1 : 0);
    };
    const int32_t missing = missing_on(*least);
    for (LaneWork &work : lanes_) {
        if (missing_on(work) >= missing) continue;
        if (nearest == nullptr || work.tokens < nearest->tokens) nearest = &work;
    }
    if (nearest == nullptr) return least;
    const auto saved = static_cast<double>(missing - missing_on(*nearest));
    const auto queued = static_cast<double>(2 * least->lane->info().step_tokens);
    // Near the end there are no more groups to even out a lane's surplus.
    const double lag = nearest->tokens < fair_ ? std::max(prefix_again * saved, queued) : saved;
    return nearest->tokens - least->tokens > lag ? least : nearest;
}

LaneBalance::Part LaneBalance::choose(const PlanGroup &group, int64_t row_begin) {
    if (lanes_.size() == 1) return {lanes_.data(), group.row_end};
    LaneWork *to = lane_for(group, row_begin);
    const int64_t shared = agenda_.length_of(group.prefix);
    const double room =
        fair_ - to->tokens - static_cast<double>(missing_tokens(*to->lane, agenda_, group.prefix));
    double work = 0;
    int64_t fitting = row_begin + 1;
    for (int64_t row = row_begin; row < group.row_end; ++row) {
        work += work_of(row, shared);
        if (work <= room) fitting = row + 1;
    }
    const auto again = static_cast<double>(shared);
    if (fitting == group.row_end || work - room <= again) return {to, group.row_end};
    fair_ += again / static_cast<double>(lanes_.size());
    return {to, fitting};
}

// The tokens to compute for the row at this place of the plan, beyond the prefix.
double LaneBalance::work_of(int64_t place, int64_t shared) const {
    const Row *row = agenda_.row_at(place);
    if (row == nullptr) return 0;
    return static_cast<double>(row->computed_length() - shared) +
           expected_share_ * static_cast<double>(most_generated(*row, limits_));
}

void LaneBalance::add(LaneWork *work, const RowTokens &tokens) const {
    work->prompt_tokens += tokens.prompt;
    work->tokens += static_cast<double>(tokens.prompt) +
                    expected_share_ * static_cast<double>(tokens.generated);
}

} // namespace batchllm
