// Reads rows of a four-bit tensor, in blocks of rows and columns: codes are unpacked to bytes,
// however they are packed, then multiplied. The rows' scales and zero points are read once for all
// their columns.
#include "model/four_bits.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/narrow_floats.h"
#include "model/stored_float.h"

namespace batchllm {
namespace {

constexpr int64_t block_rows = 128;   // fills a cache line of Packing::eight
constexpr int64_t block_columns = 64; // a multiple of 8

// Which four bits of a word belong to element i of its eight.
constexpr int64_t eight_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

// The sixteen values of e2m1: a sign, two exponent bits (bias 1), one fraction bit.
constexpr float e2m1_floats[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                                   -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

struct Block {
    int64_t rows = 0;
    int64_t row[block_rows]; // in the file
    int64_t first_column = 0, columns = 0;
    uint8_t codes[block_rows][block_columns];
    std::vector<float> scales, zeros; // [rows, groups]
};

// A byte for each four bits of a word, lowest first.
uint64_t spread(uint32_t word) {
    uint64_t x = word;
    x = (x | x << 16) & 0x0000FFFF0000FFFF;
    x = (x | x << 8) & 0x00FF00FF00FF00FF;
    return (x | x << 4) & 0x0F0F0F0F0F0F0F0F;
}

// If the number of columns is not a multiple of eight, the last word is still whole, both in the
// file and in a block.
void unpack_row(const FourBits &from, Block *block) {
    for (int64_t r = 0; r < block->rows; ++r) {
        const std::byte *words =
            from.codes + block->row[r] * from.row_bytes + block->first_column / 2;
        for (int64_t c = 0; c < block->columns; c += 8) {
            const uint64_t eight = spread(word_at(words, c / 8));
            std::memcpy(block->codes[r] + c, &eight, sizeof eight);
        }
    }
}

void unpack_column(const FourBits &from, Block *block) {
    for (int64_t c = 0; c < block->columns; c += 8) {
        const std::byte *words = from.codes + (block->first_column + c) / 8 * from.rows * 4;
        for (int64_t r = 0; r < block->rows; ++r) {
            const uint64_t eight = spread(word_at(words, block->row[r]));
            std::memcpy(block->codes[r] + c, &eight, sizeof eight);
        }
    }
}

void unpack_eight(const FourBits &from, Block *block) {
    for (int64_t c = 0; c < block->columns; ++c) {
        const std::byte *words = from.codes + (block->first_column + c) * (from.rows / 8) * 4;
        for (int64_t r = 0; r < block->rows;) {
            const int64_t row = block->row[r];
            const uint32_t word = word_at(words, row / 8);
            const bool whole = row % 8 == 0 && r + 8 <= block->rows && block->row[r + 7] == row + 7;
            for (int64_t i = whole ? 0 : row % 8, end = whole ? 8 : i + 1; i < end; ++i) {
                block->codes[r++][c] = static_cast<uint8_t>(word >> (4 * eight_place[i]) & 15u);
            }
        }
    }
}

// Where element `place` of row r begins in [stack, places, rows of one].
int64_t stacked_index(const FourBits &from, int64_t row, int64_t place, int64_t places) {
    const int64_t matrix = row / from.stacked_rows, own = row % from.stacked_rows;
    return (matrix * places + place) * from.stacked_rows + own;
}

void unpack_pair(const FourBits &from, Block *block) {
    for (int64_t c = 0; c < block->columns; c += 2) {
        const int64_t pair = (block->first_column + c) / 2;
        for (int64_t r = 0; r < block->rows; ++r) {
            const int64_t at = stacked_index(from, block->row[r], pair, from.columns / 2);
            const auto both = std::to_integer<uint8_t>(from.codes[at]);
            block->codes[r][c] = both & 15u;
            block->codes[r][c + 1] = both >> 4;
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
    case FourBits::Packing::pair:
        return unpack_pair(from, block);
    }
}

float scale_at(const FourBits &from, int64_t index) {
    if (from.kind == FourBitKind::mxfp4) {
        return e8m0_to_float(std::to_integer<uint8_t>(from.scales[index]));
    }
    if (from.kind == FourBitKind::nvfp4) {
        return e4m3_to_float(std::to_integer<uint8_t>(from.scales[index]));
    }
    return stored_float(from.scales, index, from.scale_type);
}

float zero_at(const FourBits &from, int64_t row, int64_t group) {
    if (from.zeros == FourBits::Zeros::one) return from.kind == FourBitKind::int4 ? from.zero : 0;
    const bool by_row = from.zeros == FourBits::Zeros::by_row;
    const int64_t index =
        by_row ? row / 8 * from.groups + group : group * (from.rows / 8) + row / 8;
    const int64_t place = from.zeros == FourBits::Zeros::eight ? eight_place[row % 8] : row % 8;
    const uint32_t word = word_at(from.zero_words, index) + from.add_to_zeros;
    return static_cast<float>(word >> (4 * place) & 15u);
}

int64_t scale_index(const FourBits &from, int64_t row, int64_t group) {
    if (from.stacked_rows > 0) return stacked_index(from, row, group, from.groups);
    return from.scales_by_group ? group * from.rows + row : row * from.groups + group;
}

void read_scales(const FourBits &from, Block *block) {
    for (int64_t r = 0; r < block->rows; ++r) {
        const int64_t row = block->row[r];
        for (int64_t group = 0; group < from.groups; ++group) {
            const auto at = static_cast<size_t>(r * from.groups + group);
            block->scales[at] = scale_at(from, scale_index(from, row, group));
            block->zeros[at] = zero_at(from, row, group);
        }
    }
}

void put(float x, float *out) { *out = x; }
void put(float x, uint16_t *out) { *out = float_to_bfloat16(x); }

// The scheme of a tensor whose files have not been opened, by any of the names that it may have in them.
std::optional<ScaleScheme> described_scheme(const Model &model, const Tensor &tensor) {
    const std::string module = tensor.name.substr(0, tensor.name.rfind(".weight"));
    const auto scheme = model.quantization->scheme_of(module);
    if (!scheme) return std::nullopt;
    for (const Model::Renamed &renamed : model.renamed) { // left out under another name
        if (!module.starts_with(renamed.to)) continue;
        const std::string other = renamed.from + module.substr(renamed.to.size());
        if (!model.quantization->scheme_of(other)) return std::nullopt;
    }
    return scheme;
}

// Adjacent columns of a group.
template <typename T> void write_run(const FourBits &from, const uint8_t *codes, int64_t count,
                                     float scale, float zero, T *out) {
    if (from.kind != FourBitKind::int4) {
        for (int64_t c = 0; c < count; ++c) {
            put(e2m1_floats[codes[c]] * scale * from.factor, out + c);
        }
    } else {
        for (int64_t c = 0; c < count; ++c) {
            put((static_cast<float>(codes[c]) - zero) * scale, out + c);
        }
    }
}

// out: the destination of the block's first element; rows are `stride` apart.
template <typename T> void write(const FourBits &from, const Block &block, int64_t stride, T *out) {
    for (int64_t r = 0; r < block.rows; ++r) {
        const float *scales = block.scales.data() + r * from.groups;
        const float *zeros = block.zeros.data() + r * from.groups;
        const uint8_t *codes = block.codes[r];
        T *row = out + r * stride;
        if (from.group_of != nullptr) {
            for (int64_t c = 0; c < block.columns; ++c) {
                const uint32_t group = word_at(from.group_of, block.first_column + c);
                put((static_cast<float>(codes[c]) - zeros[group]) * scales[group], row + c);
            }
            continue;
        }
        for (int64_t c = 0; c < block.columns;) {
            const int64_t group = (block.first_column + c) / from.group_columns;
            const int64_t end = (group + 1) * from.group_columns - block.first_column;
            const int64_t count = std::min(end, block.columns) - c;
            write_run(from, codes + c, count, scales[group], zeros[group], row + c);
            c += count;
        }
    }
}

int64_t row_in_file(const Tensor &tensor, int64_t row) {
    return tensor.first_row + row * tensor.row_step;
}

void take_rows(const Tensor &tensor, int64_t begin, int64_t count, Block *block) {
    block->rows = count;
    for (int64_t r = 0; r < count; ++r) block->row[r] = row_in_file(tensor, begin + r);
}

template <typename T>
void read(const Tensor &tensor, const FourBits &from, int64_t begin, int64_t count, T *out) {
    Block block;
    const auto most = static_cast<size_t>(std::min(block_rows, count) * from.groups);
    block.scales.resize(most);
    block.zeros.resize(most);
    for (int64_t first = 0; first < count; first += block_rows) {
        take_rows(tensor, begin + first, std::min(block_rows, count - first), &block);
        read_scales(from, &block);
        for (int64_t column = 0; column < tensor.columns; column += block_columns) {
            block.first_column = tensor.first_column + column;
            block.columns = std::min(block_columns, tensor.columns - column);
            unpack(from, &block);
            write(from, block, tensor.columns, out + first * tensor.columns + column);
        }
    }
}

// Swaps a part of `low`, `shift` bits up, with one of `high`.
void swap_parts(uint64_t *low, uint64_t *high, int shift, uint64_t mask) {
    const uint64_t both = (*low >> shift ^ *high) & mask;
    *high ^= both;
    *low ^= both << shift;
}

// Packing::eight: sixteen columns of eight rows, from a word for each column, `across` apart, to eight bytes for each
// row, `stride` apart.
void turn_eight(const uint32_t *words, int64_t across, uint8_t *to, size_t stride) {
    uint64_t pairs[8]; // of columns: a byte for each row
    for (int64_t p = 0; p < 8; ++p) {
        pairs[p] = spread(words[2 * p * across]) | spread(words[(2 * p + 1) * across]) << 4;
    }
    // Bytes [pair, row] -> [row, pair].
    for (const int i : {0, 1, 2, 3}) swap_parts(pairs + i, pairs + i + 4, 32, 0xFFFFFFFF);
    for (const int i : {0, 1, 4, 5}) swap_parts(pairs + i, pairs + i + 2, 16, 0x0000FFFF0000FFFF);
    for (const int i : {0, 2, 4, 6}) swap_parts(pairs + i, pairs + i + 1, 8, 0x00FF00FF00FF00FF);
    for (size_t r = 0; r < 8; ++r) std::memcpy(to + r * stride, pairs + eight_place[r], 8);
}

// As read_codes: eights of rows from one that begins an eight. Words of block_columns x block_rows are copied first, a
// cache line at a time.
void turn_eights(const Tensor &tensor, int64_t row, int64_t count, uint8_t *codes) {
    constexpr int64_t most = block_rows / 8;
    const FourBits &from = *tensor.four_bits;
    const auto stride = static_cast<size_t>(tensor.columns / 2);
    uint32_t words[block_columns][most];
    for (int64_t first = 0; first < count; first += block_rows) {
        const int64_t eights = std::min(block_rows, count - first) / 8;
        for (int64_t column = 0; column < tensor.columns; column += block_columns) {
            const int64_t columns = std::min(block_columns, tensor.columns - column);
            for (int64_t c = 0; c < columns; ++c) {
                const int64_t in_file = tensor.first_column + column + c;
                const int64_t at = in_file * (from.rows / 8) + (row + first) / 8;
                std::memcpy(words[c], from.codes + at * 4, static_cast<size_t>(eights) * 4);
            }
            for (int64_t e = 0; e < eights; ++e) {
                uint8_t *to = codes + static_cast<size_t>(first + 8 * e) * stride + column / 2;
                for (int64_t c = 0; c < columns; c += 16) {
                    turn_eight(words[c] + e, most, to + c / 2, stride);
                }
            }
        }
    }
}

// The same of Packing::column, where a word is four bytes of a row: a cache line of rows at a time.
void turn_columns(const Tensor &tensor, int64_t begin, int64_t count, uint8_t *codes) {
    constexpr int64_t most = 8, rows_at_once = 16; // words of a row
    const FourBits &from = *tensor.four_bits;
    const auto stride = static_cast<size_t>(tensor.columns / 2);
    const int64_t before = tensor.first_column / 8;
    for (int64_t first = 0; first < count; first += rows_at_once) {
        const int64_t rows = std::min(rows_at_once, count - first);
        for (int64_t word = 0; word < tensor.columns / 8; word += most) {
            const int64_t words = std::min(most, tensor.columns / 8 - word);
            for (int64_t r = 0; r < rows; ++r) {
                const int64_t row = row_in_file(tensor, begin + first + r);
                uint8_t *to = codes + static_cast<size_t>(first + r) * stride + word * 4;
                for (int64_t w = 0; w < words; ++w) {
                    const int64_t at = (before + word + w) * from.rows + row;
                    std::memcpy(to + w * 4, from.codes + at * 4, 4);
                }
            }
        }
    }
}

} // namespace

Groups groups_of(const Tensor &tensor) {
    const FourBits &from = *tensor.four_bits;
    if (from.group_of != nullptr || tensor.columns == from.columns) return {0, from.groups};
    const int64_t first = tensor.first_column / from.group_columns;
    const int64_t last = (tensor.first_column + tensor.columns - 1) / from.group_columns;
    return {first, last - first + 1};
}

bool may_be_stacked(const ScaleScheme &scheme, const Tensor &tensor) {
    const bool stacked = tensor.stored_stack > 0;
    if (scheme.four_bits == FourBitForm::mxfp4_experts) return stacked;
    // ModelOpt's.
    const bool whole = scheme.four_bits == FourBitForm::none && scheme.kind == ScaleKind::tensor;
    const bool stacks = scheme.four_bits == FourBitForm::nvfp4 || whole;
    return !stacked || (stacks && tensor.stored_transposed);
}

std::optional<ScaleScheme> described_e4m3(const Model &model, const Tensor &tensor) {
    if (tensor.columns <= 1 || model.quantization == nullptr) return std::nullopt;
    const auto scheme = described_scheme(model, tensor);
    if (!scheme || scheme->four_bits != FourBitForm::none) return std::nullopt;
    // Where files have no such stacks, theirs are separate matrices (find_separate_experts), or in 16 bits.
    const bool stays = may_be_stacked(*scheme, tensor) || tensor.stored_transposed;
    return stays ? scheme : std::nullopt;
}

std::optional<FourBitFacts> four_bit_facts(const Model &model, const Tensor &tensor) {
    FourBitFacts facts;
    if (const FourBits *found = tensor.four_bits.get()) {
        facts.kind = found->kind;
        facts.group_columns = found->group_columns;
        facts.any_order = found->group_of != nullptr;
        facts.scale_type = found->kind == FourBitKind::int4 ? found->scale_type : DType::f16;
        facts.largest_power = found->largest_power;
        return facts;
    }
    if (tensor.data != nullptr || tensor.columns <= 1 || model.quantization == nullptr) return {};
    const auto scheme = described_scheme(model, tensor);
    if (!scheme || scheme->four_bits == FourBitForm::none) return {};
    if (tensor.name == model.embedding.name || tensor.name == model.layer_inputs.embedding.name) {
        return {};
    }
    const bool words =
        scheme->four_bits == FourBitForm::awq || scheme->four_bits == FourBitForm::gptq;
    if (words && tensor.name == model.head.values.name) return {}; // seldom is, and does not say so
    if (!may_be_stacked(*scheme, tensor)) return {};
    switch (scheme->four_bits) {
    case FourBitForm::packed_nvfp4:
    case FourBitForm::nvfp4:
        facts.kind = FourBitKind::nvfp4;
        break;
    case FourBitForm::packed_mxfp4:
    case FourBitForm::mxfp4_experts:
        facts.kind = FourBitKind::mxfp4;
        break;
    default:
        break;
    }
    facts.group_columns = scheme->group > 0 ? scheme->group : tensor.columns;
    facts.any_order = scheme->any_order;
    if (scheme->four_bits == FourBitForm::packed) facts.scale_type = model.dtype;
    return facts;
}

std::vector<int32_t> column_order(const FourBits &four_bits) {
    std::vector<int32_t> order(static_cast<size_t>(four_bits.columns));
    std::iota(order.begin(), order.end(), 0);
    const auto group = [&](int64_t column) { return int64_t{word_at(four_bits.group_of, column)}; };
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return group(a) < group(b); });
    for (int64_t c = 0; c < four_bits.columns; ++c) {
        if (group(order[static_cast<size_t>(c)]) != c / four_bits.group_columns) return {};
    }
    return order;
}

void read_codes(const Tensor &tensor, int64_t begin, int64_t count, uint8_t *codes) {
    const FourBits &from = *tensor.four_bits;
    const auto bytes = static_cast<size_t>(tensor.columns / 2);
    if (from.packing == FourBits::Packing::row) {
        for (int64_t r = 0; r < count; ++r) {
            const std::byte *row = from.codes + row_in_file(tensor, begin + r) * from.row_bytes;
            std::memcpy(codes + static_cast<size_t>(r) * bytes, row + tensor.first_column / 2,
                        bytes);
        }
        return;
    }
    if (from.packing == FourBits::Packing::column) {
        return turn_columns(tensor, begin, count, codes);
    }
    if (from.packing == FourBits::Packing::eight && tensor.row_step == 1 &&
        row_in_file(tensor, begin) % 8 == 0 && count % 8 == 0 && tensor.columns % 16 == 0) {
        return turn_eights(tensor, row_in_file(tensor, begin), count, codes);
    }
    Block block;
    for (int64_t first = 0; first < count; first += block_rows) {
        take_rows(tensor, begin + first, std::min(block_rows, count - first), &block);
        for (int64_t column = 0; column < tensor.columns; column += block_columns) {
            block.first_column = tensor.first_column + column;
            block.columns = std::min(block_columns, tensor.columns - column);
            unpack(from, &block);
            for (int64_t r = 0; r < block.rows; ++r) {
                uint8_t *to = codes + static_cast<size_t>(first + r) * bytes + column / 2;
                const uint8_t *own = block.codes[r];
                for (int64_t c = 0; c < block.columns; c += 2) {
                    to[c / 2] = static_cast<uint8_t>(own[c] | own[c + 1] << 4);
                }
            }
        }
    }
}

void read_scales_and_zeros(const Tensor &tensor, int64_t begin, int64_t count, float *scales,
                           uint8_t *zeros) {
    const FourBits &from = *tensor.four_bits;
    const Groups of = groups_of(tensor);
    for (int64_t r = 0; r < count; ++r) {
        const int64_t row = row_in_file(tensor, begin + r);
        for (int64_t group = of.first; group < of.first + of.count; ++group) {
            *scales++ = scale_at(from, scale_index(from, row, group));
            *zeros++ = static_cast<uint8_t>(zero_at(from, row, group));
        }
    }
}

void read_scale_bytes(const Tensor &tensor, int64_t begin, int64_t count, uint8_t *bytes) {
    const FourBits &from = *tensor.four_bits;
    const Groups of = groups_of(tensor);
    const auto groups = static_cast<size_t>(of.count);
    for (int64_t r = 0; r < count; ++r) {
        const int64_t row = row_in_file(tensor, begin + r);
        uint8_t *to = bytes + static_cast<size_t>(r) * groups;
        if (from.stacked_rows == 0) {
            std::memcpy(to, from.scales + scale_index(from, row, of.first), groups);
            continue;
        }
        for (int64_t g = 0; g < of.count; ++g) {
            const int64_t at = scale_index(from, row, of.first + g);
            to[g] = std::to_integer<uint8_t>(from.scales[at]);
        }
    }
}

void read_four_bits(const Tensor &tensor, int64_t begin, int64_t count, DType type, void *out) {
    if (type == DType::f32) {
        read(tensor, *tensor.four_bits, begin, count, static_cast<float *>(out));
    } else {
        read(tensor, *tensor.four_bits, begin, count, static_cast<uint16_t *>(out));
    }
}

} // namespace batchllm
