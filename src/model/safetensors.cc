#include "model/safetensors.h"

#include <algorithm>
#include <string_view>

#include "base/file.h"
#include "base/json.h"

namespace batchllm {
namespace {

constexpr uint64_t header_limit = 100'000'000;

struct StoredType {
    std::string_view name;
    int64_t bits;
};

// Every element type that the format names. Types of less than a byte must fill whole bytes.
constexpr StoredType stored_types[] = {
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
};

// Bytes of a tensor of this shape, or an error if the product does not fit or ends within a byte.
Result<int64_t> tensor_bytes(const JsonValue &info, const std::vector<int64_t> &shape,
                             int64_t bits) {
    int64_t total = bits;
    for (const int64_t extent : shape) {
        if (__builtin_mul_overflow(total, extent, &total)) {
            // A later extent of 0 would make the tensor empty, but no honest file has such a shape.
            return info.fail("its shape is too large");
        }
    }
    if (total % 8 != 0) return info.fail("its elements do not fill whole bytes");
    return total / 8;
}

// data_bytes: how many the file has after its header. A tensor that ends beyond them shows that the
// file was cut short, for example by an interrupted download.
Result<StoredTensor> parse_tensor(std::string_view name, const JsonValue &info,
                                  int64_t data_bytes) {
    ASSIGN_OR_RETURN(const auto members, info.members());
    for (const auto &[key, value] : members) {
        if (key != "dtype" && key != "shape" && key != "data_offsets") {
            return value.fail("no such key in a tensor's entry");
        }
    }
    ASSIGN_OR_RETURN(const JsonValue dtype, info.at("dtype"));
    ASSIGN_OR_RETURN(const JsonValue shape, info.at("shape"));
    ASSIGN_OR_RETURN(const JsonValue offsets, info.at("data_offsets"));

    StoredTensor tensor;
    tensor.name = name;
    ASSIGN_OR_RETURN(tensor.type, dtype.string());
    const auto *const type =
        std::find_if(std::begin(stored_types), std::end(stored_types),
                     [&](const StoredType &known) { return known.name == tensor.type; });
    if (type == std::end(stored_types)) return dtype.fail("unknown element type");

    ASSIGN_OR_RETURN(const auto extents, shape.elements());
    for (const JsonValue &extent : extents) {
        ASSIGN_OR_RETURN(const int64_t value, extent.integer(0, INT64_MAX));
        tensor.shape.push_back(value);
    }
    ASSIGN_OR_RETURN(const int64_t bytes, tensor_bytes(shape, tensor.shape, type->bits));

    ASSIGN_OR_RETURN(const auto range, offsets.elements());
    if (range.size() != 2) return offsets.fail("must be a begin and an end");
    ASSIGN_OR_RETURN(const int64_t begin, range[0].integer(0, INT64_MAX));
    ASSIGN_OR_RETURN(const int64_t end, range[1].integer(begin, INT64_MAX));
    if (end - begin != bytes) {
        return offsets.fail("holds " + std::to_string(end - begin) +
                            " bytes where type and shape need " + std::to_string(bytes));
    }
    if (end > data_bytes) {
        return offsets.fail("the file is cut short: it holds " + std::to_string(data_bytes) +
                            " bytes of tensors");
    }
    tensor.offset = begin;
    tensor.bytes = bytes;
    return tensor;
}

// Of the header, as the file begins.
uint64_t length_in(std::span<const std::byte> begin) {
    uint64_t length = 0;
    for (size_t i = 0; i < std::min(begin.size(), safetensors_length_bytes); ++i) {
        length |= std::to_integer<uint64_t>(begin[i]) << (8 * i);
    }
    return length;
}

Status check_metadata(const JsonValue &metadata) {
    ASSIGN_OR_RETURN(const auto members, metadata.members());
    for (const auto &[key, value] : members) {
        if (!value.is_string()) return value.fail("metadata must be strings");
    }
    return {};
}

} // namespace

size_t safetensors_header_bytes(std::span<const std::byte> begin, size_t size) {
    constexpr size_t pointer_bytes = 32; // enough to recognise one of Git LFS
    const size_t length = std::min(size, safetensors_length_bytes);
    const uint64_t header = length_in(begin);
    return header > header_limit || header > size - length ? std::min(size, pointer_bytes)
                                                           : length + static_cast<size_t>(header);
}

Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> file,
                                                    const std::string &path) {
    return parse_safetensors(file, file.size(), path);
}

Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> begin, size_t size,
                                                    const std::string &path) {
    constexpr int32_t code = BATCHLLM_ERROR_MODEL_FORMAT;
    if (size < safetensors_length_bytes) {
        return error(code, "%s: %zu bytes, too short for a safetensors file", path.c_str(), size);
    }
    const uint64_t header_bytes = length_in(begin);
    const std::string_view text(reinterpret_cast<const char *>(begin.data()), begin.size());
    if (is_git_lfs_pointer(text)) return git_lfs_error(path, code);
    if (header_bytes > size - safetensors_length_bytes) {
        return error(code,
                     "%s: not a safetensors file, or cut short: its first 8 bytes stand for a "
                     "header of %llu bytes, but the file ends after %zu",
                     path.c_str(), static_cast<unsigned long long>(header_bytes),
                     size - safetensors_length_bytes);
    }
    if (header_bytes > header_limit) {
        return error(code, "%s: header of %llu bytes, more than the %llu allowed", path.c_str(),
                     static_cast<unsigned long long>(header_bytes),
                     static_cast<unsigned long long>(header_limit));
    }
    std::string_view header(reinterpret_cast<const char *>(begin.data()) + safetensors_length_bytes,
                            header_bytes);
    if (header.empty() || header.front() != '{') {
        return error(code, "%s: the header does not begin with '{'", path.c_str());
    }
    while (header.back() == ' ') header.remove_suffix(1);
    if (header.back() != '}') {
        return error(code, "%s: the header does not end with '}' and spaces", path.c_str());
    }

    ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(header, path, code));
    ASSIGN_OR_RETURN(const auto members, document.root().members());
    const auto data_begin = static_cast<int64_t>(safetensors_length_bytes + header_bytes);
    const int64_t data_bytes = static_cast<int64_t>(size) - data_begin;

    std::vector<StoredTensor> tensors;
    for (const auto &[name, info] : members) {
        if (name == "__metadata__") {
            RETURN_IF_ERROR(check_metadata(info));
            continue;
        }
        ASSIGN_OR_RETURN(StoredTensor tensor, parse_tensor(name, info, data_bytes));
        tensors.push_back(std::move(tensor));
    }
    // Empty tensors come before the one that begins at the same byte.
    std::stable_sort(tensors.begin(), tensors.end(),
                     [](const StoredTensor &a, const StoredTensor &b) {
                         return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
                     });
    int64_t end = 0;
    for (StoredTensor &tensor : tensors) {
        if (tensor.offset != end) {
            return error(code, "%s: %s begins at byte %lld where %lld bytes are taken: %s",
                         path.c_str(), printable(tensor.name).c_str(),
                         static_cast<long long>(tensor.offset), static_cast<long long>(end),
                         tensor.offset < end ? "tensors overlap" : "a hole between tensors");
        }
        end += tensor.bytes;
        tensor.offset += data_begin;
    }
    if (end != data_bytes) {
        return error(code, "%s: the tensors end after %lld of %lld bytes", path.c_str(),
                     static_cast<long long>(end), static_cast<long long>(data_bytes));
    }
    return tensors;
}

std::optional<DType> float_type(const StoredTensor &tensor) {
    if (tensor.type == "F32") return DType::f32;
    if (tensor.type == "BF16") return DType::bf16;
    if (tensor.type == "F16") return DType::f16;
    return std::nullopt;
}

} // namespace batchllm
