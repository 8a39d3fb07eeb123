#include "journal/file_hash.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <unistd.h>
#include <vector>

#include "base/file.h"

namespace batchllm {

Hasher::Hasher() : state_(XXH3_createState()) {
    if (state_ == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(state_);
}

Hasher::~Hasher() { XXH3_freeState(state_); }

void Hasher::update(const void *data, size_t bytes) { XXH3_64bits_update(state_, data, bytes); }

uint64_t Hasher::digest() const { return XXH3_64bits_digest(state_); }

Result<uint64_t> hash_file(const std::string &path) {
    return hash_file(path, INT64_MAX, 0, 0, nullptr);
}

Result<uint64_t> hash_file(const std::string &path, int64_t whole_bytes, int64_t blocks,
                           int64_t block_bytes, int64_t *file_bytes) {
    size_t bytes = 0;
    ASSIGN_OR_RETURN(const FileDescriptor fd, open_regular(path, &bytes));
    const auto size = static_cast<int64_t>(bytes);
    if (file_bytes != nullptr) *file_bytes = size;
    if (size <= whole_bytes) {
        block_bytes = int64_t{1} << 20;
        blocks = (size + block_bytes - 1) / block_bytes;
    }
    Hasher hasher;
    std::vector<char> buffer(static_cast<size_t>(block_bytes));
    for (int64_t block = 0; block < blocks; ++block) {
        int64_t offset = block * block_bytes;
        if (size > whole_bytes) {
            offset = static_cast<int64_t>(static_cast<__int128>(size - block_bytes) * block /
                                          (blocks - 1));
        }
        const auto wanted = static_cast<size_t>(std::min(block_bytes, size - offset));
        size_t got = 0;
        while (got < wanted) {
            const ssize_t part = ::pread(fd.get(), buffer.data() + got, wanted - got,
                                         offset + static_cast<int64_t>(got));
            if (part < 0 && errno == EINTR) continue;
            if (part < 0) return io_error(path, "cannot read");
            if (part == 0) break;
            got += static_cast<size_t>(part);
        }
        hasher.update(buffer.data(), got);
    }
    return hasher.digest();
}

} // namespace batchllm
