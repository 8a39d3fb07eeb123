// The samples, scores and hidden states of one batch: the device's tasks, and where their results come back. One object
// for each batch in flight.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/batch_rows.h"
#include "device/device.h"
#include "device/staging.h"
#include "elementwise/elementwise.h"
#include "sampling/sampling.h"
#include "step/output_head.h"

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
               params.frequency_penalty != 0 || forbids_by_output(params);
    }
    // Memory for so many rows of samples. Growing later waits for the device.
    Status reserve(int64_t rows);
    // Host: reads the batch and stages the device's tasks. logits_rows: OutputHead's.
    Status stage(const TokenBatch &batch, const BackendInfo &info, int64_t logits_rows,
                 Staging *staging);
    const std::vector<int32_t> &wanted() const { return rows_.tokens(); }
    int64_t rows() const { return static_cast<int64_t>(generates_.size()); }
    // The row samples a token, which can be fed to the next batch.
    bool feeds(int64_t row) const {
        return row < rows() && generates_[static_cast<size_t>(row)] != 0;
    }

    // Of ranks: results go where another one's are taken.
    void answer_to(StepSamples *other) { answers_in_ = other; }

    // Host: enqueues the copy of the rows' masks; equal pointers are sent once. *sent: whether there
    // was one. Then reserve_spare().
    Status send_masks(std::span<const TokenMask> masks, cudaStream_t stream, bool *sent);
    Status reserve_spare(const OutputHead &head);
    // Device: logits and samples, and sums of hidden states, behind the step and the masks. Tokens also go to
    // head->samples().
    Status run(const Staging &staging, OutputHead *head, cudaStream_t stream);
    // Once the stream has come that far.
    void take(BatchOutput *output);

  private:
    SampleTask task_of(const OutputRow &row, int32_t number, int64_t logits_row);
    void add_edits(const SampleInput &input, SampleTask *task);
    void join_edited_rows();
    Status stage_sums(const TokenBatch &batch, int32_t hidden, Staging *staging);
    void take_sums(BatchOutput *output) const;
    Status reserve_masks(int64_t bytes);

    BatchRows rows_;
    std::vector<char> generates_;    // [rows]
    std::vector<SampleTask> tasks_;  // of rows that want logits, in the order of their tokens
    std::vector<int32_t> wanted_of_; // [tasks] index into wanted()
    std::vector<LogitEdit> edits_;
    std::vector<int32_t> targets_;
    int32_t likely_ = 0; // tokens listed, of all rows
    int32_t vocabulary_ = 0;
    std::vector<SumSpan> spans_; // of embedded rows: indices into wanted()
    int32_t hidden_ = 0;
    int32_t spares_ = 0; // tasks that need a row of their own when they have a mask
    // What send_masks() sent: which mask each row has, then, from mask_words_ on, the masks.
    PinnedMemory host_masks_;
    DeviceMemory device_masks_, spare_;
    int64_t mask_words_ = 0;
    bool masked_ = false;
    int64_t staged_tasks_ = 0, staged_edits_ = 0, staged_targets_ = 0, staged_spans_ = 0;
    StepSamples *answers_in_ = this;
    // Written by the device, through the bus: [rows], [targets], [likely_] and [embedded rows, hidden_]
    PinnedMemory answers_, target_logprobs_, likely_answers_, sums_;
};

} // namespace batchllm::cuda
