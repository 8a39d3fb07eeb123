// A small scheduler for the CPU backend's own tests and bench: rows in, token batches out, greedy.
// Rows share their longest common prefixes, on any number of levels; pages are released when a
// node's last row is done. Rows start in the order of their tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "backend/backend.h"

namespace batchllm::testing {

struct Row {
    std::vector<int32_t> prompt;
    int32_t max_tokens = 0;
    std::vector<int32_t> output;
    std::vector<int32_t> end_tokens;
    bool done = false;
};

class RowScheduler {
  public:
    RowScheduler(std::vector<Row> *rows, bool sharing, int32_t page_tokens, int64_t pages,
                 int64_t step_tokens, size_t kv_groups)
        : rows_(*rows), page_tokens_(page_tokens), step_tokens_(step_tokens),
          kv_groups_(kv_groups) {
        for (int64_t p = pages; p > 0; --p) free_.push_back(static_cast<int32_t>(p - 1));
        std::vector<int32_t> order(rows->size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return rows_[a].prompt < rows_[b].prompt; });
        row_node_.assign(rows->size(), -1);
        if (sharing) {
            split(order, 0, -1);
        } else {
            for (int32_t row : order) add_row(row, 0, -1);
        }
    }

    // Tokens from this id on stand for pictures, those of one picture in consecutive ids, and are computed in one batch.
    void keep_whole(int32_t first_id) { first_picture_ = first_id; }
    // [nodes of the last batch] a row that the node belongs to.
    const std::vector<int32_t> &rows_of_nodes() const { return rows_of_nodes_; }

    // False if nothing is left. logits_rows[i] is the row of batch->outputs[i].
    bool next(TokenBatch *batch, std::vector<int32_t> *logits_rows) {
        batch->clear();
        batch->pages.resize(kv_groups_);
        rows_of_nodes_.clear();
        logits_rows->clear();
        steps_ += 1;
        std::vector<int32_t> take(nodes_.size(), 0);
        int64_t left = step_tokens_;
        // Decode tokens first, then prompt tokens in node order: prefixes before their rows.
        for (int pass = 0; pass < 2; ++pass) {
            for (size_t n = 0; n < nodes_.size() && left > 0; ++n) {
                Node &node = nodes_[n];
                if (node.users == 0 || take[n] > 0) continue;
                const int32_t pending = static_cast<int32_t>(node.tokens.size()) - node.computed;
                const bool decoding = node.row >= 0 && !rows_[node.row].output.empty();
                if (pending == 0 || decoding != (pass == 0)) continue;
                const Node *parent = node.parent >= 0 ? &nodes_[node.parent] : nullptr;
                if (parent != nullptr && parent->computed + take[node.parent] <
                                             static_cast<int32_t>(parent->tokens.size())) {
                    continue;
                }
                if (!node.reserved) {
                    // A row starts only if everything that it may need is free.
                    const int64_t most = static_cast<int64_t>(node.tokens.size()) +
                                         (node.row >= 0 ? rows_[node.row].max_tokens : 0);
                    if (!reserve(&node, most)) continue;
                }
                take[n] =
                    whole_pictures(node, static_cast<int32_t>(std::min<int64_t>(pending, left)));
                left -= take[n];
            }
        }
        std::vector<int32_t> index(nodes_.size(), -1);
        for (size_t n = 0; n < nodes_.size(); ++n) {
            if (take[n] > 0) emit(static_cast<int32_t>(n), take, &index, batch, logits_rows);
        }
        tokens_ += static_cast<int64_t>(batch->tokens.size());
        return !batch->tokens.empty();
    }

    // tokens[i]: the token chosen for logits_rows[i] of the last batch.
    void finish(const std::vector<int32_t> &logits_rows, const std::vector<int32_t> &tokens) {
        for (size_t i = 0; i < logits_rows.size(); ++i) {
            Row &row = rows_[logits_rows[i]];
            row.output.push_back(tokens[i]);
            const bool ended = std::find(row.end_tokens.begin(), row.end_tokens.end(), tokens[i]) !=
                               row.end_tokens.end();
            if (ended || static_cast<int32_t>(row.output.size()) == row.max_tokens) {
                row.done = true;
                for (int32_t n = row_node_[logits_rows[i]]; n >= 0; n = nodes_[n].parent) {
                    if (--nodes_[n].users == 0) {
                        free_.insert(free_.end(), nodes_[n].pages.begin(), nodes_[n].pages.end());
                        nodes_[n].pages.clear();
                    }
                }
            } else {
                nodes_[row_node_[logits_rows[i]]].tokens.push_back(tokens[i]);
            }
        }
    }

    // State slots: every node has its own from beginning to end.
    int64_t state_slots() const { return static_cast<int64_t>(nodes_.size()); }
    int64_t tokens() const { return tokens_; }
    int64_t steps() const { return steps_; }

  private:
    struct Node {
        int32_t parent = -1;
        int32_t start = 0;
        int32_t row = -1; // the row of a node with one row; -1: shared
        int32_t of_row = 0;
        int32_t users = 0;
        int32_t computed = 0;
        bool reserved = false;
        std::vector<int32_t> tokens;
        std::vector<int32_t> pages; // [KV groups][columns]: none is released before the node's end
    };

