// A tensor whose elements have four bits, as it is stored in the files: integers with scales and zero points
// by group (AWQ, GPTQ, compressed-tensors), or e2m1 with powers of two (MXFP4) or e4m3 (NVFP4). Nothing is copied:
// read_rows() of model.h turns it into rows of elements; backends that keep four bits read the parts.
//
// The element in row r and column c is (code - zero(r, g)) * scale(r, g), where g is the group of column c;
// in e2m1 it is value(code) * scale(r, g), in NVFP4 times a factor of the whole tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model.h"
#include "model/quantization.h"
#include "model/safetensors.h"

namespace batchllm {

enum class FourBitKind : uint8_t {
    int4,
    mxfp4, // e2m1 with one-byte scales that are powers of two, of 32 columns
    nvfp4, // e2m1 with scales in e4m3, of 16 columns
};

// What decides how a backend can keep such a tensor.
struct FourBitFacts {
    FourBitKind kind = FourBitKind::int4;
    int64_t group_columns = 0;
    bool any_order = false;        // the columns of a group may be anywhere
    DType scale_type = DType::f16; // of int4
    uint8_t largest_power = 0;     // mxfp4: of all scales, with the bias 127
    bool operator==(const FourBitFacts &) const = default;
};
// Of a tensor that is in four bits; empty: it is not. Before its bytes are there, as the quantization_config says.
std::optional<FourBitFacts> four_bit_facts(const Model &model, const Tensor &tensor);
// The scheme of a tensor that is in e4m3, as the quantization_config has it, before its bytes are there.
std::optional<ScaleScheme> described_e4m3(const Model &model, const Tensor &tensor);

// Words have 32 bits. [rows, columns] is the whole tensor in the file.
struct FourBits {
    enum class Packing : uint8_t {
        row,    // [rows, row_bytes]: neighbours in a row, lowest bits first
        column, // [columns / 8, rows] words: eight columns of a row, lowest bits first
        eight,  // [columns, rows / 8] words: eight rows of a column, in AWQ's order
        pair, // [columns / 2, rows] bytes: two columns of a row, lowest bits first; of a stack, each of its matrices
    };
    // How zero points are stored: words for eight rows, lowest bits first or in AWQ's order.
    enum class Zeros : uint8_t {
        one,      // `zero` for all elements
        by_row,   // [ceil(rows / 8), groups]
        by_group, // [groups, rows / 8]
        eight,    // the same, in AWQ's order
    };

    Packing packing = Packing::row;
    FourBitKind kind = FourBitKind::int4;
    int64_t rows = 0, columns = 0;
    int64_t row_bytes = 0;    // for Packing::row
    int64_t stacked_rows = 0; // for Packing::pair: of one matrix. Its scales are [groups, rows] too
    const std::byte *codes = nullptr;

    int64_t groups = 0;
    int64_t group_columns = 0;           // in every group but possibly the last
    const std::byte *group_of = nullptr; // [columns] int32; null: column / group_columns

    DType scale_type = DType::f32;
    bool scales_by_group = false; // [groups, rows], else [rows, groups]
    const std::byte *scales = nullptr;
    uint8_t largest_power = 0; // mxfp4
    float factor = 1;          // nvfp4

    Zeros zeros = Zeros::one;
    float zero = 8;
    uint32_t add_to_zeros = 0; // added to each word of zero points
    const std::byte *zero_words = nullptr;
};

// Where a tensor is in the files.
struct StoredPart {
    const StoredTensor *stored;
    const std::byte *data;
    const char *file;
    bool is_new; // found for the first time
};
// Empty: there is no tensor with that name.
using FindPart = std::function<std::optional<StoredPart>(const std::string &name)>;

// Whether there are stacks of experts of this scheme, if the tensor is in one; else single matrices.
bool may_be_stacked(const ScaleScheme &scheme, const Tensor &tensor);

// The name of the stored tensor with the four-bit elements of a described tensor, under this
// scheme.
std::string four_bits_name(const Tensor &tensor, const ScaleScheme &scheme);

// Of parts whose words have 32 bits.
inline uint32_t word_at(const std::byte *words, int64_t index) {
    uint32_t word;
    std::memcpy(&word, words + index * 4, sizeof word);
    return word;
}

// Finds the stored tensors that make up a four-bit tensor and checks them: types, shapes, the
// groups of columns, and scales that are found for the first time. The tensor four_bits_name() must
// exist.
Result<std::shared_ptr<const FourBits>>
find_four_bits(const Tensor &tensor, const ScaleScheme &scheme, const FindPart &find);

// Its columns, those of a group side by side, where they are not so in the file. Empty: all groups but the last do not
// have group_columns of them.
std::vector<int32_t> column_order(const FourBits &four_bits);

// The groups of a tensor's columns; all of the file's if a group's columns may be anywhere.
struct Groups {
    int64_t first, count;
};
Groups groups_of(const Tensor &tensor);

// Rows [begin, begin + count) of the parts. codes: [count, columns / 2], column c in bits 4 (c % 2) .. of its byte;
// columns are a multiple of 8.
void read_codes(const Tensor &tensor, int64_t begin, int64_t count, uint8_t *codes);
// [count, groups_of(tensor)] each. int4:
void read_scales_and_zeros(const Tensor &tensor, int64_t begin, int64_t count, float *scales,
                           uint8_t *zeros);
// As they are in the file, of the others.
void read_scale_bytes(const Tensor &tensor, int64_t begin, int64_t count, uint8_t *bytes);

// read_rows() of model.h for such a tensor.
void read_four_bits(const Tensor &tensor, int64_t begin, int64_t count, DType type, void *out);

} // namespace batchllm
