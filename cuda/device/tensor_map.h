// Descriptors of matrices in global memory for TMA (device/tma.cuh).
#pragma once

#include <cuda.h>

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace batchllm::cuda {

// [rows, columns] of elements of one or two bytes, row-major without gaps, data and rows at
// multiples of 16 bytes. A box has box_rows rows of 128 bytes, and the 128-byte swizzle in shared
// memory. cudaErrorNotSupported: the driver does not support such maps.
cudaError_t make_tensor_map(const void *data, DType type, int64_t rows, int64_t columns,
                            int32_t box_rows, CUtensorMap *map);
// The same with boxes whose rows are 32 bytes, and their swizzle.
cudaError_t make_narrow_tensor_map(const void *data, DType type, int64_t rows, int64_t columns,
                                   int32_t box_rows, CUtensorMap *map);

// `matrices` such matrices, also of f32, each `step` bytes after the previous one, a multiple of
// 16.
cudaError_t make_tensor_map(const void *data, DType type, int64_t rows, int64_t columns,
                            int64_t matrices, int64_t step, int32_t box_rows, CUtensorMap *map);

} // namespace batchllm::cuda
