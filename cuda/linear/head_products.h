// Products with a matrix for each head of a token.
#pragma once

#include <cstdint>

namespace batchllm::cuda {

// y[t, h] = x[t, h] W[h]^T for each head. Strides are in elements; of 16 bits, those of x, and columns, are multiples of 8.
struct HeadProductArguments {
    const void *x; // head h of token t at t * x_stride + h * x_head, [columns]
    int64_t x_stride;
    int32_t x_head;
    const void *w; // [heads][rows][columns]
    void *y;       // at t * y_stride + h * y_head, [rows]
    int64_t y_stride;
    int32_t y_head;
    int32_t tokens, heads, rows, columns;
    bool operator==(const HeadProductArguments &) const = default;
};

} // namespace batchllm::cuda
