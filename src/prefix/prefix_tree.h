// Token runs -> the compact radix tree of their prefixes, with one node for each prefix at which
// runs diverge. No token is copied: a node's tokens are those of any run below it. Runs with
// different salts share only the empty prefix.
//
// Always: node 0 is the root, of depth 0, over all runs; nodes are in depth-first order, a parent
// before its children; each node but the root is deeper than its parent and has at least two runs
// below it; the runs below node v are leaves()[v.begin, v.end).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace batchllm {

// Identified by its tokens and a salt, which represents everything else that their keys and values
// depend on.
struct TokenRun {
    std::span<const int32_t> tokens;
    uint64_t salt = 0;
};

struct PrefixTreeNode {
    int32_t depth;   // tokens from the root
    uint32_t parent; // the root is its own parent
    uint32_t begin;  // its runs are leaves [begin, end)
    uint32_t end;
};

class PrefixTree {
  public:
    // The runs are borrowed during the call: fewer than 2^31, each shorter than 2^31 tokens.
    // Time: one pass over the tokens that distinguish the runs, plus n log n (expected).
    explicit PrefixTree(std::span<const TokenRun> runs);

    std::span<const PrefixTreeNode> nodes() const { return nodes_; }
    // [runs] run numbers, depth first.
    std::span<const uint32_t> leaves() const { return leaves_; }
    // [runs] the deepest node above each leaf, in the order of leaves().
    std::span<const uint32_t> leaf_parents() const { return leaf_parents_; }

  private:
    void sort_by_salt(std::span<const TokenRun> runs);
    void find_nodes(std::span<const TokenRun> runs);
    void link_nodes();

    std::vector<PrefixTreeNode> nodes_;
    std::vector<uint32_t> leaves_;
    std::vector<uint32_t> leaf_parents_;
};

} // namespace batchllm
