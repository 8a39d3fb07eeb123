// Logits -> tokens and log-probabilities on the device, by sample/sampling.h's definition. Weights are
// summed as whole numbers of 2^-40 of the likeliest token's: the same sum in any order. So a drawn
// token is the reference's but where its u falls within that rounding of a boundary.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace batchllm::cuda {

// A change to one token's logit, made before it is sampled; in sample/sampling.h's order of steps.
struct LogitEdit {
    int32_t token;
    float bias;       // added first
    int32_t repeated; // nonzero: in the prompt or the output
    int32_t times;    // in the output
    float before;     // written by the device: what the logit was
};

inline constexpr int kMostLikely = 20;

// One of the likeliest tokens, by the model's own distribution.
struct Likely {
    int32_t token; // -1: this and the rest are of probability 0, or nothing was sampled
    float logprob;
};

struct SampleTask {
    int32_t row;                        // of the logits
    int32_t output;                     // of the results
    int32_t logprob;                    // nonzero: the chosen token's log-probability is wanted
    int32_t target_begin, target_count; // count > 0: score these; nothing is sampled
    int32_t edit_begin, edit_count;     // distinct tokens
    int32_t likely_begin, likely_count; // the likeliest wanted, at most kMostLikely; scored or not
    // Tasks from this one on, in a row, that one block does one after the other; 0: a task before this
    // one has it among its own. More than 1 where tasks share a row that one of them edits.
    int32_t together;
    // A row of SampleArguments::spare that the task works on when it has a mask, since others read its
    // row of logits; -1: none do.
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
    float *logits; // [rows, stride]; a row with edits or a mask and one task is left changed
    int64_t stride;
    int32_t vocabulary;
    const SampleTask *tasks;
    int32_t count;
    LogitEdit *edits;
    const int32_t *targets;
    SampleResult *results;  // at each task's output
    SampleResult *answers;  // the same, for the host: memory that it shares; or null
    float *target_logprobs; // as targets; may be the host's too
    Likely *likely;         // likewise
    // The tokens that tasks may choose; null: any, for all of them.
    const int32_t *mask_of = nullptr; // [outputs] which mask a task's output has; -1: any token
    const uint32_t *masks = nullptr; // [masks, (vocabulary + 31) / 32] bit i % 32 of word i / 32: i
    float *spare = nullptr;          // [rows, stride]
};

cudaError_t launch_sample(const SampleArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
