// The contents of a tokenizer.json, checked and resolved: every id is in the vocabulary, and every
// part is supported.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace batchllm {

// A part of the output of "post_processor": the text's tokens, or fixed tokens.
struct TemplatePiece {
    bool is_text;
    std::vector<int32_t> tokens; // if fixed
};

struct TokenizerSpec {
    BpeSettings model;
    bool byte_level = false; // words are spelled in the byte alphabet
    std::vector<AddedToken> added_tokens;
    std::vector<NormalizerStep> normalizer;
    std::vector<PreTokenizerStep> pre_tokenizer;
    std::vector<TemplatePiece> special; // used with add_special; without it, only the text's tokens
    std::vector<DecoderStep> decoder;
    std::string note;  // for people: which parts of the file are ignored, or ""
    int64_t texts = 1; // how often `special` contains the text: once, in any sensible template
};

// Reads and checks a tokenizer.json. An error names the file and the key.
Result<TokenizerSpec> read_tokenizer_json(const std::string &path);

// The same from the file's bytes; name: its name in errors.
Result<TokenizerSpec> parse_tokenizer_json(const std::string &name, const std::string &bytes);

// A hash of everything that affects how text becomes tokens; not 0.
uint64_t tokenizer_fingerprint(const TokenizerSpec &spec);

} // namespace batchllm
