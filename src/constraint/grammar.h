// The grammar that every front end builds: a description of the text, as nodes over bytes.
//
// Nodes are created bottom up by the functions of Grammar and identified by ids; a node may be used
// in any number of places. Recursion goes through declare() and define(). Building never fails:
// faults of a grammar (left recursion, an empty member, excessive size) are found when it is
// compiled (grammar_code.h), and the error names the declared rule.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "constraint/automaton.h"

namespace batchllm {

using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

// A set of elements, each used at most once, like the members of a JSON object.
struct Members {
    enum class Order : uint8_t {
        declared, // elements in the given order, then the rest
        any,      // in any order
    };
    struct Element {
        NodeId node; // must not match the empty string
        bool required;
    };
    std::vector<Element> elements;
    NodeId rest = kNoNode;      // further elements, any number; must not match the empty string
    NodeId separator = kNoNode; // between elements
    // How many elements in total, including those of `rest`.
    int64_t least = 0;
    int64_t greatest = Automaton::kUnbounded;
    Order order = Order::declared;
};

class Grammar {
  public:
    enum class Kind : uint8_t { bytes, terminal, sequence, choice, repeat, members, reference };
    struct Node {
        Kind kind;
        std::string literal = {}; // bytes; the name of a reference
        Automaton automaton = {}; // terminal
        std::vector<NodeId> children =
            {};                     // sequence, choice; repeat: the item; reference: its body
        NodeId separator = kNoNode; // repeat
        int64_t least = 0;          // repeat
        int64_t greatest = 0;       // repeat
        int32_t members = -1;       // index of all_members()
    };

    NodeId empty() { return bytes(""); }  // the empty string
    NodeId never() { return choice({}); } // no string at all
    NodeId bytes(std::string literal);
    NodeId terminal(Automaton automaton);
    NodeId sequence(std::vector<NodeId> parts);
    NodeId choice(std::vector<NodeId> alternatives); // branches may overlap
    NodeId optional(NodeId item) { return repeat(item, 0, 1); }
    // Between least and greatest items, with a separator between them. They are counted at run
    // time, so a large count costs no more than a small one.
    NodeId repeat(NodeId item, int64_t least, int64_t greatest = Automaton::kUnbounded,
                  NodeId separator = kNoNode);
    NodeId members(Members members);

    // A placeholder for the node that define() sets later. The name is for errors.
    NodeId declare(std::string name);
    void define(NodeId reference, NodeId body);

    // For passes that rewrite a grammar: replaces the node by another.
    void replace(NodeId id, Node node) { nodes_[static_cast<size_t>(id)] = std::move(node); }

    void set_root(NodeId root) { root_ = root; }
    NodeId root() const { return root_; }

    int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
    const Node &node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
    const Members &members_of(const Node &node) const {
        return all_members_[static_cast<size_t>(node.members)];
    }

  private:
    NodeId add(Node node);

    std::vector<Node> nodes_;
    std::vector<Members> all_members_;
    NodeId root_ = kNoNode;
};

} // namespace batchllm
