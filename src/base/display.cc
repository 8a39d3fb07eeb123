#include "base/display.h"

#include <array>
#include <cstdio>

namespace batchllm {

std::string format_count(int64_t value) {
    std::string digits = std::to_string(value);
    for (auto i = static_cast<int64_t>(digits.size()) - 3; i > (value < 0 ? 1 : 0); i -= 3) {
        digits.insert(static_cast<size_t>(i), 1, ',');
    }
    return digits;
}

std::string format_bytes(double bytes) {
    constexpr std::array<const char *, 5> units = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (bytes >= 1023.5 && unit + 1 < units.size()) {
        bytes /= 1024;
        ++unit;
    }
    char text[40];
    std::snprintf(text, sizeof text, "%.*f %s", unit == 0 || bytes >= 99.95 ? 0 : 1, bytes,
                  units[unit]);
    return text;
}

} // namespace batchllm
