#include "backend/cpu/state_work.h"

#include <algorithm>

#include "backend/cpu/forward_tasks.h"
#include "backend/state_levels.h"

namespace batchllm::cpu {

void StateWork::prepare(const TokenBatch &batch) {
    nodes.clear();
    pieces.clear();
    levels.clear();
    const std::vector<int32_t> level = levels_of_states(batch);
    const int32_t most = level.empty() ? -1 : *std::max_element(level.begin(), level.end());
    for (int32_t l = 0; l <= most; ++l) {
        Level of{nodes.size(), 0, pieces.size(), 0};
        for (size_t n = 0; n < batch.nodes.size(); ++n) {
            if (level[n] != l) continue;
            const ContextNode &node = batch.nodes[n];
            for (int32_t t = 0; t < node.token_count; t += kTokensOfTask) {
                pieces.push_back({static_cast<int32_t>(nodes.size()), t,
                                  std::min<int32_t>(node.token_count, t + kTokensOfTask)});
            }
            nodes.push_back(
                {node.state, state_before(batch, node), node.token_begin, node.token_count});
        }
        of.node_end = nodes.size();
        of.piece_end = pieces.size();
        levels.push_back(of);
    }
}

} // namespace batchllm::cpu
