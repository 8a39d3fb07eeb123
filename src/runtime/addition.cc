#include "runtime/addition.h"

namespace batchllm {

Addition::Addition(Intake *intake)
    : intake_(intake), first_id_(intake->rows.next_id()),
      first_unplanned_(intake->unplanned.size()), first_outcome_(intake->outcomes.size()) {}

Addition::~Addition() {
    if (committed_) return;
    intake_->rows.take_back(first_id_);
    intake_->unplanned.resize(first_unplanned_);
    while (intake_->outcomes.size() > first_outcome_) intake_->outcomes.pop_back();
}

void Addition::add(uint64_t tag, std::span<const int32_t> tokens,
                   std::shared_ptr<const PreparedParams> params,
                   std::unique_ptr<const ScoreSpec> score, int64_t generation,
                   int64_t tokens_to_come) {
    const int64_t id =
        intake_->rows.add(tag, tokens, std::move(params), std::move(score), tokens_to_come);
    intake_->unplanned.push_back(id);
    ++added_;
    prompt_tokens_ += static_cast<int64_t>(tokens.size());
    generation_ += generation;
}

void Addition::add_bad(uint64_t tag, int64_t prompt_tokens, int32_t samples, const Status &why) {
    intake_->unplanned.push_back(-1);
    for (int32_t sample = 0; sample < samples; ++sample) {
        Outcome outcome;
        outcome.tag = tag;
        outcome.status = why.code();
        outcome.error = why.message();
        outcome.sample = sample;
        outcome.prompt_tokens = prompt_tokens;
        intake_->outcomes.push_back(std::move(outcome));
    }
    ++added_;
    ++bad_;
}

void Addition::commit() {
    intake_->added += added_;
    intake_->bad += bad_;
    intake_->prompt_tokens += prompt_tokens_;
    intake_->generation += generation_;
    committed_ = true;
}

} // namespace batchllm
