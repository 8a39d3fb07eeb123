// Logits -> a token: the reference sampler. Every backend's sampler must match it: same parameters,
// same random numbers, same token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "parameters/row_parameters.h"

namespace batchllm {

class Constraint;

// What a row wants, with what the model makes of it. Immutable; shared by the rows that use it.
struct SamplingParams : RowParameters {
    std::shared_ptr<const Constraint> constraint; // null: none
    // Derived from the parameters once the model is known: the tokens that end a row (only with
    // min_tokens), and the bad words as tokens, with and without a leading space; none is empty.
    std::vector<int32_t> ending_tokens;
    std::vector<std::vector<int32_t>> bad_sequences;

    bool greedy() const { return temperature == 0; }
};

// The tokens that may be sampled, one bit each; token 0 is the lowest bit of the first word. Null:
// all.
// [(vocabulary + 31) / 32]
using TokenMask = const uint32_t *;

// What the sampler needs to know about one position whose logits were computed.
struct SampleInput {
    const SamplingParams *params;
    std::span<const int32_t> prompt; // for repetition_penalty
    std::span<const int32_t> output; // generated so far
    uint64_t random_key;             // from (engine seed, row seed, row tag, sample number)
    int32_t position;                // of the token to be chosen, counted from the start of the
                                     // prompt
    TokenMask mask = nullptr;
};

// Forbidden tokens: those that min_tokens and bad_words rule out at a position. Whether rows with
// these parameters can have any.
bool forbids_tokens(const SamplingParams &params);
// Whether they depend on the output's tokens and not only on their number.
bool forbids_by_output(const SamplingParams &params);
// Appends them, possibly with duplicates. If forbids_by_output, the output must be complete.
void add_forbidden(const SampleInput &input, std::vector<int32_t> *tokens);

struct TopLogprob {
    int32_t token;
    float logprob;
};

struct SampleOutput {
    int32_t token = -1;
    // false: there is no token, because the logits, before or after the parameters are applied, contain
    // a NaN or +inf, or nothing but -inf.
    bool finite = true;
    // Natural log, under the model's own distribution over the mask's tokens (before any parameter).
    // Set if logprobs >= 0.
    float logprob = 0;
    // The params->logprobs (of a scored row params->prompt_logprobs) most likely tokens, without those of
    // probability 0. Most likely first; ties: lower id first.
    std::vector<TopLogprob> top;
};

// Mixes everything that a request's random numbers depend on; other rows are not part of it.
uint64_t random_key(uint64_t engine_seed, uint64_t row_seed, uint64_t tag, int32_t sample);

// Uniform in [0, 1), determined by its arguments alone (Philox 4x32-10).
double random_uniform(uint64_t key, int32_t position);

// Chooses a token. logits [vocabulary] is scratch: the call changes it. Deterministic. Thread-safe.
// The steps, in this order; l is a token's logit:
//   mask           l = -infinity for tokens outside the mask
//   forbidden      l = -infinity for tokens that min_tokens and bad_words forbid
//   bias           l += bias of the token
//   repetition     once for each token of prompt or output: l > 0 ? l / penalty : l * penalty (CTRL,
//                  and transformers)
//   presence,      for each distinct token of the output, n times in it: l -= presence, then
//   frequency      l -= frequency * n (OpenAI)
//   greedy         with temperature 0: the largest l; ties: the lowest id. Skips all steps below.
//   temperature    weight = exp((l - largest l) / temperature)
//   top-k          keeps the k largest l, and all that equal the k-th (transformers, vLLM)
//   top-p          in order of falling l (ties: lower id first), keeps each token if those before
//                  it have less than top_p of the remaining weight (transformers, vLLM)
//   min-p          keeps weights of at least min_p times the largest (transformers: after top-p)
//   draw           u = random_uniform(random_key, position): in order of rising id, the first token
//                  at which the cumulative kept weight exceeds u times its total
void sample(std::span<float> logits, const SampleInput &input, SampleOutput *output);

// Log-probabilities of targets under softmax(logits), and the `likeliest` most likely tokens, as in
// SampleOutput::top. False if the logits are not finite.
bool score(std::span<const float> logits, std::span<const int32_t> targets,
           std::span<float> logprobs, int32_t likeliest = 0,
           std::vector<TopLogprob> *top = nullptr);

} // namespace batchllm
