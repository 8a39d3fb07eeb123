// min_tokens and bad_words -> the tokens that are forbidden at a position.
#include <algorithm>

#include "sample/sampling.h"

namespace batchllm {

bool forbids_tokens(const SamplingParams &params) {
    return params.min_tokens > 0 || !params.bad_sequences.empty();
}

bool forbids_by_output(const SamplingParams &params) {
    return std::any_of(params.bad_sequences.begin(), params.bad_sequences.end(),
                       [](const std::vector<int32_t> &tokens) { return tokens.size() > 1; });
}

void add_forbidden(const SampleInput &input, std::vector<int32_t> *tokens) {
    const SamplingParams &params = *input.params;
    // Not output.size(), since the last token may be in flight.
    const int64_t generated = input.position - static_cast<int64_t>(input.prompt.size());
    if (generated < params.min_tokens) {
        tokens->insert(tokens->end(), params.ending_tokens.begin(), params.ending_tokens.end());
    }
    for (const std::vector<int32_t> &sequence : params.bad_sequences) {
        const size_t before = sequence.size() - 1;
        if (input.output.size() < before) continue;
        if (std::equal(sequence.begin(), sequence.end() - 1, input.output.end() - before)) {
            tokens->push_back(sequence.back());
        }
    }
}

} // namespace batchllm
