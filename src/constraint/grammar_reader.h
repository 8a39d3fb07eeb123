// Reads the text of a grammar: positions, white space, names, quoted text; errors with line and
// column.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "constraint/grammar.h"

namespace batchllm {

// The text must outlive the reader. A copy marks a position to return to.
class GrammarReader {
  public:
    static constexpr size_t kLongestText = size_t{1} << 20;
    static constexpr int32_t kDeepest = 200; // maximum nesting of groups

    GrammarReader() = default;
    explicit GrammarReader(std::string_view text) : text_(text) {}

    bool at_end() const { return place_ == text_.size(); }
    char peek() const { return at_end() ? '\0' : text_[place_]; }
    std::string_view rest() const { return text_.substr(place_); }
    bool starts(std::string_view what) const { return rest().starts_with(what); }
    void skip(size_t bytes) { place_ += bytes; }
    bool take(std::string_view what) {
        if (!starts(what)) return false;
        skip(what.size());
        return true;
    }

    // Skips spaces and comments that begin with `comment`; also line ends if lines is set.
    void skip_space(std::string_view comment, bool lines);
    // The longest run of letters, digits and `others`; may be empty.
    std::string_view name(std::string_view others);
    // A decimal number up to a billion; an error if there is none.
    Result<int64_t> number();
    // One character of quoted text: a code point, or the meaning of an escape.
    Result<uint32_t> character();
    // The text from one quotation mark to the next, as UTF-8 with escapes resolved.
    Result<std::string> quoted();

    Status invalid(const std::string &problem) const;
    Status unsupported(const std::string &what) const;

  private:
    Result<uint32_t> hexadecimal(int32_t digits);
    std::string where() const;

    std::string_view text_;
    size_t place_ = 0;
};

// Checks that the text is valid UTF-8 and not too long.
Status check_grammar_text(std::string_view text);

// Rewrites rules that begin with themselves: "a: a x | y" becomes "a: y x*". Other rules are
// unchanged.
void rewrite_left_recursion(Grammar *grammar);

} // namespace batchllm
