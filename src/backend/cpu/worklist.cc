#include "backend/cpu/worklist.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "backend/cpu/kernels.h"

namespace batchllm::cpu {
namespace {

// Query rows (tokens times heads of the GQA group) in an item: enough that reading keys and values
// costs nothing beside the arithmetic, few enough that their output stays in the cache.
constexpr int32_t kItemRows = 192;
// The shortest range of positions that is cut to keep threads busy: each cut gives every row
// another part to merge.
constexpr int32_t kLeastKeys = 256;

int64_t cost(const CpuAttentionItem &item) {
    return int64_t{item.query_count} * (item.key_end - item.key_begin);
}

int32_t round_down(int32_t x) { return x / kGroupTokens * kGroupTokens; }

// Divides a list's items into pieces, which replace them at the end.
class Cut {
  public:
    explicit Cut(CpuWorklist &list) : list_(list) {
        items_.reserve(list.items.size());
        queries_.reserve(list.queries.size());
    }

    // Adds positions [begin, end) of an item, with the queries that see some of them. Null if none
    // do.
    CpuAttentionItem *add(const CpuAttentionItem &item, int32_t begin, int32_t end) {
        CpuAttentionItem piece{item.node, begin, end, static_cast<int32_t>(queries_.size()), 0, 0};
        for (int32_t q = item.query_begin; q < item.query_begin + item.query_count; ++q) {
            AttentionQuery query = list_.queries[q];
            query.visible_begin = std::max(query.visible_begin, begin);
            query.visible_end = std::min(query.visible_end, end);
            if (query.visible_begin < query.visible_end) queries_.push_back(query);
        }
        piece.query_count = static_cast<int32_t>(queries_.size()) - piece.query_begin;
        if (piece.query_count == 0) return nullptr;
        items_.push_back(piece);
        return &items_.back();
    }

    std::span<AttentionQuery> queries_of(const CpuAttentionItem &piece) {
        return std::span(queries_).subspan(static_cast<size_t>(piece.query_begin),
                                           static_cast<size_t>(piece.query_count));
    }

    void finish() {
        list_.items.swap(items_);
        list_.queries.swap(queries_);
    }

  private:
    CpuWorklist &list_;
    std::vector<CpuAttentionItem> items_;
    std::vector<AttentionQuery> queries_;
};

class Builder {
  public:
    Builder(const TokenBatch &batch, const std::vector<int32_t> &rows,
            const CpuWorklistOptions &options, CpuWorklist *list)
        : batch_(batch), rows_(rows), options_(options), list_(*list),
          count_(static_cast<int32_t>(batch.nodes.size())) {}

    void build() {
        list_.items.clear();
        list_.queries.clear();
        list_.tasks.clear();
        list_.most_queries = 0;
        list_.most_groups = 0;
        list_.in_order = options_.stretch > 0;
        find_members();
        find_pictures();
        for (int32_t node = 0; node < count_; ++node) {
            const size_t first_query = list_.queries.size();
            add_queries(node);
            add_items(node, first_query);
        }
        int64_t total = 0;
        for (const CpuAttentionItem &item : list_.items) total += cost(item);
        target_ = std::max<int64_t>(1, total * options_.kv_heads / (int64_t{4} * options_.threads));
        if (options_.stretch > 0) {
            cut_by_stretches();
        } else {
            cut_by_positions();
        }
        number_parts();
        make_tasks();
    }

  private:
    // Which nodes' tokens attend to each node: its own and those of its descendants, if they have
    // tokens in the batch. Stored as one list, node by node (a counting sort over the pairs).
    void find_members() {
        const std::vector<ContextNode> &nodes = batch_.nodes;
        begin_.assign(static_cast<size_t>(count_) + 1, 0);
        for (int32_t n = 0; n < count_; ++n) {
            if (nodes[n].token_count == 0) continue;
            for (int32_t a = n; a >= 0; a = nodes[a].parent) ++begin_[a + 1];
        }
        std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
        members_.resize(static_cast<size_t>(begin_[count_]));
        std::vector<int32_t> next(begin_.begin(), begin_.end() - 1);
        for (int32_t n = 0; n < count_; ++n) {
            if (nodes[n].token_count == 0) continue;
            for (int32_t a = n; a >= 0; a = nodes[a].parent) members_[next[a]++] = n;
        }
    }

