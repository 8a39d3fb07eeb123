#include "report/sharing_tree.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace batchllm {
namespace {

constexpr size_t shown_tokens = 32; // a cell shows as many of them as fit

uint64_t key(int32_t parent, int32_t token) {
    return static_cast<uint64_t>(static_cast<uint32_t>(parent)) << 32 |
           static_cast<uint32_t>(token);
}

} // namespace

int32_t SharingTree::make_node(int32_t parent, std::span<const int32_t> tokens, int64_t length) {
    int32_t index;
    if (free_.empty()) {
        index = static_cast<int32_t>(nodes_.size());
        nodes_.emplace_back();
    } else {
        index = free_.back();
        free_.pop_back();
        nodes_[static_cast<size_t>(index)] = SharingNode();
    }
    SharingNode &node = nodes_[static_cast<size_t>(index)];
    node.parent = parent;
    node.tokens.assign(tokens.begin(), tokens.end());
    node.length = length;
    tokens_ += static_cast<int64_t>(tokens.size());
    if (!tokens.empty()) by_token_[key(parent, tokens.front())] = index;
    nodes_[static_cast<size_t>(parent)].children.push_back(index);
    return index;
}

int32_t SharingTree::child_of(int32_t parent, int32_t token) const {
    const auto found = by_token_.find(key(parent, token));
    return found == by_token_.end() ? -1 : found->second;
}

// The node keeps its first `at` tokens; a new child gets the rest and everything below.
void SharingTree::split(int32_t upper, int64_t at) {
    const std::vector<int32_t> behind(nodes_[static_cast<size_t>(upper)].tokens.begin() + at,
                                      nodes_[static_cast<size_t>(upper)].tokens.end());
    std::vector<int32_t> below = std::move(nodes_[static_cast<size_t>(upper)].children);
    nodes_[static_cast<size_t>(upper)].children.clear();
    const int32_t lower = make_node(upper, behind, static_cast<int64_t>(behind.size()));
    SharingNode &top = nodes_[static_cast<size_t>(upper)];
    SharingNode &end = nodes_[static_cast<size_t>(lower)];
    tokens_ -= static_cast<int64_t>(behind.size());
    top.tokens.resize(static_cast<size_t>(at));
    top.tokens.shrink_to_fit();
    top.length = at;
    top.words.clear();
    end.rows = top.rows;
    end.times = top.times;
    end.groups = top.groups;
    end.ending_rows = std::exchange(top.ending_rows, 0);
    end.ending_tokens = std::exchange(top.ending_tokens, 0);
    end.rest_rows = std::exchange(top.rest_rows, 0);
    end.rest_groups = std::exchange(top.rest_groups, 0);
    for (const int32_t child : below) {
        SharingNode &moved = nodes_[static_cast<size_t>(child)];
        moved.parent = lower;
        by_token_.erase(key(upper, moved.tokens.front()));
        by_token_[key(lower, moved.tokens.front())] = child;
    }
    end.children = std::move(below);
    // The lower part may begin with the same token as a child that has just been moved away.
    by_token_[key(upper, behind.front())] = lower;
}

void SharingTree::end_group(int32_t node, int64_t rows, int64_t own_tokens) {
    SharingNode &end = nodes_[static_cast<size_t>(node)];
    end.ending_rows += rows;
    end.ending_tokens += own_tokens;
    if (nodes_.size() - free_.size() > 2 * most_nodes || tokens_ > 2 * most_tokens) prune();
}

