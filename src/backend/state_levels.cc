#include "backend/state_levels.h"

namespace batchllm {

std::vector<int32_t> levels_of_states(const TokenBatch &batch) {
    std::vector<int32_t> levels(batch.nodes.size(), -1);
    for (size_t n = 0; n < batch.nodes.size(); ++n) {
        const ContextNode &node = batch.nodes[n];
        if (node.token_count == 0) continue;
        const bool starts = node.length == node.token_count && node.parent >= 0;
        levels[n] = starts ? levels[static_cast<size_t>(node.parent)] + 1 : 0;
    }
    return levels;
}

int32_t state_before(const TokenBatch &batch, const ContextNode &node) {
    if (node.length != node.token_count) return node.state;
    return node.parent < 0 ? -1 : batch.nodes[static_cast<size_t>(node.parent)].state;
}

} // namespace batchllm
