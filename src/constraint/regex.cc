// Without lookaheads, the tree becomes one nondeterministic automaton. With them, it is processed from its
// end: `tail` is the set of texts that may follow, which a lookahead reduces to those that it allows.
#include "constraint/regex.h"

#include <algorithm>
#include <optional>

#include "constraint/nfa.h"

namespace batchllm {
namespace {

using RegexKind = RegexNode::Kind;

// Where in the text a part of the expression begins to match.
enum class Where : uint8_t { start, later, unknown };

static_assert(RegexNode::unbounded == Automaton::kUnbounded);

Nfa::Assertion on_edge(RegexNode::Assertion assertion) {
    switch (assertion) {
    case RegexNode::Assertion::text_start:
        return Nfa::Assertion::text_start;
    case RegexNode::Assertion::text_end:
        return Nfa::Assertion::text_end;
    case RegexNode::Assertion::word_boundary:
        return Nfa::Assertion::word_boundary;
    case RegexNode::Assertion::no_word_boundary:
        return Nfa::Assertion::no_word_boundary;
    default:
        return Nfa::Assertion::none;
    }
}

class RegexCompiler {
  public:
    RegexCompiler(const RegexTree &tree, const RegexOptions &options, Budget *budget)
        : tree_(tree), search_(options.dialect == RegexDialect::ecma), budget_(budget) {}

    Result<Automaton> compile() {
        sets_.resize(tree_.sets.size());
        if (node(tree_.root).has_lookahead) return with_lookaheads();
        Nfa nfa;
        const int32_t start = nfa.add_state();
        const int32_t end = nfa.add_state();
        if (search_) {
            add_any_text(&nfa, start);
            add_any_text(&nfa, end);
        }
        RETURN_IF_ERROR(add(&nfa, tree_.root, start, end));
        return nfa.determinize(start, {end}, budget_);
    }

  private:
    const RegexNode &node(int32_t id) const { return tree_.nodes[static_cast<size_t>(id)]; }

    static void add_any_text(Nfa *nfa, int32_t state) {
        nfa->add_code_points(state, 0, 0x10FFFF, state);
    }

    // Adds the node between two states. The node has no lookahead.
    Status add(Nfa *nfa, int32_t id, int32_t from, int32_t to) {
        const RegexNode &here = node(id);
        RETURN_IF_ERROR(budget_->spend_states(1));
        switch (here.kind) {
        case RegexKind::characters:
            return add_characters(nfa, here.set, from, to);
        case RegexKind::assertion:
            nfa->add_empty(from, to, on_edge(here.assertion));
            return {};
        case RegexKind::concat: {
            int32_t state = from;
            for (const int32_t child : here.children) {
                const int32_t after = nfa->add_state();
                RETURN_IF_ERROR(add(nfa, child, state, after));
                state = after;
            }
            nfa->add_empty(state, to);
            return {};
        }
        case RegexKind::alternate:
            for (const int32_t child : here.children) {
                // Uses new states, since a loop on a shared state would affect the other branches.
                const int32_t first = nfa->add_state();
                nfa->add_empty(from, first);
                RETURN_IF_ERROR(add(nfa, child, first, to));
            }
            return {};
        case RegexKind::repeat:
            return add_repeat(nfa, here, from, to);
        case RegexKind::lookahead:
        case RegexKind::atomic:
            break;
        }
        return error(BATCHLLM_ERROR_INTERNAL, "a lookahead where none is expected");
    }

    Status add_repeat(Nfa *nfa, const RegexNode &here, int32_t from, int32_t to) {
        const bool unbounded = here.greatest == Automaton::kUnbounded;
        const int64_t copies = unbounded ? here.least : here.greatest;
        int32_t state = from;
        for (int64_t i = 0; i < copies; ++i) {
            if (i >= here.least) nfa->add_empty(state, to);
            const int32_t after = nfa->add_state();
            RETURN_IF_ERROR(add(nfa, here.children[0], state, after));
            state = after;
        }
        if (unbounded) {
            const int32_t again = nfa->add_state();
            nfa->add_empty(state, again);
            state = again;
            const int32_t after = nfa->add_state();
            RETURN_IF_ERROR(add(nfa, here.children[0], again, after));
            nfa->add_empty(after, again);
        }
        nfa->add_empty(state, to);
        return {};
    }

    Status add_characters(Nfa *nfa, int32_t set, int32_t from, int32_t to) {
        const auto &ranges = tree_.sets[static_cast<size_t>(set)].ranges();
        if (ranges.size() <= 2) {
            for (const auto &[first, last] : ranges) nfa->add_code_points(from, first, last, to);
            return {};
        }
        std::optional<Automaton> &known = sets_[static_cast<size_t>(set)];
        if (!known) {
            ASSIGN_OR_RETURN(known, Automaton::code_points(ranges, budget_));
        }
        RETURN_IF_ERROR(budget_->spend_states(known->states()));
        nfa->add_automaton(from, *known, to);
        return {};
    }

    Result<Automaton> with_lookaheads() {
        const Automaton nothing = Automaton::empty_string();
        const Automaton &any = Automaton::any_text();
        ASSIGN_OR_RETURN(const Automaton at_start,
                         tail(tree_.root, search_ ? any : nothing, Where::start));
        if (!search_) return at_start;
        ASSIGN_OR_RETURN(const Automaton later, tail(tree_.root, any, Where::later));
        ASSIGN_OR_RETURN(const Automaton some, subtract(any, nothing, budget_));
        ASSIGN_OR_RETURN(const Automaton moved, concat(some, later, budget_));
        return unite(at_start, moved, budget_);
    }