void SharingTree::add(std::span<const int32_t> prefix, int64_t computed_from, int64_t rows,
                      int64_t own_tokens) {
    const auto length = static_cast<int64_t>(prefix.size());
    int32_t at_node = 0;
    nodes_.front().rows += rows;
    nodes_.front().groups += length > 0 ? 1 : 0;
    for (int64_t at = 0; at < length;) {
        const auto behind = prefix.subspan(static_cast<size_t>(at));
        int32_t child = child_of(at_node, behind.front());
        if (child < 0) {
            const bool cut = computed_from > at && computed_from < length;
            const int64_t part = cut ? computed_from - at : length - at;
            child = make_node(at_node, behind.first(static_cast<size_t>(part)), part);
        } else {
            const std::vector<int32_t> &tokens = nodes_[static_cast<size_t>(child)].tokens;
            const size_t most = std::min(tokens.size(), behind.size());
            auto common = static_cast<int64_t>(
                std::mismatch(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(most),
                              behind.begin())
                    .first -
                tokens.begin());
            if (computed_from > at) common = std::min(common, computed_from - at);
            if (common < static_cast<int64_t>(tokens.size())) split(child, common);
        }
        SharingNode &node = nodes_[static_cast<size_t>(child)];
        node.rows += rows;
        node.groups += 1;
        node.times += at >= computed_from ? 1 : 0;
        at += node.length;
        at_node = child;
    }
    end_group(at_node, rows, own_tokens);
}

void SharingTree::add_unknown(int64_t prefix_length, int64_t rows, int64_t own_tokens) {
    if (prefix_length <= 0) return add({}, 0, rows, own_tokens);
    nodes_.front().rows += rows;
    nodes_.front().groups += 1;
    const int32_t child = make_node(0, {}, prefix_length);
    SharingNode &node = nodes_[static_cast<size_t>(child)];
    node.rows = rows;
    node.groups = node.times = 1;
    end_group(child, rows, own_tokens);
}

// Moves the leaf into its parent's rest. The parent's list of children still contains it.
void SharingTree::drop(int32_t leaf) {
    SharingNode &node = nodes_[static_cast<size_t>(leaf)];
    SharingNode &parent = nodes_[static_cast<size_t>(node.parent)];
    parent.rest_rows += node.rows;
    parent.rest_groups += node.groups;
    if (!node.tokens.empty()) by_token_.erase(key(node.parent, node.tokens.front()));
    tokens_ -= static_cast<int64_t>(node.tokens.size());
    node = SharingNode();
    free_.push_back(leaf);
}

void SharingTree::prune() {
    using Leaf = std::pair<int64_t, int32_t>; // rows, node
    std::priority_queue<Leaf, std::vector<Leaf>, std::greater<>> leaves;
    std::vector<char> unused(nodes_.size());
    std::vector<size_t> left(nodes_.size()); // number of children
    for (const int32_t index : free_) unused[static_cast<size_t>(index)] = 1;
    for (size_t i = 0; i < nodes_.size(); ++i) {
        left[i] = nodes_[i].children.size();
        if (i == 0 || unused[i] != 0 || left[i] > 0) continue;
        leaves.emplace(nodes_[i].rows, static_cast<int32_t>(i));
    }
    while (!leaves.empty() &&
           (nodes_.size() - free_.size() > most_nodes || tokens_ > most_tokens)) {
        const int32_t leaf = leaves.top().second;
        leaves.pop();
        const auto parent = static_cast<size_t>(nodes_[static_cast<size_t>(leaf)].parent);
        drop(leaf);
        unused[static_cast<size_t>(leaf)] = 1;
        if (--left[parent] == 0 && parent != 0) {
            leaves.emplace(nodes_[parent].rows, static_cast<int32_t>(parent));
        }
    }
    for (SharingNode &node : nodes_) {
        std::erase_if(node.children,
                      [&](int32_t child) { return unused[static_cast<size_t>(child)] != 0; });
    }
}

void SharingTree::decode(const std::function<std::string(std::span<const int32_t>)> &decoder) {
    for (SharingNode &node : nodes_) {
        if (node.tokens.empty() || !node.words.empty()) continue;
        node.words = decoder({node.tokens.data(), std::min(node.tokens.size(), shown_tokens)});
    }
}

} // namespace batchllm
