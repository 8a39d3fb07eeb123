// A .safetensors file -> the names, types, shapes and byte ranges of its tensors. Everything is
// checked before it is used; the tensors' own bytes are not read.
//
// The file has 8 bytes with the header's length n, little-endian; n bytes of JSON, padded with
// spaces; the tensors' bytes, row-major, little-endian. Checked as the format requires: n is at
// most 100 MB; the header is an object and begins with '{'; there are no duplicate keys;
// "__metadata__" is a map of strings; each tensor's shape times its element size equals its byte
// range; the ranges are in order and cover the file's data without holes or overlaps. The format
// requires no alignment, so readers must not assume any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace batchllm {

struct StoredTensor {
    std::string name;
    std::string type; // as written in the file: "BF16", "F32", "I64", ...
    std::vector<int64_t> shape;
    int64_t offset; // of its first byte, from the start of the file
    int64_t bytes;
};

// Of numbers that may be a model's or an adapter's as they are: F32, BF16, F16.
std::optional<DType> float_type(const StoredTensor &tensor);

// In file order. file: the whole file. path: its name, for errors.
Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> file,
                                                    const std::string &path);
// begin: as much of the file's size as safetensors_header_bytes() says.
Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> begin, size_t size,
                                                    const std::string &path);

constexpr size_t safetensors_length_bytes = 8;
// Of a file of this size, which begins with these bytes: as many bytes as come before the tensors, if it is well formed;
// otherwise any number of its bytes.
size_t safetensors_header_bytes(std::span<const std::byte> begin, size_t size);

} // namespace batchllm
