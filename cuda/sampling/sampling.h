// Logits -> tokens and log-probabilities on the device, by sample/sampling.h's definition. Weights
// are summed as integers, in units of 2^-40 of the likeliest token's weight, so that the sum is the
// same in any order. A drawn token is that of the reference unless u falls within this rounding of
// a boundary.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace batchllm::cuda {

// A change to one token's logit, made before it is sampled; in sample/sampling.h's order of steps.
struct LogitEdit {
    int32_t token;
    float bias;       // added first
    int32_t repeated; // nonzero: is in the prompt or the output
    int32_t times;    // occurrences in the output
    float before;     // written by the device: the original logit
};

inline constexpr int kMostLikely = 20;

// One of the likeliest tokens, by the model's own distribution.
struct Likely {
    int32_t token; // -1: this and the rest have probability 0, or nothing was sampled
    float logprob;
};

struct SampleTask {
    int32_t row;                        // of the logits
    int32_t output;                     // of the results
    int32_t logprob;                    // nonzero: the chosen token's log-probability is wanted
    int32_t target_begin, target_count; // count > 0: score these; nothing is sampled
    int32_t edit_begin, edit_count;     // distinct tokens
    int32_t likely_begin, likely_count; // likeliest to return, at most kMostLikely; scored or not
    // How many consecutive tasks, from this one on, one block does one after the other; 0: this
    // task belongs to those of an earlier one. More than 1 if tasks share a row that one of them
    // edits.
    int32_t together;
    // The row of SampleArguments::spare that the task works on if it has a mask and others read its
    // row of logits; -1: no others do.
    int32_t spare;
    float temperature, top_p, min_p;
    int32_t top_k;
    float repetition_penalty, presence_penalty, frequency_penalty;
    double uniform; // in [0, 1)
};

struct SampleResult {
    int32_t token; // -1: scored, or not finite
    int32_t finite;
    float logprob;
};

struct SampleArguments {
    float *logits; // [rows, stride]; a row with a single task and edits or a mask stays changed
    int64_t stride;
    int32_t vocabulary;
    const SampleTask *tasks;
    int32_t count;
    LogitEdit *edits;
    const int32_t *targets;
    SampleResult *results;  // at each task's output
    SampleResult *answers;  // the same, in memory shared with the host; or null
    float *target_logprobs; // parallel to targets; may be host memory too
    Likely *likely;         // may be host memory too
    // The tokens that tasks may choose; null: any token, for all tasks.
    const int32_t *mask_of = nullptr; // [outputs] the mask of a task's output; -1: any token
    const uint32_t *masks = nullptr; // [masks, (vocabulary + 31) / 32] bit i % 32 of word i / 32: i
    float *spare = nullptr;          // [rows, stride]
};

cudaError_t launch_sample(const SampleArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
