#include "report/job_record.h"

#include <algorithm>

#include "base/printable.h"
#include "report/prediction_sum.h"

namespace batchllm {
namespace {

constexpr size_t message_bytes = 300;
constexpr size_t kind_bytes = 60;
constexpr size_t fact_bytes = 400;
constexpr size_t end_tokens_kept = 16; // per group, at each end

// Figures that grow while an engine works; the others cannot be summed.
constexpr int64_t batchllm_stats::*summed_counts[] = {
    &batchllm_stats::rows,
    &batchllm_stats::rows_done,
    &batchllm_stats::rows_failed,
    &batchllm_stats::rows_deduplicated,
    &batchllm_stats::logical_prompt_tokens,
    &batchllm_stats::processed_prompt_tokens,
    &batchllm_stats::recomputed_tokens,
    &batchllm_stats::completion_tokens,
    &batchllm_stats::steps,
    &batchllm_stats::preemptions,
    &batchllm_stats::groups,
    &batchllm_stats::constrained_results,
    &batchllm_stats::cut_off_results,
    &batchllm_stats::adapters,
    &batchllm_stats::adapter_loads,
    &batchllm_stats::adapter_load_bytes,
    &batchllm_stats::row_pictures,
    &batchllm_stats::picture_loads,
    &batchllm_stats::draft_tokens,
    &batchllm_stats::draft_tokens_accepted,
};
constexpr double batchllm_stats::*summed_seconds[] = {
    &batchllm_stats::tokenize_seconds,
    &batchllm_stats::plan_seconds,
    &batchllm_stats::schedule_seconds,
    &batchllm_stats::backend_seconds,
    &batchllm_stats::run_seconds,
    &batchllm_stats::adapter_wait_seconds,
    &batchllm_stats::picture_prepare_seconds,
    &batchllm_stats::picture_wait_seconds,
};

// The name of a row's status: "ROW_TOO_LONG".
std::string kind_of(int32_t status) {
    const std::string name = batchllm_status_name(status);
    constexpr std::string_view common = "BATCHLLM_ERROR_";
    return name.starts_with(common) ? name.substr(common.size()) : name;
}

} // namespace

// Runs a body that allocates; if memory runs out, the record is incomplete.
template <typename Body> void JobRecord::note(Body body) noexcept {
    try {
        body();
    } catch (...) {
        complete_ = false;
    }
}

void JobRecord::count_failure(uint64_t tag, const std::string &kind, const std::string &message) {
    auto found = failures_.find(kind);
    if (found == failures_.end()) {
        const bool full = failures_.size() >= failure_kinds_kept;
        found = failures_.try_emplace(full ? "other kinds" : kind).first;
    }
    FailureKind &of = found->second;
    if (of.rows++ > 0) return;
    of.tag = tag;
    of.message = printable(message, message_bytes);
}

void JobRecord::add_failure(uint64_t tag, const std::string &kind, const std::string &message) {
    count_failure(tag, printable(kind, kind_bytes), message);
    ++finish_reasons_[BATCHLLM_FINISH_ERROR];
    ++rows_refused_;
}

bool JobRecord::add_fact(const std::string &name, const std::string &value) {
    const std::string key = printable(name, fact_bytes);
    for (auto &[known, text] : facts_) {
        if (known != key) continue;
        text = printable(value, fact_bytes);
        return true;
    }
    if (facts_.size() >= facts_kept) return false;
    facts_.emplace_back(key, printable(value, fact_bytes));
    return true;
}

void JobRecord::add_prediction(const batchllm_prediction &of) {
    if (!prediction_) prediction_.emplace();
    add_up(of, &*prediction_);
}

void JobRecord::add_plan(const Plan &plan, std::span<const TokenRow> rows,
                         const TokenDecoder &decoder) {
    std::vector<char> computed(plan.prefixes.size());
    for (const PlanGroup &group : plan.groups) {
        const int64_t count = group.row_end - group.row_begin;
        int64_t own = 0;
        for (int64_t i = group.row_begin; i < group.row_end; ++i) {
            own += plan.lengths[static_cast<size_t>(plan.rows[static_cast<size_t>(i)])];
        }
        planned_.largest_group = std::max(planned_.largest_group, count);
        if (group.prefix < 0) {
            tree_.add({}, 0, count, own);
            continue;
        }
        const PlanPrefix &prefix = plan.prefixes[static_cast<size_t>(group.prefix)];
        own -= count * prefix.length;
        ++planned_.groups;
        planned_.grouped_rows += count;
        planned_.longest_prefix = std::max<int64_t>(planned_.longest_prefix, prefix.length);
        if (rows.empty()) {
            tree_.add_unknown(prefix.length, count, own);
            continue;
        }
        // The tokens that no earlier group has computed: those after the last prefix that an
        // earlier group has.
        int64_t from = 0;
        for (int32_t at = group.prefix; at >= 0;
             at = plan.prefixes[static_cast<size_t>(at)].parent) {
            if (std::exchange(computed[static_cast<size_t>(at)], 1) == 0) continue;
            from = plan.prefixes[static_cast<size_t>(at)].length;
            break;
        }
        const TokenRow &row = rows[static_cast<size_t>(prefix.row)];
        tree_.add({row.tokens, static_cast<size_t>(prefix.length)}, from, count, own);
    }
    for (const int32_t length : plan.lengths) prompts_.add(length);
    ++planned_.plans;
    planned_.rows += plan.row_count();
    planned_.logical_tokens += plan.logical_tokens();
    planned_.processed_tokens += plan.processed_tokens();
    planned_.seconds += plan.seconds;
    if (decoder != nullptr) tree_.decode(decoder);
    add_plan_advice(plan, rows, decoder);
}

void JobRecord::add_plan_advice(const Plan &plan, std::span<const TokenRow> rows,
                                const TokenDecoder &decoder) {
    const PlanAdvice &advice = plan.advice;
    std::string text = advice.text();
    const bool known = decoder != nullptr && static_cast<size_t>(advice.row) < rows.size();
    if (!text.empty() && known) {
        const TokenRow &row = rows[static_cast<size_t>(advice.row)];
        if (advice.begin < advice.end && advice.end <= row.length) {
            const auto length =
                std::min<size_t>(static_cast<size_t>(advice.end - advice.begin), 12);
            text += " What they have in common begins " +
                    in_quotes(decoder({row.tokens + advice.begin, length})) + ".";
        }
    }
    add_advice(text, (advice.possible_ratio - advice.saving_ratio) *
                         static_cast<double>(plan.logical_tokens()));
}

void JobRecord::attach(const void *engine, const EngineFacts &facts, const batchllm_stats &before,
                       TokenDecoder decoder) {
    writer_ = engine;
    ran_ = true;
    engine_ = facts;
    before_ = before;
    earlier_ = stats_;
    clock_start_ = curve_.seconds();
    decoder_ = std::move(decoder);
}

std::shared_ptr<GroupRun> JobRecord::start_group(std::span<const int32_t> row, int64_t shared,
                                                 int64_t computed_from,
                                                 const GroupRun &run) noexcept {
    std::shared_ptr<GroupRun> kept;
    note([&] {
        const int64_t own = run.prompt_tokens - shared * run.rows;
        tree_.add(row.first(static_cast<size_t>(shared)), computed_from, run.rows, own);
        kept = std::make_shared<GroupRun>(run);
        kept->started += clock_start_;
        kept->prefix_tokens = shared;
        const auto shown = shared > 0 ? row.first(static_cast<size_t>(shared)) : row;
        const auto begin = shown.first(std::min(shown.size(), end_tokens_kept));
        const auto end = shown.subspan(begin.size());
        const auto last = end.last(std::min(end.size(), end_tokens_kept));
        kept->first_tokens.assign(begin.begin(), begin.end());
        kept->last_tokens.assign(last.begin(), last.end());
    });
    return kept;
}

void JobRecord::end_run(GroupRun *run, int64_t generated, int64_t longest, double now) noexcept {
    run->generated += generated;
    run->longest_output = std::max(run->longest_output, longest);
    if (--run->unfinished > 0) return;
    run->seconds = clock_start_ + now - run->started;
    const auto slower = [](const GroupRun &a, const GroupRun &b) { return a.seconds > b.seconds; };
    if (slowest_.size() >= slowest_kept && !slower(*run, slowest_.back())) return;
    note([&] {
        slowest_.insert(std::upper_bound(slowest_.begin(), slowest_.end(), *run, slower),
                        std::move(*run));
        if (slowest_.size() > slowest_kept) slowest_.pop_back();
    });
}

void JobRecord::add_batch(double now, double seconds, const BatchTokens &batch) noexcept {
    note([&] {
        curve_.add(clock_start_ + now, seconds, batch);
        batch_tokens_ += batch.tokens();
        small_batches_ += 2 * batch.tokens() < engine_.step_tokens ? 1 : 0;
    });
}

double JobRecord::mean_fill() const {
    const auto most =
        static_cast<double>(curve_.batches()) * static_cast<double>(engine_.step_tokens);
    return most > 0 ? static_cast<double>(batch_tokens_) / most : 0;
}

void JobRecord::add_advice(const std::string &text, double gain) noexcept {
    if (text.empty() || (!advice_.empty() && gain <= advice_gain_)) return;
    note([&] {
        advice_ = text;
        advice_gain_ = gain;
    });
}

void JobRecord::add_results(const batchllm_results &results) noexcept {
    note([&] {
        for (int64_t i = 0; i < results.count; ++i) {
            const bool failed = results.statuses[i] != BATCHLLM_OK;
            ++finish_reasons_[failed ? BATCHLLM_FINISH_ERROR : results.finish_reasons[i]];
            if (failed && results.samples[i] == 0) {
                const int64_t begin = results.error_offsets[i], end = results.error_offsets[i + 1];
                count_failure(results.tags[i], kind_of(results.statuses[i]),
                              {results.errors + begin, static_cast<size_t>(end - begin)});
            }
            if (results.samples[i] == 0 && results.prompt_tokens[i] > 0) {
                prompts_.add(results.prompt_tokens[i]);
            }
            const bool generated = results.finish_reasons[i] == BATCHLLM_FINISH_STOP ||
                                   results.finish_reasons[i] == BATCHLLM_FINISH_LENGTH ||
                                   results.finish_reasons[i] == BATCHLLM_FINISH_CANCELLED;
            if (generated) outputs_.add(results.token_offsets[i + 1] - results.token_offsets[i]);
        }
    });
}

void JobRecord::set_stats(const batchllm_stats &now) noexcept {
    stats_ = now;
    for (const auto count : summed_counts) stats_.*count += earlier_.*count - before_.*count;
    for (const auto seconds : summed_seconds) {
        stats_.*seconds += earlier_.*seconds - before_.*seconds;
    }
    const int64_t saved = stats_.logical_prompt_tokens - stats_.processed_prompt_tokens;
    stats_.shared_prompt_tokens = std::max<int64_t>(0, saved);
    stats_.saving_ratio = 0;
    if (stats_.logical_prompt_tokens > 0) {
        stats_.saving_ratio = static_cast<double>(stats_.shared_prompt_tokens) /
                              static_cast<double>(stats_.logical_prompt_tokens);
    }
}

void JobRecord::decode_words() {
    if (decoder_ == nullptr) return;
    tree_.decode(decoder_);
    for (GroupRun &run : slowest_) {
        if (!run.words.empty() || run.first_tokens.empty()) continue;
        run.words = decoder_(run.first_tokens);
        if (!run.last_tokens.empty()) run.words += " ... " + decoder_(run.last_tokens);
    }
}

} // namespace batchllm
