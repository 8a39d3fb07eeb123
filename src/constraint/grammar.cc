#include "constraint/grammar.h"

#include <utility>

namespace batchllm {

NodeId Grammar::add(Node node) {
    nodes_.push_back(std::move(node));
    return size() - 1;
}

NodeId Grammar::bytes(std::string literal) {
    return add({.kind = Kind::bytes, .literal = std::move(literal)});
}

NodeId Grammar::terminal(Automaton automaton) {
    return add({.kind = Kind::terminal, .automaton = std::move(automaton)});
}

NodeId Grammar::sequence(std::vector<NodeId> parts) {
    if (parts.size() == 1) return parts[0];
    return add({.kind = Kind::sequence, .children = std::move(parts)});
}

NodeId Grammar::choice(std::vector<NodeId> alternatives) {
    if (alternatives.size() == 1) return alternatives[0];
    return add({.kind = Kind::choice, .children = std::move(alternatives)});
}

NodeId Grammar::repeat(NodeId item, int64_t least, int64_t greatest, NodeId separator) {
    return add({.kind = Kind::repeat,
                .children = {item},
                .separator = separator,
                .least = least,
                .greatest = greatest});
}

NodeId Grammar::members(Members members) {
    all_members_.push_back(std::move(members));
    return add({.kind = Kind::members, .members = static_cast<int32_t>(all_members_.size()) - 1});
}

NodeId Grammar::declare(std::string name) {
    return add({.kind = Kind::reference, .literal = std::move(name)});
}

void Grammar::define(NodeId reference, NodeId body) {
    nodes_[static_cast<size_t>(reference)].children = {body};
}

} // namespace batchllm
