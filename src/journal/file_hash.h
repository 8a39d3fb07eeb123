// Hashes (XXH3-64) of bytes that come piece by piece, and of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <xxhash.h>

#include "base/status.h"

namespace batchllm {

class Hasher {
  public:
    Hasher();
    Hasher(const Hasher &) = delete;
    Hasher &operator=(const Hasher &) = delete;
    ~Hasher();
    void update(const void *data, size_t bytes);
    uint64_t digest() const;

  private:
    XXH3_state_t *state_;
};

// Of a whole file.
Result<uint64_t> hash_file(const std::string &path);
// Of the whole file if it has at most whole_bytes, else of `blocks` evenly spread blocks of block_bytes,
// including the first and the last of the file. file_bytes: gets its size; may be null.
Result<uint64_t> hash_file(const std::string &path, int64_t whole_bytes, int64_t blocks,
                           int64_t block_bytes, int64_t *file_bytes);

} // namespace batchllm
