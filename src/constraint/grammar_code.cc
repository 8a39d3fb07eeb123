#include "constraint/grammar_code.h"

#include <algorithm>
#include <utility>

#include "constraint/grammar_facts.h"
#include "constraint/index.h"
#include "constraint/minimize.h"

namespace batchllm {
namespace {

constexpr int32_t kDeepestNodes = 2000;
constexpr int64_t kMostCounted = int64_t{1} << 30; // no text reaches larger counts

// The automaton without the bytes that must not occur in a text.
Automaton restricted(const Automaton &automaton, const bool (&usable)[256]) {
    if (automaton.empty()) return automaton;
    DfaTable table;
    bool splits[256] = {};
    for (int32_t byte = 1; byte < 256; ++byte) {
        const auto here = static_cast<uint8_t>(byte);
        const auto before = static_cast<uint8_t>(byte - 1);
        splits[byte] = usable[here] != usable[before] ||
                       automaton.class_of(here) != automaton.class_of(before);
    }
    set_byte_runs(splits, &table);
    for (int32_t state = 0; state < automaton.states(); ++state)
        table.add_state(automaton.accepting(state));
    bool changed = false;
    for (int32_t state = 0; state < automaton.states(); ++state) {
        for (int32_t byte = 0; byte < 256; ++byte) {
            const int32_t next = automaton.next(state, static_cast<uint8_t>(byte));
            if (usable[byte])
                table.at(state, table.class_of[byte]) = next;
            else
                changed |= next != Automaton::kDead;
        }
    }
    return changed ? AutomatonMaker::minimal(table) : automaton;
}

// The same for every terminal and literal in a grammar.
Grammar restricted(Grammar grammar, const bool (&usable)[256]) {
    if (std::all_of(std::begin(usable), std::end(usable), [](bool b) { return b; })) return grammar;
    for (NodeId id = 0; id < grammar.size(); ++id) {
        const Grammar::Node &node = grammar.node(id);
        if (node.kind == Grammar::Kind::terminal) {
            grammar.replace(id,
                            {.kind = node.kind, .automaton = restricted(node.automaton, usable)});
        } else if (node.kind == Grammar::Kind::bytes &&
                   !std::all_of(node.literal.begin(), node.literal.end(),
                                [&](char c) { return usable[static_cast<uint8_t>(c)]; })) {
            grammar.replace(id, {.kind = Grammar::Kind::choice});
        }
    }
    return grammar;
}

} // namespace

class GrammarCompiler {
  public:
    GrammarCompiler(const Grammar &grammar, GrammarFacts facts, Budget *budget)
        : grammar_(grammar), facts_(std::move(facts)), budget_(budget),
          bodies_(at(grammar.size()), GrammarCode::kNone) {}

    Result<GrammarCode> compile() {
        add({.kind = Op::leave});
        add({.kind = Op::finish});
        ASSIGN_OR_RETURN(code_.start_, emit(grammar_.root(), GrammarCode::kFinish, 0));
        while (!pending_.empty()) {
            const auto [id, place] = pending_.back();
            pending_.pop_back();
            ASSIGN_OR_RETURN(const int32_t body, emit_inline(id, GrammarCode::kLeave, 0));
            // The place of a shared body is needed before the body is known, so it holds a call of
            // the body and then leaves.
            code_.operations_[at(place)] = {.kind = Op::call, .argument = body};
        }
        number_classes();
        return std::move(code_);
    }

  private:
    using Op = GrammarCode::Kind;
    using Kind = Grammar::Kind;

    int32_t add(GrammarCode::Operation operation) {
        code_.operations_.push_back(operation);
        return static_cast<int32_t>(code_.operations_.size()) - 1;
    }
    bool productive(NodeId id) const { return facts_.productive[at(id)] != 0; }
    bool empty(NodeId id) const { return facts_.empty[at(id)] != 0; }

    // The place where the node's text begins; `next` follows the text.
    Result<int32_t> emit(NodeId id, int32_t next, int32_t depth) {
        const Grammar::Node &node = grammar_.node(id);
        RETURN_IF_ERROR(budget_->spend_states(1));
        if (node.kind == Kind::reference) return call(node.children[0], next, empty(id));
        const bool small = node.kind == Kind::bytes || node.kind == Kind::terminal;
        if (facts_.shared[at(id)] && !small) return call(id, next, empty(id));
        return emit_inline(id, next, depth);
    }

