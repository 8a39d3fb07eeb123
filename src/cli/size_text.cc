#include "cli/size_text.h"

#include <charconv>
#include <cmath>

namespace batchllm::cli {
namespace {

// Reads the number at the start and leaves the rest in *text.
std::optional<double> take_number(std::string_view *text) {
    double value = 0;
    const auto [end, code] =
        std::from_chars(text->data(), text->data() + text->size(), value, std::chars_format::fixed);
    if (code != std::errc() || !std::isfinite(value) || value < 0) return std::nullopt;
    text->remove_prefix(static_cast<size_t>(end - text->data()));
    while (text->starts_with(' ')) text->remove_prefix(1);
    return value;
}

} // namespace

std::optional<int64_t> parse_size(std::string_view text) {
    const std::optional<double> number = take_number(&text);
    if (!number) return std::nullopt;
    double unit = 1;
    if (!text.empty() && text != "B" && text != "b") {
        const auto letter = std::string_view("kKmMgGtT").find(text[0]);
        const std::string_view rest = text.substr(1);
        const bool decimal = rest == "B" || rest == "b";
        if (letter == std::string_view::npos || !(rest.empty() || decimal || rest == "iB")) {
            return std::nullopt;
        }
        unit = std::pow(decimal ? 1000.0 : 1024.0, static_cast<double>(letter / 2 + 1));
    }
    const double bytes = *number * unit;
    if (bytes > 9e18) return std::nullopt;
    return static_cast<int64_t>(bytes);
}

std::optional<double> parse_percentage(std::string_view text) {
    const std::optional<double> number = take_number(&text);
    if (!number || text != "%") return std::nullopt;
    return *number / 100;
}

} // namespace batchllm::cli
