// Text -> words: the split patterns of tokenizer.json, each implemented by hand.
//
// The patterns are regular expressions that cover all text: each word starts where the previous one
// ends. A pattern is recognised by its exact spelling, in which a newline may be written literally
// or as \n. Splitting is linear in the length of the text.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "text/unicode.h"

namespace batchllm {

enum class SplitPattern : uint8_t {
    gpt2,        // lower-case contractions; letters, numbers, others with a leading space
    llama3,      // also cl100k: contractions in any case, up to three digits
    qwen2,       // as llama3, but digits one by one
    digits,      // runs of numbers, and the text between them
    digits_each, // each number separately, and runs of the text between them
    qwen3_5,     // as qwen2, but marks count as letters
    seed,        // as qwen2, but no newlines after other characters
    o200k,       // a word ends after capitals followed by small letters, and includes its
                 // contraction
    tekken,      // as o200k, without contractions, digits one by one
};

// The pattern that a regular expression spells, if it is one of the above.
std::optional<SplitPattern> split_pattern_of(std::string_view regex);

// The end of the word that starts at p. Requires p < end, both at character boundaries of valid
// UTF-8.
const char *next_word(SplitPattern pattern, const UnicodeClasses &classes, const char *p,
                      const char *end);

} // namespace batchllm
