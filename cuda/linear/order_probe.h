// Tests whether two products sum in the same order, for any number of rows and for each row at any place.
//
// In each row of x and W the second half repeats the first, negated in x. The exact result is therefore 0, and
// what a product computes is the rounding that its order of additions leaves. Rows r and r + kRows of x are equal.
// So two products agree in every bit only if they sum alike, whatever a row's place. A product that adds to y is
// tested with its own alpha, since kernels may differ in whether they round alpha times the sum first.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "base/status.h"
#include "device/device.h"

namespace batchllm::cuda {

// y = alpha x W^T (+ y) with W [n, k]. element: of x and W, e4m3 too, whose scales are all 1.
struct ProbedProduct {
    int64_t n, k;
    DType element, y_type;
    bool accumulate; // y is not zero before
    int64_t most_rows;
    float alpha = 1;
};

class OrderProbe {
  public:
    static constexpr int64_t kRows = 16; // that differ

    // Room for each of the products, one at a time.
    void reserve(const ProbedProduct &product);
    Status allocate();

    // x and W of a product.
    Status fill(const ProbedProduct &product, cudaStream_t stream);
    const void *w() const { return w_.data(); }
    const void *x() const { return x_.data(); }
    float alpha() const { return product_.alpha; }
    const float *ones() const { return ones_.as<float>(); }
    void *y() const { return y_.data(); }
    int64_t y_bytes() const { return y_.bytes(); }

    // What `rows` rows of y are before the product.
    Status begin(int64_t rows, cudaStream_t stream);
    // The first kRows of y are what is right from now on.
    Status expect(cudaStream_t stream);
    // All rows of y are right.
    Result<bool> agrees(int64_t rows, cudaStream_t stream);

  private:
    ProbedProduct product_{};
    int64_t w_bytes_ = 0, x_bytes_ = 0, y_bytes_ = 0, expected_bytes_ = 0, scales_ = 0;
    DeviceMemory w_, x_, y_, expected_, ones_;
    DeviceMemory differs_; // [1] int32
};

} // namespace batchllm::cuda