    int32_t call(NodeId body, int32_t next, bool body_empty) {
        if (bodies_[at(body)] == GrammarCode::kNone) {
            bodies_[at(body)] = add({.kind = Op::call});
            pending_.emplace_back(body, bodies_[at(body)]);
        }
        if (next == GrammarCode::kLeave) return bodies_[at(body)];
        return add(
            {.kind = Op::call, .empty = body_empty, .next = next, .argument = bodies_[at(body)]});
    }

    Result<int32_t> emit_inline(NodeId id, int32_t next, int32_t depth) {
        const Grammar::Node &node = grammar_.node(id);
        if (depth > kDeepestNodes)
            return error(BATCHLLM_ERROR_UNSUPPORTED, "a constraint nested more than 2000 deep");
        switch (node.kind) {
        case Kind::bytes:
            return emit_literal(node.literal, next);
        case Kind::terminal:
            return emit_automaton(node.automaton, next);
        case Kind::reference:
            return emit(node.children[0], next, depth + 1);
        case Kind::sequence:
            return emit_sequence(node, next, depth);
        case Kind::choice:
            return emit_choice(node, next, depth);
        case Kind::repeat:
            return emit_repeat(node, next, depth);
        case Kind::members:
            return emit_members(node, next, depth);
        }
        return error(BATCHLLM_ERROR_INTERNAL, "a node of no kind");
    }

    Result<int32_t> emit_literal(const std::string &literal, int32_t next) {
        if (literal.empty()) return next;
        const auto [known, fresh] =
            literals_.emplace(literal, static_cast<int32_t>(code_.texts_.size()));
        if (fresh) {
            RETURN_IF_ERROR(budget_->spend_states(static_cast<int64_t>(literal.size())));
            for (const char c : literal) {
                // Holds the byte until classes are numbered, then its class.
                code_.texts_.push_back({-1, static_cast<uint8_t>(c), false, true});
                splits_[static_cast<uint8_t>(c)] = true;
            }
            code_.texts_.push_back({-1, GrammarCode::kNone, true, false});
        }
        return add({.kind = Op::terminal, .next = next, .argument = known->second});
    }

    Result<int32_t> emit_automaton(const Automaton &automaton, int32_t next) {
        if (automaton.states() == 1 && automaton.classes() == 1 &&
            automaton.next(0, 0) == Automaton::kDead)
            return next; // only the empty string
        for (const auto &[known, base] : automata_) {
            if (known == automaton) return terminal(automaton, base, next);
        }
        RETURN_IF_ERROR(budget_->spend_states(automaton.states()));
        const auto base = static_cast<int32_t>(code_.texts_.size());
        const auto lexer_number = static_cast<int32_t>(code_.lexers_.size());
        automata_.emplace_back(automaton, base);
        GrammarCode::Lexer lexer;
        lexer.base = base;
        lexer.width = at(automaton.classes());
        uint8_t first_byte[256] = {};
        for (int32_t byte = 255; byte >= 0; --byte)
            first_byte[automaton.class_of(static_cast<uint8_t>(byte))] = static_cast<uint8_t>(byte);
        for (int32_t state = 0; state < automaton.states(); ++state) {
            bool continues = false;
            for (int32_t c = 0; c < automaton.classes(); ++c) {
                lexer.table.push_back(automaton.next(state, first_byte[c]));
                continues |= lexer.table.back() != Automaton::kDead;
            }
            code_.texts_.push_back({lexer_number, state, automaton.accepting(state), continues});
        }
        code_.lexers_.push_back(std::move(lexer));
        return terminal(automaton, base, next);
    }

    int32_t terminal(const Automaton &automaton, int32_t base, int32_t next) {
        return add({.kind = Op::terminal,
                    .empty = automaton.matches_empty(),
                    .next = next,
                    .argument = base});
    }

