#include "base/display.h"

#include "batchllm.h"

namespace batchllm {

const char *finish_name(int32_t reason) {
    switch (reason) {
    case BATCHLLM_FINISH_STOP:
        return "stop";
    case BATCHLLM_FINISH_LENGTH:
        return "length";
    case BATCHLLM_FINISH_CANCELLED:
        return "cancelled";
    case BATCHLLM_FINISH_SCORED:
        return "scored";
    case BATCHLLM_FINISH_EMBEDDED:
        return "embedded";
    case BATCHLLM_FINISH_CLASSIFIED:
        return "classified";
    default:
        return "error";
    }
}

std::string format_count(int64_t value) {
    std::string digits = std::to_string(value);
    for (auto i = static_cast<int64_t>(digits.size()) - 3; i > (value < 0 ? 1 : 0); i -= 3) {
        digits.insert(static_cast<size_t>(i), 1, ',');
    }
    return digits;
}

} // namespace batchllm
