#include "runtime/forced_tokens.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "text/utf8.h"

namespace batchllm {
namespace {

constexpr size_t least_text_bytes = 2; // a shorter text cannot be two tokens
constexpr size_t longest_bytes = 4096;
constexpr int32_t most_looked_at = 4096;
constexpr EncodeOptions as_plain_text{false, false};

// The end of the output as text, starting at a character boundary; "" if there is none.
std::string context_of(const Tokenizer &tokenizer, std::span<const int32_t> output) {
    std::string text;
    for (const int32_t token : output.last(std::min(output.size(), forced_context_tokens))) {
        if (tokenizer.is_special(token)) {
            text.clear();
        } else {
            text += tokenizer.token_bytes(token).value_or("");
        }
    }
    size_t begin = 0;
    while (begin < text.size() && utf8_continues(text[begin])) ++begin;
    return text.substr(begin);
}

// The tokens at the end of context + text that spell exactly the text. Empty if a token spans the
// boundary between the two.
std::vector<int32_t> tokens_behind(const Tokenizer &tokenizer, const std::string &context,
                                   const std::string &text) {
    std::vector<int32_t> tokens;
    if (!tokenizer.encode(context + text, as_plain_text, &tokens).ok()) return {};
    std::string_view left = text;
    size_t first = tokens.size();
    while (!left.empty() && first > 0) {
        const std::string bytes = tokenizer.token_bytes(tokens[first - 1]).value_or("");
        if (bytes.empty() || !left.ends_with(bytes)) return {};
        left.remove_suffix(bytes.size());
        --first;
    }
    if (!left.empty() || (context.empty() && first > 0)) return {};
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(first));
    return tokens;
}

// Whether a longer token that begins with this one is allowed in its place.
bool can_be_longer(ConstraintState *before, const TokenVocabulary &tokens, int32_t token) {
    const Result<AllowedTokens> allowed = before->allowed();
    if (!allowed.ok() || allowed->count > most_looked_at) return true;
    if (allowed->only == token) return false;
    const std::string_view own = tokens.bytes(token);
    for (int32_t w = 0; w < tokens.words(); ++w) {
        for (uint32_t bits = allowed->words[w]; bits != 0; bits &= bits - 1) {
            const int32_t other = 32 * w + __builtin_ctz(bits);
            const std::string_view bytes = tokens.bytes(other);
            if (bytes.size() > own.size() && bytes.starts_with(own)) return true;
        }
    }
    return false;
}

} // namespace

std::vector<int32_t> forced_tokens(const ConstraintState &state, const Tokenizer &tokenizer,
                                   std::span<const int32_t> output, int64_t most) {
    ConstraintState at = state;
    std::string text;
    if (most < 2 || !at.forced(&text, longest_bytes).ok() || text.size() < least_text_bytes)
        return {};
    std::vector<int32_t> tokens = tokens_behind(tokenizer, context_of(tokenizer, output), text);
    if (tokens.empty()) tokens = tokens_behind(tokenizer, "", text);
    if (tokens.size() < 2) return {};
    // All tokens of the text, except the last one if another could replace it.
    const bool whole = static_cast<int64_t>(tokens.size()) <= most;
    if (!whole) tokens.resize(static_cast<size_t>(most));
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (whole && i + 1 == tokens.size() &&
            can_be_longer(&at, state.constraint().vocabulary(), tokens[i])) {
            tokens.pop_back();
            break;
        }
        if (!at.advance(tokens[i]).ok()) {
            tokens.resize(i);
            break;
        }
    }
    if (tokens.size() < 2) tokens.clear();
    return tokens;
}

} // namespace batchllm
