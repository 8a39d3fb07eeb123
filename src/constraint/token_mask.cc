#include "constraint/token_mask.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "constraint/index.h"

namespace batchllm {
namespace {

void set_bit(std::vector<uint32_t> *words, int32_t token) {
    (*words)[at(token / 32)] |= uint32_t{1} << (token % 32);
}

// A state of the class and the grammar's state after the same bytes.
struct Pair {
    int32_t in_class;
    GraphState *state;
    bool operator==(const Pair &) const = default;
};

constexpr size_t kMostPairs = 256;

} // namespace

void StateMask::make_dense(int32_t word_count) {
    if (dense()) return;
    words.assign(at(word_count), 0);
    for (const int32_t token : few) set_bit(&words, token);
    few.clear();
}

void StateMaskMaker::put(std::vector<int32_t> *list, int32_t token) const {
    list->push_back(token);
}

void StateMaskMaker::put(StateMask *mask, int32_t token) const { allow(mask, token); }

void StateMaskMaker::allow(StateMask *mask, int32_t token) const {
    ++mask->allowed;
    if (mask->dense()) {
        set_bit(&mask->words, token);
        return;
    }
    mask->few.push_back(token);
    if (mask->few.size() > StateMask::kFew) mask->make_dense(vocabulary_.words());
}

// A token of a dense mask.
void StateMaskMaker::forbid(StateMask *mask, int32_t token) {
    --mask->allowed;
    mask->words[at(token / 32)] &= ~(uint32_t{1} << (token % 32));
}

StateMaskMaker::StateMaskMaker(const TokenVocabulary &vocabulary, const GrammarCode &code)
    : vocabulary_(vocabulary), code_(code), marks_(std::make_unique<GraphState[]>(kMarks)) {
    for (const TokenSlice &slice : vocabulary.slices()) {
        std::vector<uint8_t> samples;
        std::vector<uint8_t> met(256 * 256, 0);
        // Letters first: if no text is allowed, the first letter usually shows it.
        for (int32_t i = 0; i < 256; ++i) {
            const auto byte = static_cast<uint8_t>('a' + i);
            uint8_t &here = met[at(code.class_of(byte)) * 256 + slice.characters.class_of(byte)];
            if (!std::exchange(here, uint8_t{1})) samples.push_back(byte);
        }
        sample_bytes_.push_back(std::move(samples));
    }
}

// Where each character of the class leads: one state, or a mark that says why there is none.
GraphState *StateMaskMaker::character_step(Steps *steps, GraphState *state, size_t slice) const {
    if (GraphState *known = state->character_step[slice].load(std::memory_order_acquire))
        return known;
    const Automaton &in_class = vocabulary_.slices()[slice].characters;
    const uint8_t *class_of = code_.class_table();
    std::vector<Pair> pairs{{0, state}};
    GraphState *single = nullptr;
    bool dead = false;
    bool many = false;
    for (size_t i = 0; i < pairs.size(); ++i) {
        const Pair pair = pairs[i];
        GraphState *const *row = steps->row(pair.state);
        if (!row) return mark(kFailed);
        for (const uint8_t byte : sample_bytes_[slice]) {
            const int32_t next_class = in_class.next(pair.in_class, byte);
            if (next_class == Automaton::kDead) continue;
            GraphState *const next = row[class_of[byte]];
            if (!next) {
                dead = true;
            } else if (next_class == 0) {
                many |= single && single != next;
                single = next;
            } else if (const Pair found{next_class, next};
                       std::find(pairs.begin(), pairs.end(), found) == pairs.end()) {
                pairs.push_back(found);
            }
            if (dead && (single || pairs.size() > 1)) break;
        }
        if (dead && (single || pairs.size() > 1)) break;
        if (pairs.size() > kMostPairs) many = true;
    }
    const bool some = single || pairs.size() > 1;
    GraphState *const found = dead   ? (some ? mark(kMixed) : mark(kDead))
                              : many ? mark(kMany)
                                     : single;
    state->character_step[slice].store(found, std::memory_order_release);
    return found;
}

StateMaskMaker::Reach StateMaskMaker::reach(Steps *steps, GraphState *state, size_t slice) const {
    for (int32_t level = 0; level < TokenSlice::kMostCharacters; ++level) {
        GraphState *const next = character_step(steps, state, slice);
        if (next == mark(kFailed)) return {0, false, true};
        if (next == mark(kDead)) return {level, true, false};
        if (next == mark(kMixed)) return {level, false, false};
        if (next == mark(kMany)) {
            Reach rest =
                reach_through_many(steps, state, slice, TokenSlice::kMostCharacters - level);
            rest.characters += level;
            return rest;
        }
        if (next == state) break;
        state = next;
    }
    return {TokenSlice::kMostCharacters, false, false};
}

// The same for pairs of states, level by level: those of level n are reached after n characters and
// up to three bytes of the next one. The first level with a failure is the nearest.
StateMaskMaker::Reach StateMaskMaker::reach_through_many(Steps *steps, GraphState *state,
                                                         size_t slice, int32_t most) const {
    const Automaton &in_class = vocabulary_.slices()[slice].characters;
    const uint8_t *class_of = code_.class_table();
    std::vector<Pair> pairs{{0, state}};
    size_t begin = 0;         // of the level
    bool levels_apart = true; // whether no pair was reached again on a later level
    for (int32_t level = 0; level < most; ++level) {
        std::vector<Pair> next_level;
        bool some = false;
        bool all = true;
        for (size_t i = begin; i < pairs.size(); ++i) {
            const Pair pair = pairs[i];
            GraphState *const *row = steps->row(pair.state);
            if (!row) return {0, false, true};
            for (const uint8_t byte : sample_bytes_[slice]) {
                const int32_t next_class = in_class.next(pair.in_class, byte);
                if (next_class == Automaton::kDead) continue;
                GraphState *const next = row[class_of[byte]];
                (next ? some : all) = next != nullptr;
                // Neither all nor none: continuing would not change that.
                if (some && !all) return {level, false, false};
                if (!next) continue;
                const Pair found{next_class, next};
                std::vector<Pair> &list = next_class == 0 ? next_level : pairs;
                const auto known = std::find(list.begin(), list.end(), found);
                if (known == list.end())
                    list.push_back(found);
                else if (next_class != 0 && static_cast<size_t>(known - list.begin()) < begin)
                    levels_apart = false;
            }
            if (pairs.size() > kMostPairs) return {level, false, false};
        }
        if (!all) return {level, levels_apart, false};
        begin = pairs.size();
        for (const Pair &pair : next_level) {
            if (std::find(pairs.begin(), pairs.end(), pair) == pairs.end())
                pairs.push_back(pair);
            else
                levels_apart = false;
        }
        if (begin == pairs.size()) break; // everything reachable has been reached
    }
    return {most, false, false};
}

template <typename Sink> bool StateMaskMaker::walk(Steps *steps, GraphState *state,
                                                   const TokenTrie &trie, Sink *sink) const {
    struct Level {
        const TokenTrie::Node *node; // the next child to look at
        const TokenTrie::Node *end;
        GraphState *const *row;
    };
    const uint8_t *class_of = code_.class_table();
    const TokenTrie::Node *const nodes = trie.nodes();
    const int32_t *const ids = trie.token_ids().data();
    Level levels[TokenTrie::kLongestToken + 1];
    Level *top = levels;
    *top = {nodes + nodes->children, nodes + nodes->children + nodes->child_count,
            steps->row(state)};
    if (!top->row) return false;
    for (;;) {
        if (top->node == top->end) {
            if (top == levels) return true;
            --top;
            continue;
        }
        const TokenTrie::Node &node = *top->node++;
        GraphState *const next = top->row[class_of[node.byte]];
        if (!next) continue;
        for (int32_t token = node.tokens; token < (&node)[1].tokens; ++token) put(sink, ids[token]);
        if (node.child_count == 0) continue;
        const TokenTrie::Node *const children = nodes + node.children;
        *++top = {children, children + node.child_count, steps->row(next)};
        if (!top->row) return false;
    }
}

// Whether every string of the class, up to the length of a slice's tokens, is allowed, judging by
// single steps.
bool StateMaskMaker::plainly_whole(Steps *steps, GraphState *state, size_t slice) const {
    for (int32_t level = 0; level < TokenSlice::kMostCharacters; ++level) {
        GraphState *const next = character_step(steps, state, slice);
        if (next == state) return true;
        if (next >= mark(kDead) && next < mark(kMarks)) return false;
        state = next;
    }
    return true;
}

// walk() over a slice's trie. If the whole class is allowed, everything below is added at once. If
// most of it is, for example after the quotation mark before a free name, tokens are removed
// instead of added.
bool StateMaskMaker::walk_slice(Steps *steps, GraphState *state, size_t slice_number,
                                StateMask *mask) const {
    struct Level {
        const TokenTrie::Node *node; // the next child to look at
        const TokenTrie::Node *end;
        int32_t below_end; // index of the node after all below the last child
        int32_t in_class;
        GraphState *const *row;
    };
    const TokenSlice &slice = vocabulary_.slices()[slice_number];
    const uint8_t *class_of = code_.class_table();
    const TokenTrie::Node *const nodes = slice.trie.nodes();
    const int32_t *const ids = slice.trie.token_ids().data();
    const bool take_away = character_step(steps, state, slice_number) == mark(kMany);
    if (take_away) {
        const std::vector<uint32_t> &tokens = slice.up_to.back();
        mask->make_dense(vocabulary_.words());
        for (size_t word = 0; word < tokens.size(); ++word) mask->words[word] |= tokens[word];
        mask->allowed += slice.counts.back();
    }
    const auto change = [&](int32_t from, int32_t to, bool allowed) {
        if (allowed == take_away) return;
        for (int32_t token = from; token < to; ++token) {
            if (allowed)
                allow(mask, ids[token]);
            else
                forbid(mask, ids[token]);
        }
    };
    Level levels[TokenVocabulary::kLongestOrdinary + 1];
    Level *top = levels;
    *top = {nodes + nodes->children, nodes + nodes->children + nodes->child_count,
            slice.trie.node_count(), 0, steps->row(state)};
    if (!top->row) return false;
    for (;;) {
        if (top->node == top->end) {
            if (top == levels) return true;
            --top;
            continue;
        }
        const TokenTrie::Node &node = *top->node++;
        const int32_t below_end = top->node == top->end ? top->below_end : top->node->children;
        GraphState *const next = top->row[class_of[node.byte]];
        const int32_t in_class = slice.characters.next(top->in_class, node.byte);
        const bool all = next && node.child_count > 0 && in_class == 0 &&
                         plainly_whole(steps, next, slice_number);
        change(node.tokens, (&node)[1].tokens, next != nullptr);
        if (!next || all)
            change(nodes[node.children].tokens, nodes[below_end].tokens, next != nullptr);
        if (!next || all || node.child_count == 0) continue;
        const TokenTrie::Node *const children = nodes + node.children;
        *++top = {children, children + node.child_count, below_end, in_class, steps->row(next)};
        if (!top->row) return false;
    }
}

bool StateMaskMaker::fill(Steps *steps, GraphState *state, StateMask *mask) const {
    if (state->complete)
        for (const int32_t id : vocabulary_.eos_ids()) allow(mask, id);
    // The largest class first: a state that accepts all of it accepts the smaller ones too.
    const auto slices = vocabulary_.slices();
    bool whole = false; // whether the state accepts all of a larger class
    for (size_t i = slices.size(); i > 0; --i) {
        const TokenSlice &slice = slices[i - 1];
        Reach found{TokenSlice::kMostCharacters, false, false};
        if (!whole) found = reach(steps, state, i - 1);
        if (found.failed) return false;
        whole = found.characters == TokenSlice::kMostCharacters;
        if (!whole && !found.none_beyond) {
            if (!walk_slice(steps, state, i - 1, mask)) return false;
            continue;
        }
        if (slice.counts[at(found.characters)] == 0) continue;
        const std::vector<uint32_t> &tokens = slice.up_to[at(found.characters)];
        mask->make_dense(vocabulary_.words());
        for (size_t word = 0; word < tokens.size(); ++word) mask->words[word] |= tokens[word];
        mask->allowed += slice.counts[at(found.characters)];
    }
    return walk(steps, state, vocabulary_.others(), mask);
}

// The near state's mask, except for tokens that are long enough to distinguish the two states.
const StateMask *StateMaskMaker::with_long_tokens(Steps *steps, GraphState *state,
                                                  const StateMask &near) const {
    StateMask found;
    if (!walk(steps, state, vocabulary_.long_tokens(), &found.long_ones)) return nullptr;
    if (found.long_ones == near.long_ones) {
        state->mask.store(&near, std::memory_order_release);
        return &near;
    }
    auto made = std::make_unique<StateMask>(near);
    for (const int32_t token : near.long_ones) {
        if (made->dense()) {
            forbid(made.get(), token);
            continue;
        }
        --made->allowed;
        made->few.erase(std::find(made->few.begin(), made->few.end(), token));
    }
    made->long_ones = std::move(found.long_ones);
    for (const int32_t token : made->long_ones) allow(made.get(), token);
    return kept(steps->graph, state, std::move(made));
}

const StateMask *StateMaskMaker::kept(StateGraph *graph, GraphState *state,
                                      std::unique_ptr<StateMask> made) const {
    made_.fetch_add(1, std::memory_order_relaxed);
    if (made->few.size() == 1) made->only = made->few[0];
    for (size_t word = 0; word < made->words.size() && made->allowed == 1; ++word)
        if (made->words[word] != 0)
            made->only = static_cast<int32_t>(word) * 32 + std::countr_zero(made->words[word]);
    std::sort(made->few.begin(), made->few.end());
    graph->keep(std::move(made), state);
    return state->mask.load(std::memory_order_acquire);
}

const StateMask *StateMaskMaker::mask(StateGraph *graph, GraphState *state) const {
    if (const StateMask *known = state->mask.load(std::memory_order_acquire)) return known;
    // No token is long enough to distinguish a state from its far one.
    if (GraphState *const far = graph->near(state, StateGraph::kLong); far != state) {
        const StateMask *const same = mask(graph, far);
        if (same) state->mask.store(same, std::memory_order_release);
        return same;
    }
    if (GraphState *const near = graph->near(state, StateGraph::kShort); near != state) {
        const StateMask *const of_near = mask(graph, near);
        Steps steps{graph};
        return of_near ? with_long_tokens(&steps, state, *of_near) : nullptr;
    }
    Steps steps{graph};
    auto made = std::make_unique<StateMask>();
    const bool filled = fill(&steps, state, made.get()) &&
                        walk(&steps, state, vocabulary_.long_tokens(), &made->long_ones);
    if (filled)
        for (const int32_t token : made->long_ones) allow(made.get(), token);
    return filled ? kept(graph, state, std::move(made)) : nullptr;
}

} // namespace batchllm