    // Adjacent literals become one.
    Result<int32_t> emit_sequence(const Grammar::Node &node, int32_t next, int32_t depth) {
        int32_t place = next;
        for (size_t i = node.children.size(); i > 0;) {
            size_t begin = i - 1;
            const auto is_literal = [&](size_t child) {
                return grammar_.node(node.children[child]).kind == Kind::bytes;
            };
            if (!is_literal(begin)) {
                ASSIGN_OR_RETURN(place, emit(node.children[begin], place, depth + 1));
            } else {
                while (begin > 0 && is_literal(begin - 1)) --begin;
                std::string joined;
                for (size_t child = begin; child < i; ++child)
                    joined += grammar_.node(node.children[child]).literal;
                ASSIGN_OR_RETURN(place, emit_literal(joined, place));
            }
            i = begin;
        }
        return place;
    }

    // Literals among the alternatives become one automaton.
    Result<int32_t> emit_choice(const Grammar::Node &node, int32_t next, int32_t depth) {
        std::vector<int32_t> places;
        std::vector<std::string> literals;
        for (const NodeId child : node.children) {
            if (!productive(child)) continue;
            if (grammar_.node(child).kind == Kind::bytes) {
                literals.push_back(grammar_.node(child).literal);
                continue;
            }
            ASSIGN_OR_RETURN(const int32_t place, emit(child, next, depth + 1));
            places.push_back(place);
        }
        if (literals.size() == 1) {
            ASSIGN_OR_RETURN(const int32_t place, emit_literal(literals[0], next));
            places.push_back(place);
        } else if (!literals.empty()) {
            ASSIGN_OR_RETURN(const Automaton all, Automaton::strings(std::move(literals), budget_));
            ASSIGN_OR_RETURN(const int32_t place, emit_automaton(all, next));
            places.push_back(place);
        }
        if (places.size() == 1) return places[0];
        const size_t first = code_.choices_.size();
        code_.choices_.insert(code_.choices_.end(), places.begin(), places.end());
        code_.choice_ranges_.emplace_back(first, code_.choices_.size());
        return add({.kind = Op::choice,
                    .argument = static_cast<int32_t>(code_.choice_ranges_.size()) - 1});
    }

    // A separate body: separator, then node.
    Result<int32_t> emit_after_separator(NodeId separator, NodeId id, int32_t depth) {
        ASSIGN_OR_RETURN(const int32_t place, emit(id, GrammarCode::kLeave, depth + 1));
        if (separator == kNoNode) return place;
        return emit(separator, place, depth + 1);
    }

    Result<int32_t> emit_repeat(const Grammar::Node &node, int32_t next, int32_t depth) {
        const NodeId item = node.children[0];
        if (!productive(item) || node.greatest == 0) return next;
        GrammarCode::Repeat repeat;
        repeat.separated = node.separator != kNoNode;
        repeat.least = std::min(node.least, kMostCounted);
        repeat.greatest = node.greatest > kMostCounted ? Automaton::kUnbounded : node.greatest;
        // Empty items can make up any count.
        if (empty(item) && !repeat.separated) repeat.least = 0;
        if (repeat.separated && !productive(node.separator)) repeat.greatest = 1;
        if (repeat.greatest == 1 && repeat.least == 1) return emit(item, next, depth + 1);
        repeat.empty = empty(item) && repeat.separated;
        repeat.count_limit = std::max<int64_t>(repeat.least, repeat.separated ? 1 : 0);
        code_.counts_ |= repeat.greatest != Automaton::kUnbounded || repeat.least > 1;
        ASSIGN_OR_RETURN(repeat.first, emit(item, GrammarCode::kLeave, depth + 1));
        repeat.again = repeat.first;
        if (repeat.separated && repeat.greatest != 1) {
            ASSIGN_OR_RETURN(repeat.again, emit_after_separator(node.separator, item, depth));
        }
        code_.repeats_.push_back(repeat);
        return add({.kind = Op::repeat,
                    .next = next,
                    .argument = static_cast<int32_t>(code_.repeats_.size()) - 1});
    }

