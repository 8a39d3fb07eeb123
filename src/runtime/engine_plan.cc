// Rows -> plan.
#include <algorithm>
#include <array>
#include <chrono>

#include "base/printable.h"
#include "runtime/engine.h"

namespace batchllm {
namespace {

using Clock = std::chrono::steady_clock;

int32_t expected_length(const Row &row, int64_t max_request_tokens) {
    if (row.task() != Task::generate) return 1;
    return clipped_max_tokens(*row.params, row.length, max_request_tokens);
}

} // namespace

Status Engine::use_plan(const Plan &plan) {
    const uint64_t theirs = plan.options.tokenizer_fingerprint;
    const uint64_t ours = tokenizer_ == nullptr ? 0 : tokenizer_->fingerprint();
    if (theirs != 0 && ours != 0 && theirs != ours) {
        return error(
            BATCHLLM_ERROR_PLAN_MISMATCH,
            "the plan was made with another tokenizer (fingerprint %016llx, the model's is "
            "%016llx)",
            static_cast<unsigned long long>(theirs), static_cast<unsigned long long>(ours));
    }
    next_plan_ = plan;
    return {};
}

Result<Plan> Engine::get_plan() const {
    if (!planned_) {
        return error(BATCHLLM_ERROR_STATE, "no rows have been planned yet: add rows and call "
                                           "batchllm_build_groups first");
    }
    return plan_;
}

// The rows of the old plan that have not been placed, in the plan's order. Rows that were answered
// while they waited are appended to *ended.
std::vector<int64_t> Engine::rows_left(std::vector<int64_t> *ended) {
    std::vector<int64_t> rows;
    for (size_t g = static_cast<size_t>(next_group_); g < plan_.groups.size(); ++g) {
        for (int64_t i = plan_.groups[g].row_begin; i < plan_.groups[g].row_end; ++i) {
            const int64_t planned = plan_.rows[static_cast<size_t>(i)];
            const int64_t id = plan_ids_[static_cast<size_t>(planned)];
            const Row *row = id < 0 ? nullptr : intake_.rows.find(id);
            if (row == nullptr || row->state == RowState::started) continue;
            if (row->state == RowState::waiting) {
                rows.push_back(planned);
            } else {
                ended->push_back(id);
            }
        }
    }
    return rows;
}

// A row that cannot be computed has no tokens; if it has been released, its id becomes -1.
TokenRow Engine::token_row(int64_t *id) {
    const Row *row = *id < 0 ? nullptr : intake_.rows.find(*id);
    if (row == nullptr) *id = -1;
    if (row == nullptr || row->state != RowState::waiting) return {nullptr, 0, 0};
    return row->token_row();
}

PlanOptions Engine::plan_options() const {
    PlanOptions options;
    options.enlarge = options_.enlarge;
    options.levels = options_.levels;
    options.order = options_.order;
    options.head_cost = head_cost_;
    if (options_.min_prefix_tokens > 0) options.min_prefix_tokens = options_.min_prefix_tokens;
    options.tokenizer_fingerprint = tokenizer_ == nullptr ? 0 : tokenizer_->fingerprint();
    return options;
}

// The plan passed to use_plan, after the rest of the old one; empty if it is not exactly a plan for
// the new rows.
std::optional<Engine::PlannedRows> Engine::take_given_plan(const std::vector<int64_t> &left) {
    if (!next_plan_.has_value()) return std::nullopt;
    PlannedRows taken;
    std::vector<int64_t> ids = intake_.unplanned;
    if (left.size() + ids.size() >= INT32_MAX) return std::nullopt;
    std::vector<TokenRow> token_rows;
    token_rows.reserve(ids.size());
    for (int64_t &id : ids) token_rows.push_back(token_row(&id));
    const PlanOptions options = plan_options();
    if (!is_plan_of(*next_plan_, token_rows, options)) return std::nullopt;

    std::vector<int64_t> number(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
        number[i] = token_rows[i].tokens == nullptr ? -1 : static_cast<int64_t>(i);
    }
    taken.plan = renumbered(*next_plan_, 0, number, static_cast<int64_t>(ids.size()));
    taken.plan.options.tokenizer_fingerprint = options.tokenizer_fingerprint;
    PlanAdvice advice = next_plan_->advice;
    advice.row += static_cast<int64_t>(left.size());
    if (!left.empty()) {
        number.assign(plan_ids_.size(), -1);
        for (size_t i = 0; i < left.size(); ++i) {
            number[static_cast<size_t>(left[i])] = static_cast<int64_t>(i);
            taken.ids.push_back(plan_ids_[static_cast<size_t>(left[i])]);
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
Result<Engine::PlannedRows> Engine::plan_rows(const std::vector<int64_t> &left) {
    PlannedRows planned;
    for (const int64_t row : left) planned.ids.push_back(plan_ids_[static_cast<size_t>(row)]);
    std::sort(planned.ids.begin(), planned.ids.end());
    planned.ids.insert(planned.ids.end(), intake_.unplanned.begin(), intake_.unplanned.end());
    std::vector<TokenRow> token_rows;
    std::vector<int32_t> decode_lengths;
    token_rows.reserve(planned.ids.size());
    decode_lengths.reserve(planned.ids.size());
    for (int64_t &id : planned.ids) {
        token_rows.push_back(token_row(&id));
        decode_lengths.push_back(
            token_rows.back().tokens == nullptr
                ? 1
                : expected_length(*intake_.rows.find(id), max_request_tokens_));
    }
    ASSIGN_OR_RETURN(planned.plan, make_plan(token_rows, decode_lengths, plan_options(),
                                             next_plan_ ? &*next_plan_ : nullptr));
    return planned;
}

Status Engine::build_groups() {
    RETURN_IF_ERROR(failed_);
    if (intake_.unplanned.empty()) return {};
    const Clock::time_point start = Clock::now();

    std::vector<int64_t> ended;
    const std::vector<int64_t> left = rows_left(&ended);
    std::optional<PlannedRows> planned = take_given_plan(left);
    if (!planned.has_value()) {
        ASSIGN_OR_RETURN(planned, plan_rows(left));
    }
    std::vector<std::pair<uint64_t, int64_t>> by_fingerprint;
    if (sharing()) {
        for (size_t i = 0; i < planned->ids.size(); ++i) {
            const int64_t id = planned->ids[i];
            const Row *row = id < 0 ? nullptr : intake_.rows.find(id);
            if (row == nullptr || row->state != RowState::waiting) continue;
            if (row->score != nullptr || !row->params->greedy()) continue;
            by_fingerprint.emplace_back(planned->plan.fingerprints[i], id);
        }
        std::sort(by_fingerprint.begin(), by_fingerprint.end());
    }
    std::vector<char> counted(planned->plan.prefixes.size(), 0);
    std::vector<int64_t> last_groups = last_groups_of(planned->plan);

    // Nothing from here on can fail.
    next_group_ = static_cast<int64_t>(plan_.groups.size());
    for (const auto &lane : lanes_) lane->scheduler().begin_plan();
    plan_ = std::move(planned->plan);
    plan_ids_ = std::move(planned->ids);
    prefix_counted_ = std::move(counted);
    last_group_of_ = std::move(last_groups);
    next_group_ = 0;
    planned_ = true;
    plan_tokens_left_ = plan_.processed_tokens();
    next_plan_.reset();
    intake_.unplanned.clear();
    intake_.prompt_tokens = 0;
    link_equal_rows(by_fingerprint);
    for (const int64_t id : ended) intake_.rows.release(id);
    tell_advice();
    stats_.plan_seconds += std::chrono::duration<double>(Clock::now() - start).count();
    return {};
}

// The plan's advice, with the first words that rows have in common.
std::string Engine::advice_text() {
    const PlanAdvice &advice = plan_.advice;
    constexpr int64_t most_tokens = 12;
    const Row *row = intake_.rows.find(plan_ids_[static_cast<size_t>(advice.row)]);
    // The row's number in the plan means nothing to the caller, so the tag is used.
    std::string text = row == nullptr ? advice.text()
                                      : advice.text("the row with tag " + std::to_string(row->tag));
    if (tokenizer_ != nullptr && row != nullptr && advice.end <= row->computed_length()) {
        const int64_t shown = std::min(most_tokens, advice.end - advice.begin);
        const Result<std::string> words =
            tokenizer_->decode({row->tokens + advice.begin, static_cast<size_t>(shown)}, false);
        if (words.ok()) text += " What they have in common begins " + in_quotes(*words) + ".";
    }
    return text;
}

// Writes the advice to the log, once per engine, and to the report. If memory runs out, it is left
// out: the plan is still good.
void Engine::tell_advice() try {
    const PlanAdvice &advice = plan_.advice;
    if (advice.kind == BATCHLLM_ADVICE_NONE || (advised_ && report_ == nullptr)) return;
    const std::string text = advice_text();
    if (!std::exchange(advised_, true)) log_(BATCHLLM_LOG_WARNING, text);
    if (report_ == nullptr) return;
    report_->add_advice(text, (advice.possible_ratio - advice.saving_ratio) *
                                  static_cast<double>(plan_.logical_tokens()));
} catch (const std::bad_alloc &) {}

// prefix -> the last group that has it, as its own prefix or as one above that. If no prefix has a
// parent, no two groups share anything and the table is empty.
std::vector<int64_t> Engine::last_groups_of(const Plan &plan) {
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
void Engine::link_equal_rows(const std::vector<std::pair<uint64_t, int64_t>> &candidates) {
    // Rows with equal tokens rarely have more different parameters than this; any more are computed
    // separately.
    constexpr size_t most_heads = 16;
    std::array<Row *, most_heads> heads{};
    std::array<Row *, most_heads> tails{};
    for (const auto &[fingerprint, id] : candidates) {
        Row &row = *intake_.rows.find(id);
        row.follower = false;
        row.next_equal = -1;
    }
    for (size_t begin = 0, end = 0; begin < candidates.size(); begin = end) {
        size_t count = 0;
        for (end = begin; end < candidates.size(); ++end) {
            if (candidates[end].first != candidates[begin].first) break;
            Row &row = *intake_.rows.find(candidates[end].second);
            size_t h = 0;
            while (h < count && !equal_rows(*heads[h], row)) ++h;
            if (h < count) {
                row.follower = true;
                tails[h]->next_equal = candidates[end].second;
                tails[h] = &row;
            } else if (count < most_heads) {
                heads[count] = tails[count] = &row;
                ++count;
            }
        }
    }
}

} // namespace batchllm
