// A .safetensors file -> the names, types, shapes and byte ranges of its tensors. Everything is
// checked before it is used; the tensors' own bytes are not read.
//
// The file is: 8 bytes, the header's length n, little-endian; n bytes of JSON, padded with spaces;
// the tensors' bytes, row-major, little-endian. Checked as the format requires: n at most 100 MB;
// the header an object that begins with '{'; no duplicate keys; "__metadata__" a map of strings;
// each tensor's shape times its element size equal to its byte range; the ranges in order without a
// hole or an overlap from the first byte to the file's last. The format requires no alignment, so
// readers must not assume any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace batchllm {

struct StoredTensor {
    std::string name;
    std::string type; // as the file spells it: "BF16", "F32", "I64", ...
    std::vector<int64_t> shape;
    int64_t offset; // of its first byte, from the file's first
    int64_t bytes;
};

// In the order of their bytes. file: the whole file. path: named in errors.
Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> file,
                                                    const std::string &path);

} // namespace batchllm
