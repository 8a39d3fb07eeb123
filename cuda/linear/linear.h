// y = alpha x W^T (+ y) by cuBLASLt, or in e4m3 by few_rows.h, accumulated in f32. Elements are of the compute type, or e4m3 with
// scales that cuBLASLt multiplies in, where it has such products (has()). Algorithms are chosen once for a shape and kept:
// the heuristic's first, the same in every run; or, with tuning, the fastest of its first ones as timed
// on the device at the least number of rows of a range, whichever of the range comes first. A result's
// last bits may depend on the choice, and of few_rows.h on the number of rows; choices that are known (linear/tuning_cache.h) are not made again. In order
// (set_in_order), products with W of one shape sum in the same order for any number of rows.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <cublasLt.h>

#include "backend/gpu/packed_form.h"
#include "base/dtype.h"
#include "base/status.h"
#include "device/device.h"
#include "linear/head_products.h"
#include "linear/scaling.h"
#include "linear/tuning_cache.h"

namespace batchllm::cuda {

// W [rows, columns], row-major, on the device; or packed in four bits (four_bits/layout.h), with which Linear has no
// products.
struct Matrix {
    const void *data = nullptr;
    int64_t rows = 0;
    int64_t columns = 0;
    const float *scales = nullptr; // [rows], or [blocks of rows, block_scale_stride]
    Scaling scaling = Scaling::none;
    std::optional<Packing> packing = {};
    bool alike =
        false; // its products are chosen without timing: the same on devices that are the same
    // [rows] of y's type: added to the sum before it is rounded. Null: nothing is.
    const void *bias = nullptr;
    bool gelu = false; // with a bias, in 16 bits: y is gelu_tanh of the sum, rounded once
};

// What W is multiplied with, in the type that W has.
struct Input {
    Input(const void *rows, const float *of_rows = nullptr) : data(rows), scales(of_rows) {}

    const void *data;    // [rows, columns]
    const float *scales; // of e4m3: [padded rows], or [columns / kScaleBlock, padded rows]
};

// A batch's rows are rounded up to so many: products of nearby sizes share an algorithm. Buffers have
// room for the rounded number; the rows beyond the batch are computed and never read.
int64_t padded_rows(int64_t rows);
inline constexpr int64_t most_row_step = 64; // to which padded_rows() rounds
// The least of a range of numbers of rows that are much alike: no buffer is too small for it.
int64_t coarse_rows(int64_t rows);
// The number of rows for which the algorithm of so many is timed: padded_rows(), or of many coarse_rows().
int64_t tuned_rows(int64_t rows);

class OrderProbe;

class Linear {
  public:
    // element: of x and W. scratch, of scratch_bytes: where tuning writes results; null: no tuning.
    static Result<Linear> create(DType element, void *scratch, int64_t scratch_bytes,
                                 TuningCache cache);
    Linear(Linear &&other) noexcept;
    Linear &operator=(Linear &&) = delete;
    ~Linear();

    // x: [rows, w.columns]; y: [rows, w.rows] of y_type; accumulate: added to y.
    Status run(const Matrix &w, const Input &x, int64_t rows, void *y, DType y_type,
               bool accumulate, cudaStream_t stream, float alpha = 1);

    // In elements of 16 bits, by the heuristic's first algorithm.
    Status run_heads(const HeadProductArguments &arguments, cudaStream_t stream);

    // Chooses the algorithm that run() would.
    Status prepare(const Matrix &w, const Input &x, int64_t rows, DType y_type, bool accumulate,
                   cudaStream_t stream);

    // Whether cuBLASLt has products with such a matrix on this device, for all of up to most_rows rows of x.
    // Scales' values do not count. Asked once for a kind.
    bool has(int64_t rows, int64_t columns, Scaling scaling, DType y_type, bool accumulate,
             int64_t most_rows);
    // What cuBLASLt said where has() was last false.
    const std::string &refusal() const { return refusal_; }

    // As create()'s.
    void set_scratch(void *scratch, int64_t bytes) { scratch_ = scratch, scratch_bytes_ = bytes; }
    void *scratch() const { return scratch_; }
    int64_t scratch_bytes() const { return scratch_bytes_; }
    // Whether the candidates of shapes that the cache does not know are timed at their first use. Otherwise
    // cuBLASLt's first is used until timing is on: then those for tuned_rows() of one of `rows`, or with
    // none for any number of rows, are to be made again. Returns whether there are some.
    bool set_timing(bool on, std::span<const int64_t> rows = {});
    // What others have chosen by time and is kept in the same file; -1: not known. Their elements are
    // other numbers than Linear's.
    int32_t known_choice(const TuningKey &key) const { return cache_.find(key); }
    void remember(const TuningKey &key, int32_t candidate);
    // Sums of e4m3 products with scales of rows in the tensor cores' own precision, which is less than f32's.
    // Before the first such product.
    void set_fast_accumulation(bool fast) { fast_accumulation_ = fast; }

    // From now on, run() uses only the products that prepare_in_order() chose.
    void set_in_order() { in_order_ = true; }
    // Chooses the algorithms of products with matrices like this one, of up to most_rows rows, so that all sum
    // in the same order. The probe must have room for them. BATCHLLM_ERROR_UNSUPPORTED: for some number of rows
    // there is none, or products of this shape that add to y have different alphas.
    Status prepare_in_order(const Matrix &like, DType y_type, bool accumulate, float alpha,
                            int64_t most_rows, OrderProbe *probe, cudaStream_t stream);

