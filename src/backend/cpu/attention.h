// Runs a worklist over the KV pages with the thread pool: phase one by the kernels' attention, phase
// two by their merge.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/buffer.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/kv_pages.h"
#include "backend/cpu/worklist.h"
#include "base/thread_pool.h"

namespace batchllm::cpu {

class PagedAttention {
  public:
    // All borrowed.
    PagedAttention(const Kernels &kernels, const KvPages &pages, ThreadPool *pool);

    // queries: [kv_head][token of the batch][head of its group][D] elements, scaled as kernels.h
    // says. sinks: [heads] scores in base 2, or empty. output: [list.rows][heads * head_dim] elements.
    Status run(const TokenBatch &batch, const Worklist &list, const Attention &layer,
               std::span<const float> sinks, const void *queries, void *output);

  private:
    struct Scratch {
        Buffer queries; // gathered query rows of an item
        Buffer output;  // of the kernel
        Buffer scores;
        std::vector<float> maximum, sum;
        std::vector<int32_t> visible_begin, visible_end;
        std::vector<const void *> keys, values;
    };
    void run_item(const TokenBatch &batch, const Worklist &list, const AttentionItem &item,
                  const Attention &layer, int32_t kv_head, const std::byte *queries,
                  std::byte *output, Scratch *scratch);
    Status reserve(const Worklist &list, const Attention &layer);
    bool place_parts(const Worklist &list);
    void merge_parts(const Worklist &list, const Attention &layer, std::byte *output);
    void merge_row(std::span<const float *> outputs, std::span<float> maxima, std::span<float> sums,
                   const Attention &layer, int64_t head, void *output) const;

    const Kernels &kernels_;
    const KvPages &pages_;
    ThreadPool *pool_;
    std::vector<Scratch> scratch_; // [threads]
    // Parts of rows that have more than one; the rest goes straight to the output.
    Buffer parts_;                 // [part][heads][D]
    std::vector<float> maxima_;    // [part][heads]
    std::vector<float> sums_;      // [part][heads]
    std::vector<uint8_t> alone_;   // [part] the only one of its row
    std::vector<int32_t> row_;     // [part]
    std::span<const float> sinks_; // of this run
    std::vector<float> zeros_;     // [D] a sink's value
};

} // namespace batchllm::cpu
