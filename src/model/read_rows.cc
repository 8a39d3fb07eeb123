// Rows of a tensor -> elements of the type that a backend computes in; views of a tensor.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/narrow_floats.h"
#include "model/four_bits.h"
#include "model/model.h"
#include "model/stored_float.h"

namespace batchllm {
namespace {

float element(const Tensor &tensor, int64_t index) {
    return stored_float(tensor.data, index, tensor.dtype);
}

// Calls act(i, scale) for the columns [first, end) of an e4m3 row.
template <typename Act>
void for_each_scale(const Tensor &tensor, int64_t row, int64_t first, int64_t end, const Act &act) {
    const Scales &scales = tensor.scales;
    const int64_t in_file = tensor.first_row + row * tensor.row_step;
    const float *of_row = scales.data + in_file / scales.block_rows * scales.per_row;
    for (int64_t begin = first; begin < end;) {
        const int64_t block = (tensor.first_column + begin) / scales.block_columns;
        const float scale = of_row[block];
        const int64_t last =
            std::min((block + 1) * scales.block_columns - tensor.first_column, end);
        for (; begin < last; ++begin) act(begin, scale);
    }
}

// Calls put(i, value) for each column i of an e4m3 row.
template <typename Put> void scale_row(const Tensor &tensor, int64_t row, const Put &put) {
    const std::byte *from = tensor.data + row * tensor.row_length();
    for_each_scale(tensor, row, 0, tensor.columns, [&](int64_t i, float scale) {
        put(i, kE4m3Floats[std::to_integer<size_t>(from[i])] * scale);
    });
}

// Calls put(row, column, value) for rows [begin, begin + count) that are not contiguous, in blocks
// whose bytes stay in the processor's cache.
template <typename Put>
void gather(const Tensor &tensor, int64_t begin, int64_t count, const Put &put) {
    const bool transposed = tensor.stored_transposed;
    const int64_t row_stride = tensor.row_step * (transposed ? 1 : tensor.row_length());
    const int64_t column_stride = transposed ? tensor.stored_rows : 1;
    constexpr int64_t block = 64;
    for (int64_t first = 0; first < tensor.columns; first += block) {
        const int64_t end = std::min(tensor.columns, first + block);
        for (int64_t r = 0; r < count; ++r) {
            const int64_t at = (begin + r) * row_stride;
            if (tensor.dtype == DType::e4m3) {
                for_each_scale(tensor, begin + r, first, end, [&](int64_t c, float scale) {
                    const auto byte = std::to_integer<size_t>(tensor.data[at + c * column_stride]);
                    put(r, c, kE4m3Floats[byte] * scale);
                });
                continue;
            }
            for (int64_t c = first; c < end; ++c) {
                put(r, c, element(tensor, at + c * column_stride));
            }
        }
    }
}

// Rows whose elements have a factor: rounded once, after it.
void read_multiplied(const Tensor &tensor, int64_t begin, int64_t count, DType type, void *out) {
    Tensor plain = tensor;
    plain.factor = 1;
    constexpr int64_t at_once = 64;
    std::vector<float> some(static_cast<size_t>(std::min(count, at_once) * tensor.columns));
    for (int64_t row = 0; row < count; row += at_once) {
        const int64_t rows = std::min(at_once, count - row);
        const int64_t first = row * tensor.columns, n = rows * tensor.columns;
        read_rows(plain, begin + row, rows, DType::f32, some.data());
        for (int64_t i = 0; i < n; ++i) {
            const float x = some[static_cast<size_t>(i)] * tensor.factor;
            if (type == DType::f32) {
                static_cast<float *>(out)[first + i] = x;
            } else {
                static_cast<uint16_t *>(out)[first + i] = float_to_bfloat16(x);
            }
        }
    }
}

} // namespace

void read_rows(const Tensor &tensor, int64_t begin, int64_t count, DType type, void *out) {
    const int64_t first = begin * tensor.columns;
    const int64_t n = count * tensor.columns;
    float *floats = static_cast<float *>(out);
    uint16_t *halves = static_cast<uint16_t *>(out);
    if (tensor.factor != 1) {
        read_multiplied(tensor, begin, count, type, out);
    } else if (tensor.dtype == DType::u4) {
        read_four_bits(tensor, begin, count, type, out);
    } else if (tensor.stored_transposed || (tensor.dtype != DType::e4m3 && !tensor.as_stored())) {
        const int64_t columns = tensor.columns;
        if (type == DType::f32) {
            gather(tensor, begin, count,
                   [&](int64_t r, int64_t c, float x) { floats[r * columns + c] = x; });
        } else {
            gather(tensor, begin, count, [&](int64_t r, int64_t c, float x) {
                halves[r * columns + c] = float_to_bfloat16(x);
            });
        }
    } else if (tensor.dtype == DType::e4m3) {
        for (int64_t r = 0; r < count; ++r) {
            const int64_t at = r * tensor.columns;
            if (type == DType::f32) {
                scale_row(tensor, begin + r, [&](int64_t i, float x) { floats[at + i] = x; });
            } else {
                scale_row(tensor, begin + r,
                          [&](int64_t i, float x) { halves[at + i] = float_to_bfloat16(x); });
            }
        }
    } else if (tensor.dtype == type) {
        std::memcpy(out, tensor.data + first * dtype_bytes(type),
                    static_cast<size_t>(n * dtype_bytes(type)));
    } else if (type == DType::f32) {
        for (int64_t i = 0; i < n; ++i) floats[i] = element(tensor, first + i);
    } else {
        for (int64_t i = 0; i < n; ++i) halves[i] = float_to_bfloat16(element(tensor, first + i));
    }
}

Tensor rows_of(const Tensor &tensor, int64_t first, int64_t count) {
    Tensor some = tensor;
    if (some.stored_rows == 0) some.stored_rows = tensor.rows;
    some.rows = count;
    some.first_row += first * tensor.row_step;
    const int64_t step = tensor.row_step * (tensor.stored_transposed ? 1 : tensor.row_length());
    if (some.data != nullptr) some.data += first * step * dtype_bytes(tensor.dtype);
    return some;
}

Tensor columns_of(const Tensor &tensor, int64_t first, int64_t count) {
    Tensor some = tensor;
    if (count == tensor.columns) return some;
    some.stored_columns = tensor.row_length();
    some.columns = count;
    some.first_column += first;
    const int64_t step = tensor.stored_transposed ? tensor.stored_rows : 1;
    if (some.data != nullptr) some.data += first * step * dtype_bytes(tensor.dtype);
    return some;
}

void read_row(const Tensor &tensor, int64_t row, float *out) {
    read_rows(tensor, row, 1, DType::f32, out);
}

} // namespace batchllm
