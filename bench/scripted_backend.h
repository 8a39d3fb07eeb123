// A backend whose rows answer with parts of their prompts, as extraction does, whatever it computes:
// so that random weights, or a simulated device, run a job whose answers repeat.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace batchllm {

// The token at a position of a row's answer: `part` tokens from a place of the prompt, then as many
// from another.
inline int32_t scripted_token(std::span<const int32_t> prompt, int32_t position, int32_t part) {
    const int64_t generated = position - static_cast<int64_t>(prompt.size());
    const int64_t places = static_cast<int64_t>(prompt.size()) - part;
    if (places <= 0) return prompt[static_cast<size_t>(generated) % prompt.size()];
    uint64_t x = static_cast<uint64_t>(generated / part) * 0x9e3779b97f4a7c15u +
                 static_cast<uint32_t>(prompt.back());
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    const auto place = static_cast<int64_t>((x >> 20) % static_cast<uint64_t>(places));
    return prompt[static_cast<size_t>(place + generated % part)];
}

// Sees every batch, and what it took on the device.
class BatchWatch {
  public:
    virtual ~BatchWatch() = default;
    virtual void began(const TokenBatch &batch) = 0;
    virtual void ended(double device_seconds) = 0; // the oldest that began
};

class ScriptedBackend final : public Backend {
  public:
    // watch: may be null.
    ScriptedBackend(std::unique_ptr<Backend> inner, int32_t part, BatchWatch *watch = nullptr)
        : inner_(std::move(inner)), part_(part), watch_(watch) {}

    const BackendInfo &info() const override { return inner_->info(); }
    Status forward(const TokenBatch &batch) override {
        RETURN_IF_ERROR(inner_->forward(batch));
        if (watch_ != nullptr) watch_->began(batch);
        std::vector<int32_t> &tokens = scripts_.emplace_back();
        for (const OutputRow &row : batch.outputs) {
            tokens.push_back(row.task != Task::generate
                                 ? -1
                                 : scripted_token(row.sample.prompt, row.sample.position, part_));
        }
        return {};
    }
    Status sample(std::span<const TokenMask> masks) override { return inner_->sample(masks); }
    Status collect(BatchOutput *output) override {
        RETURN_IF_ERROR(inner_->collect(output));
        for (size_t i = 0; i < scripts_.front().size(); ++i)
            output->samples[i].token = scripts_.front()[i];
        scripts_.pop_front();
        if (watch_ != nullptr) watch_->ended(inner_->last_run_seconds());
        return {};
    }
    bool ready() const override { return inner_->ready(); }
    bool feeds(const SampleInput &input) const override { return inner_->feeds(input); }
    double last_run_seconds() const override { return inner_->last_run_seconds(); }
    double last_wait_seconds() const override { return inner_->last_wait_seconds(); }

  private:
    std::unique_ptr<Backend> inner_;
    int32_t part_;
    BatchWatch *watch_;
    std::deque<std::vector<int32_t>> scripts_; // of the batches in flight
};

} // namespace batchllm
