// The decoding requests of a lane -> which tokens a step computes for them beyond the next one.
//
// Each row's text proposes tokens (RowDraft), whether or not a step computes them, so how often they
// are right is known. Unless they are always wanted, a step takes as many as make the most tokens per second by the
// device's described costs (StepCost), and none unless that is clearly more than without: the tokens
// that are expected to be right count, and all of them cost.
#pragma once

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
    // Proposed tokens of a row in a step. With one more there would be 16, which is what CUDA's kernels
    // for few queries take of a row whose key heads serve four (kNarrowRows).
    static constexpr size_t most_ahead = 15;
    struct Row {
        Sequence *sequence;
        // How likely the proposed tokens are all right up to each of them. It falls.
        std::array<float, most_ahead> right;
        int32_t count(float least) const;
    };
    void keep_allowed(Sequence *sequence) const;
    float least_right(std::span<Request *const> decoding);
    double seconds(std::span<Request *const> decoding, float least);

    Drafts when_;
    std::shared_ptr<const StepCost> cost_;
    const Tokenizer *tokenizer_;
    bool overlaps_;
    DraftText answers_;
    DraftRates rates_;
    std::vector<Row> rows_;                             // scratch
    TokenBatch imagined_;                               // scratch
    std::vector<std::pair<int32_t, int32_t>> prefixes_; // scratch: prefix, its node in imagined_
};

} // namespace batchllm