    // Up to where the tokens of pictures see.
    void find_pictures() {
        picture_end_.clear();
        if (!options_.pictures) return;
        for (const PictureTokens &picture : batch_.pictures) {
            picture_end_.resize(batch_.tokens.size(), 0);
            const int32_t last = picture.token_begin + picture.token_count - 1;
            std::fill_n(picture_end_.begin() + picture.token_begin, picture.token_count,
                        batch_.positions[last] + 1);
        }
    }

    // The tokens that see any of the node, and which part of it each of them sees.
    void add_queries(int32_t n) {
        const ContextNode &node = batch_.nodes[n];
        for (int32_t m = begin_[n]; m < begin_[n + 1]; ++m) {
            const ContextNode &member = batch_.nodes[members_[m]];
            for (int32_t t = member.token_begin; t < member.token_begin + member.token_count; ++t) {
                if (!rows_.empty() && rows_[t] < 0) continue;
                const int32_t position = batch_.positions[t];
                int32_t low = 0;
                int32_t high = node.length;
                if (options_.window > 0) low = std::max(0, first_seen(t) - node.start);
                if (members_[m] == n) {
                    high = position - node.start + 1;
                    if (!picture_end_.empty()) high = std::max(high, picture_end_[t] - node.start);
                    high = std::min(high, node.length);
                }
                if (low < high) list_.queries.push_back({t, low, high, 0, false});
            }
        }
    }

    // The node's queries from first_query on, divided evenly, so that no small item is left over.
    void add_items(int32_t n, size_t first_query) {
        const int32_t item_queries = std::max(1, kItemRows / options_.gqa_ratio);
        const int32_t all = static_cast<int32_t>(list_.queries.size() - first_query);
        const int32_t pieces = (all + item_queries - 1) / item_queries;
        int32_t taken = 0;
        for (int32_t piece = 0; piece < pieces; ++piece) {
            const int32_t size = (all - taken + pieces - piece - 1) / (pieces - piece);
            CpuAttentionItem item{
                n, batch_.nodes[n].length, 0, static_cast<int32_t>(first_query) + taken, size, 0};
            for (int32_t q = item.query_begin; q < item.query_begin + size; ++q) {
                item.key_begin = std::min(item.key_begin, list_.queries[q].visible_begin);
                item.key_end = std::max(item.key_end, list_.queries[q].visible_end);
            }
            item.key_begin = round_down(item.key_begin);
            list_.items.push_back(item);
            taken += size;
        }
    }

    // Divides items that are too long for one thread.
    void cut_by_positions() {
        Cut cut(list_);
        for (const CpuAttentionItem &item : list_.items) {
            const int32_t keys = item.key_end - item.key_begin;
            const int64_t wanted = (cost(item) + target_ - 1) / target_;
            const int32_t pieces = static_cast<int32_t>(
                std::clamp<int64_t>(wanted, 1, std::max(1, keys / kLeastKeys)));
            int32_t key = item.key_begin;
            for (int32_t piece = 0; piece < pieces; ++piece) {
                const int32_t last =
                    piece + 1 == pieces ? item.key_end
                                        : round_down(key + (item.key_end - key) / (pieces - piece));
                cut.add(item, key, last);
                key = last;
            }
        }
        cut.finish();
    }

    // Divides items at the stretches of the row, and marks what continues an ancestor's piece.
    void cut_by_stretches() {
        const std::vector<ContextNode> &nodes = batch_.nodes;
        const int32_t stretch = options_.stretch;
        std::vector<int32_t> wave(nodes.size(), 0); // [nodes] of the stretch in which the node
                                                    // begins
        for (size_t n = 0; n < nodes.size(); ++n) {
            if (nodes[n].parent < 0 || nodes[n].start % stretch == 0) continue;
            const auto parent = static_cast<size_t>(nodes[n].parent);
            const bool same = nodes[parent].start / stretch == nodes[n].start / stretch;
            wave[n] = 1 + (same ? wave[parent] : 0);
        }
        Cut cut(list_);
        for (const CpuAttentionItem &item : list_.items) {
            const int32_t start = nodes[static_cast<size_t>(item.node)].start;
            for (int32_t key = item.key_begin; key < item.key_end;) {
                const int32_t begin = (start + key) / stretch * stretch; // in the row
                const int32_t end = std::min(item.key_end, begin + stretch - start);
                if (CpuAttentionItem *piece = cut.add(item, key, end)) {
                    piece->key_begin = round_down(key);
                    if (begin < start) piece->wave = wave[static_cast<size_t>(item.node)];
                    for (AttentionQuery &query : cut.queries_of(*piece)) {
                        const int32_t first = first_seen(query.token);
                        query.goes_on = std::max(first, begin) < start;
                        query.part = (start + key) / stretch - first / stretch;
                    }
                }
                key = end;
            }
        }
        cut.finish();
    }

