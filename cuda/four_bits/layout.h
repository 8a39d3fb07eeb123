// How a matrix W [rows, columns] of four-bit weights lies in device memory. The products read it in whole copies, and
// each thread of a warpgroup finds its part of wgmma's register operand in sixteen bytes.
//
// W is cut into cells of 64 rows x 128 columns. A column of cells follows another; in it cells go down the rows, so
// that the cells of a tile of 256 rows are one contiguous copy. Rows are filled up to 64, columns to 64 (the last
// column of cells has half cells if it must), with weights of zero.
//
//     column of cells 0                        column of cells 1                       the last one
//     +--------+--------+-- .. --+--------+    +--------+--------+-- .. --+--------+   +----+----+-- .. --+----+
//     | 0..63  | 64..   |        | rows-1 |    |        |        |        |        |   |    |    |        |    |
//     +--------+--------+-- .. --+--------+    +--------+--------+-- .. --+--------+   +----+----+-- .. --+----+
//
//     a cell                                   half 0: columns 0..63      half 1: columns 64..127
//     +----------------------------------------+---------------+---------+---------------+---------+
//     | scales of 128 columns (int4_128 alone) | codes, 2048 B | scales  | codes, 2048 B | scales  |
//     +----------------------------------------+---------------+---------+---------------+---------+
//
//     codes of a half: thread t of 128 has bytes [16 t, 16 t + 16): words 0..3, of 16 columns each. Word j has the
//     eight weights that thread t gives to wgmma m64 k16 (or mma.sync m16n8k16, of its warp's rows): with
//     g = lane / 4, q = lane % 4, in rows 16 warp + g (registers 0, 2) and + 8 (registers 1, 3), columns
//     16 j + 2 q, + 1 (registers 0, 1) and the same + 8 (registers 2, 3).
//
// mxfp4_e4m3 is for wgmma m64 k32: words 0 and 1 are of 32 columns, 2 and 3 of the next 32, the first of the two of row
// 16 warp + g, the second of row + 8; columns 4 q .. 4 q + 3 of a word (registers 0, 1), and the same + 16 (registers
// 2, 3).
//
// A code's four bits are where the fewest instructions turn them into a register (widen.cuh):
//     int4   bits 4 r .. 4 r + 3 of either half-word for register r; the even column is in the lower half-word.
//     e2m1   sign, exponent (2), fraction of register 0 at bits 15, 8..6 of a half-word, 1 at 12, 5..3, 2 at 9, 2..0,
//            3 at 14, 11..10, 13 (not mxfp4_e4m3). In these places or three or six bits below they are those of a 16-bit float
//            whose exponent lacks its bias.
//     mxfp4_e4m3  magnitude of column i of the first four at bits 4 i .. 4 i + 2, sign at 8 i + 7; of the others at
//            16 + 4 i .. 16 + 4 i + 2 and 8 i + 3.
//
// Scales are those of rows 16 warp + g and + 8, next to each other, in the order of warp and g:
//     int4_128, int4_32  a word for each of the two rows, for 128 or 32 columns: the scale's upper part (16 bits), its
//            lower part (12), the zero point (4). Both parts are elements' floats, the lower one without its last
//            four bits; their sum is the scale: bf16 elements take float16's scales exactly.
//     mxfp4  a byte for each 32 columns, two of the first row, then two of the second.
//     mxfp4_e4m3  the same, a byte 8 times the number of a table of eight magnitudes (kMxfp4Places); a row's largest scale
//            is a factor of its sums.
//     nvfp4  a byte for each 16 columns, four and four. Eight bits of a float without a sign, five of them exponent:
//            e4m3's subnormal numbers have a form of their own here, so that the multiplication has no case for them.
// The bytes of mxfp4 and nvfp4 are exponents of bf16, with the bias that e2m1 lacks. So that this never overflows, a
// power of two may be taken out: what the products read times packed_factor() are the weights. Products in f16 have
// int4 alone.
#pragma once

#include <cstdint>

#include "backend/gpu/packed_form.h"

