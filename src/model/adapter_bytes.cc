#include "model/adapter_bytes.h"

#include <xxhash.h>

namespace batchllm {
namespace {

bool has_avx2() {
#if defined(__x86_64__)
    // A state of the library's is continued by this build's own functions.
    static const bool has =
        __builtin_cpu_supports("avx2") && XXH_versionNumber() == XXH_VERSION_NUMBER;
    return has;
#else
    return false;
#endif
}

} // namespace

void add_to_hash(void *state, const std::byte *bytes, size_t size) {
    if (has_avx2()) {
        avx2::add_to_hash(state, bytes, size);
    } else {
        XXH3_128bits_update(static_cast<XXH3_state_t *>(state), bytes, size);
    }
}

bool all_finite(const std::byte *numbers, int64_t count, DType type) {
    return has_avx2() ? avx2::all_finite(numbers, count, type) : are_finite(numbers, count, type);
}

} // namespace batchllm
