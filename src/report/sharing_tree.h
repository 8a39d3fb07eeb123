// Prefixes of groups, one by one -> a tree of bounded size that shows how the rows begin.
//
//     all rows -+- "You are a helpful .."  2,000 rows -+- "Document: A year .."   16 rows
//               |                                      +- "Document: In the .."   12 rows
//               +- rest: 31 prefixes, 62 rows          +- rest: 120 prefixes
//
// A node ends where two prefixes diverge, or where the tokens begin that a group computes itself,
// so all tokens of a node have been computed equally often. When there are too many nodes or
// tokens, the leaves with the fewest rows are merged into their parent's rest. If such a prefix
// appears again later, it gets a new node.
//
// Always: a node's rows are those of its children, its rest, and the groups that end at it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace batchllm {

struct SharingNode {
    int32_t parent = -1;
    std::vector<int32_t> children;
    std::vector<int32_t> tokens; // those after its parent's; empty if only the length is known
    int64_t length = 0;          // number of tokens
    int64_t rows = 0;            // rows that begin with them
    int64_t times = 0;           // how often they have been computed
    int64_t groups = 0;          // groups whose prefix ends here or below
    int64_t ending_rows = 0;     // rows of groups whose prefix ends here
    int64_t ending_tokens = 0;   // those rows' own tokens
    int64_t rest_rows = 0;       // rows of children that were merged into the rest
    int64_t rest_groups = 0;
    std::string words; // the first tokens as text, once decoded
};

class SharingTree {
  public:
    static constexpr size_t most_nodes = 2048;
    static constexpr int64_t most_tokens = int64_t{2} << 20; // over all nodes

    SharingTree() : nodes_(1) {}

    // Adds a group whose rows begin with the prefix. The group computes the prefix's tokens from
    // computed_from on; another group computes those before. A group that shares nothing has an
    // empty prefix. own_tokens: over all its rows, after the prefix.
    void add(std::span<const int32_t> prefix, int64_t computed_from, int64_t rows,
             int64_t own_tokens);
    // The same for a group for which only the length of the prefix is known.
    void add_unknown(int64_t prefix_length, int64_t rows, int64_t own_tokens);

    // Decodes the first words of nodes that have tokens but no words.
    void decode(const std::function<std::string(std::span<const int32_t>)> &decoder);

    const SharingNode &root() const { return nodes_.front(); }
    const SharingNode &node(int32_t index) const { return nodes_[static_cast<size_t>(index)]; }
    size_t size() const { return nodes_.size() - free_.size(); }

  private:
    int32_t make_node(int32_t parent, std::span<const int32_t> tokens, int64_t length);
    int32_t child_of(int32_t parent, int32_t token) const;
    void split(int32_t upper, int64_t at);
    void end_group(int32_t node, int64_t rows, int64_t own_tokens);
    void prune();
    void drop(int32_t leaf);

    std::vector<SharingNode> nodes_; // the root comes first
    std::vector<int32_t> free_;
    std::unordered_map<uint64_t, int32_t> by_token_; // parent and first token -> child
    int64_t tokens_ = 0;                             // over all nodes
};

} // namespace batchllm
