// A set of code points, such as a class in a regular expression, and Unicode's general categories.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace batchllm {

// Code points up to 0x10FFFF. Once normalized, ranges are sorted and do not touch.
class CodePointSet {
  public:
    using Range = std::pair<uint32_t, uint32_t>; // both ends included

    CodePointSet() = default;
    CodePointSet(std::initializer_list<Range> ranges) : ranges_(ranges) { normalize(); }
    explicit CodePointSet(std::vector<Range> ranges) : ranges_(std::move(ranges)) { normalize(); }

    void add(uint32_t first, uint32_t last) { ranges_.emplace_back(first, last); }
    void add(const CodePointSet &other) {
        ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
    }
    // Sorts and joins the ranges. Call after add() and before anything else.
    void normalize();
    // Adds the other case of each ASCII letter.
    void fold_ascii();
    CodePointSet inverse() const;
    CodePointSet intersection(const CodePointSet &other) const; // of two normalized ones

    const std::vector<Range> &ranges() const { return ranges_; }
    bool operator==(const CodePointSet &) const = default;
    bool operator<(const CodePointSet &other) const { return ranges_ < other.ranges_; }

  private:
    std::vector<Range> ranges_;
};

// The code points of \p{name}: a general category by its short or long name, with or without "gc="
// or "General_Category=", and Any, ASCII, Assigned, Alphabetic (letters and letter numbers),
// Lowercase, Uppercase (the categories Ll, Lu). Empty optional: there is no such name. Unicode 16.
std::optional<CodePointSet> unicode_property(std::string_view name);

// The same as Oniguruma has it: by categories, Any, ASCII, Assigned and scripts, whatever their case,
// spaces, _ and - are.
std::optional<CodePointSet> oniguruma_property(std::string_view name);

} // namespace batchllm
