// Adapters on the CPU: what they add to the rows of matrix products, y += scale * B (A x).
//
// In float, whatever the compute type. A row's addition is computed from the row's input alone, in a
// fixed order, so no bit of it depends on other rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "base/thread_pool.h"
#include "model/adapter.h"

namespace batchllm::cpu {

struct PackedLowRank {
    int32_t rank = 0;
    std::unique_ptr<float[]> a; // [rank, columns]
    std::unique_ptr<float[]> b; // [rank, rows] the transpose of B, times the scale
    int64_t rows = 0;
};

struct CpuAdapter final : PackedAdapter {
    std::unordered_map<const Tensor *, PackedLowRank> changes;
    PackedLowRank embedding; // a [rank, vocabulary], b [rank, hidden]

    static int64_t bytes(const Adapter &adapter);
    static std::shared_ptr<const CpuAdapter> pack(const Adapter &adapter);
};

// [rows] null: the row has none. Empty: no row has one.
using RowAdapters = std::span<const CpuAdapter *const>;

// The changes of one product at a time.
class LowRankProducts {
  public:
    // Borrowed.
    void use(const Kernels *kernels, ThreadPool *pool) { kernels_ = kernels, pool_ = pool; }

    // A product's matrices, one after another or interleaved slice by slice (PackedMatrix).
    struct Matrices {
        std::span<const Tensor *const> tensors;
        bool interleaved;
    };
    // Computes A x of all rows for which an adapter changes one of the matrices. x: [rows, columns]
    // elements. False: there is none.
    bool shrink(const Matrices &matrices, RowAdapters adapters, const std::byte *x, int64_t rows);

    // Adds to a tile of that product: [rows, width] from row and column on. Any thread.
    struct Tile {
        int64_t row, rows, column, width;
    };
    void expand(const Tile &tile, float *out) const;

  private:
    struct Change {
        const PackedLowRank *low = nullptr; // null: none
        size_t shrunk = 0;                  // where A x is
    };
    const Change &change(int64_t row, size_t matrix) const {
        return changes_[static_cast<size_t>(row) * matrices_.tensors.size() + matrix];
    }
    size_t find_changes(RowAdapters adapters, int64_t rows);

    const Kernels *kernels_ = nullptr;
    ThreadPool *pool_ = nullptr;
    Matrices matrices_{};
    std::vector<Change> changes_; // [rows, matrices]
    std::vector<float> shrunk_;
};

} // namespace batchllm::cpu
