// Planned chunks -> the token batch with its context nodes, page tables and logits rows. Decode
// tokens come first, then prefixes (parents before children), then the requests' own prompt tokens.
//
// Always: a prefix is one node of a batch, however many requests continue it; once the batch's
// arrays have reached their working size, nothing is allocated.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "schedule/adapter_slots.h"
#include "schedule/picture_slots.h"
#include "schedule/prefix_forest.h"
#include "schedule/scheduler.h"

namespace batchllm {

// Whether the sampler needs to know every token before the one that it chooses.
bool needs_output(const SamplingParams *params);

class BatchBuilder {
  public:
    explicit BatchBuilder(const SchedulerOptions &options)
        : page_tokens_(options.page_tokens), feeds_(options.feeds),
          single_tokens_(options.single_tokens), picture_token_(options.picture_token),
          rope_axes_(options.rope_axes) {
        batch_.pages.resize(options.kv_windows.size());
    }

    // Fills the batch from the chunks of the requests and of the scheduled prefixes. Also fills its
    // record, except for the pages used and the preemptions, which the builder does not know.
    void build(std::span<Request *const> running, std::span<const int32_t> scheduled_prefixes,
               PrefixForest *forest, AdapterSlots *adapters, const PictureSlots &pictures,
               BatchRecord *record);

    const TokenBatch &batch() const { return batch_; }

  private:
    int32_t prefix_node(int32_t prefix, PrefixForest *forest);
    void own_node(Request *request, PrefixForest *forest);
    void add_prompt(const Request &request, int32_t begin, int32_t end);
    void add_position(const Request &request, int32_t position);
    void add_logits(Request *request, int32_t token_begin);
    void add_prompt_scores(Request *request, int32_t token_begin, OutputRow row);
    void add_row(Request *request, const OutputRow &row, int32_t proposed = -1);
    void add_samples(Request *request, int32_t token_begin, OutputRow row);
    int32_t add_node(int32_t parent, int32_t start, int32_t computed, int32_t chunk,
                     const PageTable &pages, int32_t adapter, bool shared);

    int32_t page_tokens_;
    std::function<bool(const SampleInput &)> feeds_;
    bool single_tokens_;
    int32_t picture_token_;
    bool rope_axes_;
    uint64_t step_ = 0;
    TokenBatch batch_;
    BatchRecord *record_ = nullptr;          // of the batch that is being built
    AdapterSlots *adapters_ = nullptr;       // in build()
    const PictureSlots *pictures_ = nullptr; // in build()
    bool any_axes_ = false;      // of the tokens so far, some may differ from their positions
    std::vector<int32_t> chain_; // scratch
};

} // namespace batchllm
