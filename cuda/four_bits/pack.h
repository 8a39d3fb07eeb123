// Four-bit weights as checkpoints mean them -> as they lie on the device (four_bits/layout.h). On the device by a
// kernel (four_bits/convert.h), once at load; on the host for tests. Both give the same bytes: the functions here are theirs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/narrow_floats.h"
#include "four_bits/layout.h"

namespace batchllm::cuda {

// A matrix, or some rows of one: q of a fused QKV, gate or up of both.
struct PackSource {
    const uint8_t *codes;       // [rows, columns / 2] column c in bits 4 (c % 2) .. of its byte
    const float *scales;        // int4: [rows, groups]
    const uint8_t *zeros;       // int4: [rows, groups] below 16; null: all 8
    const uint8_t *scale_bytes; // mxfp4 in e8m0, nvfp4 in e4m3: [rows, groups]
    const int32_t *order;  // [columns] the packed column c is column order[c] of codes; null: c
    int32_t rows, columns; // columns a multiple of 8
    // Row r is row r * step of codes, scales, zeros and scale_bytes: 1, or 2 where gate and up alternate.
    int32_t step;
    int32_t groups,
        group_columns; // of packed columns; a multiple of scale_columns() unless there is one group
    // Row r becomes row first + r / run * stride + r % run: of a fused matrix run == stride; gate and up have runs
    // of 8 and strides of 16.
    int32_t first, run, stride;
    int32_t power; // mxfp4: mxfp4_power() of all scales of the packed matrix
};

// The whole packed matrix, filled up: bytes of 0 before the first source is packed into it.
struct PackTarget {
    PackedShape shape;
    DType element; // of int4's scales: bf16, or f16 for products in f16
    std::byte *data;
    float *factors = nullptr; // [rows] of mxfp4_e4m3: written
};

void pack_on_host(const PackTarget &target, const PackSource &source);

// ---- What both do -------------------------------------------------------------------------------

// The source's row at a row of the target, or -1.
constexpr int32_t source_row(const PackSource &s, int32_t row) {
    const int32_t from = row - s.first;
    if (from < 0 || from % s.stride >= s.run) return -1;
    const int32_t r = from / s.stride * s.run + from % s.stride;
    return r < s.rows ? r : -1;
}

// The place of a scale of packed column c.
constexpr int64_t scale_index(const PackSource &s, int32_t r, int32_t c) {
    const int32_t group = (c < s.columns ? c : s.columns - 1) / s.group_columns;
    return int64_t{r} * s.step * s.groups + group;
}
constexpr uint32_t zero_of(const PackSource &s, int64_t index) {
    return s.zeros != nullptr ? s.zeros[index] : 8u;
}

// As it is packed: what fills up a row is a weight of zero.
constexpr uint32_t code_of(PackedForm form, const PackSource &s, int32_t r, int32_t c) {
    if (c >= s.columns) return is_int4(form) ? zero_of(s, scale_index(s, r, c)) : 0u;
    const int32_t from = s.order != nullptr ? s.order[c] : c;
    const uint32_t code =
        s.codes[int64_t{r} * s.step * (s.columns / 2) + from / 2] >> from % 2 * 4 & 15u;
    if (form != PackedForm::nvfp4) return code;
    const uint32_t scale = s.scale_bytes[scale_index(s, r, c)];
    return (scale & 0x7fu) == 0 ? 0u : code ^ (scale >> 4 & 8u);
}

// Rows of an entry of scales, from the block's first: 16 warp + g + 8 second, with entry 16 warp + 2 g + second.
constexpr int32_t row_of_entry(int32_t entry) {
    return entry / 16 * 16 + entry % 16 / 2 + entry % 2 * 8;
}

// Word j of a thread in a half whose first column is given; `before`: what other sources have put there.
constexpr uint32_t packed_word(PackedForm form, const PackSource &s, int32_t first_row,
                               int32_t first_column, int32_t thread, int32_t j, uint32_t before) {
    uint32_t word = before;
    const int32_t lane = thread % 32;
    if (form == PackedForm::mxfp4_e4m3) {
        const int32_t r = source_row(s, first_row + thread / 32 * 16 + lane / 4 + j % 2 * 8);
        if (r < 0) return before;
        word = 0;
        for (int32_t i = 0; i < 8; ++i) {
            const int32_t column = first_column + j / 2 * 32 + i / 4 * 16 + lane % 4 * 4 + i % 4;
            const uint32_t code = code_of(form, s, r, column);
            word |= (code & 7u) << 4 * i | code >> 3 << (i < 4 ? 8 * i + 7 : 8 * i - 29);
        }
        return word;
    }
    for (int32_t second = 0; second < 2; ++second) {
        const int32_t r = source_row(s, first_row + thread / 32 * 16 + lane / 4 + second * 8);
        if (r < 0) continue;
        for (int32_t i = 0; i < 4; ++i) {
            const int32_t reg = second + i / 2 * 2, shift = i % 2 * 16;
            const int32_t column = first_column + j * 16 + lane % 4 * 2 + i / 2 * 8 + i % 2;
            word &= ~(placed(is_int4(form), reg, 15) << shift);
            word |= placed(is_int4(form), reg, code_of(form, s, r, column)) << shift;
        }
    }
    return word;
}

// An element's bits.
constexpr uint32_t element_bits(DType element, float x) {
    return element == DType::f16 ? float_to_float16(x) : float_to_bfloat16(x);
}
constexpr float element_value(DType element, uint32_t bits) {
    const auto half = static_cast<uint16_t>(bits);
    return element == DType::f16 ? float16_to_float(half) : bfloat16_to_float(half);
}

constexpr uint32_t packed_scale(DType element, float scale, uint32_t zero) {
    const uint32_t upper = element_bits(element, scale);
    const uint32_t lower = element_bits(element, scale - element_value(element, upper));
    return upper << 16 | (lower & 0xfff0u) | zero;
}

// The first column and the bytes, from the cell's first, of scale number i of an entry; of so many:
constexpr int32_t scales_of_cell(PackedForm form) { return kCellColumns / scale_columns(form); }
constexpr int32_t scale_place(PackedForm form, int32_t entry, int32_t i) {
    if (form == PackedForm::int4_128) return entry * 4;
    const int32_t each = scales_of_cell(form) / 2; // of a half
    const int32_t half = i / each * half_bytes(form) + kHalfCodes;
    if (form == PackedForm::int4_32) return half + i % each * 256 + entry * 4;
    return half + entry * each + i % each;
}

// Writes scale number i of an entry of a cell.
constexpr void pack_scale(const PackTarget &t, const PackSource &s, int32_t cell_column,
                          int32_t row_block, int32_t entry, int32_t i) {
    const PackedForm form = t.shape.form;
    const int32_t column = cell_column * kCellColumns + i * scale_columns(form);
    const int32_t r = source_row(s, row_block * kCellRows + row_of_entry(entry));
    if (r < 0 || column >= t.shape.halves() * kHalfColumns) return;
    std::byte *to = t.data + t.shape.cell(cell_column, row_block) + scale_place(form, entry, i);
    const int64_t index = scale_index(s, r, column);
    if (is_int4(form)) {
        const uint32_t word = packed_scale(t.element, s.scales[index], zero_of(s, index));
        for (int32_t b = 0; b < 4; ++b) to[b] = static_cast<std::byte>(word >> 8 * b & 255u);
        return;
    }
    if (form == PackedForm::nvfp4) {
        *to = static_cast<std::byte>(nvfp4_scale(s.scale_bytes[index]));
        return;
    }
    if (form == PackedForm::mxfp4_e4m3) {
        int32_t largest = 0; // of the row: few bytes, which are near
        for (int32_t g = 0; g < s.groups; ++g) {
            const int32_t own = s.scale_bytes[int64_t{r} * s.step * s.groups + g];
            largest = own > largest ? own : largest;
        }
        *to = static_cast<std::byte>(8 * mxfp4_table(s.scale_bytes[index], largest));
        if (column == 0) {
            t.factors[row_block * kCellRows + row_of_entry(entry)] =
                packed_factor(mxfp4_row_power(largest));
        }
        return;
    }
    const int32_t exponent = s.scale_bytes[index] + mxfp4_bias(s.power);
    *to = static_cast<std::byte>(exponent < 0 ? 0 : exponent);
}

} // namespace batchllm::cuda
