#include "runtime/cut_off.h"

#include "base/display.h"
#include "base/printable.h"
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
    if (!outcome.constraint_started) {
        if (job_.unstarted++ == 0) unstarted_ = params.constraint;
        job_.unstarted_cut += cut || !outcome.constraint_met;
    } else if (cut) {
        if (job_.cut++ > 0) return;
        tokens_ = static_cast<int64_t>(outcome.tokens.size());
        least_bytes_ = params.constraint->least_bytes();
    } else {
        job_.stopped += !outcome.constraint_met;
    }
}

std::string CutOff::take_warning(bool all_done) {
    const int64_t invalid = job_.cut + job_.stopped + job_.unstarted;
    const bool many = invalid * (all_done ? 10 : 2) >= job_.constrained;
    const int64_t least = !all_done ? enough : ever_told_ ? no_small : 1;
    std::string text;
    if (!told_ && invalid > 0 && many && job_.constrained >= least) {
        text = warning();
        told_ = ever_told_ = true;
    }
    if (all_done) {
        before_ = {constrained(), cut()};
        job_ = {};
        unstarted_.reset();
        told_ = false;
    }
    return text;
}

std::string CutOff::warning() const {
    std::string text;
    const auto add = [&](int64_t rows, std::string (CutOff::*of)() const) {
        if (rows > 0) text.append(text.empty() ? "" : ". ").append((this->*of)());
    };
    add(job_.unstarted, &CutOff::warning_of_unstarted);
    add(job_.cut, &CutOff::warning_of_cut);
    add(job_.stopped, &CutOff::warning_of_stopped);
    return text;
}

std::string CutOff::warning_of_cut() const {
    return format_count(job_.cut) + " of " + format_count(job_.constrained) +
           " rows with a constraint were cut off by max_tokens: their texts are only the "
           "beginnings "
           "of valid ones. One of them ended after " +
           format_count(tokens_) + " tokens; the shortest text that its constraint allows has " +
           format_count(least_bytes_) +
           " bytes, for which as many tokens are enough. Give them more max_tokens; or, if a JSON "
           "schema leaves its objects open, close them (\"additionalProperties\": false)";
}

std::string CutOff::warning_of_stopped() const {
    return format_count(job_.stopped) + " of " + format_count(job_.constrained) +
           " rows with a constraint were ended by their own stop strings or stop tokens before "
           "their texts were valid. A constraint ends a row by itself: leave stop out of such rows";
}

std::string CutOff::warning_of_unstarted() const {
    return format_count(job_.unstarted) + " of " + format_count(job_.constrained) +
           " rows with a constraint never wrote " + in_quotes(unstarted_->start_after()) +
           ", after which it starts, so their texts are free: " + format_count(job_.unstarted_cut) +
           " were cut off by max_tokens or a stop of their own, " +
           format_count(job_.unstarted - job_.unstarted_cut) +
           " ended by themselves. Give them more max_tokens if they were about to write it; leave "
           "start_after out if this model does not write it, or if the prompt holds it already";
}

} // namespace batchllm
