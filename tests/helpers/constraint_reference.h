// A slow matcher of grammars to compare the real one with, and random texts derived from a grammar.
// It shares nothing with the code that it checks except the Grammar and its automata.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "constraint/grammar.h"

namespace batchllm {

// Finds where a node's text may end, for each place where it may begin.
class ReferenceMatcher {
  public:
    ReferenceMatcher(const Grammar &grammar, std::string_view text)
        : grammar_(grammar), text_(text) {}

    bool matches() { return ends(grammar_.root(), 0).contains(text_.size()); }

  private:
    using Ends = std::set<size_t>;

    const Ends &ends(NodeId id, size_t begin) {
        const auto key = std::make_pair(id, begin);
        const auto known = known_.find(key);
        if (known != known_.end()) return known->second;
        known_[key] = {};
        return known_[key] = find(grammar_.node(id), begin);
    }

    Ends find(const Grammar::Node &node, size_t begin) {
        Ends found;
        switch (node.kind) {
        case Grammar::Kind::bytes:
            if (text_.substr(begin).starts_with(node.literal))
                found.insert(begin + node.literal.size());
            break;
        case Grammar::Kind::terminal:
            for (size_t end = begin; end <= text_.size(); ++end)
                if (node.automaton.matches(text_.substr(begin, end - begin))) found.insert(end);
            break;
        case Grammar::Kind::sequence:
            found = {begin};
            for (const NodeId child : node.children) found = ends_from(child, found);
            break;
        case Grammar::Kind::choice:
            for (const NodeId child : node.children) found.merge(Ends(ends(child, begin)));
            break;
        case Grammar::Kind::reference:
            return ends(node.children[0], begin);
        case Grammar::Kind::repeat:
            return repeat(node, begin);
        case Grammar::Kind::members: {
            const Members &members = grammar_.members_of(node);
            std::set<std::pair<std::vector<bool>, std::pair<int64_t, size_t>>> met;
            set_members(members, std::vector<bool>(members.elements.size()), 0, begin, &met,
                        &found);
            break;
        }
        }
        return found;
    }

    Ends ends_from(NodeId id, const Ends &begins) {
        Ends found;
        for (const size_t begin : begins) found.merge(Ends(ends(id, begin)));
        return found;
    }

    Ends repeat(const Grammar::Node &node, size_t begin) {
        Ends found;
        Ends here = {begin};
        const bool unbounded = node.greatest == Automaton::kUnbounded;
        std::set<std::pair<int64_t, size_t>> met; // counts past the least are alike if unbounded
        for (int64_t count = 0; !here.empty() && (unbounded || count <= node.greatest); ++count) {
            if (count >= node.least) found.insert(here.begin(), here.end());
            Ends next = here;
            if (count > 0 && node.separator != kNoNode) next = ends_from(node.separator, next);
            next = ends_from(node.children[0], next);
            here.clear();
            const int64_t alike =
                unbounded ? std::min(count, std::max<int64_t>(node.least, 1)) : count;
            for (const size_t end : next)
                if (met.emplace(alike, end).second) here.insert(end);
        }
        return found;
    }

    template <typename Met> void set_members(const Members &members, const std::vector<bool> &seen,
                                             int64_t count, size_t place, Met *met, Ends *found) {
        if (!met->insert({seen, {count, place}}).second) return;
        bool required = false;
        size_t last = 0; // in declared order, elements before this are over
        for (size_t i = 0; i < seen.size(); ++i) {
            required |= members.elements[i].required && !seen[i];
            if (seen[i]) last = i + 1;
        }
        const bool unbounded = members.greatest == Automaton::kUnbounded;
        if (!required && count >= members.least && (unbounded || count <= members.greatest))
            found->insert(place);
        if (!unbounded && count >= members.greatest) return;
        Ends begins = {place};
        if (count > 0 && members.separator != kNoNode)
            begins = ends_from(members.separator, begins);
        const bool declared = members.order == Members::Order::declared;
        for (size_t i = declared ? last : 0; i < seen.size(); ++i) {
            if (seen[i]) continue;
            std::vector<bool> after = seen;
            after[i] = true;
            for (const size_t end : ends_from(members.elements[i].node, begins))
                set_members(members, after, count + 1, end, met, found);
        }
        if (members.rest == kNoNode || (declared && required)) return;
        std::vector<bool> after = seen;
        // No declared member may come after the rest: all of them count as over.
        if (declared) after.assign(seen.size(), true);
        for (const size_t end : ends_from(members.rest, begins))
            set_members(members, after, count + 1, end, met, found);
    }

