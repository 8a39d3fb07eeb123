// The exact optimum of single-level sharing.
//
// g(v, a): the best value of v's subtree if the nearest chosen node above v ends at depth a.
//     g(run, a) = a
//     g(v, a) = max(S_v(a), S_v(depth v) - depth v)    with S_v(a) = sum over children of g(c, a)
// As a function of a, S_v is convex and increasing, so g(v, .) is constant up to some threshold and
// S_v beyond it: v is chosen exactly if a is below the threshold. Only integer a matter, so g is
// stored as its value at 0, its first difference and its second differences. All are integers, so
// nothing is rounded. A sum merges the second differences, smaller into larger; a choice removes
// the leftmost ones.
//
// Prefixes that look for common prefixes pay for reading them. All values are then in parts of a
// token, and
//     g(run, a) = max(0, gain_by_common_prefix(a))
// is also convex and never decreases. At a run's own end it jumps, which matters only to the node
// that ends there.
#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "prefix/grouping.h"

namespace batchllm {
namespace {

// A convex, nondecreasing function on the integers [0, d].
class Envelope {
  public:
    void add_runs(int64_t runs) { slope_ += runs; } // g(run, a) = a

    // Adds max(0, slope * a - cost); only [0, depth] matters.
    void add_paying_run(int64_t slope, int64_t cost, int32_t depth) {
        insert_rise(cost / slope, slope * (cost / slope + 1) - cost, slope, depth);
    }

    // Adds g(child, .); from here on only [0, depth] matters.
    void add(Envelope &&child, int32_t depth) {
        child.forget_from(depth);
        value_ += child.value_;
        slope_ += child.slope_;
        bend_sum_ += child.bend_sum_;
        bend_moment_ += child.bend_moment_;
        if (child.bends_.size() > bends_.size()) std::swap(child.bends_, bends_);
        for (const auto &[position, bend] : child.bends_) bends_[position] += bend;
    }

    // Its value at a; there must be no bend beyond a.
    int64_t at(int64_t a) const { return value_ + (slope_ + bend_sum_) * a - bend_moment_; }

    // Becomes max(itself, floor) on [0, depth). Returns the threshold: the smallest a at which it is not
    // below the floor, or depth.
    int32_t raise_to(int64_t floor, int32_t depth) {
        if (floor <= value_) return 0;
        if (floor >= at(depth)) {
            become_constant(floor);
            return depth;
        }
        int64_t position = 0, value = value_, slope = slope_;
        while (!bends_.empty()) {
            const auto [next, bend] = *bends_.begin();
            const int64_t there = value + slope * (next - position);
            if (there > floor) break;
            position = next, value = there, slope += bend;
            remove(bends_.begin());
        }
        // The last integer at which it is not above the floor, and its increase after that.
        const int64_t last = position + (floor - value) / slope;
        const int64_t rise = value + slope * (last + 1 - position) - floor;
        const int64_t threshold = (floor - value) % slope == 0 ? last : last + 1;
        value_ = floor;
        slope_ = 0;
        insert_rise(last, rise, slope, depth);
        return static_cast<int32_t>(threshold);
    }

    void become_constant(int64_t value) { *this = Envelope(), value_ = value; }

  private:
    void forget_from(int32_t depth) {
        while (!bends_.empty() && bends_.rbegin()->first >= depth) remove(std::prev(bends_.end()));
    }
    // Beyond `last` it increases by `rise` more, and beyond last + 1 by `slope` more per step.
    void insert_rise(int64_t last, int64_t rise, int64_t slope, int32_t depth) {
        if (last < depth) insert(static_cast<int32_t>(last), rise);
        if (last + 1 < depth) insert(static_cast<int32_t>(last + 1), slope - rise);
    }
    void insert(int32_t position, int64_t bend) {
        if (bend == 0) return;
        bends_[position] += bend;
        bend_sum_ += bend;
        bend_moment_ += bend * position;
    }
    void remove(std::map<int32_t, int64_t>::iterator bend) {
        bend_sum_ -= bend->second;
        bend_moment_ -= bend->second * bend->first;
        bends_.erase(bend);
    }

