// tokenizer.json -> text to tokens and back, bit for bit like Hugging Face's `tokenizers`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace batchllm {

struct EncodeOptions {
    bool add_special = true;   // add what the post-processor adds (BOS, EOS)
    bool parse_special = true; // special tokens spelled in the text become those tokens
};

// Immutable once loaded: any number of threads may use it.
class Tokenizer {
  public:
    // A tokenizer.json, or a directory with one. An error names the file and the key. Anything
    // unsupported is rejected here, by name.
    static Result<std::unique_ptr<Tokenizer>> load(const std::string &path);
    // The same from the file's text; name: its name in errors.
    static Result<std::unique_ptr<Tokenizer>> parse(const std::string &name,
                                                    const std::string &json);
    ~Tokenizer();

    // Appends the tokens of text to *tokens. Fails with ROW_INVALID_UTF8, or with ROW_TOO_LONG for
    // more than 2 GiB, and then appends nothing.
    Status encode(std::string_view text, const EncodeOptions &options,
                  std::vector<int32_t> *tokens) const;

    // Decodes the tokens as one text. Ids outside the vocabulary fail with ROW_UNKNOWN_TOKEN.
    Result<std::string> decode(std::span<const int32_t> tokens, bool skip_special) const;

    // The bytes that the token adds to a text, which may be part of a character; for a special
    // token, its spelling. Empty text for an id that no token has. Empty optional if the decoder
    // puts text between tokens.
    std::optional<std::string> token_bytes(int32_t token) const;
    // The same for the first token of a text, from which some decoders remove a space.
    std::optional<std::string> first_token_bytes(int32_t token) const;

    int32_t vocabulary() const; // largest id + 1, including added tokens
    bool is_special(int32_t token) const;
    int32_t token_id(std::string_view token) const; // by its exact spelling; -1: none
    // A special token that occurs anywhere in the text; -1: none.
    int32_t find_special(std::string_view text) const;
    const std::string &note() const; // for people: which parts of the file are ignored, or ""
    uint64_t fingerprint() const;    // hash of everything that affects how text becomes tokens; not
                                     // 0

  private:
    friend class StreamDecoder;
    Tokenizer();
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// Decodes one sequence token by token. The concatenated results of push() and of the final finish()
// equal decode() of all tokens; no piece ends inside a UTF-8 character. The tokenizer must outlive
// it. Nothing may be pushed after finish().
class StreamDecoder {
  public:
    StreamDecoder(const Tokenizer &tokenizer, bool skip_special);
    StreamDecoder(StreamDecoder &&) noexcept;
    StreamDecoder &operator=(StreamDecoder &&) noexcept;
    ~StreamDecoder();

    // The text that the token completes; may be empty. Ids outside the vocabulary decode to
    // nothing.
    std::string push(int32_t token);
    // What was held back (an incomplete character becomes U+FFFD).
    std::string finish();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace batchllm
