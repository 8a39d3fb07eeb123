// Numbers formatted for people.
#pragma once

#include <cstdint>
#include <string>

namespace batchllm {

std::string format_count(int64_t value); // 12,345
std::string format_bytes(double bytes);  // 1.5 GiB

} // namespace batchllm