    Result<int32_t> emit_members(const Grammar::Node &node, int32_t next, int32_t depth) {
        const Members &members = grammar_.members_of(node);
        const MemberBounds bounds = member_bounds(members, facts_.productive);
        GrammarCode::MemberSet set;
        set.least = std::min(members.least, kMostCounted);
        set.greatest = bounds.greatest > kMostCounted ? Automaton::kUnbounded : bounds.greatest;
        set.any_order = members.order == Members::Order::any;
        const auto emit_member = [&](NodeId id, bool required) -> Result<GrammarCode::Member> {
            GrammarCode::Member member;
            member.required = required;
            ASSIGN_OR_RETURN(member.first, emit(id, GrammarCode::kLeave, depth + 1));
            member.again = member.first;
            if (members.separator != kNoNode && productive(members.separator)) {
                ASSIGN_OR_RETURN(member.again, emit_after_separator(members.separator, id, depth));
            }
            return member;
        };
        for (const Members::Element &element : members.elements) {
            if (!productive(element.node)) continue;
            ASSIGN_OR_RETURN(GrammarCode::Member member,
                             emit_member(element.node, element.required));
            set.elements.push_back(member);
        }
        if (members.rest != kNoNode && productive(members.rest)) {
            ASSIGN_OR_RETURN(set.rest, emit_member(members.rest, false));
        }
        set.required_from.assign(set.elements.size() + 1, 0);
        for (size_t i = set.elements.size(); i > 0; --i)
            set.required_from[i - 1] =
                set.required_from[i] + (set.elements[i - 1].required ? 1 : 0);
        if (set.greatest == 0 || (set.elements.empty() && set.rest.first == GrammarCode::kNone))
            return next;
        code_.member_sets_.push_back(std::move(set));
        return add({.kind = Op::members,
                    .next = next,
                    .argument = static_cast<int32_t>(code_.member_sets_.size()) - 1});
    }

    // Bytes that no terminal distinguishes get one class.
    void number_classes() {
        std::vector<int32_t> numbers(256, 0);
        const auto refine = [&](auto &&key_of) {
            std::unordered_map<int64_t, int32_t> fresh;
            for (int32_t byte = 0; byte < 256; ++byte) {
                const int64_t key = int64_t{numbers[at(byte)]} * 512 + key_of(byte);
                numbers[at(byte)] =
                    fresh.emplace(key, static_cast<int32_t>(fresh.size())).first->second;
            }
        };
        refine([this](int32_t byte) { return splits_[byte] ? byte + 1 : 0; });
        for (const auto &entry : automata_)
            refine([&](int32_t byte) {
                return int64_t{entry.first.class_of(static_cast<uint8_t>(byte))};
            });
        for (int32_t byte = 255; byte >= 0; --byte) {
            const int32_t c = numbers[at(byte)];
            code_.class_of_[byte] = static_cast<uint8_t>(c);
            code_.first_byte_[c] = static_cast<uint8_t>(byte);
            ++code_.class_size_[c];
            code_.classes_ = std::max(code_.classes_, c + 1);
        }
        for (GrammarCode::TextPlace &place : code_.texts_)
            if (place.lexer < 0 && place.continues) place.local = code_.class_of_[place.local];
        for (size_t i = 0; i < code_.lexers_.size(); ++i)
            for (int32_t c = 0; c < code_.classes_; ++c)
                code_.lexers_[i].class_map[c] = automata_[i].first.class_of(code_.first_byte_[c]);
    }

    const Grammar &grammar_;
    GrammarFacts facts_;
    Budget *budget_;
    GrammarCode code_;
    std::vector<int32_t> bodies_;                         // [nodes] place of a shared node's body
    std::vector<std::pair<NodeId, int32_t>> pending_;     // bodies to be written, and their places
    std::unordered_map<std::string, int32_t> literals_;   // place of the text
    std::vector<std::pair<Automaton, int32_t>> automata_; // and the place of each one's text
    bool splits_[256] = {};
};

Result<GrammarCode> GrammarCode::compile(const Grammar &grammar, const bool (&usable)[256],
                                         Budget *budget) {
    const Grammar kept = restricted(grammar, usable);
    ASSIGN_OR_RETURN(GrammarFacts facts, find_grammar_facts(kept));
    return GrammarCompiler(kept, std::move(facts), budget).compile();
}

} // namespace batchllm
