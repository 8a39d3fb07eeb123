#include "runtime/masks.h"

#include <algorithm>

namespace batchllm {
namespace {

// A known mask is a look-up; threads are woken only for more of them.
constexpr size_t least_for_threads = 16;

// The row's sequence where it has a constraint; null: it has none, or has ended in the meantime.
Sequence *constrained_sequence(Request *request) {
    auto *sequence = static_cast<Sequence *>(request);
    if (sequence == nullptr || sequence->done || sequence->constrained == nullptr) return nullptr;
    return sequence;
}

TokenMask mask_of(Sequence *sequence, const Tokenizer *tokenizer) {
    Constrained *constrained = sequence->constrained.get();
    if (!constrained->failed.ok()) return nullptr;
    if (constrained->takes_forced && sequence->state == RequestState::decoding) {
        // One token is left to be sampled: a request that decodes has at least that.
        const int64_t most =
            sequence->max_tokens - static_cast<int64_t>(sequence->output.size()) - 1;
        constrained->forced = forced_tokens(constrained->state, *tokenizer, sequence->output, most);
        if (!constrained->forced.empty()) return nullptr;
    }
    Result<AllowedTokens> allowed = constrained->state.allowed();
    if (!allowed.ok()) {
        constrained->failed = std::move(allowed).status();
        return nullptr;
    }
    if (allowed->count == 0) {
        constrained->failed = error(BATCHLLM_ERROR_ROW_CONSTRAINT,
                                    "the constraint allows no token of the model here");
        return nullptr;
    }
    return allowed->words;
}

} // namespace

bool RowMasks::wait_for_samples(const BatchRecord &record) {
    // Of `unknown`, one is what this batch samples.
    return std::any_of(record.sampled.begin(), record.sampled.end(), [](Request *request) {
        const Sequence *sequence = constrained_sequence(request);
        return sequence != nullptr && sequence->unknown > 1;
    });
}

std::span<const TokenMask> RowMasks::make(const BatchRecord &record,
                                          const std::function<ThreadPool &()> &pool) {
    constrained_.clear();
    forced_.clear();
    for (size_t row = 0; row < record.sampled.size(); ++row) {
        if (constrained_sequence(record.sampled[row]) != nullptr) constrained_.push_back(row);
    }
    if (constrained_.empty()) return {};
    masks_.assign(record.sampled.size(), nullptr);
    const auto make_one = [&](int64_t i, int32_t) {
        const size_t row = constrained_[static_cast<size_t>(i)];
        masks_[row] = mask_of(static_cast<Sequence *>(record.sampled[row]), tokenizer_);
    };
    const auto count = static_cast<int64_t>(constrained_.size());
    if (constrained_.size() < least_for_threads) {
        for (int64_t i = 0; i < count; ++i) make_one(i, 0);
    } else {
        pool().parallel_for(count, make_one);
    }
    for (const size_t row : constrained_) {
        auto *sequence = static_cast<Sequence *>(record.sampled[row]);
        if (!sequence->constrained->forced.empty()) forced_.push_back(sequence);
    }
    return masks_;
}

} // namespace batchllm
