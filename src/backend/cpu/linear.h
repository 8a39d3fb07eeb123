// Matrix products on oneDNN: y [M, N] = x [M, K] W^T, W as Hugging Face stores it ([N, K]).
//
// oneDNN serves as a single-threaded kernel; the ThreadPool spreads the work. A packed matrix is cut
// along N into slices, each packed on its own in oneDNN's blocked layout; a task is one slice times
// one block of rows. So exactly the requested threads are used, no second thread pool spins beside
// ours, several engines do not disturb each other, and the operations after a product (bias,
// residual, SwiGLU) are done by the task while its tile of the result is in the cache.
//
// Reproducible: an output element has the same bits in any row of any number of rows, on any number
// of threads. The width of a slice then depends only on the matrix. oneDNN may sum in a different
// order for a different number of rows, or a different place of the row among them. So when a
// matrix is packed, its shape is tried with every block size, and only sizes that give a row the
// same bits in every place are used. The rows of a call are padded to such a size.
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

#include "backend/cpu/buffer.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "model/model.h"

namespace batchllm::cpu {

// W packed. Rows of several tensors may stand together: one after the other (Q, K, V), or
// interleaved slice by slice (gate and up), so that each slice holds the same columns of both.
struct PackedMatrix {
    int64_t rows = 0;    // N, of all tensors together
    int64_t columns = 0; // K
    int64_t slice_width =
        0; // columns of the output in each slice but the last, which may have less
    int64_t slices = 0;
    int64_t slice_bytes = 0;
    bool interleaved = false; // two tensors, halves of each slice
    Buffer data;              // [slices][slice_bytes]

    int64_t width(int64_t slice) const {
        const int64_t left = rows - slice * slice_width;
        return left < slice_width ? left : slice_width;
    }
};

// The most rows that one task takes. Inputs have room for as many rows as rounded_rows() says.
constexpr int64_t kBlockRows = 128;

class Linear {
  public:
    // pool is borrowed. compute: f32, or bf16.
    static Result<std::unique_ptr<Linear>> create(DType compute, ThreadPool *pool,
                                                  bool reproducible = false);
    ~Linear();

    Result<PackedMatrix> pack(std::span<const Tensor> tensors, bool interleaved);

    // No less than the rows of the input that a product of M rows, or of fewer, may read.
    static int64_t rounded_rows(int64_t rows);

    struct Tile {
        const float *data; // [rows, width]
        int64_t row;       // first row of the block
        int64_t rows;
        int64_t slice;
        int64_t column; // first column of the slice: slice * slice_width
        int64_t width;
        int32_t thread;
    };
    // x: [rounded_rows(rows), K] elements. Calls tile_done for each tile from the pool's threads.
    Status run(const PackedMatrix &matrix, const void *x, int64_t rows,
               const std::function<void(const Tile &)> &tile_done);

  private:
    struct Impl;
    explicit Linear(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

} // namespace batchllm::cpu
