// y = alpha * x W^T (+ y) in e4m3 with scales of rows, of so few rows of x that cuBLASLt's tiles leave part of the tensor cores'
// time unused, and so many that reading W is not all of it: decode steps. Sums are f32; those of 128 products each are the
// tensor cores', which have less precision. The same rows give the same bits, and a row's depend on how many rows there are. For
// devices of compute capability 9.0.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"

namespace batchllm::cuda {

struct FewRowsArguments {
    const void *x;         // [rows, columns] of e4m3
    const float *x_scales; // [rows]
    const void *w;         // [width, columns] of e4m3
    const float *w_scales; // [width]
    void *y;               // [rows, width]
    DType y_type;          // bf16 or f16
    bool add;              // to y
    float alpha;
    int32_t rows, columns, width;
    void *partials; // kFewRowsPartials bytes: nothing is kept there
    // [kFewRowsFlags], all 0 before the first launch; launches with the same ones, and the same partials, follow one another.
    uint32_t *flags;
};

inline constexpr int32_t kMostFewRows = 640, kFewRowsFlags = 384;
inline constexpr int64_t kFewRowsPartials = int64_t{kFewRowsFlags} * 64 * 160 * 4;

// Whether there is such a product.
constexpr bool takes_few_rows(int64_t rows, int64_t columns, int64_t width, DType y_type) {
    return rows > 0 && rows <= kMostFewRows && columns % 16 == 0 && width % 16 == 0 &&
           (y_type == DType::bf16 || y_type == DType::f16);
}

// Whether this device and its driver can. somewhere: memory of the device, at a multiple of 16 bytes; nothing is read.
bool few_rows_run_sm90(const void *somewhere);
cudaError_t launch_few_rows_sm90(const FewRowsArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
