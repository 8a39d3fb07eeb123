// The samples and scores of one batch: the device's tasks, and where their results come back. One object
// for each batch in flight.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "device.h"
#include "forward.h"
#include "sampling.h"
#include "staging.h"

namespace batchllm::cuda {

// The task of a row that is sampled by these parameters, but for its random number and its edits. *likely:
// tokens listed so far.
SampleTask sampling_task(const SamplingParams &params, int32_t row, int32_t output,
                         int32_t *likely);

class StepSamples {
  public:
    // Whether a row is sampled by more than its logits and random numbers: by the tokens before it.
    static bool needs_history(const SamplingParams &params) {
        return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
               params.frequency_penalty != 0;
    }
    // Memory for so many rows of samples. Growing later waits for the device.
    Status reserve(int64_t rows);
    // Host: reads the batch and stages the device's tasks. logits_rows: Forward's.
    Status plan(const TokenBatch &batch, int32_t vocabulary, int64_t logits_rows, Staging *staging);
    std::span<const int32_t> wanted() const { return wanted_; } // tokens, ascending, each once
    int64_t rows() const { return static_cast<int64_t>(by_token_.size()); }
    // Row's token can be fed to the next batch.
    bool feeds(int64_t row) const { return scored_[static_cast<size_t>(row)] == 0; }

    // Device: logits and samples, behind forward->run(). Tokens also go to forward->samples().
    Status run(const Staging &staging, Forward *forward, cudaStream_t stream);
    // Once the stream has come that far.
    void take(BatchOutput *output);

  private:
    SampleTask task_of(const LogitsRow &row, int32_t number, int64_t logits_row);
    void add_edits(const SampleInput &input, SampleTask *task);
    void join_edited_rows();

    // Logits rows in the order of their tokens.
    std::vector<int32_t> by_token_;     // [rows] their numbers
    std::vector<int32_t> wanted_;       // their tokens, each once
    std::vector<int32_t> wanted_of_;    // [rows, by_token_'s order] index into wanted_
    std::vector<int64_t> target_begin_; // [rows] into BatchOutput::target_logprobs
    std::vector<char> scored_;          // [rows]
    std::vector<SampleTask> tasks_;     // [rows, by_token_'s order]
    std::vector<LogitEdit> edits_;
    std::vector<int32_t> targets_;
    int32_t likely_ = 0; // tokens listed, of all rows
    int32_t vocabulary_ = 0;
    int64_t staged_tasks_ = 0, staged_edits_ = 0, staged_targets_ = 0;
    // Written by the device, through the bus: [rows], [targets] and [likely_]
    PinnedMemory answers_, target_logprobs_, likely_answers_;
};

} // namespace batchllm::cuda
