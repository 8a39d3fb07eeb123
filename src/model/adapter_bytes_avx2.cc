// The hash library's own functions have SSE2 on x86, which takes three times as long for what is in the cache: here they
// are compiled with AVX2, under this file's own names. Elsewhere these functions are never called.
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/dtype.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define XXH_VECTOR XXH_AVX2
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#endif

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "model/adapter_bytes.h"

namespace batchllm::avx2 {

void add_to_hash(void *state, const std::byte *bytes, size_t size) {
    XXH3_128bits_update(static_cast<XXH3_state_t *>(state), bytes, size);
}
bool all_finite(const std::byte *numbers, int64_t count, DType type) {
    return are_finite(numbers, count, type);
}

} // namespace batchllm::avx2

#if defined(__x86_64__) && defined(__clang__)
#pragma clang attribute pop
#endif
