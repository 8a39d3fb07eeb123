#include "runtime/cut_off.h"

#include "base/display.h"
#include "constraint/constraint.h"

namespace batchllm {
namespace {

constexpr int64_t enough = 64;   // rows that tell, before all are done
constexpr int64_t no_small = 16; // rows of a job that is warned of after the first

} // namespace

void CutOff::count(const SamplingParams &params, const Outcome &outcome) {
    if (params.constraint == nullptr || outcome.status != BATCHLLM_OK) return;
    const bool cut = outcome.finish == BATCHLLM_FINISH_LENGTH;
    if (!cut && outcome.finish != BATCHLLM_FINISH_STOP) return;
    ++job_.constrained;
    if (!cut || job_.cut++ > 0) return;
    tokens_ = static_cast<int64_t>(outcome.tokens.size());
    least_bytes_ = params.constraint->least_bytes();
}

std::string CutOff::take_warning(bool all_done) {
    const bool many = job_.cut * (all_done ? 10 : 2) >= job_.constrained;
    const int64_t least = !all_done ? enough : ever_told_ ? no_small : 1;
    std::string text;
    if (!told_ && job_.cut > 0 && many && job_.constrained >= least) {
        text = warning();
        told_ = ever_told_ = true;
    }
    if (all_done) {
        before_ = {constrained(), cut()};
        job_ = {};
        told_ = false;
    }
    return text;
}

std::string CutOff::warning() const {
    return format_count(job_.cut) + " of " + format_count(job_.constrained) +
           " rows with a constraint were cut off by max_tokens: their texts are only the "
           "beginnings "
           "of valid ones. One of them ended after " +
           format_count(tokens_) + " tokens; the shortest text that its constraint allows has " +
           format_count(least_bytes_) +
           " bytes, for which as many tokens are enough. Give them more max_tokens; or, if a JSON "
           "schema leaves its objects open, close them (\"additionalProperties\": false)";
}

} // namespace batchllm