    int64_t algorithms() const { return static_cast<int64_t>(products_.size()); }
    // What the choices depend on, besides the shape.
    static std::string stamp(const std::string &device);

  private:
    Linear() = default;

    struct Key {
        int64_t m, n, k;
        DType y_type;
        bool accumulate;
        Scaling scaling;
        bool alike = false, bias = false, gelu = false;
        bool operator==(const Key &) const = default;
    };
    struct Hash {
        size_t operator()(const Key &key) const {
            size_t h = static_cast<size_t>(key.m) * 0x9e3779b97f4a7c15u;
            h = (h ^ static_cast<size_t>(key.n)) * 0xbf58476d1ce4e5b9u;
            h = (h ^ static_cast<size_t>(key.k)) * 0x94d049bb133111ebu;
            return h ^ static_cast<size_t>(key.y_type) ^ (key.accumulate ? 64u : 0u) ^
                   (key.alike ? 32u : 0u) ^ (key.bias ? 8u : 0u) ^ (key.gelu ? 16u : 0u) ^
                   static_cast<size_t>(key.scaling) << 7;
        }
    };
    struct Product {
        cublasLtMatmulDesc_t operation = nullptr;
        cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
        cublasLtMatmulAlgo_t algorithm{};
        bool few_rows = false; // not by cuBLASLt, but by launch_few_rows_sm90()
        float alpha = 1;       // in order: the one that it was tested with
    };

    struct OfHeads { // a product of this shape, whatever its addresses
        HeadProductArguments shape;
        Product product;
    };
    static Status describe_heads(const HeadProductArguments &shape, DType element,
                                 Product *product);

    Result<const Product *> product_of(const Matrix &w, const Input &x, int64_t rows, DType y_type,
                                       bool accumulate, cudaStream_t stream);
    Status describe(const Key &key, Product *product) const;
    static Status describe_vectors(const Product &product, const Matrix &w, const Input &x);
    static void destroy(Product *product);
    Status make_product(const Key &key, const Matrix &w, const Input &x, cudaStream_t stream,
                        Product *product);
    Status find_candidates(const Key &key, const Product &product,
                           std::vector<cublasLtMatmulHeuristicResult_t> *found) const;
    struct Choice {
        cublasLtMatmulAlgo_t algorithm{};
        bool guessed = false; // it has not been timed
        bool few_rows = false;
    };
    // Whether launch_few_rows_sm90() can do it.
    bool has_few_rows(const Key &key) const;
    cudaError_t run_few_rows(const Matrix &w, const Input &x, int64_t rows, void *y, DType y_type,
                             bool accumulate, float alpha, cudaStream_t stream);
    std::optional<cublasLtMatmulAlgo_t>
    algorithm_of(const Product &product, const std::vector<cublasLtMatmulHeuristicResult_t> &found,
                 int32_t candidate) const;
    Status choose(const Key &key, const Matrix &w, const Input &x, cudaStream_t stream,
                  Choice *chosen);
    Result<int32_t> fastest(const Key &key, const Product &product,
                            const std::vector<cublasLtMatmulHeuristicResult_t> &found,
                            const Matrix &w, const Input &x, cudaStream_t stream);
    TuningKey tuning_key(const Key &key) const;
    Result<bool> agrees(const Key &key, const Product &product,
                        const cublasLtMatmulAlgo_t &algorithm, const Matrix &w, const Input &x,
                        OrderProbe *probe, cudaStream_t stream);
    Status find_reference(Key key, const Matrix &w, const Input &x, OrderProbe *probe,
                          cudaStream_t stream, cublasLtMatmulAlgo_t *reference);
    Status choose_in_order(const Key &key, const cublasLtMatmulAlgo_t &reference, const Matrix &w,
                           const Input &x, OrderProbe *probe, cudaStream_t stream,
                           cublasLtMatmulAlgo_t *chosen);
    cublasStatus_t multiply(const Product &product, const cublasLtMatmulAlgo_t &algorithm,
                            const Matrix &w, const Input &x, void *y, bool accumulate,
                            cudaStream_t stream, float alpha = 1);

    struct Described : Product {
        ~Described() { destroy(this); }
    };

    cublasLtHandle_t handle_ = nullptr;
    DType element_ = DType::bf16;
    bool fast_accumulation_ = false;
    bool in_order_ = false;
    DeviceMemory workspace_;
    DeviceMemory flags_; // of products of few rows; none: the device has none
    void *scratch_ = nullptr;
    int64_t scratch_bytes_ = 0;
    std::unordered_map<Key, Product, Hash> products_;
    bool times_ = true;
    int64_t guessed_ = 0; // of tuned_
    std::vector<OfHeads> of_heads_;
    std::unordered_map<Key, Choice, Hash> tuned_; // by coarser numbers of rows
    std::unordered_map<Key, bool, Hash> has_;     // m: 0
    std::string refusal_;
    TuningCache cache_;
    std::chrono::steady_clock::time_point saved_;
};

} // namespace batchllm::cuda
