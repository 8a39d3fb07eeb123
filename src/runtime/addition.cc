#include "runtime/addition.h"

namespace batchllm {

Addition::Addition(PendingRows *pending, Answers *answers)
    : pending_(pending), answers_(answers), first_id_(pending->rows.next_id()),
      first_unplanned_(pending->unplanned.size()), first_answer_(answers->waiting()) {}

Addition::~Addition() {
    if (committed_) return;
    pending_->rows.take_back(first_id_);
    pending_->unplanned.resize(first_unplanned_);
    answers_->take_back(first_answer_);
}

void Addition::add(uint64_t tag, std::span<const int32_t> tokens,
                   std::shared_ptr<const PreparedParams> params,
                   std::unique_ptr<const ScoreSpec> score,
                   std::shared_ptr<const RowPictures> pictures, int64_t generated,
                   int64_t tokens_to_come) {
    const int64_t id =
        pending_->rows.add(tag, tokens, std::move(params), std::move(score), tokens_to_come);
    pending_->rows.find(id)->pictures = std::move(pictures);
    pending_->unplanned.push_back(id);
    ++added_;
    tokens_.prompt += static_cast<int64_t>(tokens.size());
    tokens_.generated += generated;
}

void Addition::add_bad(uint64_t tag, int64_t prompt_tokens, int32_t samples, const Status &why) {
    pending_->unplanned.push_back(-1);
    answers_->refuse(tag, prompt_tokens, samples, why);
    ++added_;
    ++bad_;
}

void Addition::commit() {
    pending_->added += added_;
    pending_->tokens.prompt += tokens_.prompt;
    pending_->tokens.generated += tokens_.generated;
    answers_->count_refused(bad_);
    committed_ = true;
}

} // namespace batchllm
