#include "runtime/masks.h"

#include <algorithm>
#include <chrono>

namespace batchllm {
namespace {

using Clock = std::chrono::steady_clock;

// A known mask is only looked up, so threads are worth waking for at least this many.
constexpr size_t least_for_threads = 16;

// The row's sequence if it has a constraint; null: it has none, or it has ended in the meantime.
Sequence *constrained_sequence(Request *request) {
    auto *sequence = static_cast<Sequence *>(request);
    if (sequence == nullptr || sequence->done || sequence->constrained == nullptr) return nullptr;
    return sequence;
}

// Whether the row, if there is one, samples behind a proposed token of the row before it.
bool is_ahead(const BatchRecord &record, size_t row) {
    return row < record.proposed.size() && record.proposed[row] >= 0;
}

// Of the row behind the first `ahead` proposed tokens. *equal: AllowedTokens::mask.
TokenMask mask_ahead(Constrained *constrained, size_t ahead, const void **equal) {
    if (!constrained->failed.ok() || static_cast<size_t>(constrained->masked_ahead) + 1 < ahead)
        return nullptr;
    const Result<AllowedTokens> allowed = constrained->ahead[ahead - 1].allowed();
    if (!allowed.ok() || allowed->count == 0) return nullptr; // the row fails once it is there
    constrained->masked_ahead = static_cast<int32_t>(ahead);
    *equal = allowed->mask;
    return allowed->words;
}

// *equal: AllowedTokens::mask.
TokenMask mask_of(Sequence *sequence, const Tokenizer *tokenizer, const void **equal) {
    Constrained *constrained = sequence->constrained.get();
    if (!constrained->failed.ok()) return nullptr;
    if (constrained->takes_forced && sequence->state == RequestState::decoding) {
        // Leaves one token to be sampled; a decoding request has at least that many left.
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
    *equal = allowed->mask;
    return allowed->words;
}

} // namespace

bool RowMasks::wait_for_samples(const BatchRecord &record) {
    // One of the `unknown` tokens is this batch's own sample.
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
        if (record.tasks[row] != Task::generate) continue; // it scores a token of the prompt
        if (record.proposed[row] >= 0) continue;
        if (constrained_sequence(record.sampled[row]) != nullptr) constrained_.push_back(row);
    }
    if (constrained_.empty()) return {};
    const auto start = Clock::now();
    make_all(record, pool);
    share_equal_masks();
    for (const size_t row : constrained_) {
        auto *sequence = static_cast<Sequence *>(record.sampled[row]);
        if (sequence->constrained->forced.empty()) continue;
        forced_.push_back(sequence);
        work_.forced_tokens += static_cast<int64_t>(sequence->constrained->forced.size());
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    ++work_.batches;
    work_.seconds += seconds;
    work_.longest = std::max(work_.longest, seconds);
    return masks_;
}

void RowMasks::make_all(const BatchRecord &record, const std::function<ThreadPool &()> &pool) {
    masks_.assign(record.sampled.size(), nullptr);
    equal_.assign(record.sampled.size(), nullptr);
    const auto make_one = [&](int64_t i, int32_t) {
        const size_t row = constrained_[static_cast<size_t>(i)];
        auto *sequence = static_cast<Sequence *>(record.sampled[row]);
        masks_[row] = mask_of(sequence, tokenizer_, &equal_[row]);
        sequence->constrained->masked_ahead = 0;
        for (size_t ahead = 1; is_ahead(record, row + ahead); ++ahead) {
            masks_[row + ahead] =
                mask_ahead(sequence->constrained.get(), ahead, &equal_[row + ahead]);
        }
    };
    const auto count = static_cast<int64_t>(constrained_.size());
    if (constrained_.size() < least_for_threads) {
        for (int64_t i = 0; i < count; ++i) make_one(i, 0);
    } else {
        pool().parallel_for(count, make_one);
    }
}

// Sparse masks have separate bits in each row. Equal pointers are sent to a backend only once.
void RowMasks::share_equal_masks() {
    first_of_.clear();
    for (size_t row = 0; row < masks_.size(); ++row) {
        if (masks_[row] == nullptr) continue;
        masks_[row] = first_of_.try_emplace(equal_[row], masks_[row]).first->second;
        ++work_.rows;
    }
    work_.distinct += static_cast<int64_t>(first_of_.size());
}

} // namespace batchllm
