#include "draft/row_draft.h"

#include <algorithm>

#include "image/picture.h"

namespace batchllm {
namespace {

constexpr int32_t long_match = 8;  // a longer one is not looked for
constexpr double rates_weight = 4; // of all rows' rates, in expected right tokens of the row's own
constexpr double most_certain = 0.99;
constexpr double row_kept = 0.95; // of the earlier observations' weight, per observation

} // namespace

RowDraft::RowDraft(std::span<const int32_t> prompt) : text_(most_text) {
    text_.append(prompt.last(std::min(prompt.size(), most_text / 2)));
}

void RowDraft::follow(std::span<const int32_t> output, const DraftText &answers,
                      DraftRates *rates) {
    if (followed_ == 0) look_up(answers); // the row's first tokens may continue its prompt
    for (; followed_ < output.size(); ++followed_) {
        const int32_t token = output[followed_];
        const DraftText &source = in_answers_ ? answers : text_;
        if (match_.next >= source.end() || match_.next < source.begin()) match_ = {};
        if (match_.next >= 0) {
            const bool right = source.at(match_.next) == token;
            right_ = right_ * row_kept + (right ? 1 : 0);
            expected_ = expected_ * row_kept + rates->rate(match_.length);
            rates->count(match_.length, right);
            if (right) {
                match_.next += 1;
                match_.length += 1;
            } else {
                match_ = {};
            }
        }
        text_.append(token);
        if (match_.next < 0 || match_.length < long_match) look_up(answers);
    }
}

void RowDraft::look_up(const DraftText &answers) {
    const std::span<const int32_t> recent = text_.tail();
    for (const DraftText *source : {static_cast<const DraftText *>(&text_), &answers}) {
        const DraftText::Match found = source->find(recent);
        if (found.length <= match_.length) continue;
        match_ = found;
        in_answers_ = source == &answers;
    }
}

double RowDraft::rate(int32_t ahead, const DraftRates &rates) const {
    if (match_.next < 0) return 0;
    const double own = (right_ + rates_weight) / (expected_ + rates_weight);
    return std::min(most_certain, own * rates.rate(match_.length + ahead));
}

// A text that repeats itself may be proposed beyond its end.
void RowDraft::propose(int32_t most, const DraftText &answers, std::vector<int32_t> *tokens) const {
    tokens->clear();
    const DraftText &source = in_answers_ ? answers : text_;
    if (match_.next < source.begin()) return;
    for (int32_t i = 0; i < most; ++i) {
        const int64_t position = match_.next + i;
        if (position >= source.end() && in_answers_) return;
        const int32_t token = position < source.end()
                                  ? source.at(position)
                                  : (*tokens)[static_cast<size_t>(position - source.end())];
        // A picture's places in the prompt have ids that no answer has.
        if (token == DraftText::separator || token >= first_picture_id) return;
        tokens->push_back(token);
    }
}

} // namespace batchllm
