#include "api/boundary.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

namespace batchllm::api {
namespace {

constexpr size_t text_size = 1024;
thread_local char last_text[text_size];

} // namespace

int32_t set_last_error(int32_t status, std::string_view text) noexcept {
    size_t length = std::min(text.size(), text_size - 1);
    if (length < text.size()) {
        // Back up to the start of the character that does not fit.
        while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0) == 0x80) --length;
    }
    std::memcpy(last_text, text.data(), length);
    last_text[length] = '\0';
    return status;
}

int32_t set_last_error(const Status &status) noexcept {
    return set_last_error(status.code(), status.message());
}

const char *last_error() noexcept { return last_text; }

Status copy_out(const char *name, const void *from, size_t size, void *to) {
    uint32_t theirs;
    std::memcpy(&theirs, to, sizeof theirs);
    if (!possible_struct_size(theirs)) {
        return error(BATCHLLM_ERROR_INVALID_ARGUMENT,
                     "%s->struct_size is %" PRIu32 ": set it to sizeof *%s before the call", name,
                     theirs, name);
    }
    // Fields that only a newer caller knows are set to 0.
    if (theirs > size) std::memset(static_cast<char *>(to) + size, 0, theirs - size);
    std::memcpy(to, from, std::min<size_t>(theirs, size));
    std::memcpy(to, &theirs, sizeof theirs);
    return {};
}

void init_struct(const void *defaults, size_t size, void *to, size_t to_size) noexcept {
    if (to == nullptr || to_size < sizeof(uint32_t)) return;
    std::memset(to, 0, to_size);
    std::memcpy(to, defaults, std::min(size, to_size));
    const uint32_t theirs = static_cast<uint32_t>(std::min<size_t>(to_size, UINT32_MAX));
    std::memcpy(to, &theirs, sizeof theirs);
}

} // namespace batchllm::api
