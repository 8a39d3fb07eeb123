// Text and numbers -> HTML and SVG. Everything that comes from outside goes through escaped(). The
// result is plain text in any element and in any quoted attribute, valid UTF-8, and well-formed
// XML.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace batchllm {

// Line ends are shown as arrows. Bytes that are not UTF-8 become U+FFFD, and so do characters that
// XML forbids or that change the direction of the text after them.
std::string escaped(std::string_view text);

// The same, truncated to `columns` columns of a fixed-width font. A wide character takes two
// columns; "..." stands for what does not fit.
std::string escaped_within(std::string_view text, int columns);

std::string short_count(double value);            // 950, 12.3K, 4.5M
std::string number_cell(const std::string &text); // a table cell, aligned right
std::string seconds_text(double seconds);         // 0.4 ms, 12.3 s, 3 min 05 s, 2 h 04 min
std::string percent_text(double share);           // 89.2 %
std::string fixed(double value, int digits);      // 12.50, never with an exponent
std::string coordinate(double value);             // at most two digits after the point

} // namespace batchllm
