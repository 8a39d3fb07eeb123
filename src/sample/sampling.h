// Logits -> a token. Sampling parameters with their ranges, and the reference sampler that every
// backend's own must equal: same parameters, same random numbers, same token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace batchllm {

class Constraint;

// The parameters of sampling in batchllm_params, with its borrowed arrays copied. Immutable and shared by the rows that use it.
struct SamplingParams {
    int32_t max_tokens = 128;
    float temperature = 0;
    float top_p = 1;
    float min_p = 0;
    int32_t top_k = 0;
    float repetition_penalty = 1;
    float presence_penalty = 0;
    float frequency_penalty = 0;
    int32_t samples = 1;
    uint64_t seed = 0;
    bool ignore_eos = false;
    int32_t logprobs = -1;
    bool parse_special = true;
    bool add_special = true;
    std::vector<int32_t> stop_tokens;
    std::vector<std::string> stop_strings;
    std::vector<std::pair<int32_t, float>> bias;
    std::shared_ptr<const Constraint> constraint; // null: none
    int32_t min_tokens = 0;
    int32_t prompt_logprobs = -1;
    std::vector<std::string> bad_words;
    // Derived from the above once the model is known: the tokens that end a row (only with min_tokens), and the
    // bad words as tokens, with and without a space before them; none is empty.
    std::vector<int32_t> ending_tokens;
    std::vector<std::vector<int32_t>> bad_sequences;

    bool greedy() const { return temperature == 0; }
};

// The most samples of a row, and the most bytes of all its stop strings, or bad words, together.
inline constexpr int32_t samples_limit = 65536;
inline constexpr int64_t stop_bytes_limit = 1 << 16;

// From the C struct, reading no field beyond its struct_size. Ranges are checked: an error names
// the field and its value (BATCHLLM_ERROR_ROW_INVALID_PARAMETER). vocabulary: token ids are below
// it. A bias of -infinity bans its token.
Result<SamplingParams> read_params(const batchllm_params &params, int32_t vocabulary);

// The tokens that may be sampled: one bit each, the lowest bit of the first word for token 0; null: any.
// [(vocabulary + 31) / 32]
using TokenMask = const uint32_t *;

// What the sampler must know about one position whose logits were computed.
struct SampleInput {
    const SamplingParams *params;
    std::span<const int32_t> prompt; // for repetition_penalty
    std::span<const int32_t> output; // generated so far
    uint64_t random_key;             // of (engine seed, row seed, row tag, sample number)
    int32_t position;                // of the token to be chosen, counted from the prompt's start
    TokenMask mask = nullptr;
};

// Forbidden tokens: those that min_tokens and bad_words keep the sampler from choosing at a position.
// Whether there may be any in a row with these parameters.
bool forbids_tokens(const SamplingParams &params);
// Whether they depend on the output's tokens, and not only on how many there are.
bool forbids_by_output(const SamplingParams &params);
// Appends them; one may come twice. With forbids_by_output, the output must be complete.
void add_forbidden(const SampleInput &input, std::vector<int32_t> *tokens);

struct TopLogprob {
    int32_t token;
    float logprob;
};

struct SampleOutput {
    int32_t token = -1;
    bool finite = true;          // false, and no token: the logits, before or after the
                                 // parameters, hold a NaN or +inf, or nothing but -inf
    float logprob = 0;           // natural log, of the model's own distribution over the tokens of
                                 // the mask (before any parameter), filled when logprobs >= 0
    std::vector<TopLogprob> top; // the params->logprobs likeliest tokens (of a scored row
                                 // params->prompt_logprobs), without those of probability 0;
                                 // likeliest first, of equals the lower id first
};

// Mixes all that a request's random numbers depend on: other rows are not among it.
uint64_t random_key(uint64_t engine_seed, uint64_t row_seed, uint64_t tag, int32_t sample);

// Uniform in [0, 1), a function of its arguments alone (Philox 4x32-10).
double random_uniform(uint64_t key, int32_t position);

// Chooses a token. logits [vocabulary] is scratch: changed by the call. Deterministic. Thread-safe.
// The steps, in this order; l is a token's logit:
//   mask           l = -infinity for tokens that are not in it
//   forbidden      l = -infinity for those that min_tokens and bad_words forbid
//   bias           l += bias of the token
//   repetition     once for each token of prompt or output: l > 0 ? l / penalty : l * penalty (CTRL,
//                  and transformers)
//   presence,      for each token of the output, which has it n times: l -= presence, then
//   frequency      l -= frequency * n (OpenAI)
//   greedy         with temperature 0: the largest l, the lowest id of equals. Nothing below counts.
//   temperature    weight = exp((l - largest l) / temperature)
//   top-k          keeps the k largest l, and all that equal the k-th (transformers, vLLM)
//   top-p          of what is left, by falling l (of equals the lower id first): keeps each token
//                  if those before it have less than top_p of the weight (transformers, vLLM)
//   min-p          keeps weights of at least min_p, the largest being 1 (transformers: after top-p)
//   draw           u = random_uniform(random_key, position): by rising id, the first token up to
//                  which the kept weights add up to more than u of their sum
void sample(std::span<float> logits, const SampleInput &input, SampleOutput *output);

// Log-probabilities of targets under softmax(logits), and the `likeliest` likeliest tokens, as in
// SampleOutput::top. False if the logits are not finite.
bool score(std::span<const float> logits, std::span<const int32_t> targets,
           std::span<float> logprobs, int32_t likeliest = 0,
           std::vector<TopLogprob> *top = nullptr);

} // namespace batchllm