    const Grammar &grammar_;
    std::string_view text_;
    std::map<std::pair<NodeId, size_t>, Ends> known_;
};

// A text of the grammar, by expanding nodes at random; nothing if it grows too long or a node has
// no text.
class Derivation {
  public:
    Derivation(const Grammar &grammar, std::mt19937_64 *random)
        : grammar_(grammar), random_(*random) {}

    std::optional<std::string> make() {
        std::string text;
        if (!add(grammar_.root(), 0, &text)) return std::nullopt;
        return text;
    }

  private:
    size_t pick(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

    bool add(NodeId id, int32_t depth, std::string *text) {
        if (depth > 60 || text->size() > 200) return false;
        const Grammar::Node &node = grammar_.node(id);
        switch (node.kind) {
        case Grammar::Kind::bytes:
            *text += node.literal;
            return true;
        case Grammar::Kind::terminal:
            return add_terminal(node.automaton, text);
        case Grammar::Kind::sequence:
            return std::all_of(node.children.begin(), node.children.end(),
                               [&](NodeId child) { return add(child, depth + 1, text); });
        case Grammar::Kind::reference:
            return add(node.children[0], depth + 1, text);
        case Grammar::Kind::choice:
            return !node.children.empty() &&
                   add(node.children[pick(node.children.size())], depth + 1, text);
        case Grammar::Kind::repeat:
            return add_repeat(node, depth, text);
        case Grammar::Kind::members:
            return add_members(grammar_.members_of(node), depth, text);
        }
        return false;
    }

    bool add_terminal(const Automaton &automaton, std::string *text) {
        if (automaton.empty()) return false;
        for (int32_t state = 0;;) {
            if (automaton.accepting(state) && pick(3) == 0) return true;
            std::vector<uint8_t> bytes;
            for (int32_t byte = 0; byte < 256; ++byte)
                if (automaton.next(state, static_cast<uint8_t>(byte)) >= 0)
                    bytes.push_back(static_cast<uint8_t>(byte));
            if (bytes.empty()) return true;
            const uint8_t byte = bytes[pick(bytes.size())];
            *text += static_cast<char>(byte);
            state = automaton.next(state, byte);
            if (text->size() > 300) return false;
        }
    }

    bool add_repeat(const Grammar::Node &node, int32_t depth, std::string *text) {
        int64_t most = node.least + 3;
        if (node.greatest != Automaton::kUnbounded) most = std::min(most, node.greatest);
        if (most < node.least) return false;
        const int64_t count =
            node.least + static_cast<int64_t>(pick(static_cast<size_t>(most - node.least + 1)));
        for (int64_t i = 0; i < count; ++i) {
            if (i > 0 && node.separator != kNoNode && !add(node.separator, depth + 1, text))
                return false;
            if (!add(node.children[0], depth + 1, text)) return false;
        }
        return true;
    }

    bool add_members(const Members &members, int32_t depth, std::string *text) {
        std::vector<NodeId> chosen;
        for (const Members::Element &element : members.elements)
            if (element.required || pick(2) == 0) chosen.push_back(element.node);
        const size_t more = members.rest == kNoNode ? 0 : pick(3);
        for (size_t i = 0; i < more; ++i) chosen.push_back(members.rest);
        const auto count = static_cast<int64_t>(chosen.size());
        if (count < members.least) return false;
        if (members.greatest != Automaton::kUnbounded && count > members.greatest) return false;
        if (members.order == Members::Order::any)
            std::shuffle(chosen.begin(), chosen.end(), random_);
        for (size_t i = 0; i < chosen.size(); ++i) {
            if (i > 0 && members.separator != kNoNode && !add(members.separator, depth + 1, text))
                return false;
            if (!add(chosen[i], depth + 1, text)) return false;
        }
        return true;
    }

    const Grammar &grammar_;
    std::mt19937_64 &random_;
};

} // namespace batchllm
