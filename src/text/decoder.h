// Tokens' spellings -> text, step by step: the "decoder" of tokenizer.json.
//
// A decoder is a chain of stages. Each receives a sequence of tokens and passes one on; a token may
// come in fragments, each of whole characters. Stages hold back no more than necessary, so the same
// chain decodes a whole sequence and a stream, with the same result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace batchllm {

struct DecoderStep {
    enum class Kind : uint8_t {
        byte_level,    // the byte alphabet to bytes, all tokens as one; invalid UTF-8 to U+FFFD
        byte_fallback, // runs of <0x..> tokens to bytes; each becomes U+FFFD if the run is invalid
                       // UTF-8
        fuse,          // joins all tokens to one
        replace,       // pattern (not empty) with content, in each token
        strip,         // up to start / stop copies of content (one character) off each token's ends
        metaspace,     // pattern (one character) to a space; to nothing in the first token if
                       // drop_first
        join,          // puts a space between tokens: used if there is no decoder
    };
    Kind kind;
    std::string pattern = {};
    std::string content = {};
    int64_t start = 0;
    int64_t stop = 0;
    bool drop_first = false;
};

// Receives tokens, in one or more fragments each.
class TokenSink {
  public:
    virtual ~TokenSink() = default;
    virtual void fragment(std::string_view text) = 0;
    virtual void end_token() = 0;
    virtual void finish() = 0; // no more tokens
};

class DecoderChain {
  public:
    explicit DecoderChain(const std::vector<DecoderStep> &steps);
    DecoderChain(DecoderChain &&) noexcept;
    DecoderChain &operator=(DecoderChain &&) noexcept;
    ~DecoderChain();

    // Pushes a token and appends the text that is now final to *out.
    void push(std::string_view token, std::string *out);
    void finish(std::string *out);

  private:
    class Output;
    std::unique_ptr<Output> output_;
    std::vector<std::unique_ptr<TokenSink>> stages_; // the last step's comes first
    TokenSink *head_;
};

} // namespace batchllm
