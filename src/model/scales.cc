#include "model/scales.h"

#include <algorithm>
#include <cmath>

#include "base/narrow_floats.h"
#include "base/printable.h"

namespace batchllm {
namespace {

bool is_one_number(const std::vector<int64_t> &shape) {
    return shape.empty() || (shape.size() <= 2 && shape.front() == 1 && shape.back() == 1);
}

} // namespace

std::string shape_text(const std::vector<int64_t> &shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i) {
        if (i > 0) text += ", ";
        text += std::to_string(shape[i]);
    }
    return text + "]";
}

Result<Scales> lay_out_scales(const StoredTensor &stored, const ScaleScheme &scheme, int64_t stack,
                              int64_t rows, int64_t columns, const std::string &file) {
    Scales scales;
    if (stack > 0) {
        const std::vector<int64_t> &shape = stored.shape;
        const bool whole = is_one_number(shape);
        const bool each =
            !shape.empty() && shape.size() <= 3 && shape.front() == stack &&
            std::all_of(shape.begin() + 1, shape.end(), [](int64_t size) { return size == 1; });
        scales.block_rows = whole ? stack * rows : rows;
        scales.block_columns = columns;
        scales.per_row = 1;
        if (whole || each) return scales;
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: tensor %s has shape %s: scales of %lld experts are [] or [%lld]",
                     file.c_str(), printable(stored.name).c_str(), shape_text(shape).c_str(),
                     static_cast<long long>(stack), static_cast<long long>(stack));
    }
    ScaleKind kind = scheme.kind;
    if (kind == ScaleKind::block_or_tensor) {
        kind = is_one_number(stored.shape) ? ScaleKind::tensor : ScaleKind::block;
    }
    if (kind == ScaleKind::tensor) {
        scales.block_rows = rows;
        scales.block_columns = columns;
    } else if (kind == ScaleKind::channel) {
        scales.block_rows = 1;
        scales.block_columns = columns;
    } else {
        scales.block_rows = scheme.block_rows;
        scales.block_columns = scheme.block_columns;
    }
    const int64_t down = (rows + scales.block_rows - 1) / scales.block_rows;
    scales.per_row = (columns + scales.block_columns - 1) / scales.block_columns;
    const std::vector<int64_t> &shape = stored.shape;
    const std::vector<int64_t> wanted = {down, scales.per_row};
    const bool fits =
        shape == wanted || (kind == ScaleKind::tensor && is_one_number(shape)) ||
        (kind == ScaleKind::channel && shape == std::vector<int64_t>{down}) ||
        // The form in which ModelOpt writes blocks.
        (kind == ScaleKind::block && shape == std::vector<int64_t>{down, 1, scales.per_row, 1});
    if (fits) return scales;
    return error(BATCHLLM_ERROR_MODEL_FORMAT,
                 "%s: tensor %s has shape %s: the weight and quantization_config make it %s",
                 file.c_str(), printable(stored.name).c_str(), shape_text(shape).c_str(),
                 shape_text(wanted).c_str());
}

Result<std::vector<float>> read_scales(const StoredTensor &stored, const std::byte *bytes,
                                       const std::string &file) {
    const bool power = stored.type == "F8_E8M0";
    const auto type = float_type(stored);
    if (!power && !type) {
        return error(BATCHLLM_ERROR_UNSUPPORTED,
                     "%s: tensor %s is of type %s: scales are BF16, F16, F32 or F8_E8M0",
                     file.c_str(), printable(stored.name).c_str(), stored.type.c_str());
    }
    const int64_t count = stored.bytes / (power ? 1 : dtype_bytes(*type));
    std::vector<float> scales(static_cast<size_t>(count));
    Tensor column;
    column.dtype = type.value_or(DType::f32);
    column.data = bytes;
    column.rows = count;
    column.columns = 1;
    if (!power) read_rows(column, 0, count, DType::f32, scales.data());
    for (int64_t i = 0; i < count; ++i) {
        float &scale = scales[static_cast<size_t>(i)];
        if (power) scale = e8m0_to_float(std::to_integer<uint8_t>(bytes[i]));
        if (!(scale > 0) || !std::isfinite(scale * kMostE4m3)) {
            return error(BATCHLLM_ERROR_MODEL_FORMAT,
                         "%s: tensor %s: scale %lld is %g: must be above 0 and finite",
                         file.c_str(), printable(stored.name).c_str(), static_cast<long long>(i),
                         static_cast<double>(scale));
        }
    }
    return scales;
}

Result<std::vector<float>> read_kv_scales(const StoredTensor &stored, const std::byte *bytes,
                                          int32_t kv_heads, const std::string &file) {
    const std::vector<int64_t> &shape = stored.shape;
    const bool by_head =
        !shape.empty() && shape.front() == kv_heads &&
        std::all_of(shape.begin() + 1, shape.end(), [](int64_t size) { return size == 1; });
    if (!by_head && !is_one_number(shape)) {
        return error(BATCHLLM_ERROR_MODEL_FORMAT,
                     "%s: tensor %s has shape %s: scales of keys and values are [1] or [%d]",
                     file.c_str(), printable(stored.name).c_str(), shape_text(shape).c_str(),
                     kv_heads);
    }
    ASSIGN_OR_RETURN(std::vector<float> scales, read_scales(stored, bytes, file));
    if (!by_head) scales.assign(static_cast<size_t>(kv_heads), scales.front());
    return scales;
}

} // namespace batchllm
