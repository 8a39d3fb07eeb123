// Matrix products on oneDNN: y [M, N] = x [M, K] W^T, W as Hugging Face stores it ([N, K]).
//
// oneDNN serves as a single-threaded kernel; the ThreadPool distributes the work. A packed matrix
// is cut along N into slices, each packed separately in oneDNN's blocked layout. A task is one
// slice times one block of rows. So exactly the requested threads are used, no second thread pool
// spins beside ours, several engines do not disturb each other, and each task does the operations
// after a product (bias, residual, SwiGLU) while its tile of the result is in the cache.
//
// Reproducible: an output element has the same bits in any row of any number of rows, on any number
// of threads. The width of a slice then depends only on the matrix. oneDNN may sum in a different
// order for a different number of rows, or for a different position of the row. So when a matrix is
// packed, its shape is tried with every block size, and only sizes that give a row the same bits in
// every position are used. The rows of a call are padded to such a size.
//
// What adapters add to a row of a product is computed for that row alone, and is in the tile before the
// task's other operations.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "backend/cpu/adapters.h"
#include "backend/cpu/buffer.h"
#include "backend/cpu/kernels.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "model/model.h"

namespace batchllm::cpu {

// The packed W. It may combine the rows of several tensors: one after another (Q, K, V), or
// interleaved slice by slice (gate and up), so that each slice has the same columns of both.
struct PackedMatrix {
    int64_t rows = 0;        // N, over all tensors
    int64_t columns = 0;     // K
    int64_t slice_width = 0; // columns of the output in each slice; the last slice may have fewer
    int64_t slices = 0;
    int64_t slice_bytes = 0;
    bool interleaved = false;            // each slice is half one tensor, half the other
    std::vector<const Tensor *> tensors; // which they are, for adapters
    Buffer data;                         // [slices][slice_bytes]

    int64_t width(int64_t slice) const {
        const int64_t left = rows - slice * slice_width;
        return left < slice_width ? left : slice_width;
    }
};

// The most rows that one task takes. Inputs need room for rounded_rows() rows.
constexpr int64_t kBlockRows = 128;

class Linear {
  public:
    // pool is borrowed. compute: f32, or bf16. kernels: for adapters; null: there are none.
    static Result<std::unique_ptr<Linear>> create(DType compute, ThreadPool *pool,
                                                  bool reproducible = false,
                                                  const Kernels *kernels = nullptr);
    ~Linear();

    // The tensors stay where they are.
    Result<PackedMatrix> pack(std::span<const Tensor *const> tensors, bool interleaved);
    Result<PackedMatrix> pack(const Tensor &tensor) {
        const Tensor *const one[] = {&tensor};
        return pack(one, false);
    }

    int64_t packed_bytes() const { return packed_bytes_; } // of all matrices so far

    // At least as many rows as a product of up to `rows` rows may read of its input.
    static int64_t rounded_rows(int64_t rows);

    // The adapter of each row of the products from now on; null: none. Empty: no row has one.
    void set_adapters(RowAdapters adapters) { adapters_ = adapters; }
    RowAdapters adapters() const { return adapters_; }

    struct Tile {
        const float *data; // [rows, width], with the changes of the rows' adapters
        int64_t row;       // first row of the block
        int64_t rows;
        int64_t slice;
        int64_t column; // first column of the slice: slice * slice_width
        int64_t width;
        int32_t thread;
    };
    // x: [rounded_rows(rows), K] elements. Calls tile_done for each tile, on the pool's threads.
    Status run(const PackedMatrix &matrix, const void *x, int64_t rows,
               const std::function<void(const Tile &)> &tile_done);

  private:
    struct Impl;
    explicit Linear(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
    RowAdapters adapters_;
    int64_t packed_bytes_ = 0;
};

} // namespace batchllm::cpu