    // Texts that begin with a match of the node and continue with a text of `after`.
    Result<Automaton> tail(int32_t id, const Automaton &after, Where where) {
        const RegexNode &here = node(id);
        RETURN_IF_ERROR(budget_->spend_states(1));
        if (!here.has_lookahead) return plain_tail({&id, 1}, after, where);
        switch (here.kind) {
        case RegexKind::concat:
            return concat_tail(here, after, where);
        case RegexKind::alternate: {
            std::vector<Automaton> branches;
            for (const int32_t child : here.children) {
                ASSIGN_OR_RETURN(Automaton branch, tail(child, after, where));
                branches.push_back(std::move(branch));
            }
            return unite(branches, budget_);
        }
        case RegexKind::repeat: { // at most once: the parser rejects anything else
            ASSIGN_OR_RETURN(const Automaton once, tail(here.children[0], after, where));
            if (here.least == 1) return once;
            return unite(once, after, budget_);
        }
        case RegexKind::lookahead: {
            ASSIGN_OR_RETURN(const Automaton seen,
                             tail(here.children[0], Automaton::any_text(), where));
            return here.negative ? subtract(after, seen, budget_) : intersect(after, seen, budget_);
        }
        case RegexKind::characters:
        case RegexKind::assertion:
        case RegexKind::atomic:
            break;
        }
        return error(BATCHLLM_ERROR_INTERNAL, "a node that cannot have a lookahead");
    }

    Result<Automaton> concat_tail(const RegexNode &here, const Automaton &after, Where where) {
        // Where each child begins.
        std::vector<Where> places;
        for (const int32_t child : here.children) {
            places.push_back(where);
            const auto [least, greatest] = length(child);
            if (least > 0) where = Where::later;
            if (least == 0 && greatest > 0 && where == Where::start) where = Where::unknown;
        }
        Automaton rest = after;
        size_t end = here.children.size();
        while (end > 0) {
            size_t begin = end - 1;
            if (node(here.children[begin]).has_lookahead) {
                ASSIGN_OR_RETURN(rest, tail(here.children[begin], rest, places[begin]));
            } else {
                while (begin > 0 && !node(here.children[begin - 1]).has_lookahead) --begin;
                const std::span children(here.children);
                ASSIGN_OR_RETURN(
                    rest, plain_tail(children.subspan(begin, end - begin), rest, places[begin]));
            }
            end = begin;
        }
        return rest;
    }

    // The same for consecutive children without a lookahead.
    Result<Automaton> plain_tail(std::span<const int32_t> children, const Automaton &after,
                                 Where where) {
        Nfa nfa;
        const int32_t start = nfa.add_state();
        const int32_t end = nfa.add_state();
        int32_t state = start;
        for (const int32_t child : children) {
            if (node(child).looks_back && where != Where::start) {
                const bool never = where == Where::later &&
                                   node(child).assertion == RegexNode::Assertion::text_start;
                if (never) return Automaton();
                return error(BATCHLLM_ERROR_UNSUPPORTED,
                             "^, \\b or \\B behind a lookahead is not supported");
            }
            const int32_t next = nfa.add_state();
            RETURN_IF_ERROR(add(&nfa, child, state, next));
            state = next;
        }
        nfa.add_automaton(state, after, end);
        return nfa.determinize(start, {end}, budget_);
    }

    // The least and greatest number of characters, each capped at 1.
    std::pair<int64_t, int64_t> length(int32_t id) const {
        const RegexNode &here = node(id);
        switch (here.kind) {
        case RegexKind::characters:
            return {1, 1};
        case RegexKind::assertion:
        case RegexKind::lookahead:
            return {0, 0};
        case RegexKind::concat: {
            std::pair<int64_t, int64_t> sum{0, 0};
            for (const int32_t child : here.children) {
                const auto [least, greatest] = length(child);
                sum = {std::max(sum.first, least), std::max(sum.second, greatest)};
            }
            return sum;
        }
        case RegexKind::alternate: {
            std::pair<int64_t, int64_t> all{1, 0};
            for (const int32_t child : here.children) {
                const auto [least, greatest] = length(child);
                all = {std::min(all.first, least), std::max(all.second, greatest)};
            }
            return all;
        }
        case RegexKind::repeat: {
            const auto [least, greatest] = length(here.children[0]);
            return {here.least == 0 ? 0 : least, here.greatest == 0 ? 0 : greatest};
        }
        case RegexKind::atomic:
            break;
        }
        return {0, 1};
    }

    const RegexTree &tree_;
    bool search_;
    Budget *budget_;
    std::vector<std::optional<Automaton>> sets_; // [tree_.sets]
};

} // namespace

Result<Automaton> compile_regex(std::string_view expression, const RegexOptions &options,
                                Budget *budget) {
    RETURN_IF_ERROR(budget->spend_work(static_cast<int64_t>(expression.size())));
    ASSIGN_OR_RETURN(const RegexTree tree, parse_regex(expression, options));
    return RegexCompiler(tree, options, budget).compile();
}

} // namespace batchllm
