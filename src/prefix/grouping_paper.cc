// BatchLLM's Algorithm 1 (MaximizeReuse; arXiv 2412.03594, and the authors' own implementation).
//
// Bottom up: once the trees below a node's child have their first level of prefixes, each of those
// prefixes ("grandchild") that gains more by being shared in full than its child loses by being
// computed once more is moved up beside the child. The child's tokens are then prepended to its
// own:
//     (leaves(grandchild) - 1) * tokens(grandchild) - tokens(child) > 0
// If only one prefix or run is left below a child, it replaces the child. In the end, the root's
// children are the shared prefixes.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "prefix/grouping.h"

namespace batchllm {
namespace {

// A prefix on the first level below some node. Its tokens are counted from that node.
struct Prefix {
    uint32_t node;
    int32_t depth;
    int64_t leaves; // runs below it
};

// The prefixes and runs directly below a node.
struct Level {
    uint32_t node;
    int64_t runs = 0;
    std::vector<Prefix> prefixes;
};

// Moves the prefixes below a child that gain by it up into `above`, and the child itself if
// anything is left below it. holder[node]: the node under which the runs directly below `node` are
// now.
void move_up(const Level &child, int32_t child_depth, int32_t above_depth, Level &above,
             std::vector<uint32_t> &holder) {
    const auto remaining = [&](size_t prefixes) {
        return child.runs + static_cast<int64_t>(prefixes);
    };
    std::vector<Prefix> stay;
    size_t i = 0;
    for (; i < child.prefixes.size(); ++i) {
        const size_t left = stay.size() + child.prefixes.size() - i;
        if (remaining(left) == 1) break; // it replaces the child at no loss
        const Prefix &prefix = child.prefixes[i];
        const int64_t gain =
            (prefix.leaves - 1) * (prefix.depth - child_depth) - (child_depth - above_depth);
        if (gain > 0) {
            above.prefixes.push_back(prefix);
        } else {
            stay.push_back(prefix);
        }
    }
    stay.insert(stay.end(), child.prefixes.begin() + static_cast<ptrdiff_t>(i),
                child.prefixes.end());

    if (remaining(stay.size()) == 1) {
        if (stay.empty()) {
            ++above.runs;
            holder[child.node] = above.node;
        } else {
            above.prefixes.push_back(stay.front());
        }
    } else if (remaining(stay.size()) > 1) {
        int64_t leaves = child.runs;
        for (const Prefix &prefix : stay) {
            leaves += prefix.leaves;
            holder[prefix.node] = child.node;
        }
        above.prefixes.push_back({child.node, child_depth, leaves});
    }
}

} // namespace

ChosenAbove choose_paper(const PrefixTree &tree, int32_t min_prefix_tokens) {
    const auto nodes = tree.nodes();
    std::vector<uint32_t> direct(nodes.size());
    for (const uint32_t node : tree.leaf_parents()) ++direct[node];

    // Children before parents. `open` has the levels below nodes with some finished children.
    std::vector<Level> open;
    std::vector<uint32_t> holder(nodes.size());
    std::iota(holder.begin(), holder.end(), 0u);
    for (auto node = static_cast<uint32_t>(nodes.size()); node-- > 0;) {
        Level level{node, 0, {}};
        if (!open.empty() && open.back().node == node) {
            level = std::move(open.back());
            open.pop_back();
        }
        level.runs += direct[node];
        if (node == 0) break; // its prefixes are the shared ones
        const uint32_t parent = nodes[node].parent;
        if (open.empty() || open.back().node != parent) open.push_back({parent, 0, {}});
        move_up(level, nodes[node].depth, nodes[parent].depth, open.back(), holder);
    }

    ChosenAbove chosen(nodes.size(), no_node);
    for (uint32_t node = 1; node < nodes.size(); ++node) {
        if (holder[node] != node) { // a node above
            chosen[node] = chosen[holder[node]];
        } else if (nodes[node].depth >= min_prefix_tokens) {
            chosen[node] = node;
        }
    }
    return chosen;
}

} // namespace batchllm
