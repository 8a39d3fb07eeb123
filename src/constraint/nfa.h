// A nondeterministic automaton over bytes, built edge by edge and then made deterministic. Every
// Automaton except plain literals is built this way.
#pragma once

#include <cstdint>
#include <vector>

#include "constraint/automaton.h"

namespace batchllm {

class Nfa {
  public:
    // A condition on an edge that reads nothing. Words consist of ASCII letters, digits and '_'.
    enum class Assertion : uint8_t { none, text_start, text_end, word_boundary, no_word_boundary };

    int32_t add_state();
    void add_bytes(int32_t from, uint8_t first, uint8_t last, int32_t to);
    void add_empty(int32_t from, int32_t to, Assertion assertion = Assertion::none);
    // One code point in [first, last], in UTF-8; surrogates are left out.
    void add_code_points(int32_t from, uint32_t first, uint32_t last, int32_t to);
    // A copy of the automaton between the two states.
    void add_automaton(int32_t from, const Automaton &automaton, int32_t to);

    int32_t states() const { return static_cast<int32_t>(edges_.size()); }

    // The strings that lead from start to any accepting state. Also charges this automaton's states
    // to the budget.
    Result<Automaton> determinize(int32_t start, std::vector<int32_t> accepting,
                                  Budget *budget) const;

  private:
    friend class NfaDeterminizer;
    struct ByteEdge {
        uint8_t first;
        uint8_t last;
        int32_t to;
    };
    struct EmptyEdge {
        Assertion assertion;
        int32_t to;
    };
    struct Edges {
        std::vector<ByteEdge> bytes;
        std::vector<EmptyEdge> empty;
    };
    std::vector<Edges> edges_; // [states]
    bool assertions_ = false;  // whether any edge has a condition
};

} // namespace batchllm
