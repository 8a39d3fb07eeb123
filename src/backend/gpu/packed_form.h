// How four-bit weights lie on a device when they stay packed (cuda/four_bits/layout.h). Here, without
// CUDA, because predictions need it too.
#pragma once

#include <cstdint>

namespace batchllm {

// int4: integers with scales and zero points, whose number says how many columns share them. mxfp4_e4m3: mxfp4 for
// products with inputs in e4m3.
enum class PackedForm : uint8_t { int4_128, int4_32, mxfp4, nvfp4, mxfp4_e4m3 };

constexpr bool is_int4(PackedForm form) {
    return form == PackedForm::int4_128 || form == PackedForm::int4_32;
}
constexpr bool is_mxfp4(PackedForm form) {
    return form == PackedForm::mxfp4 || form == PackedForm::mxfp4_e4m3;
}
// Those that have Packing::factors.
constexpr bool has_factors(PackedForm form) {
    return form == PackedForm::nvfp4 || form == PackedForm::mxfp4_e4m3;
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
    bool ordered = false; // packed columns are columns of W in another order
    // int4: where that is faster it may be rounded to e4m3, and so may what it is multiplied with.
    bool rounds = false;
    // On the device, of nvfp4 and mxfp4_e4m3: [rows], or of experts [experts, rows], null: 1; and [columns], where ordered, the columns of W.
    const float *factors = nullptr;
    const int32_t *order = nullptr;
    // Where it may be rounded: [rows], the scales of e4m3, gate's first.
    const float *rounded = nullptr;
};

} // namespace batchllm
