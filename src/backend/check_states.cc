#include "backend/check_states.h"

namespace batchllm {

Status check_states(const TokenBatch &batch, const BackendInfo &info) {
    if (info.state_slots == 0) return {};
    std::vector<bool> taken(static_cast<size_t>(info.state_slots));
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const int32_t slot = batch.nodes[n].state;
        if (slot < 0 || slot >= info.state_slots) {
            return error(BATCHLLM_ERROR_INTERNAL,
                         "%s backend: context node %zu: state slot %d of %lld", info.name.c_str(),
                         n, slot, static_cast<long long>(info.state_slots));
        }
        if (taken[static_cast<size_t>(slot)]) {
            return error(BATCHLLM_ERROR_INTERNAL,
                         "%s backend: context node %zu: state slot %d is another node's",
                         info.name.c_str(), n, slot);
        }
        taken[static_cast<size_t>(slot)] = true;
    }
    return {};
}

} // namespace batchllm
