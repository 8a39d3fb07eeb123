// The scales of a quantised tensor, as stored -> floats by block. Each must be a number above zero
// that leaves the largest element finite.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model.h"
#include "model/quantization.h"
#include "model/safetensors.h"

namespace batchllm {

// The layout of the scales of a tensor of rows x columns, without their data. stack: above 0, of so many of them, which
// have one scale each or all together. file: its name, for errors.
Result<Scales> lay_out_scales(const StoredTensor &stored, const ScaleScheme &scheme, int64_t stack,
                              int64_t rows, int64_t columns, const std::string &file);

// bytes: those of the stored tensor.
Result<std::vector<float>> read_scales(const StoredTensor &stored, const std::byte *bytes,
                                       const std::string &file);

// For a layer's keys or values: [kv_heads], from one number for all heads or one per head.
Result<std::vector<float>> read_kv_scales(const StoredTensor &stored, const std::byte *bytes,
                                          int32_t kv_heads, const std::string &file);

std::string shape_text(const std::vector<int64_t> &shape);

} // namespace batchllm
