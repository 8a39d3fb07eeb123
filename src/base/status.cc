#include "base/status.h"

#include <cstdarg>
#include <cstdio>

namespace batchllm {

Status error(int32_t code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    const int length = std::vsnprintf(nullptr, 0, format, arguments);
    va_end(arguments);
    std::string text;
    if (length > 0) {
        text.resize(static_cast<size_t>(length));
        std::vsnprintf(text.data(), text.size() + 1, format, again);
    }
    va_end(again);
    return Status(code, std::move(text));
}

} // namespace batchllm