    void add_row(int32_t row, int32_t depth, int32_t parent) {
        Node node;
        node.parent = parent;
        node.start = depth;
        node.row = node.of_row = row;
        node.tokens.assign(rows_[row].prompt.begin() + depth, rows_[row].prompt.end());
        row_node_[row] = static_cast<int32_t>(nodes_.size());
        nodes_.push_back(std::move(node));
        for (int32_t n = row_node_[row]; n >= 0; n = nodes_[n].parent) ++nodes_[n].users;
    }

    // Splits rows in the order of their tokens, equal up to depth. A row keeps at least one token
    // of its own.
    void split(const std::vector<int32_t> &rows, int32_t depth, int32_t parent) {
        for (size_t first = 0; first < rows.size();) {
            const std::vector<int32_t> &prompt = rows_[rows[first]].prompt;
            size_t last = first + 1;
            int32_t common = static_cast<int32_t>(prompt.size()) - 1;
            while (last < rows.size()) {
                const std::vector<int32_t> &other = rows_[rows[last]].prompt;
                int32_t same = depth;
                const int32_t most = std::min(common, static_cast<int32_t>(other.size()) - 1);
                while (same < most && prompt[same] == other[same]) ++same;
                if (same == depth) break;
                common = same;
                ++last;
            }
            if (last - first == 1) {
                add_row(rows[first], depth, parent);
            } else {
                Node node;
                node.parent = parent;
                node.start = depth;
                node.of_row = rows[first];
                node.tokens.assign(prompt.begin() + depth, prompt.begin() + common);
                nodes_.push_back(std::move(node));
                split({rows.begin() + static_cast<int64_t>(first),
                       rows.begin() + static_cast<int64_t>(last)},
                      common, static_cast<int32_t>(nodes_.size()) - 1);
            }
            first = last;
        }
    }

    int32_t whole_pictures(const Node &node, int32_t take) const {
        for (; take > 0; --take) {
            const size_t end = static_cast<size_t>(node.computed + take);
            if (end == node.tokens.size() || node.tokens[end] < first_picture_ ||
                node.tokens[end] != node.tokens[end - 1] + 1) {
                break;
            }
        }
        return take;
    }

    bool reserve(Node *node, int64_t tokens) {
        const size_t wanted =
            kv_groups_ * static_cast<size_t>((tokens + page_tokens_ - 1) / page_tokens_);
        if (free_.size() < wanted) return false;
        node->pages.assign(free_.end() - static_cast<int64_t>(wanted), free_.end());
        free_.resize(free_.size() - wanted);
        node->reserved = true;
        return true;
    }

    void emit(int32_t n, const std::vector<int32_t> &take, std::vector<int32_t> *index,
              TokenBatch *batch, std::vector<int32_t> *logits_rows) {
        if ((*index)[n] >= 0) return;
        Node &node = nodes_[n];
        if (node.parent >= 0) emit(node.parent, take, index, batch, logits_rows);
        ContextNode out{};
        out.parent = node.parent >= 0 ? (*index)[node.parent] : -1;
        out.start = node.start;
        out.length = node.computed + take[n];
        out.token_begin = static_cast<int32_t>(batch->tokens.size());
        out.token_count = take[n];
        out.shared = node.row < 0;
        out.state = n;
        for (int32_t i = node.computed; i < out.length; ++i) {
            batch->tokens.push_back(node.tokens[i]);
            batch->positions.push_back(node.start + i);
        }
        const auto columns = static_cast<std::ptrdiff_t>(node.pages.size() / kv_groups_);
        for (size_t g = 0; g < kv_groups_; ++g) {
            GroupPages &group = batch->pages[g];
            const auto first = node.pages.begin() + static_cast<std::ptrdiff_t>(g) * columns;
            group.nodes.push_back({static_cast<int32_t>(group.list.size()), 0});
            group.list.insert(group.list.end(), first, first + columns);
        }
        node.computed = out.length;
        (*index)[n] = static_cast<int32_t>(batch->nodes.size());
        batch->nodes.push_back(out);
        rows_of_nodes_.push_back(node.of_row);
        if (node.row >= 0 && take[n] > 0 &&
            node.computed == static_cast<int32_t>(node.tokens.size())) {
            OutputRow logits{};
            logits.token = static_cast<int32_t>(batch->tokens.size()) - 1;
            logits.sample.params = &greedy_;
            logits.sample.prompt = rows_[node.row].prompt;
            logits.sample.output = rows_[node.row].output;
            batch->outputs.push_back(logits);
            logits_rows->push_back(node.row);
        }
    }

    std::vector<Row> &rows_;
    int32_t page_tokens_;
    int64_t step_tokens_;
    size_t kv_groups_;
    std::vector<Node> nodes_;
    std::vector<int32_t> row_node_;
    std::vector<int32_t> free_;
    std::vector<int32_t> rows_of_nodes_;
    int32_t first_picture_ = INT32_MAX;
    SamplingParams greedy_;
    int64_t tokens_ = 0;
    int64_t steps_ = 0;
};

} // namespace batchllm::testing
