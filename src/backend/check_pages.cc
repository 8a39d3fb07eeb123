#include "backend/check_pages.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace batchllm {

std::vector<int64_t> first_queries(const TokenBatch &batch) {
    std::vector<int64_t> first(batch.nodes.size(), std::numeric_limits<int64_t>::max());
    for (size_t n = batch.nodes.size(); n-- > 0;) {
        const ContextNode &node = batch.nodes[n];
        if (node.token_count > 0) {
            first[n] = int64_t{node.start} + node.length - node.token_count; // comes before its
                                                                             // descendants'
        }
        if (node.parent < 0) continue;
        int64_t &above = first[static_cast<size_t>(node.parent)];
        above = std::min(above, first[n]);
    }
    return first;
}

Status check_pages(const TokenBatch &batch, const BackendInfo &info) {
    if (batch.nodes.empty()) return {};
    if (batch.pages.size() != info.kv_windows.size()) {
        return error(BATCHLLM_ERROR_INTERNAL,
                     "%s backend: pages of %zu KV groups, the model has %zu", info.name.c_str(),
                     batch.pages.size(), info.kv_windows.size());
    }
    const std::vector<int64_t> first = first_queries(batch);
    for (size_t g = 0; g < batch.pages.size(); ++g) {
        const GroupPages &group = batch.pages[g];
        if (group.nodes.size() != batch.nodes.size()) {
            return error(BATCHLLM_ERROR_INTERNAL, "%s backend: KV group %zu has pages of %zu nodes",
                         info.name.c_str(), g, group.nodes.size());
        }
        for (size_t n = 0; n < batch.nodes.size(); ++n) {
            const ContextNode &node = batch.nodes[n];
            const NodePages &pages = group.nodes[n];
            const int64_t columns =
                (int64_t{node.length} + info.page_tokens - 1) / info.page_tokens;
            // The first position that any query sees, relative to the node's start.
            const int64_t seen =
                info.kv_windows[g] == 0 ? 0 : first[n] - info.kv_windows[g] + 1 - node.start;
            if (pages.first < 0 || int64_t{pages.begin} + pages.first < 0 ||
                pages.begin + std::max<int64_t>(columns, pages.first) >
                    static_cast<int64_t>(group.list.size()) ||
                (int64_t{pages.first} * info.page_tokens > std::max<int64_t>(seen, 0) &&
                 seen < node.length)) {
                return error(BATCHLLM_ERROR_INTERNAL,
                             "%s backend: context node %zu lacks pages of KV group %zu",
                             info.name.c_str(), n, g);
            }
        }
        for (const int32_t page : group.list) {
            if (page < 0 || page >= info.pages) {
                return error(BATCHLLM_ERROR_INTERNAL, "%s backend: page %d of %lld",
                             info.name.c_str(), page, static_cast<long long>(info.pages));
            }
        }
    }
    return {};
}

} // namespace batchllm
