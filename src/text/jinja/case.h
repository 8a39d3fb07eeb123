// Upper and lower case as in Python's str: for all of Unicode, including characters that become
// several characters.
#pragma once

#include <string>
#include <string_view>

namespace batchllm::jinja {

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text); // first character in title case, the others in lower
                                               // case
std::string to_title(std::string_view text);   // str.title()
// jinja2's filter `title`: words begin after white space, hyphens and opening brackets.
std::string title_words(std::string_view text);

} // namespace batchllm::jinja
