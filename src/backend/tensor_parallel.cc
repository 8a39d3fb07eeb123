#include "backend/tensor_parallel.h"

#include <charconv>

#include "model/parts.h"

namespace batchllm {

Result<int32_t> read_tensor_parallel(const std::string &value) {
    if (value == "auto") return 0;
    int32_t ranks = 0;
    const char *end = value.data() + value.size();
    const auto [stop, failure] = std::from_chars(value.data(), end, ranks);
    if (failure == std::errc() && stop == end && ranks >= 1 && ranks <= most_ranks) return ranks;
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                 "backend option tensor_parallel=%s: not auto, nor a number from 1 to %d",
                 value.c_str(), most_ranks);
}

Result<int32_t> tensor_parallel_of(const BackendOptions &options) {
    int32_t ranks = 1;
    for (const auto &[key, value] : options.extra) {
        if (key != tensor_parallel_key) continue;
        ASSIGN_OR_RETURN(ranks, read_tensor_parallel(value));
    }
    return ranks;
}

} // namespace batchllm
