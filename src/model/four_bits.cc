// Rows of a tensor in four bits. Read in blocks of rows and columns: codes are unpacked into bytes, however
// they are packed, then multiplied group by group, so that a scale is looked up once for all columns of its
// group that stand together.
#include "model/four_bits.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/narrow_floats.h"

namespace batchllm {
namespace {

constexpr int64_t block_rows = 32;
constexpr int64_t block_columns = 64; // a multiple of 8

// Which four bits of a word are those of element i of its eight.
constexpr int64_t eight_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

// Of the four bits of e2m1: a sign, two bits of exponent (bias 1), one of fraction.
constexpr float e2m1_floats[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                   -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

struct Block {
    int64_t rows = 0;
    int64_t row[block_rows]; // in the file
    int64_t first_column = 0, columns = 0;
    uint8_t codes[block_rows][block_columns];
    float scale[block_rows], zero[block_rows]; // of one group
};

uint32_t word_at(const std::byte *words, int64_t index) {
    uint32_t word;
    std::memcpy(&word, words + index * 4, sizeof word);
    return word;
}

void unpack_row(const FourBits &from, Block *block) {
    for (int64_t r = 0; r < block->rows; ++r) {
        const std::byte *bytes =
            from.codes + block->row[r] * from.row_bytes + block->first_column / 2;
        for (int64_t c = 0; c < block->columns; ++c) {
            const auto pair = std::to_integer<uint32_t>(bytes[c / 2]);
            block->codes[r][c] = static_cast<uint8_t>(pair >> (c % 2 * 4) & 15u);
        }
    }
}

void unpack_column(const FourBits &from, Block *block) {
    for (int64_t c = 0; c < block->columns; c += 8) {
        const std::byte *words = from.codes + (block->first_column + c) / 8 * from.rows * 4;
        for (int64_t r = 0; r < block->rows; ++r) {
            const uint32_t word = word_at(words, block->row[r]);
            for (int64_t i = 0; i < 8; ++i) {
                block->codes[r][c + i] = static_cast<uint8_t>(word >> (4 * i) & 15u);
            }
        }
    }
}

void unpack_eight(const FourBits &from, Block *block) {
    for (int64_t c = 0; c < block->columns; ++c) {
        const std::byte *words = from.codes + (block->first_column + c) * (from.rows / 8) * 4;
        for (int64_t r = 0; r < block->rows; ++r) {
            const uint32_t word = word_at(words, block->row[r] / 8);
            const int64_t place = eight_place[block->row[r] % 8];
            block->codes[r][c] = static_cast<uint8_t>(word >> (4 * place) & 15u);
        }
    }
}

void unpack(const FourBits &from, Block *block) {
    switch (from.packing) {
    case FourBits::Packing::row:
        return unpack_row(from, block);
    case FourBits::Packing::column:
        return unpack_column(from, block);
    case FourBits::Packing::eight:
        return unpack_eight(from, block);
    }
}

float scale_at(const FourBits &from, int64_t index) {
    if (from.floats) return e8m0_to_float(std::to_integer<uint8_t>(from.scales[index]));
    const std::byte *p = from.scales + index * dtype_bytes(from.scale_type);
    if (from.scale_type == DType::f32) {
        float value;
        std::memcpy(&value, p, sizeof value);
        return value;
    }
    uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return from.scale_type == DType::bf16 ? bfloat16_to_float(bits) : float16_to_float(bits);
}

float zero_at(const FourBits &from, int64_t row, int64_t group) {
    if (from.zeros == FourBits::Zeros::one) return from.floats ? 0 : from.zero;
    const bool by_row = from.zeros == FourBits::Zeros::by_row;
    const int64_t index =
        by_row ? row / 8 * from.groups + group : group * (from.rows / 8) + row / 8;
    const int64_t place = from.zeros == FourBits::Zeros::eight ? eight_place[row % 8] : row % 8;
    const uint32_t word = word_at(from.zero_words, index) + from.add_to_zeros;
    return static_cast<float>(word >> (4 * place) & 15u);
}

struct Group {
    int64_t index;
    int64_t end; // the column after those of it that stand together
};

Group group_at(const FourBits &from, int64_t column, int64_t end) {
    if (from.group_of == nullptr) {
        const int64_t index = column / from.group_columns;
        return {index, std::min(end, (index + 1) * from.group_columns)};
    }
    const uint32_t index = word_at(from.group_of, column);
    while (++column < end && word_at(from.group_of, column) == index) {}
    return {index, column};
}

void read_group(const FourBits &from, int64_t group, Block *block) {
    for (int64_t r = 0; r < block->rows; ++r) {
        const int64_t row = block->row[r];
        block->scale[r] = scale_at(from, from.scales_by_group ? group * from.rows + row
                                                              : row * from.groups + group);
        block->zero[r] = zero_at(from, row, group);
    }
}

void put(float x, float *out) { *out = x; }
void put(float x, uint16_t *out) { *out = float_to_bfloat16(x); }

// out: of the block's first element, rows `stride` apart.
template <typename T> void write(const FourBits &from, Block *block, int64_t stride, T *out) {
    for (int64_t begin = 0; begin < block->columns;) {
        const int64_t column = block->first_column;
        const Group group = group_at(from, column + begin, column + block->columns);
        const int64_t end = group.end - column;
        read_group(from, group.index, block);
        for (int64_t r = 0; r < block->rows; ++r) {
            const float scale = block->scale[r], zero = block->zero[r];
            const uint8_t *codes = block->codes[r];
            T *row = out + r * stride;
            if (from.floats) {
                for (int64_t c = begin; c < end; ++c) put(e2m1_floats[codes[c]] * scale, row + c);
            } else {
                for (int64_t c = begin; c < end; ++c) {
                    put((static_cast<float>(codes[c]) - zero) * scale, row + c);
                }
            }
        }
        begin = end;
    }
}

template <typename T>
void read(const Tensor &tensor, const FourBits &from, int64_t begin, int64_t count, T *out) {
    Block block;
    for (int64_t first = 0; first < count; first += block_rows) {
        block.rows = std::min(block_rows, count - first);
        for (int64_t r = 0; r < block.rows; ++r) {
            block.row[r] = tensor.first_row + (begin + first + r) * tensor.row_step;
        }
        for (int64_t column = 0; column < tensor.columns; column += block_columns) {
            block.first_column = column;
            block.columns = std::min(block_columns, tensor.columns - column);
            unpack(from, &block);
            write(from, &block, tensor.columns, out + first * tensor.columns + column);
        }
    }
}

} // namespace

void read_four_bits(const Tensor &tensor, int64_t begin, int64_t count, DType type, void *out) {
    if (type == DType::f32) {
        read(tensor, *tensor.four_bits, begin, count, static_cast<float *>(out));
    } else {
        read(tensor, *tensor.four_bits, begin, count, static_cast<uint16_t *>(out));
    }
}

} // namespace batchllm
