#include "attention/worklist_by_position.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <numeric>

namespace batchllm::cuda {
namespace {

class Builder {
  public:
    Builder(std::span<const AttentionNode> nodes, int32_t tokens, const WorklistOptions &options,
            Worklist *out)
        : nodes_(nodes), options_(options), out_(out),
          together_(static_cast<size_t>(
              std::max(1, options.item_rows / (options.heads / options.kv_heads)))),
          counts_(static_cast<size_t>(tokens)), positions_(static_cast<size_t>(tokens)) {}

    // Items are in the order of positions, and so are a token's slots.
    void build() {
        out_->items.clear();
        out_->rows.clear();
        find_readers();
        for (size_t n = 0; n < nodes_.size(); ++n) {
            size_t begin = 0;
            for (const size_t end : ends_[n]) {
                read(nodes_[n], std::span(readers_[n]).subspan(begin, end - begin));
                begin = end;
            }
            read_later(nodes_[n]);
        }
        give_slots(counts_, out_);
        for (AttentionItem &item : out_->items) {
            for (int32_t r = 0; r < item.row_count; ++r) {
                if (out_->rows[static_cast<size_t>(item.row_begin + r)].slot >= 0) item.partial = 1;
            }
        }
        std::stable_sort(out_->items.begin(), out_->items.end(),
                         [](const AttentionItem &a, const AttentionItem &b) {
                             return a.stretch[0].keys > b.stretch[0].keys;
                         });
        out_->matrix_items = static_cast<int32_t>(out_->items.size());
        out_->stream_items = 0;
        out_->matrix_ctas = out_->matrix_items > 0 ? options_.sms : 0;
        out_->matrix_by_head = 0;
        out_->widened.clear(); // items that could read such pages have kNarrowRows
    }

  private:
    // readers_[n]: the batch's tokens in node n and in those below it. ends_[n]: where the tokens
    // of one node end and those of another begin, if they must not read together; otherwise only
    // the end.
    void find_readers() {
        readers_.resize(nodes_.size());
        ends_.resize(nodes_.size());
        for (size_t own = 0; own < nodes_.size(); ++own) {
            const AttentionNode &node = nodes_[own];
            if (node.token_count == 0) continue;
            for (int32_t t = 0; t < node.token_count; ++t) {
                positions_[static_cast<size_t>(node.token_begin + t)] =
                    node.start + node.keys - node.token_count + t;
            }
            for (auto up = static_cast<int32_t>(own); up >= 0;
                 up = nodes_[static_cast<size_t>(up)].parent) {
                std::vector<int32_t> &readers = readers_[static_cast<size_t>(up)];
                for (int32_t t = 0; t < node.token_count; ++t) {
                    readers.push_back(node.token_begin + t);
                }
                std::vector<size_t> &ends = ends_[static_cast<size_t>(up)];
                if (options_.share) ends.clear();
                ends.push_back(readers.size());
            }
        }
        if (options_.window > 0) return;
        for (const SeenTogether &tokens : options_.together) {
            const auto first = positions_.begin() + tokens.token_begin;
            std::fill_n(first, tokens.token_count, first[tokens.token_count - 1]);
        }
    }

    // As WorklistBuilder::later_items().
    void read_later(const AttentionNode &node) {
        if (options_.window <= 0) return;
        for (const SeenTogether &together : options_.together) {
            if (together.token_begin < node.token_begin ||
                together.token_begin >= node.token_begin + node.token_count) {
                continue;
            }
            later_.resize(static_cast<size_t>(together.token_count));
            std::iota(later_.begin(), later_.end(), together.token_begin);
            AttentionNode seen = node;
            seen.keys = position(later_.back()) + 1 - node.start;
            const int32_t most = together.token_count - 1; // later tokens that the first one sees
            for (shift_ = options_.window; shift_ - options_.window < most;
                 shift_ += options_.window) {
                read(seen, later_);
            }
            shift_ = 0;
        }
    }

    int32_t position(int32_t token) const {
        return positions_[static_cast<size_t>(token)] + shift_;
    }

    void read(const AttentionNode &node, std::span<const int32_t> tokens) {
        for (int32_t begin = 0; begin < node.keys; begin = segment_end(begin)) {
            const int32_t end = std::min(segment_end(begin), node.keys);
            seeing_.clear();
            for (const int32_t token : tokens) {
                const int32_t last = position(token) - node.start; // the last key that it sees
                if (last >= begin && first_key(node, token) < end) seeing_.push_back(token);
            }
            if (options_.chunked) {
                read_chunks(node, begin, end);
            } else {
                add_items(node, begin, end, seeing_);
            }
        }
    }

