// A token batch that outlives its owner: a copy of everything that it points to, as on a device
// that runs it later. Also puts a batch's samples in place of the next one's fed_token()s.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace batchllm {

class HeldBatch {
  public:
    explicit HeldBatch(const TokenBatch &batch) : batch_(batch) {
        for (OutputRow &row : batch_.outputs) {
            copies_.push_back(std::make_unique<Copy>());
            Copy &copy = *copies_.back();
            if (row.sample.params != nullptr) copy.params = *row.sample.params;
            copy.prompt.assign(row.sample.prompt.begin(), row.sample.prompt.end());
            copy.output.assign(row.sample.output.begin(), row.sample.output.end());
            copy.targets.assign(row.targets.begin(), row.targets.end());
            if (row.sample.params != nullptr) row.sample.params = &copy.params;
            row.sample.prompt = copy.prompt;
            row.sample.output = copy.output;
            row.targets = copy.targets;
        }
    }

    // Fills in the samples of the previous batch. Returns how many, or -1 if a token refers to a
    // row without a sample.
    int64_t feed(const std::vector<SampleOutput> &before) {
        int64_t fed = 0;
        for (int32_t &token : batch_.tokens) {
            if (token >= 0) continue;
            const auto row = static_cast<size_t>(-1 - token);
            if (row >= before.size() || before[row].token < 0) return -1;
            token = before[row].token;
            ++fed;
        }
        return fed;
    }

    const TokenBatch &batch() const { return batch_; }

  private:
    struct Copy {
        SamplingParams params;
        std::vector<int32_t> prompt, output, targets;
    };
    TokenBatch batch_;
    std::vector<std::unique_ptr<Copy>> copies_;
};

} // namespace batchllm
