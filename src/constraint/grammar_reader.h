// Reads the text of a grammar: places, white space, names, quoted text; errors with line and column.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "constraint/grammar.h"

namespace batchllm {

// The text outlives the reader. A copy marks a place to return to.
class GrammarReader {
  public:
    static constexpr size_t kLongestText = size_t{1} << 20;
    static constexpr int32_t kDeepest = 200; // groups inside groups

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

    // Spaces and comments that begin with `comment`; the ends of lines too if lines is set.
    void skip_space(std::string_view comment, bool lines);
    // The longest run of letters, digits and `others`; may be empty.
    std::string_view name(std::string_view others);
    // A decimal number of no more than a billion; an error if there is none.
    Result<int64_t> number();
    // One character of quoted text: a code point, or what an escape stands for.
    Result<uint32_t> character();
    // From one quotation mark to the next, escapes resolved, as UTF-8.
    Result<std::string> quoted();

    Status invalid(const std::string &problem) const;
    Status unsupported(const std::string &what) const;

  private:
    Result<uint32_t> hexadecimal(int32_t digits);
    std::string where() const;

    std::string_view text_;
    size_t place_ = 0;
};

// Checks that the text is UTF-8 and not too long.
Status check_grammar_text(std::string_view text);

// Rules that begin with themselves, "a: a x | y", become "a: y x*". Others are left as they are.
void rewrite_left_recursion(Grammar *grammar);

} // namespace batchllm