    // The first key of a node that a token sees, or before the node's first.
    int32_t first_key(const AttentionNode &node, int32_t token) const {
        const int32_t window = options_.window;
        if (window <= 0) return 0;
        const int32_t last = position(token);
        return (options_.chunked ? last / window * window : last - window + 1) - node.start;
    }

    // Items for the tokens of seeing_, those of each chunk for themselves (attention/worklist.h), in the order of positions.
    void read_chunks(const AttentionNode &node, int32_t begin, int32_t end) {
        std::map<int32_t, std::vector<int32_t>> by_first;
        for (const int32_t token : seeing_) by_first[first_key(node, token)].push_back(token);
        for (const auto &[first, tokens] : by_first) {
            int32_t from = std::max(begin, first);
            if (from % kPageKeys != 0) {
                const int32_t page = from / kPageKeys * kPageKeys;
                from = std::min(page + kPageKeys, end);
                edge_ = node.start + first + options_.window - 1;
                std::vector<int32_t> behind; // the page
                for (const int32_t token : tokens) {
                    const int32_t last = position(token) - node.start;
                    if (last >= from) {
                        behind.push_back(token);
                    } else {
                        add_items(node, page, last + 1, std::span(&token, 1));
                    }
                }
                add_items(node, page, from, behind);
                edge_ = -1;
            }
            if (from == end) continue;
            std::vector<int32_t> seeing;
            for (const int32_t token : tokens) {
                if (position(token) - node.start >= from) seeing.push_back(token);
            }
            add_items(node, from, end, seeing);
        }
    }

    // Items for tokens that each see some of the node's keys [begin, end).
    void add_items(const AttentionNode &node, int32_t begin, int32_t end,
                   std::span<const int32_t> tokens) {
        for (size_t first = 0; first < tokens.size(); first += together_) {
            const size_t count = std::min(together_, tokens.size() - first);
            add_item(node, begin, end, tokens.subspan(first, count), tokens.size() <= together_);
        }
    }

    void add_item(const AttentionNode &node, int32_t begin, int32_t end,
                  std::span<const int32_t> tokens, bool once) {
        AttentionItem item{};
        item.row_begin = static_cast<int32_t>(out_->rows.size());
        item.row_count = static_cast<int32_t>(tokens.size());
        item.min_position = INT32_MAX;
        for (const int32_t token : tokens) {
            const int32_t at = edge_ >= 0 ? edge_ : position(token);
            item.min_position = std::min(item.min_position, at);
            item.max_position = std::max(item.max_position, at);
            ++counts_[static_cast<size_t>(token)];
            out_->rows.push_back({token, -1, at, 0});
        }
        // Leaves out whole pages before all windows, since they would add nothing.
        int32_t first = begin;
        if (options_.window > 0 && !options_.chunked) {
            const int32_t unseen = item.min_position - options_.window + 1 - node.start;
            first = std::max(begin, unseen / kPageKeys * kPageKeys);
        }
        const int32_t page = first / kPageKeys;
        assert(page >= node.first_page);
        const int32_t last = std::min(end, item.max_position + 1 - node.start);
        item.stretch[0] = {node.page_begin + page, last - first, node.start + first};
        item.once = (once ? 1 : 0) | (page & 1) << 2;
        out_->items.push_back(item);
    }

    std::span<const AttentionNode> nodes_;
    const WorklistOptions &options_;
    Worklist *out_;
    size_t together_;             // maximum tokens of an item
    std::vector<int32_t> counts_; // [tokens] items that cover each
    std::vector<int32_t> positions_;
    std::vector<std::vector<int32_t>> readers_; // [nodes]
    std::vector<std::vector<size_t>> ends_;     // [nodes]
    std::vector<int32_t> seeing_, later_;
    int32_t shift_ = 0; // of all positions
    int32_t edge_ = -1; // of items of a page that a chunk begins within: the chunk's last position
};

} // namespace

void build_worklist_by_position(std::span<const AttentionNode> nodes, int32_t tokens,
                                const WorklistOptions &options, Worklist *worklist) {
    Builder(nodes, tokens, options, worklist).build();
}

} // namespace batchllm::cuda
