// What TMA knows of a matrix in global memory (device/tma.cuh).
#pragma once

#include <cuda.h>

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"

namespace batchllm::cuda {

// [rows, columns] of elements of one or two bytes, row-major without gaps, data and rows at multiples of 16 bytes. A
// box has box_rows rows of 128 bytes, and in shared memory the 128-byte swizzle. cudaErrorNotSupported: the driver
// has no such maps.
cudaError_t make_tensor_map(const void *data, DType type, int64_t rows, int64_t columns,
                            int32_t box_rows, CUtensorMap *map);

// `matrices` such matrices, of f32 too, each `step` bytes after the one before, a multiple of 16.
cudaError_t make_tensor_map(const void *data, DType type, int64_t rows, int64_t columns,
                            int64_t matrices, int64_t step, int32_t box_rows, CUtensorMap *map);

} // namespace batchllm::cuda
