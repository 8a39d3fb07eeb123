// Element types of weights, keys and values.
#pragma once

#include <cstdint>

namespace batchllm {

// u4: only for weights in files, two per byte; see Tensor::four_bits.
enum class DType : uint8_t { f32, bf16, f16, e4m3, u4 };

// Rounded up.
constexpr int64_t dtype_bytes(DType type) {
    return type == DType::f32 ? 4 : type == DType::e4m3 || type == DType::u4 ? 1 : 2;
}

constexpr const char *dtype_name(DType type) {
    return type == DType::f32    ? "f32"
           : type == DType::bf16 ? "bf16"
           : type == DType::f16  ? "f16"
           : type == DType::e4m3 ? "e4m3"
                                 : "u4";
}

} // namespace batchllm
