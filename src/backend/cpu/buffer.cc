#include "backend/cpu/buffer.h"

#include <sys/mman.h>

namespace batchllm::cpu {

Result<Buffer> Buffer::create(int64_t bytes, const char *what) {
    Buffer buffer;
    if (bytes <= 0) return buffer;
    void *data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
        return error(BATCHLLM_ERROR_OUT_OF_MEMORY, "cpu backend: no memory for %s (%lld bytes)",
                     what, static_cast<long long>(bytes));
    }
#ifdef MADV_HUGEPAGE
    // Fewer TLB misses. This is only advice, so its failure does not matter.
    if (bytes >= (int64_t{4} << 20))
        (void)::madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#endif
    buffer.data_ = static_cast<std::byte *>(data);
    buffer.bytes_ = bytes;
    return buffer;
}

Buffer::~Buffer() {
    if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

Status Buffer::reserve(int64_t bytes, const char *what) {
    if (bytes <= bytes_) return {};
    *this = Buffer();
    // Some room to grow, so that a slowly growing size does not remap memory each time.
    ASSIGN_OR_RETURN(*this, create(bytes + bytes / 4, what));
    return {};
}

} // namespace batchllm::cpu
