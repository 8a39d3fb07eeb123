// Resolves URI references against a base as in RFC 3986 (5.2): how `$id` and `$ref` find each
// other.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace batchllm {

std::string resolve_uri(std::string_view base, std::string_view reference);

// The parts before and after the first '#'; the second is "" if there is none.
std::pair<std::string_view, std::string_view> split_fragment(std::string_view uri);

// %41 -> A. Anything that is not such an escape is unchanged.
std::string percent_decoded(std::string_view text);

} // namespace batchllm
