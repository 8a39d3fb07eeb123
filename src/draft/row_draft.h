// One row's text, and that of finished answers -> the tokens that the row may have next.
//
// The end of the row's text is looked up in its prompt and output and in the answers. What follows
// the longest match is proposed, and as long as the row's tokens follow it, the match grows. A
// proposal is observed whether or not a step computes it, so how often they are right is known
// before any is computed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "draft/draft_rates.h"
#include "draft/draft_text.h"

namespace batchllm {

class RowDraft {
  public:
    static constexpr size_t most_text = size_t{1} << 15; // tokens of the row that are looked at

    explicit RowDraft(std::span<const int32_t> prompt);

    // The row's output so far.
    void follow(std::span<const int32_t> output, const DraftText &answers, DraftRates *rates);

    // How likely the next token is right; 0 if there is no proposal. ahead: if so many more before
    // it are.
    double rate(int32_t ahead, const DraftRates &rates) const;
    // Proposes up to `most` tokens.
    void propose(int32_t most, const DraftText &answers, std::vector<int32_t> *tokens) const;

  private:
    void look_up(const DraftText &answers);

    DraftText text_;
    size_t followed_ = 0; // tokens of the output that text_ has
    bool in_answers_ = false;
    DraftText::Match match_;
    double right_ = 0, expected_ = 0; // of its proposed tokens, by all rows' rates; both decay
};

} // namespace batchllm
