#include "constraint/token_mask.h"

#include <algorithm>
#include <utility>

namespace batchllm {
namespace {

size_t at(int32_t index) { return static_cast<size_t>(index); }

void allow(TokenMask *mask, int32_t token) {
    mask->words[at(token / 32)] |= uint32_t{1} << (token % 32);
    mask->only = token;
    ++mask->allowed;
}

// A state of the class, and one of the grammar after the same bytes.
struct Pair {
    int32_t in_class;
    GraphState *state;
    int32_t level; // characters read before it
    bool operator==(const Pair &other) const {
        return in_class == other.in_class && state == other.state;
    }
};

constexpr size_t kMostPairs = 256;

} // namespace

TokenMaskMaker::TokenMaskMaker(const TokenVocabulary &vocabulary, const GrammarCode &code)
    : vocabulary_(vocabulary), code_(code) {
    for (const TokenSlice &slice : vocabulary.slices()) {
        std::vector<uint8_t> samples;
        std::vector<uint8_t> met(256 * 256, 0);
        // Letters first: where no text may come, most often the first of them says so.
        for (int32_t i = 0; i < 256; ++i) {
            const auto byte = static_cast<uint8_t>('a' + i);
            uint8_t &here = met[at(code.class_of(byte)) * 256 + slice.characters.class_of(byte)];
            if (!std::exchange(here, uint8_t{1})) samples.push_back(byte);
        }
        sample_bytes_.push_back(std::move(samples));
    }
}

// Breadth first over characters, so that the first failure is the nearest.
TokenMaskMaker::Reach TokenMaskMaker::reach(StateGraph *graph, GraphState *state,
                                            const TokenSlice &slice, size_t number) const {
    const Automaton &in_class = slice.characters;
    const uint8_t *class_of = code_.class_table();
    std::vector<Pair> pairs{{0, state, 0}};
    bool levels_apart = true; // no state was met again after more characters
    Reach reach{TokenSlice::kMostCharacters, false, false};
    for (size_t i = 0; i < pairs.size(); ++i) {
        const Pair pair = pairs[i];
        if (pair.level == TokenSlice::kMostCharacters) break;
        GraphState *const *row = graph->row(pair.state);
        if (!row) return {0, false, true};
        for (const uint8_t byte : sample_bytes_[number]) {
            const int32_t next_class = in_class.next(pair.in_class, byte);
            if (next_class == Automaton::kDead) continue;
            GraphState *const next = row[class_of[byte]];
            if (!next || pairs.size() > kMostPairs) {
                reach.characters = pair.level;
                reach.none_beyond = next == nullptr && levels_apart;
                // The level's pairs stand in a row. None may go on.
                for (const Pair &other : pairs) {
                    if (!reach.none_beyond) break;
                    if (other.level != pair.level) continue;
                    GraphState *const *other_row = graph->row(other.state);
                    if (!other_row) return {0, false, true};
                    for (const uint8_t sample : sample_bytes_[number]) {
                        const bool starts = in_class.next(other.in_class, sample) >= 0;
                        if (starts && other_row[class_of[sample]]) reach.none_beyond = false;
                    }
                }
                return reach;
            }
            const Pair found{next_class, next, pair.level + (next_class == 0 ? 1 : 0)};
            const auto known = std::find(pairs.begin(), pairs.end(), found);
            if (known == pairs.end())
                pairs.push_back(found);
            else
                levels_apart &= known->level == found.level;
        }
    }
    return reach;
}

bool TokenMaskMaker::walk(StateGraph *graph, GraphState *state, const TokenTrie &trie,
                          TokenMask *mask) const {
    GraphState *const *rows[TokenTrie::kLongestToken + 2]; // by depth
    rows[0] = graph->row(state);
    if (!rows[0]) return false;
    const uint8_t *class_of = code_.class_table();
    const TokenTrie::Node *nodes = trie.nodes().data();
    const int32_t *ids = trie.token_ids().data();
    const int32_t end = trie.size();
    for (int32_t i = 0; i < end;) {
        const TokenTrie::Node &node = nodes[i];
        GraphState *const next = rows[node.depth - 1][class_of[node.byte]];
        if (!next) {
            i = node.end;
            continue;
        }
        for (int32_t token = node.tokens; token < nodes[i + 1].tokens; ++token)
            allow(mask, ids[token]);
        if (node.end != i + 1) {
            rows[node.depth] = graph->row(next);
            if (!rows[node.depth]) return false;
        }
        ++i;
    }
    return true;
}

bool TokenMaskMaker::fill(StateGraph *graph, GraphState *state, TokenMask *mask) const {
    mask->words.assign(at(vocabulary_.words()), 0);
    if (state->complete)
        for (const int32_t id : vocabulary_.eos_ids()) allow(mask, id);
    // The largest class first: what takes all of it takes the smaller ones too.
    const auto slices = vocabulary_.slices();
    bool whole = false; // takes a larger class whole
    for (size_t i = slices.size(); i > 0; --i) {
        const TokenSlice &slice = slices[i - 1];
        Reach found{TokenSlice::kMostCharacters, false, false};
        if (!whole) found = reach(graph, state, slice, i - 1);
        if (found.failed) return false;
        whole = found.characters == TokenSlice::kMostCharacters;
        if (!whole && !found.none_beyond) {
            if (!walk(graph, state, slice.trie, mask)) return false;
            continue;
        }
        if (slice.counts[at(found.characters)] == 0) continue;
        const std::vector<uint32_t> &tokens = slice.up_to[at(found.characters)];
        for (size_t word = 0; word < tokens.size(); ++word) mask->words[word] |= tokens[word];
        mask->allowed += slice.counts[at(found.characters)];
        mask->only = -1;
    }
    return walk(graph, state, vocabulary_.others(), mask);
}

const TokenMask *TokenMaskMaker::mask(StateGraph *graph, GraphState *state) const {
    if (const TokenMask *known = state->mask.load(std::memory_order_acquire)) return known;
    GraphState *const near = graph->near(state);
    if (near != state) return mask(graph, near);
    auto made = std::make_unique<TokenMask>();
    if (!fill(graph, state, made.get())) return nullptr;
    if (made->allowed != 1) {
        made->only = -1;
    } else if (made->only < 0) {
        for (size_t word = 0; word < made->words.size(); ++word)
            if (made->words[word] != 0)
                made->only = static_cast<int32_t>(word) * 32 + __builtin_ctz(made->words[word]);
    }
    const auto bytes = static_cast<int64_t>(made->words.size() * sizeof(uint32_t)) + 100;
    graph->keep(std::move(made), state, bytes);
    return state->mask.load(std::memory_order_acquire);
}

} // namespace batchllm
