#include "constraint/grammar_facts.h"

#include <algorithm>

#include "base/printable.h"
#include "constraint/index.h"

namespace batchllm {
namespace {

using GrammarKind = Grammar::Kind;

// Calls visit(child) for each node that the node refers to.
template <typename Visit> void for_children(const Grammar &grammar, NodeId id, Visit visit) {
    const Grammar::Node &node = grammar.node(id);
    for (const NodeId child : node.children) visit(child);
    if (node.separator != kNoNode) visit(node.separator);
    if (node.kind != GrammarKind::members) return;
    const Members &members = grammar.members_of(node);
    for (const Members::Element &element : members.elements) visit(element.node);
    if (members.rest != kNoNode) visit(members.rest);
    if (members.separator != kNoNode) visit(members.separator);
}

class FactFinder {
  public:
    explicit FactFinder(const Grammar &grammar) : grammar_(grammar), n_(at(grammar.size())) {}

    Result<GrammarFacts> find() {
        RETURN_IF_ERROR(check_ids());
        used_by_.resize(n_);
        facts_.shared.assign(n_, 0);
        for (NodeId id = 0; id < grammar_.size(); ++id)
            for_children(grammar_, id, [&](NodeId child) { used_by_[at(child)].push_back(id); });
        for (size_t i = 0; i < n_; ++i) facts_.shared[i] = used_by_[i].size() > 1;
        facts_.shared[at(grammar_.root())] |= !used_by_[at(grammar_.root())].empty();
        spread(&facts_.productive, [this](NodeId id) { return is_productive(id); });
        spread(&facts_.empty,
               [this](NodeId id) { return facts_.productive[at(id)] && is_empty(id); });
        if (!facts_.productive[at(grammar_.root())])
            return error(BATCHLLM_ERROR_UNSUPPORTED, "the constraint allows no text at all");
        RETURN_IF_ERROR(check_members());
        RETURN_IF_ERROR(check_left_recursion());
        return std::move(facts_);
    }

  private:
    Status check_ids() const {
        bool sound = grammar_.root() >= 0 && grammar_.root() < grammar_.size();
        for (NodeId id = 0; id < grammar_.size() && sound; ++id) {
            const Grammar::Node &node = grammar_.node(id);
            if (node.kind == GrammarKind::reference && node.children.empty()) {
                return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "the rule %s is not defined",
                             in_quotes(node.literal).c_str());
            }
            for_children(grammar_, id, [&](NodeId child) {
                sound = sound && child >= 0 && child < grammar_.size();
            });
            if (node.kind == GrammarKind::repeat)
                sound = sound && node.least >= 0 && node.greatest >= Automaton::kUnbounded;
        }
        if (sound) return {};
        return error(BATCHLLM_ERROR_INTERNAL, "a grammar with a node that does not exist");
    }

    // The smallest set that contains every node for which holds(node) is true, given the set so
    // far.
    template <typename Holds> void spread(std::vector<uint8_t> *set, Holds holds) {
        set->assign(n_, 0);
        std::vector<NodeId> queue;
        const auto look = [&](NodeId id) {
            if ((*set)[at(id)] || !holds(id)) return;
            (*set)[at(id)] = 1;
            queue.push_back(id);
        };
        for (NodeId id = 0; id < grammar_.size(); ++id) look(id);
        for (size_t i = 0; i < queue.size(); ++i)
            for (const NodeId user : used_by_[at(queue[i])]) look(user);
    }

    bool productive(NodeId id) const { return facts_.productive[at(id)] != 0; }
    bool empty(NodeId id) const { return facts_.empty[at(id)] != 0; }

    bool is_productive(NodeId id) const {
        const Grammar::Node &node = grammar_.node(id);
        const auto good = [this](NodeId child) { return productive(child); };
        switch (node.kind) {
        case GrammarKind::bytes:
            return true;
        case GrammarKind::terminal:
            return !node.automaton.empty();
        case GrammarKind::sequence:
        case GrammarKind::reference:
            return std::all_of(node.children.begin(), node.children.end(), good);
        case GrammarKind::choice:
            return std::any_of(node.children.begin(), node.children.end(), good);
        case GrammarKind::repeat: {
            if (node.greatest != Automaton::kUnbounded && node.greatest < node.least) return false;
            if (node.least == 0) return true;
            if (!good(node.children[0])) return false;
            return node.least == 1 || node.separator == kNoNode || good(node.separator);
        }
        case GrammarKind::members:
            return member_bounds(grammar_.members_of(node), facts_.productive).feasible;
        }
        return false;
    }

