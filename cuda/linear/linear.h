// y = alpha x W^T (+ y) by cuBLASLt, accumulated in f32. Elements are of the compute type, or e4m3 with a
// scale for each row of x and of W, which cuBLASLt multiplies in (on devices of 9.0 and later). Algorithms are chosen once for a shape and kept:
// the heuristic's first, the same in every run; or, with tuning, the fastest of its first ones as timed
// on the device at the least number of rows of a range, whichever of the range comes first. A result's
// last bits may depend on the choice; choices that are known (linear/tuning_cache.h) are not made again.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <cublasLt.h>

#include "base/dtype.h"
#include "base/status.h"
#include "device/device.h"
#include "linear/tuning_cache.h"

namespace batchllm::cuda {

// W [rows, columns], row-major, on the device.
struct Matrix {
    const void *data = nullptr;
    int64_t rows = 0;
    int64_t columns = 0;
    const float *scales = nullptr; // [rows]: elements are e4m3; null: of the compute type
};

// What W is multiplied with, in the type that W has.
struct Input {
    Input(const void *rows, const float *row_scales = nullptr) : data(rows), scales(row_scales) {}

    const void *data;    // [rows, columns]
    const float *scales; // [padded rows] of e4m3, or null
};

// A batch's rows are rounded up to so many: products of nearby sizes share an algorithm. Buffers have
// room for the rounded number; the rows beyond the batch are computed and never read.
int64_t padded_rows(int64_t rows);

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

    // Chooses the algorithm that run() would.
    Status prepare(const Matrix &w, const Input &x, int64_t rows, DType y_type, bool accumulate,
                   cudaStream_t stream);

    // Whether a matrix of this shape can be e4m3.
    static bool takes_e4m3(int64_t rows, int64_t columns) {
        return rows % 16 == 0 && columns % 16 == 0;
    }
    // Sums of e4m3 products in the tensor cores' own precision, which is less than f32's. Before the first
    // such product.
    void set_fast_accumulation(bool fast) { fast_accumulation_ = fast; }

    int64_t algorithms() const { return static_cast<int64_t>(products_.size()); }
    // What the choices depend on, besides the shape.
    static std::string stamp(const std::string &device);

  private:
    Linear() = default;

    struct Key {
        int64_t m, n, k;
        DType y_type;
        bool accumulate;
        bool e4m3;
        bool operator==(const Key &) const = default;
    };
    struct Hash {
        size_t operator()(const Key &key) const {
            size_t h = static_cast<size_t>(key.m) * 0x9e3779b97f4a7c15u;
            h = (h ^ static_cast<size_t>(key.n)) * 0xbf58476d1ce4e5b9u;
            h = (h ^ static_cast<size_t>(key.k)) * 0x94d049bb133111ebu;
            return h ^ static_cast<size_t>(key.y_type) ^ (key.accumulate ? 64u : 0u) ^
                   (key.e4m3 ? 128u : 0u);
        }
    };
    struct Product {
        cublasLtMatmulDesc_t operation = nullptr;
        cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
        cublasLtMatmulAlgo_t algorithm{};
    };

    Result<const Product *> product_of(const Matrix &w, const Input &x, int64_t rows, DType y_type,
                                       bool accumulate, cudaStream_t stream);
    Status describe(const Key &key, Product *product) const;
    static Status describe_scales(const Product &product, const Matrix &w, const Input &x);
    static void destroy(Product *product);
    Status make_product(const Key &key, const Matrix &w, const Input &x, cudaStream_t stream,
                        Product *product);
    Status find_candidates(const Key &key, const Product &product,
                           std::vector<cublasLtMatmulHeuristicResult_t> *found) const;
    Status choose(const Key &key, const Matrix &w, const Input &x, cudaStream_t stream,
                  cublasLtMatmulAlgo_t *chosen);
    Result<int32_t> fastest(const Key &key, const Product &product,
                            const std::vector<cublasLtMatmulHeuristicResult_t> &found,
                            const Matrix &w, const Input &x, cudaStream_t stream);
    cublasStatus_t multiply(const Product &product, const cublasLtMatmulAlgo_t &algorithm,
                            const Matrix &w, const Input &x, void *y, bool accumulate,
                            cudaStream_t stream, float alpha = 1);

    cublasLtHandle_t handle_ = nullptr;
    DType element_ = DType::bf16;
    bool fast_accumulation_ = false;
    DeviceMemory workspace_;
    void *scratch_ = nullptr;
    int64_t scratch_bytes_ = 0;
    std::unordered_map<Key, Product, Hash> products_;
    std::unordered_map<Key, cublasLtMatmulAlgo_t, Hash> tuned_; // by coarser numbers of rows
    TuningCache cache_;
    std::chrono::steady_clock::time_point saved_;
};

} // namespace batchllm::cuda
