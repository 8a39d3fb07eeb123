// Base64 (RFC 4648), as "data:" URLs have it -> bytes.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace batchllm {

// Also of the URL's alphabet ("-" and "_") and without padding. None: it is not base64.
std::optional<std::vector<std::byte>> from_base64(std::string_view text);

} // namespace batchllm
