#include "step/matrix_form.h"

#include <algorithm>

namespace batchllm::cuda {
namespace {

bool scaled_by_rows(const Tensor &tensor) { return tensor.scales.per_row == 1; }

// Blocks of the tensor in the file are blocks of the whole.
bool scaled_by_blocks(const Tensor &tensor, int64_t first) {
    const Scales &scales = tensor.scales;
    return scales.block_rows == kScaleBlock && scales.block_columns == kScaleBlock &&
           tensor.first_row % kScaleBlock == 0 && first % kScaleBlock == 0;
}

float scale_at(const Tensor &tensor, int64_t row, int64_t block_of_columns) {
    const Scales &scales = tensor.scales;
    return scales
        .data[(tensor.first_row + row) / scales.block_rows * scales.per_row + block_of_columns];
}

} // namespace

Scaling own_scaling(const MatrixSource &source) {
    bool any = false, rows = true, blocks = !source.placing.moves();
    for (const auto &[tensor, first] : source.parts) {
        if (!*tensor) continue;
        if (tensor->dtype != DType::e4m3) return Scaling::none;
        any = true;
        rows = rows && scaled_by_rows(*tensor);
        blocks = blocks && scaled_by_blocks(*tensor, first);
    }
    for (const auto &[fits, scaling] :
         {std::pair(rows, Scaling::rows), std::pair(blocks, Scaling::blocks)}) {
        if (any && fits && takes_e4m3(source.rows, source.columns, scaling)) return scaling;
    }
    return Scaling::none;
}

int64_t scale_count(int64_t rows, int64_t columns, Scaling scaling) {
    if (scaling == Scaling::none) return 0;
    if (scaling == Scaling::rows) return rows;
    return (rows + kScaleBlock - 1) / kScaleBlock * block_scale_stride(columns);
}

std::vector<float> own_scales(const MatrixSource &source, Scaling scaling) {
    std::vector<float> all(static_cast<size_t>(scale_count(source.rows, source.columns, scaling)),
                           1.0F);
    for (const auto &[tensor, first] : source.parts) {
        if (!*tensor) continue;
        if (scaling == Scaling::rows) {
            for (int64_t r = 0; r < tensor->rows; ++r) {
                all[static_cast<size_t>(first + source.placing.row(r))] = scale_at(*tensor, r, 0);
            }
            continue;
        }
        const int64_t stride = block_scale_stride(source.columns);
        for (int64_t r = 0; r < tensor->rows; r += kScaleBlock) {
            for (int64_t b = 0; b < tensor->scales.per_row; ++b) {
                all[static_cast<size_t>((first + r) / kScaleBlock * stride + b)] =
                    scale_at(*tensor, r, b);
            }
        }
    }
    return all;
}

} // namespace batchllm::cuda
