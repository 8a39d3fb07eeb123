#include "step/state_items.h"

#include <algorithm>

#include "backend/state_levels.h"

namespace batchllm::cuda {
namespace {

// Of the items from `begin` on.
void add_level(int32_t begin, int32_t least_chunked, StateItems *out) {
    std::vector<StateItem> &items = out->items;
    const auto chunked =
        std::stable_partition(items.begin() + begin, items.end(), [&](const StateItem &item) {
            return item.token_count < least_chunked;
        });
    const auto several =
        std::stable_partition(items.begin() + begin, chunked,
                              [](const StateItem &item) { return item.token_count == 1; });
    const auto count = [](const auto &all) { return static_cast<int32_t>(all.size()); };
    StateLevel level{};
    level.begin = begin;
    level.several = static_cast<int32_t>(several - items.begin());
    level.chunked = static_cast<int32_t>(chunked - items.begin());
    level.end = count(items);
    level.chunk_begin = count(out->chunks);
    for (int32_t i = level.chunked; i < level.end; ++i) {
        for (int32_t t = 0; t < items[static_cast<size_t>(i)].token_count; t += kStateChunk) {
            out->chunks.push_back({i, t});
        }
    }
    level.chunk_end = count(out->chunks);
    out->levels.push_back(level);
}

} // namespace

void list_state_items(const TokenBatch &batch, int32_t least_chunked, StateItems *out) {
    out->items.clear();
    out->levels.clear();
    out->chunks.clear();
    const std::vector<int32_t> level_of = levels_of_states(batch);
    const int32_t most =
        level_of.empty() ? -1 : *std::max_element(level_of.begin(), level_of.end());
    for (int32_t l = 0; l <= most; ++l) {
        const auto begin = static_cast<int32_t>(out->items.size());
        for (size_t n = 0; n < batch.nodes.size(); ++n) {
            if (level_of[n] != l) continue;
            const ContextNode &node = batch.nodes[n];
            out->items.push_back({node.state, state_before(batch, node), node.token_begin,
                                  node.token_count, node.start + node.length - node.token_count});
        }
        add_level(begin, least_chunked, out);
    }
}

} // namespace batchllm::cuda
