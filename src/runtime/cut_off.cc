#include "runtime/cut_off.h"

#include "base/display.h"
#include "constraint/constraint.h"

namespace batchllm {

namespace {

constexpr int64_t many = 64; // rows that tell, before all are done

} // namespace

void CutOff::count(const SamplingParams &params, const Outcome &outcome) {
    if (params.constraint == nullptr || outcome.status != BATCHLLM_OK) return;
    const bool cut = outcome.finish == BATCHLLM_FINISH_LENGTH;
    if (!cut && outcome.finish != BATCHLLM_FINISH_STOP) return;
    ++constrained_;
    if (!cut) return;
    if (cut_++ > 0) return;
    max_tokens_ = static_cast<int64_t>(outcome.tokens.size());
    least_bytes_ = params.constraint->least_bytes();
}

std::string CutOff::take_warning(bool all_done) {
    const bool tells = all_done ? cut_ * 10 >= constrained_ : cut_ * 2 >= constrained_;
    if (warned_ || cut_ == 0 || !tells || (!all_done && constrained_ < many)) return {};
    warned_ = true;
    return format_count(cut_) + " of " + format_count(constrained_) +
           " rows with a constraint were cut off by max_tokens: their texts are only the "
           "beginnings "
           "of valid ones. One of them ended after " +
           format_count(max_tokens_) +
           " tokens; the shortest text that its constraint allows has " +
           format_count(least_bytes_) +
           " bytes, for which as many tokens are enough. Give them more max_tokens";
}

} // namespace batchllm
