#include "prefix/prefix_tree.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "prefix/common_prefix.h"

namespace batchllm {
namespace {

// Runs leaves[begin, end), which are known to share their first `depth` tokens.
struct Bucket {
    uint32_t begin;
    uint32_t end;
    int32_t depth;
};

// A run and where it diverges from the pivot. Sorted by common prefix, longest first, then by the
// next token; runs that end there come first.
struct Departure {
    uint64_t key;
    uint32_t run;

    static Departure make(uint32_t run, int32_t common, std::span<const int32_t> tokens) {
        const auto at = static_cast<size_t>(common);
        const uint64_t next =
            at == tokens.size() ? 0 : uint64_t{1} + static_cast<uint32_t>(tokens[at]);
        return {(static_cast<uint64_t>(INT32_MAX - common) << 33) | next, run};
    }
    int32_t common() const { return INT32_MAX - static_cast<int32_t>(key >> 33); }
    bool ends() const { return (key & ((uint64_t{1} << 33) - 1)) == 0; }
    bool operator<(const Departure &other) const {
        return key != other.key ? key < other.key : run < other.run;
    }
};

// A pseudo-random number that is the same every time the program runs.
uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// How far ahead rows are prefetched: their tokens may be anywhere in memory.
constexpr size_t prefetch_distance = 12;

} // namespace

PrefixTree::PrefixTree(std::span<const TokenRun> runs) {
    leaves_.resize(runs.size());
    std::iota(leaves_.begin(), leaves_.end(), 0u);
    sort_by_salt(runs);
    nodes_.push_back({0, 0, 0, static_cast<uint32_t>(runs.size())});
    find_nodes(runs);
    link_nodes();
}

// Makes runs with the same salt adjacent; if all salts are equal, no run moves.
void PrefixTree::sort_by_salt(std::span<const TokenRun> runs) {
    const auto less = [&](uint32_t a, uint32_t b) {
        return runs[a].salt != runs[b].salt ? runs[a].salt < runs[b].salt : a < b;
    };
    if (!std::is_sorted(leaves_.begin(), leaves_.end(), less)) {
        std::sort(leaves_.begin(), leaves_.end(), less);
    }
}

// Starts with a bucket for each salt. Takes one run of a bucket as the pivot and compares all
// others with it, once. That yields the nodes on the pivot's path, one at each depth where runs
// diverge from it. Runs that diverge at the same depth with the same token form a bucket of their
// own. The pivot is drawn uniformly, so a run's bucket halves about every other time, and a run is
// in O(log n) buckets whatever the tree's shape. Since runs are compared from the bucket's depth
// on, no token of a run is read twice.
void PrefixTree::find_nodes(std::span<const TokenRun> runs) {
    std::vector<Departure> departures(runs.size());
    std::vector<Bucket> buckets;
    for (uint32_t begin = 0, end = 0; begin < leaves_.size(); begin = end) {
        const uint64_t salt = runs[leaves_[begin]].salt;
        while (end < leaves_.size() && runs[leaves_[end]].salt == salt) ++end;
        if (end - begin > 1) buckets.push_back({begin, end, 0});
    }
    while (!buckets.empty()) {
        const Bucket bucket = buckets.back();
        buckets.pop_back();
        const std::span<uint32_t> members(leaves_.data() + bucket.begin, bucket.end - bucket.begin);
        const std::span<Departure> sorted(departures.data() + bucket.begin, members.size());

        const uint64_t chance = mix((uint64_t{bucket.begin} << 32) + bucket.end);
        const std::span<const int32_t> pivot = runs[members[chance % members.size()]].tokens;
        for (size_t i = 0; i < members.size(); ++i) {
            if (i + prefetch_distance < members.size()) {
                __builtin_prefetch(runs[members[i + prefetch_distance]].tokens.data() +
                                   bucket.depth);
            }
            const std::span<const int32_t> run = runs[members[i]].tokens;
            const auto most = static_cast<int32_t>(std::min(run.size(), pivot.size()));
            const int32_t common =
                bucket.depth + common_prefix(run.data() + bucket.depth, pivot.data() + bucket.depth,
                                             most - bucket.depth);
            sorted[i] = Departure::make(members[i], common, run);
        }
        std::sort(sorted.begin(), sorted.end());

        for (size_t i = 0; i < sorted.size();) {
            const int32_t depth = sorted[i].common();
            size_t end = i;
            while (end < sorted.size() && sorted[end].common() == depth) {
                const size_t first = end;
                while (end < sorted.size() && sorted[end].key == sorted[first].key) {
                    members[end] = sorted[end].run;
                    ++end;
                }
                if (end - first > 1 && !sorted[first].ends()) {
                    buckets.push_back({bucket.begin + static_cast<uint32_t>(first),
                                       bucket.begin + static_cast<uint32_t>(end), depth + 1});
                }
            }
            if (end > 1 && depth > 0) {
                nodes_.push_back(
                    {depth, 0, bucket.begin, bucket.begin + static_cast<uint32_t>(end)});
            }
            i = end;
        }
    }
}

void PrefixTree::link_nodes() {
    std::sort(nodes_.begin(), nodes_.end(), [](const PrefixTreeNode &a, const PrefixTreeNode &b) {
        return a.begin != b.begin ? a.begin < b.begin : a.depth < b.depth;
    });
    leaf_parents_.resize(leaves_.size());
    uint32_t leaf = 0;
    uint32_t open = 0; // the deepest node over leaf `leaf`
    const auto close_up_to = [&](uint32_t position) {
        while (leaf < position) {
            const uint32_t end = std::min(position, nodes_[open].end);
            for (; leaf < end; ++leaf) leaf_parents_[leaf] = open;
            while (open != 0 && nodes_[open].end == leaf) open = nodes_[open].parent;
        }
    };
    for (uint32_t node = 1; node < nodes_.size(); ++node) {
        close_up_to(nodes_[node].begin);
        nodes_[node].parent = open;
        open = node;
    }
    close_up_to(static_cast<uint32_t>(leaves_.size()));
}

} // namespace batchllm
