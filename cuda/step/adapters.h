// The loaded adapters of the device, which of a step's rows have which, and the launches beside a layer's products
// (adapters/adapters.h).
//
// A step whose rows have no adapter launches nothing. An adapter is loaded while steps run (step/adapter_uploads.h); the first
// step with one of its rows is enqueued once its copies are, and waits for them on the device. Adapters' memory is a pool's,
// which grows as they come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "adapters/work.h"
#include "backend/backend.h"
#include "device/device.h"
#include "linear/linear.h"
#include "step/adapter_layout.h"
#include "step/adapter_uploads.h"
#include "step/input.h"
#include "step/merged_layers.h"

namespace batchllm::cuda {

class StepAdapters {
  public:
    StepAdapters(const Model &model, DType element, int sms, bool hopper, bool reproducible)
        : model_(model, element), element_(element), sms_(sms), hopper_(hopper),
          reproducible_(reproducible), uploads_(std::make_unique<AdapterUploads>(element, sms)),
          ranks_(model_.products()), part_ranks_(model_.products()) {}
    StepAdapters(const StepAdapters &) = delete;
    StepAdapters &operator=(const StepAdapters &) = delete;
    ~StepAdapters();

    const AdaptedModel &model() const { return model_; }
    // Before any is loaded: this product has none.
    void exclude(ProductPlace place) { model_.exclude(place.number()); }
    void exclude_experts(size_t layer, ExpertProduct product) {
        model_.exclude_experts(layer, product);
    }
    void limit_experts(size_t layer, ExpertProduct product, int32_t ranks) {
        model_.limit_experts(layer, product, ranks);
    }
    // What it takes on the device.
    Result<int64_t> bytes(const Adapter &adapter) const;
    // Any thread.
    Result<std::shared_ptr<const LaidOutAdapter>>
    pack(std::shared_ptr<const Adapter> adapter) const;
    // The adapter is kept until it has been copied. This and unload() may free merged layers, which waits for the device:
    // with ranks under launching().
    Status load(int32_t slot, std::shared_ptr<const LaidOutAdapter> adapter);
    // No step that is enqueued uses it.
    void unload(int32_t slot);

    // Host: the rows of the batch's tokens and of the wanted ones; with `gather`, these are others. tokens, wanted_rows:
    // padded.
    Status stage(const TokenBatch &batch, std::span<const int32_t> wanted, int64_t tokens,
                 int64_t wanted_rows, bool gather, StepInput *input, Staging *staging);
    // Memory for what the staged step needs. rows: of the largest step. True: launches of before are out of date.
    Result<bool> reserve(int64_t rows, cudaStream_t stream);
    // The stream goes on once the staged step's adapters are there.
    Status wait(cudaStream_t stream);

    // Steps of one form and size are the same launches, until layers are merged anew. 0: no row has an adapter.
    uint16_t form() const { return form_; }
    // Whether the staged step has launches beside this product; of experts, their first's.
    bool changes(size_t product) const;
    // Of any adapter so far, in the product's launch.
    int32_t most_ranks(size_t product) const { return ranks_[product]; }
    bool reproducible() const { return reproducible_; }

    // From now on steps whose tokens all have one adapter may run on layers that have its changes in them
    // (step/merged_layers.h), once there have been so many such tokens (0: never) and if these layers take no more of the room
    // than loaded adapters leave. layers: the model's.
    void set_merging(const std::vector<DeviceLayer> *layers, int64_t after_tokens, int64_t room);
    // The layers that the staged step runs on instead of the model's; null: it runs on those.
    const std::vector<DeviceLayer> *merged() const;
    // The staged step is the first on layers that have been merged anew: other steps' graphs of such forms are out of date.
    bool merged_anew() const { return merged_anew_; }
    static bool is_merged(uint16_t form);
    const AdapterUse &use() const { return use_; }
    // Whether adapters change any experts, since one was loaded that does.
    bool changes_experts() const;
    // Whether all rows of the staged step are in_others (AdapterWork), or all wanted ones of a step that gathers.
    bool all_in_others(bool wanted) const;
    // The staged step's, of all rows or of the wanted ones of a step that gathers.
    AdapterWork work(bool wanted, const StepInput &input) const;

    // y += alpha * (the adapters' change of W) x.
    struct Addition {
        size_t product; // by number
        Input x;
        Scaling scaling; // of x
        int64_t rows;    // of x and y
        bool wanted;     // they are the wanted ones of a step that gathers
        void *y;
        DType y_type;
        float alpha;
        const AdapterWork *turns = nullptr; // of experts, instead of the step's
        const int32_t *x_rows = nullptr;    // AdapterArguments'
        int32_t first_row = 0, some_rows = 0;
        bool product_adds = false; // what is shrunk: gate and up in 16 bits need not say so
    };
    AdapterArguments arguments(const Addition &addition, const StepInput &input) const;
    // In two launches; others may make the second their own.
    Result<AdapterArguments> shrink(const Addition &addition, const StepInput &input,
                                    cudaStream_t stream) const;
    Status expand(const AdapterArguments &shrunk, cudaStream_t stream) const {
        return check_cuda(launch_adapter_expand(shrunk, sms_, stream), "adapters");
    }

  private:
    struct Slot {
        std::byte *data = nullptr; // of the pool
        int64_t bytes = 0;
        std::vector<bool> changed; // [products]
        int64_t alone = 0; // tokens of steps that have this adapter alone, since it was last merged
        Event loaded;
        int64_t upload = 0;   // its number
        bool awaited = false; // by the steps' stream
    };
    // Where the staged step's lists are, of all rows or of the wanted ones, in bytes from the section's beginning.
    struct Places {
        int64_t entries, rows, block_counts, block_entries, in_others, tiles;
    };

    Status make_pool();
    // Of the pool; merged layers go if it has no more.
    Result<std::byte *> take(int64_t bytes, const char *what);
    // Whether a step whose tokens all have this adapter (-1: they have not) runs on merged layers, which may be new.
    bool run_merged(int32_t slot, int64_t tokens);
    void drop_merged();
    void count_bytes() {
        use_.bytes_peak = std::max(use_.bytes_peak, loaded_bytes_ + merged_.bytes());
    }

    AdaptedModel model_;
    DType element_;
    int sms_;
    bool hopper_, reproducible_;
    cudaMemPool_t pool_ = nullptr;
    const std::unique_ptr<AdapterUploads> uploads_;
    std::byte *raw_ = nullptr; // of the pool: uploads', in turn
    int64_t raw_bytes_ = 0;
    std::vector<Slot> slots_;
    std::vector<const AdapterEntry *> entries_; // [slots]
    // [products] the most of any adapter so far, and of a part
    std::vector<int32_t> ranks_, part_ranks_;
    bool grown_ = false; // since reserve()
    DeviceMemory sums_;  // t of one product at a time
    int64_t sum_rows_ = 0;
    const std::vector<DeviceLayer> *layers_ = nullptr;
    int64_t merge_after_ = 0, room_ = 0, loaded_bytes_ = 0;
    AdapterUse use_;
    MergedLayers merged_;
    bool merged_anew_ = false; // to be launched
    // Of the staged step.
    std::vector<int32_t> slot_of_row_, slot_of_wanted_;
    AdapterLists all_, wanted_;
    Places of_all_{}, of_wanted_{};
    uint16_t form_ = 0;
};

} // namespace batchllm::cuda
