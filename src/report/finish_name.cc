#include "report/finish_name.h"

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

} // namespace batchllm
