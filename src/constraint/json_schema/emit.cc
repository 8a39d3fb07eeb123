#include "constraint/json_schema/emit.h"

#include <algorithm>

#include "constraint/json_schema/format.h"
#include "constraint/nfa.h"

namespace batchllm {

namespace {

constexpr int32_t kMostNodes = 2'000'000;
constexpr int kMostIndentation = 64;

// The whitespace allowed after an opening mark or a comma, or before a closing mark.
Automaton flexible_mark(char byte) {
    Nfa nfa;
    const int32_t start = nfa.add_state(), end = nfa.add_state();
    const bool closing = byte == '}' || byte == ']';
    const int32_t from = closing ? start : nfa.add_state();
    const int32_t to = closing ? nfa.add_state() : end;
    const auto mark = static_cast<uint8_t>(byte);
    if (closing) {
        nfa.add_bytes(to, mark, mark, end);
    } else {
        nfa.add_bytes(start, mark, mark, from);
    }
    nfa.add_empty(from, to);
    nfa.add_bytes(from, ' ', ' ', to);
    for (const uint8_t indent : {uint8_t{' '}, uint8_t{'\t'}}) {
        int32_t line = nfa.add_state();
        nfa.add_bytes(from, '\n', '\n', line);
        for (int i = 0; i < kMostIndentation; ++i) {
            nfa.add_empty(line, to);
            const int32_t next = nfa.add_state();
            nfa.add_bytes(line, indent, indent, next);
            line = next;
        }
        nfa.add_empty(line, to);
    }
    Budget budget; // of a fixed size, far below any budget
    const auto made = nfa.determinize(start, {end}, &budget);
    return made.ok() ? made.value() : Automaton();
}

const Automaton &mark_automaton(char byte) {
    static const Automaton marks[5] = {flexible_mark('{'), flexible_mark('}'), flexible_mark('['),
                                       flexible_mark(']'), flexible_mark(',')};
    return marks[std::string_view("{}[],").find(byte)];
}

} // namespace

Status SchemaEmitter::emit(RequirementId root) {
    grammar_.set_root(node_of(root));
    while (!waiting_.empty()) {
        const RequirementId id = waiting_.back();
        waiting_.pop_back();
        ASSIGN_OR_RETURN(const NodeId body, value(id, planner_.at(id)));
        grammar_.define(nodes_.at(id), body);
        if (grammar_.size() > kMostNodes) {
            return error(BATCHLLM_ERROR_UNSUPPORTED, "schema: too large a grammar");
        }
    }
    return Status();
}

NodeId SchemaEmitter::node_of(RequirementId id) {
    if (id == kAnything) return anything();
    const auto known = nodes_.find(id);
    if (known != nodes_.end()) return known->second;
    const SchemaId schema = meaning_.numbers().literals(id)[0] / 2;
    const NodeId node = grammar_.declare(meaning_.document().path(schema));
    nodes_[id] = node;
    waiting_.push_back(id);
    return node;
}

NodeId SchemaEmitter::mark(char byte) {
    const auto known = marks_.find(byte);
    if (known != marks_.end()) return known->second;
    const bool flexible = options_.spacing == JsonSchemaOptions::Spacing::flexible;
    const NodeId node =
        flexible ? terminal(mark_automaton(byte)) : grammar_.bytes(std::string(1, byte));
    marks_[byte] = node;
    return node;
}

NodeId SchemaEmitter::terminal(const Automaton &automaton) {
    const auto [first, last] = terminals_.equal_range(automaton.hash());
    for (auto known = first; known != last; ++known) {
        if (grammar_.node(known->second).automaton == automaton) return known->second;
    }
    const NodeId node = grammar_.terminal(automaton);
    terminals_.emplace(automaton.hash(), node);
    return node;
}

// Any JSON value at all.
NodeId SchemaEmitter::anything() {
    const auto known = nodes_.find(kAnything);
    if (known != nodes_.end()) return known->second;
    const NodeId node = grammar_.declare("any value");
    nodes_[kAnything] = node;
    Budget budget; // of a fixed size, far below any budget
    const auto numbers = number_texts(NumberSet(), options_.numbers, &budget);
    const NodeId string = terminal(any_json_string());
    const bool flexible = options_.spacing == JsonSchemaOptions::Spacing::flexible;
    std::vector<NodeId> parts = {string, grammar_.bytes(":")};
    if (flexible) parts.push_back(grammar_.optional(grammar_.bytes(" ")));
    parts.push_back(node);
    const NodeId pair = grammar_.sequence(std::move(parts));
    grammar_.define(
        node, grammar_.choice(
                  {grammar_.bytes("null"), grammar_.bytes("true"), grammar_.bytes("false"),
                   terminal(numbers.ok() ? *numbers : Automaton()), string,
                   braced(mark('{'), grammar_.repeat(pair, 0, Automaton::kUnbounded, mark(',')),
                          mark('}')),
                   braced(mark('['), grammar_.repeat(node, 0, Automaton::kUnbounded, mark(',')),
                          mark(']'))}));
    return node;
}

NodeId SchemaEmitter::braced(NodeId opening, NodeId body, NodeId closing) {
    return grammar_.sequence({opening, body, closing});
}

Result<NodeId> SchemaEmitter::value(RequirementId id, const ValuePlan &plan) {
    const SchemaId owner = meaning_.numbers().literals(id)[0] / 2;
    std::vector<NodeId> choices;
    RETURN_IF_ERROR(
        meaning_.placed(add_scalars(*plan.set, owner, &choices), owner, SchemaKeyword::type));
    for (const ObjectPlan &each : plan.objects) {
        ASSIGN_OR_RETURN(const NodeId node, object(each));
        choices.push_back(node);
    }
    for (const ArrayPlan &each : plan.arrays) {
        if (each.distinct) {
            ASSIGN_OR_RETURN(const NodeId node, distinct_items(owner, each));
            choices.push_back(node);
        } else {
            choices.push_back(array(each));
        }
    }
    return grammar_.choice(std::move(choices));
}

Status SchemaEmitter::add_scalars(const ValueSet &set, SchemaId owner,
                                  std::vector<NodeId> *choices) {
    if (set.null) choices->push_back(grammar_.bytes("null"));
    if (set.yes) choices->push_back(grammar_.bytes("true"));
    if (set.no) choices->push_back(grammar_.bytes("false"));
    std::vector<Automaton> texts;
    for (const NumberSet &numbers : set.numbers) {
        auto text = number_texts(numbers, options_.numbers, meaning_.budget());
        if (!text.ok()) {
            RETURN_IF_ERROR(
                meaning_.refuse({owner, SchemaKeyword::multipleOf}, text.status().message()));
            NumberSet wider = numbers;
            wider.multiple_of.reset();
            wider.not_multiple_of.clear();
            text = number_texts(wider, options_.numbers, meaning_.budget());
            if (!text.ok()) return std::move(text).status();
        }
        if (!text->empty()) texts.push_back(std::move(*text));
    }
    if (texts.size() == 1) choices->push_back(terminal(texts[0]));
    if (texts.size() > 1) {
        ASSIGN_OR_RETURN(const Automaton all, unite(texts, meaning_.budget()));
        choices->push_back(terminal(all));
    }
    texts.clear();
    for (const StringSet &strings : set.strings) {
        if (strings.language) {
            texts.push_back(*strings.language);
        } else if (strings.all()) {
            choices->push_back(terminal(any_json_string()));
        } else {
            const NodeId character = terminal(any_json_character());
            const NodeId quote = grammar_.bytes("\"");
            choices->push_back(grammar_.sequence(
                {quote, grammar_.repeat(character, strings.least, strings.greatest), quote}));
        }
    }
    if (texts.empty()) return Status();
    Automaton all = texts[0];
    if (texts.size() > 1) {
        ASSIGN_OR_RETURN(all, unite(texts, meaning_.budget()));
    }
    for (const std::string &format : meaning_.formats()) {
        if (format_automata(format).language == all) {
            choices->push_back(terminal(format_automata(format).text));
            return Status();
        }
    }
    ASSIGN_OR_RETURN(const Automaton text, json_quoted(all, "", {}, meaning_.budget()));
    choices->push_back(terminal(text));
    return Status();
}

NodeId SchemaEmitter::array(const ArrayPlan &plan) {
    return braced(mark('['), plan.states.empty() ? tuple(plan) : items_by_state(plan), mark(']'));
}

NodeId SchemaEmitter::tuple(const ArrayPlan &plan) {
    const int64_t prefix = static_cast<int64_t>(plan.prefix.size());
    const auto beyond = [&](int64_t count) {
        return count == Automaton::kUnbounded ? count : count - prefix;
    };
    NodeId tail = grammar_.empty();
    if (plan.rest != kNothing && plan.greatest != prefix) {
        const NodeId item = node_of(plan.rest);
        const int64_t least = std::max<int64_t>(plan.least - prefix, 0);
        if (prefix == 0) return grammar_.repeat(item, least, plan.greatest, mark(','));
        tail = grammar_.repeat(grammar_.sequence({mark(','), item}), least, beyond(plan.greatest));
    }
    if (plan.least >= prefix) {
        std::vector<NodeId> parts;
        for (const RequirementId item : plan.prefix) {
            if (!parts.empty()) parts.push_back(mark(','));
            parts.push_back(node_of(item));
        }
        parts.push_back(tail);
        return grammar_.sequence(std::move(parts));
    }
    for (int64_t i = prefix; i > 0; --i) {
        std::vector<NodeId> parts;
        if (i > 1) parts.push_back(mark(','));
        parts.push_back(node_of(plan.prefix[static_cast<size_t>(i - 1)]));
        parts.push_back(tail);
        tail = grammar_.sequence(std::move(parts));
        if (i > plan.least) tail = grammar_.optional(tail);
    }
    return tail;
}

NodeId SchemaEmitter::items_by_state(const ArrayPlan &plan) {
    std::vector<NodeId> states;
    for (size_t i = 0; i < plan.states.size(); ++i) states.push_back(grammar_.declare("items"));
    for (size_t i = 0; i < plan.states.size(); ++i) {
        std::vector<NodeId> same, ways;
        if (plan.states[i].accepting) ways.push_back(grammar_.empty());
        for (const ArrayPlan::Edge &edge : plan.states[i].edges) {
            const NodeId item = node_of(edge.item);
            const NodeId next = i == 0 ? item : grammar_.sequence({mark(','), item});
            if (edge.to == static_cast<int32_t>(i)) {
                same.push_back(next);
            } else {
                ways.push_back(grammar_.sequence({next, states[static_cast<size_t>(edge.to)]}));
            }
        }
        const NodeId onward = grammar_.choice(std::move(ways));
        grammar_.define(states[i],
                        same.empty()
                            ? onward
                            : grammar_.sequence(
                                  {grammar_.repeat(grammar_.choice(std::move(same)), 0), onward}));
    }
    return states[0];
}

Result<NodeId> SchemaEmitter::distinct_items(SchemaId owner, const ArrayPlan &plan) {
    std::vector<NodeId> values;
    // Each separately, because each is an element.
    const auto add = [&](ValueSet one) { return add_scalars(one, owner, &values); };
    ValueSet words;
    words.null = plan.values.null;
    words.yes = plan.values.yes;
    words.no = plan.values.no;
    RETURN_IF_ERROR(add(words));
    for (const NumberSet &number : plan.values.numbers) {
        ValueSet one;
        one.numbers.push_back(number);
        RETURN_IF_ERROR(add(one));
    }
    for (const StringSet &string : plan.values.strings) {
        ValueSet one;
        one.strings.push_back(string);
        RETURN_IF_ERROR(add(one));
    }
    Members members;
    for (const NodeId node : values) members.elements.push_back({node, false});
    members.separator = mark(',');
    members.least = plan.least;
    members.greatest = plan.greatest;
    members.order = Members::Order::any;
    return braced(mark('['), grammar_.members(std::move(members)), mark(']'));
}

} // namespace batchllm