namespace batchllm::cuda {

inline constexpr int32_t kCellRows = 64, kCellColumns = 128, kHalfColumns = 64;
inline constexpr int32_t kHalfCodes = kCellRows * kHalfColumns / 2; // bytes

// Bytes: of scales before the halves, of scales after the codes of a half, of a half.
constexpr int32_t shared_scales(PackedForm form) { return form == PackedForm::int4_128 ? 256 : 0; }
constexpr int32_t half_scales(PackedForm form) {
    return form == PackedForm::int4_32 ? 512
           : is_mxfp4(form)            ? 128
           : form == PackedForm::nvfp4 ? 256
                                       : 0;
}
constexpr int32_t half_bytes(PackedForm form) { return kHalfCodes + half_scales(form); }
constexpr int32_t cell_bytes(PackedForm form, int32_t halves = 2) {
    return shared_scales(form) + halves * half_bytes(form);
}

constexpr int32_t blocks_of(int32_t count) { return (count + 63) / 64; } // of rows or columns

// Of a matrix. Where its cells are, and how many bytes it has.
struct PackedShape {
    PackedForm form;
    int32_t rows, columns;

    constexpr int32_t row_blocks() const { return blocks_of(rows); }
    constexpr int32_t halves() const { return blocks_of(columns); }
    constexpr int32_t cell_columns() const { return (halves() + 1) / 2; }
    // Of a cell in the c-th column of cells.
    constexpr int32_t halves_of(int32_t c) const { return c < halves() / 2 ? 2 : 1; }
    constexpr int64_t cell(int32_t c, int32_t row_block) const {
        return int64_t{c} * row_blocks() * cell_bytes(form) +
               int64_t{row_block} * cell_bytes(form, halves_of(c));
    }
    constexpr int64_t bytes() const {
        return (int64_t{halves() / 2} * cell_bytes(form) +
                int64_t{halves() % 2} * (halves() % 2 == 0 ? 0 : cell_bytes(form, 1))) *
               row_blocks();
    }
};

// Where in a half-word the bits of register r's code are: 0 the lowest of int4, the fraction of e2m1.
constexpr int32_t place_of_bit(bool int4, int32_t r, int32_t bit) {
    if (int4) return 4 * r + bit;
    if (r < 3) return (bit == 3 ? 15 : 6 + bit) - 3 * r;
    return bit == 3 ? 14 : bit == 0 ? 13 : 9 + bit;
}
// A code as it lies in a half-word.
constexpr uint32_t placed(bool int4, int32_t r, uint32_t code) {
    uint32_t bits = 0;
    for (int32_t bit = 0; bit < 4; ++bit) {
        bits |= (code >> bit & 1u) << place_of_bit(int4, r, bit);
    }
    return bits;
}

// The byte of nvfp4's scale, without its sign, from e4m3; 0: the scale is 0.
constexpr uint32_t nvfp4_scale(uint32_t e4m3) {
    uint32_t exponent = e4m3 >> 3 & 15u, fraction = e4m3 & 7u;
    if (exponent > 0) return (exponent + 15) << 3 | fraction;
    if (fraction == 0) return 0;
    exponent = 16;
    for (; fraction < 8; fraction <<= 1) --exponent;
    return exponent << 3 | (fraction & 7u);
}

// What is added to the exponent of mxfp4's scale (a byte of e8m0, whose bias is 127), once power, a power of two, has
// been taken out. Exponents below 1 make weights of 0.
constexpr int32_t mxfp4_bias(int32_t power) { return 126 - power; }
// The power of two that must be taken out if `largest` is the largest exponent.
constexpr int32_t mxfp4_power(int32_t largest) { return largest > 128 ? largest - 128 : 0; }
inline constexpr int32_t kNvfp4Power = 7;

// mxfp4_e4m3: table n has e2m1's magnitudes times 2^(n - kMxfp4Places), all of them exact in e4m3; but table 0 zeros. A
// row's largest scale has the last table, number 15.
inline constexpr int32_t kMxfp4Places = 9, kMxfp4Tables = 16;
// Of a row whose largest exponent is given; not so small that the factor is subnormal.
constexpr int32_t mxfp4_table(int32_t exponent, int32_t largest) {
    const int32_t number = kMxfp4Tables - 1 - (largest > 7 ? largest : 7) + exponent;
    return number > 0 ? number : 0;
}
// The power of two that the row's sums are multiplied by.
constexpr int32_t mxfp4_row_power(int32_t largest) {
    return (largest > 7 ? largest : 7) - 127 - (kMxfp4Tables - 1 - kMxfp4Places);
}

// 2^power.
constexpr float packed_factor(int32_t power) {
    float factor = 1;
    for (; power > 0; --power) factor *= 2;
    for (; power < 0; ++power) factor /= 2;
    return factor;
}

} // namespace batchllm::cuda
