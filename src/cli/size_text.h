// "2GiB" -> 2147483648: sizes as people write them on a command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace batchllm::cli {

// A number, which may have a fraction, and a unit: none, B; K, M, G, T and KiB, MiB, GiB, TiB count
// in 1024s; KB, MB, GB, TB in 1000s. Nothing if it does not have that form, is negative or too large.
std::optional<int64_t> parse_size(std::string_view text);

// "40%" -> 0.4.
std::optional<double> parse_percentage(std::string_view text);

} // namespace batchllm::cli