    bool is_empty(NodeId id) const {
        const Grammar::Node &node = grammar_.node(id);
        const auto good = [this](NodeId child) { return empty(child); };
        switch (node.kind) {
        case GrammarKind::bytes:
            return node.literal.empty();
        case GrammarKind::terminal:
            return node.automaton.matches_empty();
        case GrammarKind::sequence:
        case GrammarKind::reference:
            return std::all_of(node.children.begin(), node.children.end(), good);
        case GrammarKind::choice:
            return std::any_of(node.children.begin(), node.children.end(), good);
        case GrammarKind::repeat: {
            if (node.least == 0) return true;
            if (!good(node.children[0])) return false;
            return node.least == 1 || node.separator == kNoNode || good(node.separator);
        }
        case GrammarKind::members: {
            const Members &members = grammar_.members_of(node);
            return members.least <= 0 &&
                   std::none_of(members.elements.begin(), members.elements.end(),
                                [](const Members::Element &element) { return element.required; });
        }
        }
        return false;
    }

    Status check_members() const {
        const auto refuse = [] {
            return error(BATCHLLM_ERROR_UNSUPPORTED, "a member of a set that may be empty");
        };
        for (NodeId id = 0; id < grammar_.size(); ++id) {
            const Grammar::Node &node = grammar_.node(id);
            if (node.kind == GrammarKind::repeat && node.separator != kNoNode &&
                empty(node.separator) && empty(node.children[0]))
                return error(BATCHLLM_ERROR_UNSUPPORTED,
                             "a repetition whose items and separators may both be empty");
            if (node.kind != GrammarKind::members) continue;
            const Members &members = grammar_.members_of(node);
            for (const Members::Element &element : members.elements)
                if (empty(element.node)) return refuse();
            if (members.rest != kNoNode && empty(members.rest)) return refuse();
        }
        return {};
    }

    // Nodes that may be the first to read a byte of this one.
    std::vector<NodeId> first_nodes(NodeId id) const {
        std::vector<NodeId> found;
        const Grammar::Node &node = grammar_.node(id);
        if (node.kind == GrammarKind::sequence) {
            for (const NodeId child : node.children) {
                found.push_back(child);
                if (!empty(child)) break;
            }
            return found;
        }
        for_children(grammar_, id, [&](NodeId child) { found.push_back(child); });
        const bool starts_with_separator = node.kind == GrammarKind::repeat &&
                                           node.separator != kNoNode && empty(node.children[0]);
        if (node.kind == GrammarKind::repeat && node.separator != kNoNode && !starts_with_separator)
            found.pop_back();
        if (node.kind == GrammarKind::members && grammar_.members_of(node).separator != kNoNode)
            found.pop_back();
        return found;
    }

    // Depth first, without recursion, as a grammar may be deep.
    Status check_left_recursion() const {
        enum : uint8_t { fresh, open, done };
        struct Visit {
            NodeId id;
            std::vector<NodeId> below;
            size_t next = 0;
        };
        std::vector<uint8_t> state(n_, fresh);
        for (NodeId root = 0; root < grammar_.size(); ++root) {
            if (state[at(root)] != fresh || !productive(root)) continue;
            std::vector<Visit> path;
            path.push_back({root, first_nodes(root)});
            state[at(root)] = open;
            while (!path.empty()) {
                Visit &visit = path.back();
                if (visit.next == visit.below.size()) {
                    state[at(visit.id)] = done;
                    path.pop_back();
                    continue;
                }
                const NodeId child = visit.below[visit.next++];
                if (!productive(child) || state[at(child)] == done) continue;
                if (state[at(child)] == open) return left_recursion(path, child);
                state[at(child)] = open;
                path.push_back({child, first_nodes(child)});
            }
        }
        return {};
    }

    template <typename Path> Status left_recursion(const Path &path, NodeId start) const {
        std::string name;
        bool inside = false;
        for (const auto &visit : path) {
            inside |= visit.id == start;
            const Grammar::Node &node = grammar_.node(visit.id);
            if (inside && node.kind == GrammarKind::reference && name.empty()) name = node.literal;
        }
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "the rule %s begins with itself: left recursion is not supported here",
                     in_quotes(name).c_str());
    }

    const Grammar &grammar_;
    size_t n_;
    std::vector<std::vector<NodeId>> used_by_;
    GrammarFacts facts_;
};

} // namespace

MemberBounds member_bounds(const Members &members, const std::vector<uint8_t> &productive) {
    MemberBounds bounds;
    bounds.greatest = members.greatest;
    const auto limit = [&](int64_t most) {
        if (bounds.greatest == Automaton::kUnbounded || bounds.greatest > most)
            bounds.greatest = most;
    };
    bool possible = true;
    for (const Members::Element &element : members.elements) {
        if (productive[at(element.node)]) ++bounds.elements;
        if (!element.required) continue;
        ++bounds.required;
        possible = possible && productive[at(element.node)];
    }
    const bool rest = members.rest != kNoNode && productive[at(members.rest)];
    if (!rest) limit(bounds.elements);
    if (members.separator != kNoNode && !productive[at(members.separator)]) limit(1);
    const bool unbounded = bounds.greatest == Automaton::kUnbounded;
    bounds.feasible =
        possible &&
        (unbounded || (bounds.required <= bounds.greatest && members.least <= bounds.greatest));
    return bounds;
}

Result<GrammarFacts> find_grammar_facts(const Grammar &grammar) {
    return FactFinder(grammar).find();
}

} // namespace batchllm
