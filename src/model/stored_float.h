// A number as stored in the files -> float.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "base/narrow_floats.h"

namespace batchllm {

// Number `index` of an array of f32, bf16 or f16, which need not be aligned.
inline float stored_float(const std::byte *array, int64_t index, DType type) {
    const std::byte *p = array + index * dtype_bytes(type);
    if (type == DType::f32) {
        float value;
        std::memcpy(&value, p, sizeof value);
        return value;
    }
    uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return type == DType::bf16 ? bfloat16_to_float(bits) : float16_to_float(bits);
}

} // namespace batchllm
