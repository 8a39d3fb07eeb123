// Runs a worklist over the KV pages on the thread pool: phase one with the kernels' attention,
// phase two with their merge. If the list is in order, a row's result depends, bit for bit, only on
// its query and on the keys and values at each position.
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
    // All are borrowed.
    PagedAttention(const Kernels &kernels, const KvPages &pages, ThreadPool *pool);

    // queries: [kv_head][token of the batch][head of its group][D] elements, scaled as in
    // kernels.h. sinks: [heads] scores in base 2, or empty. output: [list.rows][heads * value_dim()]
    // elements.
    Status run(const TokenBatch &batch, const CpuWorklist &list, const Attention &layer,
               std::span<const float> sinks, const void *queries, void *output);

  private:
    struct Scratch {
        Buffer queries; // the query rows of an item, gathered
        Buffer output;  // of the kernel
        Buffer scores;
        Buffer latents; // laid out as values
        std::vector<float> maximum, sum;
        std::vector<int32_t> visible_begin, visible_end;
        std::vector<const void *> keys, values;
    };
    void run_item(const TokenBatch &batch, const CpuWorklist &list, const CpuAttentionItem &item,
                  const Attention &layer, int32_t kv_head, const std::byte *queries,
                  std::byte *output, Scratch *scratch);
    void begin_parts(const CpuAttentionItem &item, const AttentionQuery *query,
                     const Attention &layer, int32_t kv_head, int32_t shift,
                     AttentionCall *call) const;
    void end_parts(const CpuAttentionItem &item, const AttentionQuery *query,
                   const Attention &layer, int32_t kv_head, int32_t shift,
                   const AttentionCall &call, std::byte *output);
    Status reserve(const CpuWorklist &list, const Attention &layer);
    void place_parts(const CpuWorklist &list);
    void merge_parts(const CpuWorklist &list, const Attention &layer, std::byte *output);
    void merge_row(std::span<const float *> outputs, std::span<float> maxima, std::span<float> sums,
                   const Attention &layer, int64_t head, void *output) const;

    const Kernels &kernels_;
    const KvPages &pages_;
    ThreadPool *pool_;
    std::vector<Scratch> scratch_; // [threads]
    // The parts of rows that have several; a single part goes straight to the output.
    Buffer parts_;                 // [part][heads][D of the values]
    std::vector<float> maxima_;    // [part][heads]
    std::vector<float> sums_;      // [part][heads][sums per part]
    std::vector<uint8_t> alone_;   // [part] it is the only one of its row and lies in one node
    std::vector<int32_t> row_;     // [part]
    bool some_merged_ = false;     // some row has several parts
    int64_t part_sums_ = 1;        // sums per part: 1, or kGroupTokens in order
    std::span<const float> sinks_; // for the current run
    std::vector<float> zeros_;     // [D] a sink's value
};

} // namespace batchllm::cpu