    // The first position in its row that a token sees.
    int32_t first_seen(int32_t token) const {
        const int32_t position = batch_.positions[token], window = options_.window;
        if (window == 0) return 0;
        return options_.chunked ? position / window * window : std::max(0, position - window + 1);
    }

    // Parts of each row, in the order of the items: ancestors before descendants.
    void number_parts() {
        list_.rows = static_cast<int32_t>(batch_.tokens.size());
        if (!rows_.empty()) {
            list_.rows = 0;
            for (const int32_t row : rows_) list_.rows = std::max(list_.rows, row + 1);
        }
        std::vector<int32_t> &begin = list_.part_begin;
        begin.assign(static_cast<size_t>(list_.rows) + 1, 0);
        const auto row_of = [&](int32_t token) { return rows_.empty() ? token : rows_[token]; };
        for (const AttentionQuery &query : list_.queries) {
            if (!query.goes_on) ++begin[row_of(query.token) + 1];
        }
        std::partial_sum(begin.begin(), begin.end(), begin.begin());
        std::vector<int32_t> next(begin.begin(), begin.end() - 1);
        for (AttentionQuery &query : list_.queries) {
            int32_t &part = next[row_of(query.token)];
            query.part = options_.stretch > 0 ? part + query.part : part++;
        }
        for (const CpuAttentionItem &item : list_.items) {
            list_.most_queries = std::max(list_.most_queries, item.query_count);
            list_.most_groups =
                std::max(list_.most_groups, (item.key_end + kGroupTokens - 1) / kGroupTokens);
        }
    }

    // Longest first, with several short ones per task. Stable, so that the list is always the same.
    void make_tasks() {
        std::stable_sort(list_.items.begin(), list_.items.end(),
                         [](const CpuAttentionItem &a, const CpuAttentionItem &b) {
                             return a.wave != b.wave ? a.wave < b.wave : cost(a) > cost(b);
                         });
        list_.wave_end.clear();
        const int64_t task_cost = std::max<int64_t>(1, target_ / 4);
        const int32_t items = static_cast<int32_t>(list_.items.size());
        for (int32_t first = 0; first < items;) {
            int32_t last = first;
            int64_t sum = 0;
            while (last < items && list_.items[last].wave == list_.items[first].wave &&
                   (last == first || sum + cost(list_.items[last]) <= task_cost)) {
                sum += cost(list_.items[last++]);
            }
            for (int32_t head = 0; head < options_.kv_heads; ++head) {
                list_.tasks.push_back({first, last, head});
            }
            if (last == items || list_.items[last].wave != list_.items[first].wave) {
                list_.wave_end.push_back(static_cast<int32_t>(list_.tasks.size()));
            }
            first = last;
        }
    }

    const TokenBatch &batch_;
    const std::vector<int32_t> &rows_;
    const CpuWorklistOptions &options_;
    CpuWorklist &list_;
    int32_t count_; // nodes
    std::vector<int32_t>
        begin_; // [nodes + 1] members of node n: members_[begin_[n], begin_[n + 1])
    std::vector<int32_t> members_; // nodes
    std::vector<int32_t>
        picture_end_;    // [tokens] or empty: position behind the picture's last token, or 0
    int64_t target_ = 1; // cost of what one thread should get at a time
};

} // namespace

void build_worklist(const TokenBatch &batch, const std::vector<int32_t> &rows,
                    const CpuWorklistOptions &options, CpuWorklist *list) {
    Builder(batch, rows, options, list).build();
}

} // namespace batchllm::cpu
