// The operations of Python's str on UTF-8: templates count and slice text in characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace batchllm::jinja {

// MarkupSafe's escape(): escapes the five characters that have a meaning in HTML.
std::string escape_html(std::string_view text);

// str.isspace() for one character.
bool is_python_space(uint32_t point);

std::string_view left_strip(std::string_view text);
std::string_view right_strip(std::string_view text);
inline std::string_view strip(std::string_view text) { return left_strip(right_strip(text)); }
// The same, with the set of characters to remove.
std::string_view left_strip(std::string_view text, std::string_view characters);
std::string_view right_strip(std::string_view text, std::string_view characters);

// The number of characters, and the byte at which the character with a given number begins.
size_t length(std::string_view text);
size_t byte_of(std::string_view text, size_t character);

std::vector<std::string_view> split_lines(std::string_view text);
// str.split() at runs of white space; most: how many parts to split off, < 0: no limit.
std::vector<std::string_view> split_spaces(std::string_view text, int64_t most);
std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    int64_t most);

// text.find(part, from), in time that grows with the length of the text, not with the product of
// both lengths.
size_t find(std::string_view text, std::string_view part, size_t from = 0);
size_t count(std::string_view text, std::string_view part); // part is not empty
// Replaces the first `most` occurrences (< 0: all). part may be empty, as in Python.
std::string replace(std::string_view text, std::string_view part, std::string_view by,
                    int64_t most);

// str.isprintable() for one character: whether repr() shows it.
bool is_printable(uint32_t point);

bool is_ascii(std::string_view text);

// The first bytes of a text: at most `most`, ending at a character boundary.
std::string_view cut(std::string_view text, size_t most);

// Appends repr(): quoted and escaped.
void append_repr(std::string_view text, std::string *out);
// repr() of a float: 1.0, 1e-07, inf.
void append_float(double value, std::string *out);
// A JSON string as Python's json.dumps writes it.
void append_json_string(std::string_view text, bool ensure_ascii, std::string *out);

} // namespace batchllm::jinja
