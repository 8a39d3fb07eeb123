#include "backend/cpu/worklist.h"

#include <algorithm>
#include <numeric>

#include "backend/cpu/kernels.h"

namespace batchllm::cpu {
namespace {

// Query rows (tokens times heads of the GQA group) of an item: enough that reading keys and values
// costs nothing beside the arithmetic, few enough that their output stays in the cache.
constexpr int32_t kItemRows = 192;
// No range of positions is cut finer than this for the threads' sake: each cut leaves every row a
// part more to merge.
constexpr int32_t kLeastKeys = 256;

int64_t cost(const AttentionItem &item) {
    return int64_t{item.query_count} * (item.key_end - item.key_begin);
}

int32_t round_down(int32_t x) { return x / kGroupTokens * kGroupTokens; }

} // namespace

void build_worklist(const TokenBatch &batch, const std::vector<int32_t> &rows,
                    const WorklistOptions &options, Worklist *list) {
    const std::vector<ContextNode> &nodes = batch.nodes;
    const int32_t count = static_cast<int32_t>(nodes.size());
    list->items.clear();
    list->queries.clear();
    list->tasks.clear();
    list->most_queries = 0;
    list->most_groups = 0;

    // Which nodes' tokens meet each node: itself and its descendants that have tokens in the batch.
    // Stored as one list, node by node (a counting sort over the pairs).
    std::vector<int32_t> begin(static_cast<size_t>(count) + 1, 0);
    for (int32_t n = 0; n < count; ++n) {
        if (nodes[n].token_count == 0) continue;
        for (int32_t a = n; a >= 0; a = nodes[a].parent) ++begin[a + 1];
    }
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<int32_t> members(static_cast<size_t>(begin[count]));
    {
        std::vector<int32_t> next(begin.begin(), begin.end() - 1);
        for (int32_t n = 0; n < count; ++n) {
            if (nodes[n].token_count == 0) continue;
            for (int32_t a = n; a >= 0; a = nodes[a].parent) members[next[a]++] = n;
        }
    }

    const int32_t item_queries = std::max(1, kItemRows / options.gqa_ratio);
    for (int32_t a = 0; a < count; ++a) {
        const ContextNode &node = nodes[a];
        const size_t first_query = list->queries.size();
        for (int32_t m = begin[a]; m < begin[a + 1]; ++m) {
            const ContextNode &member = nodes[members[m]];
            for (int32_t t = member.token_begin; t < member.token_begin + member.token_count; ++t) {
                if (!rows.empty() && rows[t] < 0) continue;
                const int32_t position = batch.positions[t];
                int32_t low = 0;
                int32_t high = node.length;
                if (options.window > 0) {
                    low = std::max(0, position - options.window + 1 - node.start);
                }
                if (members[m] == a) high = position - node.start + 1;
                if (low < high) list->queries.push_back({t, low, high, 0});
            }
        }
        const int32_t all = static_cast<int32_t>(list->queries.size() - first_query);
        if (all == 0) continue;
        // Cut evenly, so that no small item is left over.
        const int32_t pieces = (all + item_queries - 1) / item_queries;
        int32_t taken = 0;
        for (int32_t piece = 0; piece < pieces; ++piece) {
            const int32_t size = (all - taken + pieces - piece - 1) / (pieces - piece);
            AttentionItem item{a, node.length, 0, static_cast<int32_t>(first_query) + taken, size};
            for (int32_t q = item.query_begin; q < item.query_begin + size; ++q) {
                item.key_begin = std::min(item.key_begin, list->queries[q].visible_begin);
                item.key_end = std::max(item.key_end, list->queries[q].visible_end);
            }
            item.key_begin = round_down(item.key_begin);
            list->items.push_back(item);
            taken += size;
        }
    }

    // Cut by positions what is too long for one thread.
    int64_t total = 0;
    for (const AttentionItem &item : list->items) total += cost(item);
    const int64_t target =
        std::max<int64_t>(1, total * options.kv_heads / (int64_t{4} * options.threads));
    const size_t uncut = list->items.size();
    std::vector<AttentionItem> cut;
    cut.reserve(uncut);
    std::vector<AttentionQuery> queries;
    queries.reserve(list->queries.size());
    for (const AttentionItem &item : list->items) {
        const int32_t keys = item.key_end - item.key_begin;
        const int64_t wanted = (cost(item) + target - 1) / target;
        const int32_t pieces =
            static_cast<int32_t>(std::clamp<int64_t>(wanted, 1, std::max(1, keys / kLeastKeys)));
        int32_t key = item.key_begin;
        for (int32_t piece = 0; piece < pieces; ++piece) {
            const int32_t last = piece + 1 == pieces
                                     ? item.key_end
                                     : round_down(key + (item.key_end - key) / (pieces - piece));
            AttentionItem part{item.node, key, last, static_cast<int32_t>(queries.size()), 0};
            for (int32_t q = item.query_begin; q < item.query_begin + item.query_count; ++q) {
                AttentionQuery query = list->queries[q];
                query.visible_begin = std::max(query.visible_begin, key);
                query.visible_end = std::min(query.visible_end, last);
                if (query.visible_begin < query.visible_end) queries.push_back(query);
            }
            part.query_count = static_cast<int32_t>(queries.size()) - part.query_begin;
            if (part.query_count > 0) cut.push_back(part);
            key = last;
        }
    }
    list->items.swap(cut);
    list->queries.swap(queries);

    // Parts of each row, in the order of the items: ancestors before descendants.
    list->rows = static_cast<int32_t>(batch.tokens.size());
    if (!rows.empty()) {
        list->rows = 0;
        for (int32_t row : rows) list->rows = std::max(list->rows, row + 1);
    }
    list->part_begin.assign(static_cast<size_t>(list->rows) + 1, 0);
    const auto row_of = [&](int32_t token) { return rows.empty() ? token : rows[token]; };
    for (const AttentionQuery &query : list->queries) ++list->part_begin[row_of(query.token) + 1];
    std::partial_sum(list->part_begin.begin(), list->part_begin.end(), list->part_begin.begin());
    {
        std::vector<int32_t> next(list->part_begin.begin(), list->part_begin.end() - 1);
        for (AttentionQuery &query : list->queries) query.part = next[row_of(query.token)]++;
    }
    for (const AttentionItem &item : list->items) {
        list->most_queries = std::max(list->most_queries, item.query_count);
        list->most_groups =
            std::max(list->most_groups, (item.key_end + kGroupTokens - 1) / kGroupTokens);
    }

    // Longest first; short ones several to a task. Stable, so that the list is always the same.
    std::stable_sort(
        list->items.begin(), list->items.end(),
        [](const AttentionItem &a, const AttentionItem &b) { return cost(a) > cost(b); });
    const int64_t task_cost = std::max<int64_t>(1, target / 4);
    const int32_t items = static_cast<int32_t>(list->items.size());
    for (int32_t first = 0; first < items;) {
        int32_t last = first;
        int64_t sum = 0;
        while (last < items && (last == first || sum + cost(list->items[last]) <= task_cost)) {
            sum += cost(list->items[last++]);
        }
        for (int32_t head = 0; head < options.kv_heads; ++head) {
            list->tasks.push_back({first, last, head});
        }
        first = last;
    }
}

} // namespace batchllm::cpu
