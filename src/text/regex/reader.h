// Reads the text of a regular expression: characters, escapes and counts, with positions for
// errors.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "text/regex/code_points.h"
#include "text/regex/tree.h"
#include "text/utf8.h"

namespace batchllm {

// The text must be valid UTF-8 and outlive the reader. A copy marks a position to return to.
class RegexReader {
  public:
    struct Escape {
        bool is_set = false;
        bool fold = false; // whether (?i) changes the set
        uint32_t point = 0;
        CodePointSet set = {};
    };
    struct Count {
        int64_t least = 0;
        int64_t greatest = 0;
        bool single = false; // {n}
    };

    RegexReader() = default;
    explicit RegexReader(std::string_view text) : text_(text) {}

    bool at_end() const { return place_ == text_.size(); }
    char peek() const { return at_end() ? '\0' : text_[place_]; }
    std::string_view rest() const { return text_.substr(place_); }
    void skip(size_t bytes) { place_ += bytes; }
    // The next character; not at the end.
    uint32_t take() {
        int32_t length;
        const uint32_t point = utf8_decode(text_.data() + place_, &length);
        place_ += static_cast<size_t>(length);
        return point;
    }

    // An escape that represents characters, starting at its \.
    Status escape(RegexDialect dialect, bool in_class, Escape *found);
    // Reads * + ? {m} {m,} {m,n}, and {,n} if from_none. False: there is none here.
    Result<bool> count(bool from_none, Count *count);

    int64_t position() const; // of the next character, from 1
    Status invalid(const std::string &problem) const;
    Status unsupported(const std::string &what) const;

  private:
    // Exactly `digits` hexadecimal digits.
    Status hexadecimal(int32_t digits, uint32_t *value);
    Status unicode_escape(RegexDialect dialect, uint32_t *point);
    Status braced_point(uint32_t *point);
    Status property(RegexDialect dialect, bool negative, Escape *found);
    bool number(int64_t *value); // false: no digit

    std::string_view text_;
    size_t place_ = 0;
};

} // namespace batchllm
