#include "runtime/agenda.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/printable.h"
#include "image/decode_row.h"

namespace batchllm {
namespace {

using Clock = std::chrono::steady_clock;

int32_t expected_length(const Row &row, int64_t max_request_tokens) {
    if (row.task() != Task::generate) return 1;
    return clipped_max_tokens(*row.params, row.length, max_request_tokens);
}

} // namespace

Status Agenda::use(const Plan &plan) {
    const uint64_t theirs = plan.options.tokenizer_fingerprint;
    const uint64_t ours = options_.tokenizer_fingerprint;
    if (theirs != 0 && ours != 0 && theirs != ours) {
        return error(
            BATCHLLM_ERROR_PLAN_MISMATCH,
            "the plan was made with another tokenizer (fingerprint %016llx, the model's is "
            "%016llx)",
            static_cast<unsigned long long>(theirs), static_cast<unsigned long long>(ours));
    }
    given_ = plan;
    return {};
}

Result<Plan> Agenda::get() const {
    if (!planned_) {
        return error(BATCHLLM_ERROR_STATE, "no rows have been planned yet: add rows and call "
                                           "batchllm_build_groups first");
    }
    return plan_;
}

// ---- Planning ----

int64_t Agenda::id_at(int64_t place) const {
    return ids_[static_cast<size_t>(plan_.rows[static_cast<size_t>(place)])];
}

// The rows of the old plan that have not been placed, in the plan's order. Rows that were answered
// while they waited are appended to *answered.
std::vector<int64_t> Agenda::rows_left(std::vector<int64_t> *answered) const {
    std::vector<int64_t> rows;
    for (size_t g = static_cast<size_t>(next_group_); g < plan_.groups.size(); ++g) {
        for (int64_t i = plan_.groups[g].row_begin; i < plan_.groups[g].row_end; ++i) {
            const int64_t id = id_at(i);
            const Row *row = id < 0 ? nullptr : rows_.find(id);
            if (row == nullptr || row->state == RowState::started) continue;
            if (row->state == RowState::waiting) {
                rows.push_back(plan_.rows[static_cast<size_t>(i)]);
            } else {
                answered->push_back(id);
            }
        }
    }
    return rows;
}

// A row that cannot be computed has no tokens; if it has been released, its id becomes -1.
TokenRow Agenda::token_row(int64_t *id) const {
    const Row *row = *id < 0 ? nullptr : rows_.find(*id);
    if (row == nullptr) *id = -1;
    if (row == nullptr || row->state != RowState::waiting) return {nullptr, 0, 0};
    return row->token_row();
}

// The plan passed to use(), after the rest of the old one; empty if it is not exactly a plan for
// the new rows.
std::optional<Agenda::PlannedRows> Agenda::take_over(const Plan &given,
                                                     const std::vector<int64_t> &unplanned,
                                                     const std::vector<int64_t> &left) const {
    PlannedRows taken;
    std::vector<int64_t> ids = unplanned;
    if (left.size() + ids.size() >= INT32_MAX) return std::nullopt;
    std::vector<TokenRow> token_rows;
    token_rows.reserve(ids.size());
    for (int64_t &id : ids) token_rows.push_back(token_row(&id));
    if (!is_plan_of(given, token_rows, options_)) return std::nullopt;

    std::vector<int64_t> number(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
        number[i] = token_rows[i].tokens == nullptr ? -1 : static_cast<int64_t>(i);
    }
    taken.plan = renumbered(given, 0, number, static_cast<int64_t>(ids.size()));
    taken.plan.options.tokenizer_fingerprint = options_.tokenizer_fingerprint;
    PlanAdvice advice = given.advice;
    advice.row += static_cast<int64_t>(left.size());
    if (!left.empty()) {
        number.assign(ids_.size(), -1);
        for (size_t i = 0; i < left.size(); ++i) {
            number[static_cast<size_t>(left[i])] = static_cast<int64_t>(i);
            taken.ids.push_back(ids_[static_cast<size_t>(left[i])]);
        }
        taken.plan = joined(renumbered(plan_, static_cast<size_t>(next_group_), number,
                                       static_cast<int64_t>(left.size())),
                            taken.plan);
    }
    taken.plan.advice = advice;
    taken.ids.insert(taken.ids.end(), ids.begin(), ids.end());
    return taken;
}

// Plans the rows left from the old plan, in order of addition, and then the new rows. A row that
// cannot be computed keeps its number in the plan, as a row without tokens.
Result<Agenda::PlannedRows> Agenda::plan_rows(const std::vector<int64_t> &unplanned,
                                              const std::vector<int64_t> &left,
                                              const Plan *given) const {
    PlannedRows planned;
    for (const int64_t row : left) planned.ids.push_back(ids_[static_cast<size_t>(row)]);
    std::sort(planned.ids.begin(), planned.ids.end());
    planned.ids.insert(planned.ids.end(), unplanned.begin(), unplanned.end());
    std::vector<TokenRow> token_rows;
    std::vector<int32_t> decode_lengths;
    token_rows.reserve(planned.ids.size());
    decode_lengths.reserve(planned.ids.size());
    for (int64_t &id : planned.ids) {
        token_rows.push_back(token_row(&id));
        decode_lengths.push_back(
            token_rows.back().tokens == nullptr
                ? 1
                : expected_length(*rows_.find(id), limits_.max_request_tokens));
    }
    ASSIGN_OR_RETURN(planned.plan, make_plan(token_rows, decode_lengths, options_, given));
    return planned;
}

Status Agenda::plan(Intake *intake, bool use_given) {
    const Clock::time_point start = Clock::now();
    const Plan *given = use_given && given_.has_value() ? &*given_ : nullptr;
    std::vector<int64_t> answered;
    const std::vector<int64_t> left = rows_left(&answered);
    std::optional<PlannedRows> planned;
    if (given != nullptr) planned = take_over(*given, intake->unplanned(), left);
    if (!planned.has_value()) {
        ASSIGN_OR_RETURN(planned, plan_rows(intake->unplanned(), left, given));
    }
    std::vector<std::pair<uint64_t, int64_t>> by_fingerprint;
    if (limits_.sharing) {
        for (size_t i = 0; i < planned->ids.size(); ++i) {
            const int64_t id = planned->ids[i];
            const Row *row = id < 0 ? nullptr : rows_.find(id);
            if (row == nullptr || row->state != RowState::waiting) continue;
            if (row->score != nullptr || !row->params->greedy()) continue;
            by_fingerprint.emplace_back(planned->plan.fingerprints[i], id);
        }
        std::sort(by_fingerprint.begin(), by_fingerprint.end());
    }
    std::vector<char> counted(planned->plan.prefixes.size(), 0);
    std::vector<int64_t> last_groups = last_groups_of(planned->plan);

    // Nothing from here on can fail.
    plan_ = std::move(planned->plan);
    ids_ = std::move(planned->ids);
    prefix_counted_ = std::move(counted);
    last_group_of_ = std::move(last_groups);
    next_group_ = 0;
    planned_ = true;
    tokens_.prompt = plan_.processed_tokens();
    tokens_.generated += intake->waiting_tokens().generated;
    if (use_given) given_.reset();
    intake->clear_unplanned();
    link_equal_rows(by_fingerprint);
    for (const int64_t id : answered) rows_.release(id);
    plan_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
    return {};
}

bool Agenda::has_groups_given() const {
    if (!given_.has_value()) return false;
    const std::vector<PlanGroup> &groups = given_->groups;
    return std::any_of(groups.begin(), groups.end(),
                       [](const PlanGroup &group) { return group.prefix >= 0; });
}

void Agenda::clear() {
    next_group_ = static_cast<int64_t>(plan_.groups.size());
    tokens_ = {};
}

// The plan's advice, with the first words that rows have in common.
std::string Agenda::advice_text(const Tokenizer *tokenizer) const {
    const PlanAdvice &advice = plan_.advice;
    if (advice.kind == BATCHLLM_ADVICE_NONE) return {};
    constexpr int64_t most_tokens = 12;
    const Row *row = rows_.find(ids_[static_cast<size_t>(advice.row)]);
    // The row's number in the plan means nothing to the caller, so the tag is used.
    std::string text = row == nullptr ? advice.text()
                                      : advice.text("the row with tag " + std::to_string(row->tag));
    if (tokenizer != nullptr && row != nullptr && advice.end <= row->computed_length()) {
        const int64_t shown = std::min(most_tokens, advice.end - advice.begin);
        const Result<std::string> words =
            decode_row(*tokenizer, {row->tokens + advice.begin, static_cast<size_t>(shown)});
        if (words.ok()) text += " What they have in common begins " + in_quotes(*words) + ".";
    }
    return text;
}

double Agenda::advised_gain() const {
    return (plan_.advice.possible_ratio - plan_.advice.saving_ratio) *
           static_cast<double>(plan_.logical_tokens());
}

// prefix -> the last group that has it, as its own prefix or as one above that. If no prefix has a
// parent, no two groups share anything and the table is empty.
std::vector<int64_t> Agenda::last_groups_of(const Plan &plan) {
    const auto has_parent = [](const PlanPrefix &prefix) { return prefix.parent >= 0; };
    if (std::none_of(plan.prefixes.begin(), plan.prefixes.end(), has_parent)) return {};
    std::vector<int64_t> last(plan.prefixes.size(), -1);
    for (size_t g = 0; g < plan.groups.size(); ++g) {
        for (int32_t prefix = plan.groups[g].prefix; prefix >= 0;) {
            last[static_cast<size_t>(prefix)] = static_cast<int64_t>(g);
            prefix = plan.prefixes[static_cast<size_t>(prefix)].parent;
        }
    }
    return last;
}

// Links equal greedy rows to the first of them. candidates: (fingerprint, id), sorted.
void Agenda::link_equal_rows(const std::vector<std::pair<uint64_t, int64_t>> &candidates) {
    // Rows with equal tokens rarely have more different parameters than this; any more are computed
    // separately.
    constexpr size_t most_different = 16;
    std::array<Row *, most_different> firsts{};
    std::array<Row *, most_different> lasts{};
    for (const auto &[fingerprint, id] : candidates) {
        Row &row = *rows_.find(id);
        row.follower = false;
        row.next_equal = -1;
    }
    for (size_t begin = 0, end = 0; begin < candidates.size(); begin = end) {
        size_t count = 0;
        for (end = begin; end < candidates.size(); ++end) {
            if (candidates[end].first != candidates[begin].first) break;
            Row &row = *rows_.find(candidates[end].second);
            size_t h = 0;
            while (h < count && !equal_rows(*firsts[h], row)) ++h;
            if (h < count) {
                row.follower = true;
                lasts[h]->next_equal = candidates[end].second;
                lasts[h] = &row;
            } else if (count < most_different) {
                firsts[count] = lasts[count] = &row;
                ++count;
            }
        }
    }
}

// ---- Starting rows ----

int32_t Agenda::length_of(int32_t prefix) const {
    return prefix < 0 ? 0 : plan_.prefixes[static_cast<size_t>(prefix)].length;
}

int32_t Agenda::parent_of(int32_t prefix) const {
    return plan_.prefixes[static_cast<size_t>(prefix)].parent;
}

bool Agenda::needed_later(int32_t prefix) const {
    return prefixes_nested() && last_group_of_[static_cast<size_t>(prefix)] > next_group_;
}

const Row *Agenda::row_at(int64_t place) const {
    const int64_t id = id_at(place);
    const Row *row = id < 0 ? nullptr : rows_.find(id);
    if (row == nullptr || row->follower || row->state != RowState::waiting) return nullptr;
    return row;
}

std::vector<int64_t> Agenda::start(int64_t place) {
    const int64_t id = id_at(place);
    const Row *first = id < 0 ? nullptr : rows_.find(id);
    if (first == nullptr || first->follower || first->state == RowState::started) return {};
    std::vector<int64_t> waiting, answered;
    for (int64_t next = id; next >= 0;) {
        const Row &row = *rows_.find(next);
        (row.state == RowState::waiting ? waiting : answered).push_back(next);
        next = row.next_equal;
    }
    for (const int64_t gone : answered) rows_.release(gone);
    for (const int64_t equal : waiting) {
        Row &row = *rows_.find(equal);
        row.state = RowState::started;
        tokens_.generated -= most_generated(row, limits_);
    }
    return waiting;
}

// The prompt tokens of a group. Each prefix counts with the first group that needs it.
int64_t Agenda::prompt_tokens_of(const PlanGroup &group) {
    int64_t tokens = 0;
    const int64_t shared = length_of(group.prefix);
    for (int64_t i = group.row_begin; i < group.row_end; ++i) {
        const size_t row = static_cast<size_t>(plan_.rows[static_cast<size_t>(i)]);
        tokens += plan_.lengths[row] - shared;
    }
    for (int32_t prefix = group.prefix; prefix >= 0;) {
        char &counted = prefix_counted_[static_cast<size_t>(prefix)];
        if (counted) break;
        counted = 1;
        tokens += length_of(prefix) - length_of(parent_of(prefix));
        prefix = parent_of(prefix);
    }
    return tokens;
}

} // namespace batchllm
