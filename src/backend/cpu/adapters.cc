#include "backend/cpu/adapters.h"

#include <algorithm>

#include "backend/cpu/forward_tasks.h"

namespace batchllm::cpu {
namespace {

int64_t packed_bytes(const LowRank &low) {
    if (!low.a) return 0;
    return low.rank() * (low.a.columns + low.b.rows) * static_cast<int64_t>(sizeof(float));
}

PackedLowRank pack_change(const LowRank &low) {
    PackedLowRank packed;
    packed.rank = static_cast<int32_t>(low.rank());
    packed.rows = low.b.rows;
    const int64_t rank = low.rank(), rows = low.b.rows;
    packed.a.reset(new float[static_cast<size_t>(rank * low.a.columns)]);
    read_rows(low.a, 0, rank, DType::f32, packed.a.get());
    packed.b.reset(new float[static_cast<size_t>(rank * rows)]);
    constexpr int64_t some = 64;
    std::vector<float> block(static_cast<size_t>(some * rank));
    for (int64_t begin = 0; begin < rows; begin += some) {
        const int64_t count = std::min(some, rows - begin);
        read_rows(low.b, begin, count, DType::f32, block.data());
        for (int64_t r = 0; r < rank; ++r) {
            float *to = packed.b.get() + r * rows + begin;
            for (int64_t i = 0; i < count; ++i) {
                to[i] = low.scale * block[static_cast<size_t>(i * rank + r)];
            }
        }
    }
    return packed;
}

} // namespace

int64_t CpuAdapter::bytes(const Adapter &adapter) {
    int64_t bytes = packed_bytes(adapter.embedding);
    for (const auto &[tensor, low] : adapter.changes) bytes += packed_bytes(low);
    return bytes;
}

std::shared_ptr<const CpuAdapter> CpuAdapter::pack(const Adapter &adapter) {
    auto packed = std::make_shared<CpuAdapter>();
    for (const auto &[tensor, low] : adapter.changes) {
        packed->changes.emplace(tensor, pack_change(low));
    }
    if (adapter.embedding.a) packed->embedding = pack_change(adapter.embedding);
    return packed;
}

// Sets changes_, and returns how many numbers all A x take.
size_t LowRankProducts::find_changes(RowAdapters adapters, int64_t rows) {
    const size_t count = matrices_.tensors.size();
    changes_.assign(static_cast<size_t>(rows) * count, {});
    size_t next = 0;
    std::vector<const PackedLowRank *> of_row(count, nullptr);
    const CpuAdapter *before = nullptr;
    for (int64_t row = 0; row < rows; ++row) {
        const CpuAdapter *adapter = adapters[static_cast<size_t>(row)];
        if (adapter != before) {
            for (size_t m = 0; m < count; ++m) {
                of_row[m] = nullptr;
                if (adapter == nullptr) continue;
                const auto found = adapter->changes.find(matrices_.tensors[m]);
                if (found != adapter->changes.end()) of_row[m] = &found->second;
            }
            before = adapter;
        }
        for (size_t m = 0; m < count; ++m) {
            if (of_row[m] == nullptr) continue;
            changes_[static_cast<size_t>(row) * count + m] = {of_row[m], next};
            next += static_cast<size_t>(of_row[m]->rank);
        }
    }
    return next;
}

bool LowRankProducts::shrink(const Matrices &matrices, RowAdapters adapters, const std::byte *x,
                             int64_t rows) {
    matrices_ = matrices;
    const size_t numbers = find_changes(adapters, rows);
    if (numbers == 0) return false;
    if (shrunk_.size() < numbers) shrunk_.resize(numbers);
    const int64_t columns = matrices.tensors[0]->columns;
    const size_t count = matrices.tensors.size();
    pool_->parallel_for(task_count(rows), [&](int64_t task, int32_t) {
        std::vector<float> input(static_cast<size_t>(columns));
        Tensor row_of;
        row_of.dtype = kernels_->element;
        row_of.rows = 1;
        row_of.columns = columns;
        const int64_t last = std::min(rows, (task + 1) * kTokensOfTask);
        for (int64_t row = task * kTokensOfTask; row < last; ++row) {
            bool read = false;
            for (size_t m = 0; m < count; ++m) {
                const Change &here = change(row, m);
                if (here.low == nullptr) continue;
                row_of.data = x + row * row_of.bytes();
                if (!read) read_row(row_of, 0, input.data());
                read = true;
                kernels_->multiply_rows(input.data(), here.low->a.get(),
                                        static_cast<int32_t>(columns), here.low->rank,
                                        shrunk_.data() + here.shrunk);
            }
        }
    });
    return true;
}

void LowRankProducts::expand(const Tile &tile, float *out) const {
    const size_t count = matrices_.tensors.size();
    int64_t begin = 0; // of the matrix, in columns of the product
    for (size_t m = 0; m < count; ++m) {
        const int64_t size = matrices_.tensors[m]->rows;
        // Columns [first, last) of the matrix are at `at` in each row of the tile.
        int64_t first = std::max(tile.column, begin) - begin;
        int64_t last = std::min(tile.column + tile.width, begin + size) - begin;
        int64_t at = begin + first - tile.column;
        if (matrices_.interleaved) {
            first = tile.column / 2;
            last = first + tile.width / 2;
            at = static_cast<int64_t>(m) * (tile.width / 2);
        }
        begin += size;
        if (first >= last) continue;
        for (int64_t r = 0; r < tile.rows; ++r) {
            const Change &here = change(tile.row + r, m);
            if (here.low == nullptr) continue;
            kernels_->add_rows(shrunk_.data() + here.shrunk, here.low->b.get() + first,
                               here.low->rows, static_cast<int32_t>(last - first), here.low->rank,
                               out + r * tile.width + at);
        }
    }
}

} // namespace batchllm::cpu
