// A grammar's nodes -> which of them can match anything, which match the empty string, and whether
// the grammar is sound.
#pragma once

#include <cstdint>
#include <vector>

#include "constraint/grammar.h"

namespace batchllm {

struct GrammarFacts {
    std::vector<uint8_t> productive; // [nodes] matches at least one string
    std::vector<uint8_t> empty;      // [nodes] matches the empty string
    std::vector<uint8_t> shared;     // [nodes] used in more than one place
};

// Errors as for GrammarCode::compile.
Result<GrammarFacts> find_grammar_facts(const Grammar &grammar);

// The elements of the set that can match, and the maximum count that can be reached.
struct MemberBounds {
    int64_t elements = 0; // productive ones
    int64_t required = 0;
    int64_t greatest = 0; // Automaton::kUnbounded
    bool feasible = false;
};
MemberBounds member_bounds(const Members &members, const std::vector<uint8_t> &productive);

} // namespace batchllm
