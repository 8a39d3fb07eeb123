// A word -> its tokens: the BPE model of tokenizer.json.
//
// Characters become initial symbols, and symbols are merged by rank. A character that the
// vocabulary lacks becomes the tokens of its bytes, else the unknown token, else nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/merge.h"
#include "text/merge_table.h"
#include "text/token_table.h"
#include "text/word_cache.h"

namespace batchllm {

// "<0x0A>": the token that byte_fallback uses for a byte.
std::string byte_fallback_token(uint8_t byte);

// One line of "merges".
struct MergePair {
    int32_t left;
    int32_t right;
    int32_t token;
};

// The contents of "model", checked: every id is in the vocabulary.
struct BpeSettings {
    TokenTable vocabulary;
    std::vector<MergePair> merges; // by rank
    int32_t unknown_token = -1;    // -1: none
    bool fuse_unknown = false;
    bool byte_fallback = false;
    bool ignore_merges = false;
};

// The working memory of one encoder.
struct BpeScratch {
    MergeScratch merge;
    std::vector<int32_t> symbols;
    WordCache cache;
};

class BpeModel {
  public:
    // byte_level: words are bytes, and the vocabulary spells them in the byte alphabet. Otherwise
    // words are UTF-8 and are looked up unchanged.
    BpeModel(BpeSettings settings, bool byte_level);

    // Appends the tokens of a word. readable: how many bytes may be read from word.data() on.
    void encode(std::string_view word, size_t readable, BpeScratch *scratch,
                std::vector<int32_t> *tokens) const;

    const BpeSettings &settings() const { return settings_; }

  private:
    void load_symbols();
    bool find_cuts() const;
    void encode_cached(std::string_view word, size_t readable, BpeScratch *scratch,
                       std::vector<int32_t> *tokens) const;
    void encode_merging(std::string_view word, BpeScratch *scratch) const;
    int32_t whole_word(std::string_view word) const;
    bool append_bytes(std::string_view character, std::vector<int32_t> *symbols) const;

    BpeSettings settings_;
    bool byte_level_;
    MergeTable merges_;
    std::vector<int32_t> byte_symbols_;  // if byte_level_: [256] token of each byte, -1: none
    std::vector<int32_t> basic_symbols_; // [65536] token of each character below that, -1: none
    std::vector<int32_t> byte_tokens_;   // [256] token "<0x..>" of each byte, -1: none
    TokenTable whole_words_;             // if byte_level_ and ignore_merges: the bytes that each
                                         // token spells
    bool cut_at_spaces_ = false; // no token has U+2581 after another character: see find_cuts()
};

} // namespace batchllm
