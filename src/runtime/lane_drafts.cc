#include "runtime/lane_drafts.h"

#include <algorithm>

#include "draft/row_draft.h"
#include "runtime/forced_tokens.h"
#include "schedule/batch_builder.h"

namespace batchllm {
namespace {

// Steps with more rows have no room; it also bounds the work and memory of looking at texts.
constexpr size_t most_drafting_rows = 256;
constexpr size_t answer_tokens = size_t{1} << 16; // of ended rows that are looked at
// Tokens whose chance of being right is below one of these are not computed.
constexpr float least_chances[] = {0.8F, 0.6F, 0.4F, 0.25F, 0.12F};
constexpr float least_always = 0.25F;     // the same for Drafts::always
constexpr float no_chance = 2;            // least, if nothing is proposed
constexpr double least_draft_gain = 1.05; // of predicted tokens per second
constexpr double recent = 0.9;            // of the earlier steps' weight, per step

bool may_draft(const Sequence &sequence) {
    const Constrained *constrained = sequence.constrained.get();
    return !needs_output(sequence.params) && (constrained == nullptr || constrained->failed.ok());
}

} // namespace

const char *why_no_drafts(const DraftOptions &options, const BackendInfo &info) {
    if (info.state_slots > 0)
        return "the model's layers have states, which cannot take tokens back";
    if (options.when == Drafts::where_they_pay && options.cost == nullptr)
        return "what a step takes is not known here (for sim, the backend option device says it)";
    return nullptr;
}

LaneDrafts::LaneDrafts(const DraftOptions &options, const BackendInfo &info)
    : when_(options.when), cost_(options.cost), tokenizer_(options.tokenizer),
      overlaps_(info.batches_in_flight > 1), answers_(answer_tokens) {
    if (when_ == Drafts::on_gpu && cost_ != nullptr) when_ = Drafts::where_they_pay;
    if (when_ == Drafts::on_gpu || why_no_drafts(options, info) != nullptr) when_ = Drafts::off;
}

void LaneDrafts::ended(const RowRun &run) {
    if (!on()) return;
    for (const Sequence &sequence : run.sequences) {
        if (sequence.output.size() <= DraftText::least_match) continue;
        answers_.append(DraftText::separator);
        answers_.append(sequence.output);
    }
}

int32_t LaneDrafts::Row::count(float least) const {
    return static_cast<int32_t>(
        std::find_if(right.begin(), right.end(), [&](float chance) { return chance < least; }) -
        right.begin());
}

bool LaneDrafts::propose(std::span<Request *const> decoding) {
    for (Request *request : decoding) request->proposed.clear();
    if (decoding.size() > most_drafting_rows) return false;
    look_at(decoding);
    const bool unknown = std::any_of(decoding.begin(), decoding.end(),
                                     [](const Request *request) { return request->unknown > 0; });
    float least = least_always;
    if (when_ != Drafts::always) {
        const Step none = step(decoding, no_chance);
        const Choice choice = best(decoding, none);
        const bool apart = apart_pays(choice.step, none);
        if (unknown) return apart || pays_later(decoding, none);
        const double rate = apart ? none.apart() : none.together(overlaps_);
        if (choice.least == no_chance || choice.step.apart() <= least_draft_gain * rate)
            return apart;
        least = choice.least;
    }
    bool any = false;
    for (const Row &row : rows_) {
        const int32_t count = row.count(least);
        if (count == 0) continue;
        any = true;
        if (row.sequence->unknown > 0) continue;
        row.sequence->draft->propose(count, answers_, &row.sequence->proposed);
        if (row.sequence->constrained != nullptr) keep_allowed(row.sequence);
    }
    return any;
}

void LaneDrafts::look_at(std::span<Request *const> decoding) {
    rows_.clear();
    for (Request *request : decoding) {
        auto *sequence = static_cast<Sequence *>(request);
        if (!may_draft(*sequence)) continue;
        if (sequence->draft == nullptr) {
            sequence->draft = std::make_unique<RowDraft>(
                std::span(sequence->prompt.tokens, static_cast<size_t>(sequence->prompt.length)));
        }
        sequence->draft->follow(sequence->output, answers_, &rates_);
        Row row{sequence, {}};
        fill(&row, 0);
        rows_.push_back(row);
    }
}

// behind: tokens of the row's next ones, which are to be right as well, come first.
void LaneDrafts::fill(Row *row, int32_t behind) const {
    double chance = 1;
    int32_t ahead = 0;
    const auto go_on = [&] { chance *= row->sequence->draft->rate(ahead++, rates_); };
    while (ahead < behind) go_on();
    for (float &right : row->right) {
        go_on();
        right = static_cast<float>(chance);
    }
}

// As many proposed tokens as the constraint allows, and none behind which it forces tokens: these
// are taken instead of a sample (RowMasks).
void LaneDrafts::keep_allowed(Sequence *sequence) const {
    Constrained &constrained = *sequence->constrained;
    std::vector<int32_t> &proposed = sequence->proposed;
    std::vector<int32_t> output(
        sequence->output.end() -
            static_cast<ptrdiff_t>(std::min(sequence->output.size(), forced_context_tokens)),
        sequence->output.end());
    int64_t left = sequence->max_tokens - static_cast<int64_t>(sequence->output.size()) - 1;
    const auto forces = [&](const ConstraintState &state) {
        return constrained.takes_forced && !forced_tokens(state, *tokenizer_, output, left).empty();
    };
    constrained.ahead.clear();
    ConstraintState at = constrained.state;
    if (!forces(at)) {
        for (const int32_t token : proposed) {
            if (!at.advance(token).ok()) break;
            output.push_back(token);
            --left;
            if (forces(at)) break;
            constrained.ahead.push_back(at);
        }
    }
    proposed.resize(constrained.ahead.size());
}

// The step that generates the most tokens per second, if no batch is in flight beside it.
LaneDrafts::Choice LaneDrafts::best(std::span<Request *const> decoding, const Step &none) {
    Choice best{no_chance, none};
    for (const float least : least_chances) {
        const bool any = std::any_of(rows_.begin(), rows_.end(),
                                     [&](const Row &row) { return row.count(least) > 0; });
        if (!any) continue;
        const Step with = step(decoding, least);
        if (with.apart() > best.step.apart()) best = {least, with};
    }
    return best;
}

// Whether steps with what can be proposed, one batch at a time, have lately been better than steps
// without, whose batches overlap. Beside a batch in flight, proposals come too late for short copies.
bool LaneDrafts::apart_pays(const Step &with, const Step &none) {
    if (!overlaps_) return false;
    const auto add = [&](Sum *sum, double tokens, double seconds) {
        sum->tokens = sum->tokens * recent + tokens;
        sum->seconds = sum->seconds * recent + seconds;
    };
    add(&apart_, with.tokens, with.device + with.host);
    add(&together_, none.tokens, std::max(none.device, none.host));
    return apart_.tokens / apart_.seconds > least_draft_gain * together_.tokens / together_.seconds;
}

// Some tokens are not known yet. Tokens can be proposed in the next step, behind these and the one that
// this step samples.
bool LaneDrafts::pays_later(std::span<Request *const> decoding, const Step &none) {
    for (Row &row : rows_) fill(&row, row.sequence->unknown + 1);
    return best(decoding, none).step.apart() > least_draft_gain * none.together(overlaps_);
}

// A step with the proposed tokens that have at least this chance.
LaneDrafts::Step LaneDrafts::step(std::span<Request *const> decoding, float least) {
    imagined_.clear();
    prefixes_.clear();
    Step step{static_cast<double>(decoding.size()), 0, 0};
    int32_t tokens = 0;
    auto row = rows_.begin();
    for (const Request *request : decoding) {
        int32_t count = 1;
        if (row != rows_.end() && row->sequence == request) {
            count += row->count(least);
            for (int32_t i = 0; i + 1 < count; ++i)
                step.tokens += static_cast<double>(row->right[static_cast<size_t>(i)]);
            ++row;
        }
        int32_t parent = -1;
        if (request->prefix >= 0) {
            const auto known =
                std::find_if(prefixes_.begin(), prefixes_.end(),
                             [&](const auto &one) { return one.first == request->prefix; });
            parent = known != prefixes_.end() ? known->second
                                              : static_cast<int32_t>(imagined_.nodes.size());
            if (known == prefixes_.end()) {
                prefixes_.emplace_back(request->prefix, parent);
                imagined_.nodes.push_back({-1, 0, request->own_begin, tokens, 0, true});
            }
        }
        imagined_.nodes.push_back(
            {parent, request->own_begin, request->computed + count, tokens, count, false});
        tokens += count;
    }
    imagined_.tokens.resize(static_cast<size_t>(tokens));
    imagined_.outputs.resize(static_cast<size_t>(tokens));
    step.device = cost_->seconds(imagined_).total();
    step.host = cost_->host_seconds(imagined_);
    return step;
}

} // namespace batchllm
