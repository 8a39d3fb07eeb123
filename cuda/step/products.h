// A step's matrix products: which matrices can be in e4m3, and each run or prepared. What is in e4m3 is the same at every step
// size, but for what is rounded from four bits.
//
// A matrix in four bits is multiplied as it lies packed (four_bits/product.h), by CTAs that share its columns in so many
// splits; or it is expanded into memory that all such products share, just before Linear's product; or, if it may be
// (Packing::rounds), rounded to e4m3 there, and x too. Which is fastest for a number of rows is timed as Linear's
// algorithms are, and kept with them. In order: packed, splits by the matrix alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
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
    // Of a packed W in which gate and up take turns: packed, the product makes activation(gate) * up, [rows, w.rows / 2];
    // expanded, what they are before that, gate's part first.
    Activation activation = Activation::silu;
};

// warning: of a file that cannot be used.
TuningCache tuning_cache_of(const ForwardOptions &options, std::string *warning);

class Products {
  public:
    // rows: of the largest step. warning: of a tuning cache that cannot be used.
    static Result<Products> create(const ForwardOptions &options, int64_t rows,
                                   std::string *warning);

    // Whether a layer's matrix can be in e4m3, as far as its shape goes.
    static bool may_take(DType element, int64_t rows, int64_t columns, Scaling scaling);
    // The same, and whether there are products. ends: its product ends a sublayer.
    bool takes(int64_t rows, int64_t columns, Scaling scaling, bool ends);
    // Whether its product can be added to the residual stream.
    bool adds(const Matrix &w);
    // Why there are no products in e4m3, or "".
    const std::string &refusal() const { return linear_.refusal(); }

    Status run(const StepProduct &product, int64_t rows, cudaStream_t stream);
    // Of latents' heads.
    Status run_heads(const HeadProductArguments &arguments, cudaStream_t stream);
    // Chooses the algorithms for so many rows, which is otherwise done as they come.
    Status prepare(const StepProduct &product, int64_t rows, cudaStream_t stream);

    // Linear::set_timing. Ways to multiply packed matrices differ by more, and are timed as they come.
    bool set_timing(bool on, std::span<const int64_t> rows = {}) {
        return linear_.set_timing(on, rows);
    }

    // Of packed matrices: what run() does with W for so many rows.
    enum class Way : uint8_t { packed, expanded, rounded };
    Result<Way> way_of(const StepProduct &product, int64_t rows, cudaStream_t stream);
    // A packed W and its x as Linear takes them, until the next such product: expanded, or rounded.
    struct Operands {
        Matrix w;
        Input x;
    };
    Result<Operands> unpack(const Matrix &w, const Input &x, int64_t rows, Way way,
                            cudaStream_t stream) const;
    bool can_expand(const Matrix &w) const {
        return w.rows * w.columns * dtype_bytes(element_) <= expanded_bytes_;
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
    // Where matrices are expanded; those that are larger never are.
    void set_expanded(const DeviceMemory &memory) {
        expanded_ = memory.data();
        expanded_bytes_ = memory.bytes();
    }
    // Where rows are put in another order.
    void set_taken(const DeviceMemory &memory) { taken_ = memory.data(); }

  private:
    Products(const ForwardOptions &options, int64_t rows, Linear linear)
        : linear_(std::move(linear)), element_(options.element), residual_(options.residual),
          kernel_(options.experts), sms_(options.attention.sms), tunes_(options.tune),
          in_order_(options.reproducible), expanded_rows_(options.expanded_rows),
          rounded_rows_(options.rounded_rows),
          most_asked_(options.reproducible ? std::max<int64_t>(rows, 16384) : rows) {}

    // x with its columns in the order of W's, until the next such product; where that is their own, x.
    Result<Input> in_order_of(const Matrix &w, const Input &x, int64_t rows,
                              cudaStream_t stream) const;
    // unpack() without its launches; x: in the order of W's columns.
    Operands operands_of(const Matrix &w, const Input &x, int64_t rows, Way way) const;
    bool can_round(const StepProduct &product);
    // Of packed matrices: in how many splits, or kExpanded, or kRounded.
    Result<int32_t> choose(const StepProduct &product, int64_t rows, cudaStream_t stream);
    int32_t guess(const StepProduct &product, int64_t rows);
    bool is_possible(const StepProduct &product, int32_t choice);
    static Way way_of(const Matrix &w, int32_t choice);
    Status run_chosen(const StepProduct &product, int64_t rows, int32_t choice,
                      cudaStream_t stream);
    Result<int32_t> fastest(const StepProduct &product, int64_t rows, cudaStream_t stream);
    Status run_packed(const StepProduct &product, int64_t rows, int32_t splits,
                      cudaStream_t stream) const;
    Status run_unpacked(const StepProduct &product, int64_t rows, Way way, cudaStream_t stream);

    // Behind a rounded W stands x, and then its scales.
    std::byte *x_rounded(const Matrix &w) const { return expanded_ + w.rows * w.columns; }
    float *x_scales(const Matrix &w, int64_t rows) const {
        return reinterpret_cast<float *>(x_rounded(w) + padded_rows(rows) * w.columns);
    }

    Linear linear_;
    DType element_, residual_;
    GroupedKernel kernel_;
    int32_t sms_;
    bool tunes_, in_order_;
    int64_t expanded_rows_, rounded_rows_; // without tuning
    int64_t most_asked_;                   // rows
    std::byte *expanded_ = nullptr;
    int64_t expanded_bytes_ = 0;
    std::byte *taken_ = nullptr;
    std::map<TuningKey, int32_t> chosen_;
};

} // namespace batchllm::cuda
