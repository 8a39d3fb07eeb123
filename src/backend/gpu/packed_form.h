// How four-bit weights lie on a device when they stay packed (cuda/four_bits/layout.h). Here, without
// CUDA, because predictions need it too.
#pragma once

#include <cstdint>

namespace batchllm {

// int4: integers with scales and zero points, whose number says how many columns share them.
enum class PackedForm : uint8_t { int4_128, int4_32, mxfp4, nvfp4 };

constexpr bool is_int4(PackedForm form) {
    return form == PackedForm::int4_128 || form == PackedForm::int4_32;
}
// Columns of a scale.
constexpr int32_t scale_columns(PackedForm form) {
    return form == PackedForm::int4_128 ? 128 : form == PackedForm::nvfp4 ? 16 : 32;
}
// Bytes of a packed matrix whose rows and columns are multiples of 64.
constexpr int64_t packed_bytes(PackedForm form, int64_t rows, int64_t columns) {
    const int64_t scale = is_int4(form) ? 4 : 1;
    return rows * columns / 2 + rows * columns / scale_columns(form) * scale;
}

// Of a matrix.
struct Packing {
    PackedForm form = PackedForm::int4_128;
    bool split = false; // int4: its scales have more bits than an element
    // Rows of gate and of up take turns, eight each.
    bool turns = false;
    const float *factors = nullptr; // on the device: [rows], or of experts [experts, rows]; null: 1
};

} // namespace batchllm
