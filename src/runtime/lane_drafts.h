// The decoding requests of a lane -> which tokens a step computes for them beyond the next one.
//
// Each row's text proposes tokens (RowDraft), whether or not a step computes them, so how often they
// are right is known. Unless they are always wanted, a step takes as many as make the most tokens per second by the
// device's described costs (StepCost), and none unless that is clearly more than without: the tokens
// that are expected to be right count, and all of them cost.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/sim/step_cost.h"
#include "draft/draft_rates.h"
#include "draft/draft_text.h"
#include "runtime/options.h"
#include "runtime/row_run.h"

namespace batchllm {

struct DraftOptions {
    Drafts when = Drafts::off;            // on_gpu: where they pay, if the cost is known
    std::shared_ptr<const StepCost> cost; // null: not known, so nothing is known to pay
    const Tokenizer *tokenizer = nullptr; // null: no row has a constraint
};

// Why rows on this backend have no drafts; null: they may have some.
const char *why_no_drafts(const DraftOptions &options, const BackendInfo &info);

class LaneDrafts {
  public:
    LaneDrafts(const DraftOptions &options, const BackendInfo &info);

    bool on() const { return when_ != Drafts::off; }
    // As SchedulerOptions::propose.
    bool propose(std::span<Request *const> decoding);
    // Its answers may be repeated by rows to come.
    void ended(const RowRun &run);

  private:
    // Proposed tokens of a row in a step. Sixteen tokens of a row whose key heads serve four are what
    // CUDA's attention takes in an item of few queries (kNarrowRows).
    static constexpr size_t most_ahead = 15;
    struct Row {
        Sequence *sequence;
        // How likely the proposed tokens are all right up to each of them. It falls.
        std::array<float, most_ahead> right;
        int32_t count(float least) const;
    };
    // As predicted: tokens that are right, seconds.
    struct Step {
        double tokens, device, host;
        // Tokens per second, if no other batch is in flight; and without proposed tokens, if one may be.
        double apart() const { return tokens / (device + host); }
        double together(bool overlaps) const {
            return overlaps ? tokens / std::max(device, host) : apart();
        }
    };
    // least: the chance below which tokens are not computed.
    struct Choice {
        float least;
        Step step;
    };
    struct Sum {
        double tokens = 0, seconds = 0;
    };

    void look_at(std::span<Request *const> decoding);
    void fill(Row *row, int32_t behind) const;
    void keep_allowed(Sequence *sequence) const;
    // none: the step without proposed tokens.
    Choice best(std::span<Request *const> decoding, const Step &none);
    bool apart_pays(const Step &with, const Step &none);
    bool pays_later(std::span<Request *const> decoding, const Step &none);
    Step step(std::span<Request *const> decoding, float least);

    Drafts when_;
    std::shared_ptr<const StepCost> cost_;
    const Tokenizer *tokenizer_;
    bool overlaps_;
    DraftText answers_;
    DraftRates rates_;
    Sum apart_, together_;  // of the last steps: best steps, one at a time; steps without proposals
    std::vector<Row> rows_; // scratch
    TokenBatch imagined_;   // scratch
    std::vector<std::pair<int32_t, int32_t>> prefixes_; // scratch: prefix, its node in imagined_
};

} // namespace batchllm
