// A model's tokens as bytes, in tries from which masks are built. Created once per model and shared
// by all constraints.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "constraint/automaton.h"
#include "text/tokenizer.h"

namespace batchllm {

// The tokens' bytes as a tree. The children of a node are adjacent, so finding the few that fit
// touches little memory.
class TokenTrie {
  public:
    struct Node {
        int32_t children; // index of the first child
        int32_t tokens;   // index in token_ids() of the first with this spelling; they end at the
                          // next node's
        uint16_t child_count;
        uint8_t byte;
    };
    static constexpr size_t kLongestToken = 250; // longer tokens are never allowed

    // Spellings, not empty and not longer than kLongestToken, with their tokens.
    void build(std::vector<std::pair<std::string_view, int32_t>> tokens);

    // The root comes first. The nodes below a node are adjacent: from its `children` up to the
    // `children` of the next node with the same parent. So are their tokens.
    const Node *nodes() const { return nodes_.data(); }
    // nodes()[node_count()] is not a node: it marks the end of the last node's tokens.
    int32_t node_count() const { return static_cast<int32_t>(nodes_.size()) - 1; }
    std::span<const int32_t> token_ids() const { return token_ids_; }

  private:
    std::vector<Node> nodes_;
    std::vector<int32_t> token_ids_;
};

// The tokens that consist of at most kMostCharacters characters of a class, such as the characters
// that need no escape in a JSON string. A state that accepts every character of the class accepts
// all these tokens at once.
struct TokenSlice {
    static constexpr int32_t kMostCharacters = 32;

    Automaton characters; // any number of characters of the class; state 0 is between two
    TokenTrie trie;
    // [kMostCharacters + 1] the tokens of up to that many characters, as bits, and how many there
    // are.
    std::vector<std::vector<uint32_t>> up_to;
    std::vector<int32_t> counts;
};

// Immutable; any number of threads may use it.
class TokenVocabulary {
  public:
    // eos_ids: tokens that end a text. Special tokens are never allowed because of their spelling.
    // size: the number of logits, if it differs from the tokenizer's number of tokens; ids beyond
    // the tokenizer's spell nothing. 0: the tokenizer's.
    static Result<std::shared_ptr<const TokenVocabulary>>
    make(const Tokenizer &tokenizer, std::span<const int32_t> eos_ids, int32_t size = 0);
    // The same from spellings. [vocabulary] the bytes that each token represents; empty if none.
    // special: [vocabulary] not 0 for a special token. first: tokens, sorted, that represent other
    // bytes at the start of a text.
    using FirstSpellings = std::vector<std::pair<int32_t, std::string>>;
    static Result<std::shared_ptr<const TokenVocabulary>> make(std::vector<std::string> tokens,
                                                               std::span<const uint8_t> special,
                                                               std::span<const int32_t> eos_ids,
                                                               FirstSpellings first = {});

    int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
    int32_t words() const { return (size() + 31) / 32; }
    std::string_view bytes(int32_t token) const { return tokens_[static_cast<size_t>(token)]; }
    // What a token represents as the first of a text, if that differs from bytes(): the bytes
    // without a space that the decoder removes. May be empty.
    const FirstSpellings &first_spellings() const { return first_; }
    std::string_view first_bytes(int32_t token) const;
    bool is_special(int32_t token) const { return special_[static_cast<size_t>(token)] != 0; }
    bool is_eos(int32_t token) const;
    std::span<const int32_t> eos_ids() const { return eos_ids_; }
    // Length in bytes of the longest token that is not in long_tokens().
    static constexpr size_t kLongestOrdinary = TokenSlice::kMostCharacters;
    size_t longest() const { return longest_; } // bytes of the longest token in any trie
    // [256] whether some token represents exactly this byte. Text with other bytes is never
    // allowed, because a constraint could reach a place from which no token continues.
    const bool (&single_bytes() const)[256] { return single_bytes_; }

    // Each token that is not special is in exactly one of these.
    std::span<const TokenSlice> slices() const { return slices_; } // smaller classes first
    const TokenTrie &others() const { return others_; }
    const TokenTrie &long_tokens() const { return long_tokens_; }

  private:
    TokenVocabulary() = default;
    void sort_tokens();

    std::vector<std::string> tokens_;
    FirstSpellings first_;
    std::vector<uint8_t> special_;
    std::vector<int32_t> eos_ids_;
    size_t longest_ = 0;
    bool single_bytes_[256] = {};
    std::vector<TokenSlice> slices_;
    TokenTrie others_;
    TokenTrie long_tokens_; // most often runs of spaces or dashes
};

} // namespace batchllm