    int64_t value_ = 0;
    int64_t slope_ = 0;                // f(1) - f(0), without a bend at 0
    std::map<int32_t, int64_t> bends_; // position -> how much the slope increases there
    int64_t bend_sum_ = 0;
    int64_t bend_moment_ = 0; // sum of bend * position
};

// Prefixes that look for common prefixes, by the node directly above each.
class PayingRuns {
  public:
    PayingRuns(const PrefixTree &tree, std::span<const TokenRun> runs,
               const GroupingOptions &options)
        : first_(tree.nodes().size() + 1), of_node_(runs.size()), runs_(runs),
          readers_(options.readers), reading_(options.reading) {
        const auto leaves = tree.leaves(), parents = tree.leaf_parents();
        for (const uint32_t node : parents) ++first_[node + 1];
        for (size_t node = 1; node < first_.size(); ++node) first_[node] += first_[node - 1];
        std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
        for (size_t leaf = 0; leaf < leaves.size(); ++leaf) {
            of_node_[next[parents[leaf]]++] = leaves[leaf];
        }
    }

    // Adds the runs directly below the node. Returns what they gain in addition if the node is a
    // common prefix: runs that end there are the common prefix itself.
    int64_t add_to(Envelope *sum, uint32_t node, int32_t depth) const {
        int64_t jump = 0;
        for (uint32_t i = first_[node]; i < first_[node + 1]; ++i) {
            const uint32_t run = of_node_[i];
            const auto length = static_cast<int64_t>(runs_[run].tokens.size());
            const int64_t cost = reading_ * (length + readers_[run]);
            sum->add_paying_run(token_parts + reading_, cost, depth);
            if (length > depth) continue;
            const int64_t read = token_parts * length - reading_ * readers_[run];
            jump += token_parts * length - std::max<int64_t>(0, read);
        }
        return jump;
    }

  private:
    std::vector<uint32_t> first_;   // [nodes + 1] index into of_node_
    std::vector<uint32_t> of_node_; // [runs]
    std::span<const TokenRun> runs_;
    std::span<const int64_t> readers_;
    int64_t reading_;
};

} // namespace

ChosenAbove choose_optimal(const PrefixTree &tree, std::span<const TokenRun> runs,
                           const GroupingOptions &options) {
    const auto nodes = tree.nodes();
    const auto leaves = tree.leaves();
    const auto leaf_parents = tree.leaf_parents();

    // Per node: the runs directly below it, or `existing` if an existing prefix ends there.
    constexpr int32_t never = 0, existing = INT32_MAX;
    std::vector<int32_t> thresholds(nodes.size(), never);
    std::vector<uint32_t> direct(nodes.size());
    std::optional<PayingRuns> paying;
    if (!options.readers.empty()) paying.emplace(tree, runs, options);
    const int64_t token = paying ? token_parts : 1;
    for (size_t leaf = 0; leaf < leaves.size() && !paying; ++leaf) {
        const uint32_t node = leaf_parents[leaf], run = leaves[leaf];
        if (run < options.first_existing) {
            ++direct[node];
        } else if (runs[run].tokens.size() == static_cast<size_t>(nodes[node].depth) && node != 0) {
            thresholds[node] = existing;
        }
    }

    // Children before parents. `open` has the sums of nodes with some finished children.
    struct Open {
        uint32_t node;
        Envelope sum;
    };
    std::vector<Open> open;
    for (auto node = static_cast<uint32_t>(nodes.size()); node-- > 0;) {
        Envelope g;
        if (!open.empty() && open.back().node == node) {
            g = std::move(open.back().sum);
            open.pop_back();
        }
        const int32_t depth = nodes[node].depth;
        g.add_runs(direct[node]);
        const int64_t jump = paying ? paying->add_to(&g, node, depth) : 0;
        if (thresholds[node] == existing) {
            g.become_constant(g.at(depth));
        } else if (depth >= options.min_prefix_tokens) {
            thresholds[node] = g.raise_to(g.at(depth) + jump - token * depth, depth);
        }
        if (node == 0) break;
        const uint32_t parent = nodes[node].parent;
        if (open.empty() || open.back().node != parent) open.push_back({parent, Envelope()});
        open.back().sum.add(std::move(g), nodes[parent].depth);
    }

    ChosenAbove chosen(nodes.size());
    for (uint32_t node = 0; node < nodes.size(); ++node) {
        const uint32_t above = node == 0 ? no_node : chosen[nodes[node].parent];
        const int32_t depth_above = above == no_node ? 0 : nodes[above].depth;
        chosen[node] = depth_above < thresholds[node] ? node : above;
    }
    return chosen;
}

} // namespace batchllm
