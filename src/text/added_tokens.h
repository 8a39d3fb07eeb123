// Tokens added to the vocabulary. They are found in text before it is split and merged.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace batchllm {

// An entry of "added_tokens".
struct AddedToken {
    std::string content;
    std::string pattern; // what is searched for: content, normalized if `normalized`
    int32_t id = -1;
    bool special = false;     // left out of decoded text; may count as plain text in untrusted text
    bool single_word = false; // matches only between characters that are not part of a word
    bool left_strip = false;  // includes the spaces before it
    bool right_strip = false; // includes the spaces after it
    bool normalized = false;  // searched for in the normalized text, not in the raw text
};

// A piece of text: an added token (id >= 0), or text between added tokens (-1). The pieces do not
// always add up to the text: see find().
struct AddedPiece {
    size_t begin;
    size_t end;
    int32_t id;
};

// Finds a set of tokens: leftmost first; of those that start at the same place, the longest.
class AddedTokenFinder {
  public:
    // tokens must outlive the finder. Uses only those with the given `normalized`.
    AddedTokenFinder(const std::vector<AddedToken> &tokens, bool normalized);

    bool empty() const { return !any_; }

    // Cuts text (not empty) into *pieces, exactly like the reference. A discarded match (not a
    // single word, or special while parse_special is off) is plain text, and the search continues
    // after it. A token inside the spaces that the previous one has stripped still counts, unless
    // it strips to its left itself.
    void find(std::string_view text, bool parse_special, std::vector<AddedPiece> *pieces) const;

  private:
    struct Node {
        int32_t token = -1; // index of the token that ends here
        int32_t first_child = -1;
        int32_t next_sibling = -1;
        char byte = 0;
    };
    int32_t child(int32_t node, char byte) const;
    // The longest token that starts at text[begin]; -1: none.
    int32_t longest_at(std::string_view text, size_t begin) const;

    const std::vector<AddedToken> &tokens_;
    const UnicodeClasses &classes_;
    bool any_ = false;
    bool starts_[256] = {};     // whether a token starts with this byte
    std::vector<Node> nodes_;   // trie; node 0 is its root
    std::vector<int32_t> root_; // [256] child of the root
};

} // namespace batchllm
