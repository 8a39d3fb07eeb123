// Items of a column -> items of another, on threads.
#pragma once

#include <algorithm>
#include <cinttypes>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "api/column.h"
#include "base/status.h"
#include "base/thread_pool.h"

namespace batchllm::api {

inline Status check_flags(uint32_t flags, uint32_t known) {
    if ((flags & ~known) == 0) return {};
    return error(BATCHLLM_ERROR_UNSUPPORTED, "flags has bits %#" PRIx32 " that are not known",
                 flags & ~known);
}

inline Status check_threads(int32_t threads) {
    if (threads >= 0) return {};
    return error(BATCHLLM_ERROR_INVALID_ARGUMENT, "threads is %d: it cannot be negative", threads);
}

// No more threads than items, and none for a single item.
inline int32_t threads_for(int64_t items, int32_t threads) {
    if (items <= 1) return 1;
    const auto most = static_cast<int32_t>(std::min<int64_t>(items, ThreadPool::most_threads));
    return threads == 0 ? std::min(most, ThreadPool::available()) : std::min(threads, most);
}

// Runs convert(i, &item) -> Status for n items on threads, in blocks, and joins the items. An item that
// fails is empty and has its status.
template <typename Item, typename Convert> Result<std::unique_ptr<ColumnBatch>>
convert_column(int64_t n, int32_t threads, Item ColumnBatch::*joined, Convert convert) {
    constexpr int64_t block_items = 4096;
    auto batch = std::make_unique<ColumnBatch>();
    batch->all_offsets.reserve(static_cast<size_t>(n) + 1);
    batch->all_offsets.push_back(0);
    batch->all_statuses.assign(static_cast<size_t>(n), BATCHLLM_OK);
    batch->all_error_offsets.reserve(static_cast<size_t>(n) + 1);
    batch->all_error_offsets.push_back(0);
    ThreadPool pool(threads_for(n, threads));
    std::vector<Item> block(static_cast<size_t>(std::min(block_items, n)));
    std::vector<std::string> errors(block.size());
    for (int64_t begin = 0; begin < n; begin += block_items) {
        const int64_t count = std::min(block_items, n - begin);
        pool.parallel_for(count, [&](int64_t i, int32_t) {
            Item &item = block[static_cast<size_t>(i)];
            std::string &error = errors[static_cast<size_t>(i)];
            item.clear();
            error.clear();
            const Status status = convert(begin + i, &item);
            if (status.ok()) return;
            // A failure of the whole call, not of the item.
            if (status.code() == BATCHLLM_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
            item.clear();
            error = status.message();
            batch->all_statuses[static_cast<size_t>(begin + i)] = status.code();
        });
        for (int64_t i = 0; i < count; ++i) {
            const int32_t code = batch->all_statuses[static_cast<size_t>(begin + i)];
            if (is_failure_of_process(code)) return Status(code, errors[static_cast<size_t>(i)]);
        }
        Item &all = *batch.*joined;
        for (int64_t i = 0; i < count; ++i) {
            const Item &item = block[static_cast<size_t>(i)];
            all.insert(all.end(), item.begin(), item.end());
            batch->all_offsets.push_back(static_cast<int64_t>(all.size()));
            batch->all_errors += errors[static_cast<size_t>(i)];
            batch->all_error_offsets.push_back(static_cast<int64_t>(batch->all_errors.size()));
        }
    }
    batch->struct_size = sizeof(batchllm_column);
    batch->reserved = 0;
    batch->count = n;
    batch->offsets = batch->all_offsets.data();
    batch->statuses = batch->all_statuses.data();
    batch->error_offsets = batch->all_error_offsets.data();
    batch->errors = batch->all_errors.data();
    batch->tokens = nullptr;
    batch->text = nullptr;
    return batch;
}

} // namespace batchllm::api
