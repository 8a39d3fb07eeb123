// A step's matrix products: which matrices can be in e4m3, and each run or prepared. What is in e4m3 is the same at every step
// size.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "linear/linear.h"
#include "step/forward_options.h"

namespace batchllm::cuda {

// y = alpha * x W^T, or added to what is there.
struct StepProduct {
    const Matrix &w;
    Input x;
    void *y;
    DType y_type;
    bool accumulate;
    float alpha = 1; // of what is added to y
};

class Products {
  public:
    // rows: of the largest step. warning: of a tuning cache that cannot be used.
    static Result<Products> create(const ForwardOptions &options, int64_t rows,
                                   std::string *warning);

    // Whether a layer's matrix can be in e4m3. ends: its product ends a sublayer.
    bool takes(int64_t rows, int64_t columns, Scaling scaling, bool ends);
    // Whether its product can be added to the residual stream.
    bool adds(const Matrix &w);
    // Why there are no products in e4m3, or "".
    const std::string &refusal() const { return linear_.refusal(); }

    Status run(const StepProduct &product, int64_t rows, cudaStream_t stream) {
        return linear_.run(product.w, product.x, rows, product.y, product.y_type,
                           product.accumulate, stream, product.alpha);
    }
    // Chooses the algorithms for so many rows, which is otherwise done as they come.
    Status prepare(const StepProduct &product, int64_t rows, cudaStream_t stream) {
        return linear_.prepare(product.w, product.x, rows, product.y_type, product.accumulate,
                               stream);
    }

    // A product as reproducible steps need it, of up to most_rows rows. They are prepared all at once, before the first.
    struct InOrder {
        Matrix w;
        DType y_type;
        bool accumulate;
        float alpha;
        int64_t most_rows;
    };
    Status prepare_in_order(const std::vector<InOrder> &wanted);

    // Memory that nothing is in while algorithms are timed.
    void set_scratch(const DeviceMemory &memory) {
        if (tunes_) linear_.set_scratch(memory.data(), memory.bytes());
    }

  private:
    Products(const ForwardOptions &options, int64_t rows, Linear linear)
        : linear_(std::move(linear)), element_(options.element), residual_(options.residual),
          tunes_(options.tune),
          most_asked_(options.reproducible ? std::max<int64_t>(rows, 16384) : rows) {}

    Linear linear_;
    DType element_, residual_;
    bool tunes_;
    int64_t most_asked_; // rows
};

} // namespace batchllm::cuda
