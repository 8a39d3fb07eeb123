// A backend with two batches in flight, on top of one that computes immediately: a batch is copied
// when it is submitted and computed when it is collected, with the samples of the previous batch in
// place of its fed_token()s. So the engine may change or free anything in between without an
// effect.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "backend/backend.h"
#include "held_batch.h"

namespace batchllm {

struct LateOptions {
    int32_t batches_in_flight = 2;
    int32_t feeds_but_one_in = 0; // prompts whose samples are not fed; 0: none
    int32_t ready_after = 0;      // how often ready() is false for each batch
    int64_t fails_after = -1;     // fails after this many batches; -1: never
    enum class Call { forward, sample, collect } fails_in = Call::collect; // the first such call
    int64_t *fed_tokens = nullptr;                                         // counted there
};

class LateBackend : public Backend {
  public:
    LateBackend(std::unique_ptr<Backend> inner, const LateOptions &options)
        : inner_(std::move(inner)), options_(options), info_(inner_->info()) {
        info_.batches_in_flight = options.batches_in_flight;
    }

    const BackendInfo &info() const override { return info_; }
    double last_run_seconds() const override { return inner_->last_run_seconds(); }
    bool feeds(const SampleInput &sample) const override {
        return options_.feeds_but_one_in == 0 ||
               sample.prompt.size() % static_cast<size_t>(options_.feeds_but_one_in) != 0;
    }
    bool ready() const override {
        if (asked_ < options_.ready_after) return ++asked_, false;
        return true;
    }

    // At once: the batches in flight use other slots.
    Status load_pictures(std::span<const PictureLoad> pictures) override {
        return inner_->load_pictures(pictures);
    }
    void unload_picture(int32_t slot) override { inner_->unload_picture(slot); }

    // Masks are copied, too.
    Status sample(std::span<const TokenMask> masks) override {
        RETURN_IF_ERROR(fail_in(LateOptions::Call::sample));
        if (held_.size() != held_masks_.size() + 1)
            return error(BATCHLLM_ERROR_INTERNAL, "sampled twice, or nothing to sample");
        HeldMasks &held = held_masks_.emplace_back();
        const auto words = static_cast<ptrdiff_t>((info_.vocabulary + 31) / 32);
        for (const TokenMask mask : masks) {
            held.words.emplace_back();
            if (mask != nullptr) held.words.back().assign(mask, mask + words);
        }
        for (const std::vector<uint32_t> &mask : held.words)
            held.masks.push_back(mask.empty() ? nullptr : mask.data());
        return {};
    }

    Status forward(const TokenBatch &batch) override {
        RETURN_IF_ERROR(fail_in(LateOptions::Call::forward));
        if (static_cast<int32_t>(held_.size()) == options_.batches_in_flight)
            return error(BATCHLLM_ERROR_INTERNAL, "a batch too many in flight");
        if (held_.size() != held_masks_.size())
            return error(BATCHLLM_ERROR_INTERNAL, "a batch before the one before it is sampled");
        held_.emplace_back(batch);
        return {};
    }

    Status collect(BatchOutput *output) override {
        if (held_.empty()) return error(BATCHLLM_ERROR_INTERNAL, "no batch is in flight");
        if (held_masks_.empty()) return error(BATCHLLM_ERROR_INTERNAL, "it was never sampled");
        RETURN_IF_ERROR(fail_in(LateOptions::Call::collect));
        const int64_t fed = held_.front().feed(last_.samples);
        if (fed < 0) return error(BATCHLLM_ERROR_INTERNAL, "a token of a row that sampled none");
        if (options_.fed_tokens != nullptr) *options_.fed_tokens += fed;
        RETURN_IF_ERROR(inner_->forward(held_.front().batch()));
        RETURN_IF_ERROR(inner_->sample(held_masks_.front().masks));
        RETURN_IF_ERROR(inner_->collect(&last_));
        held_.pop_front();
        held_masks_.pop_front();
        ++collected_;
        asked_ = 0;
        *output = last_;
        return {};
    }

  private:
    Status fail_in(LateOptions::Call call) {
        if (failed_) return error(BATCHLLM_ERROR_INTERNAL, "used again after it failed");
        if (options_.fails_after < 0 || collected_ < options_.fails_after ||
            call != options_.fails_in)
            return {};
        failed_ = true;
        return error(BATCHLLM_ERROR_DEVICE, "the device is lost");
    }

    std::unique_ptr<Backend> inner_;
    LateOptions options_;
    BackendInfo info_;
    std::deque<HeldBatch> held_;
    struct HeldMasks {
        std::vector<std::vector<uint32_t>> words;
        std::vector<TokenMask> masks;
    };
    std::deque<HeldMasks> held_masks_; // those of held_, except for the newest until it is sampled
    BatchOutput last_;
    int64_t collected_ = 0;
    bool failed_ = false;
    mutable int32_t asked_ = 0;
};

} // namespace batchllm
