// "2GiB" -> 2147483648: sizes as people write them on a command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace batchllm::cli {

// A number, possibly with a fraction, and a unit. No unit or B: bytes. K, M, G, T and KiB, MiB,
// GiB, TiB are powers of 1024; KB, MB, GB, TB are powers of 1000. Empty if the text does not have
// this form, or if the number is negative or too large.
std::optional<int64_t> parse_size(std::string_view text);

// "40%" -> 0.4.
std::optional<double> parse_percentage(std::string_view text);

} // namespace batchllm::cli
