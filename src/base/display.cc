#include "base/display.h"

namespace batchllm {

std::string format_count(int64_t value) {
    std::string digits = std::to_string(value);
    for (auto i = static_cast<int64_t>(digits.size()) - 3; i > (value < 0 ? 1 : 0); i -= 3) {
        digits.insert(static_cast<size_t>(i), 1, ',');
    }
    return digits;
}

} // namespace batchllm
