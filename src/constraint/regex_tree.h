// A regular expression's text -> its tree, with flags, escapes and classes resolved.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "constraint/code_points.h"
#include "constraint/nfa.h"
#include "constraint/regex.h"

namespace batchllm {

struct RegexNode {
    enum class Kind : uint8_t { characters, concat, alternate, repeat, assertion, lookahead };
    Kind kind;
    std::vector<int32_t> children = {};              // indices of RegexTree::nodes
    int32_t set = -1;                                // characters: index of RegexTree::sets
    int64_t least = 0;                               // repeat
    int64_t greatest = 0;                            // repeat; Automaton::kUnbounded
    Nfa::Assertion assertion = Nfa::Assertion::none; // assertion
    bool negative = false;                           // lookahead
    int64_t position = 0; // lookahead: its position in the text, in characters from 1
    // In the node or anywhere below it.
    bool has_lookahead = false;
    bool looks_back = false; // ^, \b, \B: the preceding text matters
};

struct RegexTree {
    std::vector<RegexNode> nodes;   // children before their parents
    std::vector<CodePointSet> sets; // each once
    int32_t root = -1;
};

Result<RegexTree> parse_regex(std::string_view expression, const RegexOptions &options);

} // namespace batchllm
