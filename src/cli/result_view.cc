#include "cli/result_view.h"

namespace batchllm::cli {

std::string_view text_of(const batchllm_results &results, int64_t i) {
    const int64_t begin = results.text_offsets[i];
    return {results.text + begin, static_cast<size_t>(results.text_offsets[i + 1] - begin)};
}

int64_t completion_tokens(const batchllm_results &results, int64_t i) {
    return results.token_offsets[i + 1] - results.token_offsets[i];
}

RowError error_of(const batchllm_results &results, int64_t i) {
    const int64_t begin = results.error_offsets[i];
    return {row_error_code(results.statuses[i]),
            std::string(results.errors + begin,
                        static_cast<size_t>(results.error_offsets[i + 1] - begin))};
}

bool has_logprobs(const batchllm_results &results, int64_t i) {
    return results.logprob_offsets[i + 1] > results.logprob_offsets[i];
}

bool has_top(const batchllm_results &results, int64_t i) {
    return results.top_offsets[results.logprob_offsets[i + 1]] >
           results.top_offsets[results.logprob_offsets[i]];
}

} // namespace batchllm::cli
