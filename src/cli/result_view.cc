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

int64_t first_failed(const batchllm_results &results, int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
        if (results.statuses[i] != BATCHLLM_OK) return i;
    }
    return -1;
}

LogprobView logprobs_of(const batchllm_results &results) {
    return {results.logprob_offsets, results.logprobs, results.top_offsets, results.top_tokens,
            results.top_logprobs};
}

LogprobView prompt_logprobs_of(const batchllm_results &results) {
    return {results.prompt_logprob_offsets, results.prompt_logprobs, results.prompt_top_offsets,
            results.prompt_top_tokens, results.prompt_top_logprobs};
}

} // namespace batchllm::cli
