// Logits -> a token. Sampling parameters with their ranges, and the reference sampler that every
// backend's own must equal: same parameters, same random numbers, same token.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace batchllm {

// batchllm_params with its borrowed arrays copied. Immutable and shared by the rows that use it.
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

    bool greedy() const { return temperature == 0; }
};

// From the C struct, reading no field beyond its struct_size. Ranges are checked: an error names
// the field and its value (BATCHLLM_ERROR_ROW_INVALID_PARAMETER). vocabulary: token ids are below
// it.
Result<SamplingParams> read_params(const batchllm_params &params, int32_t vocabulary);

// What the sampler must know of one position whose logits were computed.
struct SampleInput {
    const SamplingParams *params;
    std::span<const int32_t> prompt; // for repetition_penalty
    std::span<const int32_t> output; // generated so far
    uint64_t random_key;             // of (engine seed, row seed, row tag, sample number)
    int32_t position;                // of the token to be chosen, counted from the prompt's start
};

struct TopLogprob {
    int32_t token;
    float logprob;
};

struct SampleOutput {
    int32_t token = -1;
    bool finite = true;          // false: the logits hold a NaN or +inf, or nothing but -inf
    float logprob = 0;           // natural log, of the model's own distribution (before any
                                 // parameter), filled when params->logprobs >= 0
    std::vector<TopLogprob> top; // likeliest first; params->logprobs of them
};

// Mixes what a request's random numbers depend on: not on the company that it keeps.
uint64_t random_key(uint64_t engine_seed, uint64_t row_seed, uint64_t tag, int32_t sample);

// Uniform in [0, 1), a function of its arguments alone (Philox 4x32-10).
double random_uniform(uint64_t key, int32_t position);

// Chooses a token. logits [vocabulary] is scratch: changed by the call. Order of operations: bias,
// repetition, presence, frequency penalties, then greedy argmax (lowest id wins a tie) or
// temperature, top-k, top-p, min-p, and one draw. Deterministic. Thread-safe.
void sample(std::span<float> logits, const SampleInput &input, SampleOutput *output);

// Log-probabilities of targets under softmax(logits). False when the logits are not finite.
bool score(std::span<const float> logits, std::span<const int32_t> targets,
           std::span<float> logprobs);

} // namespace batchllm
