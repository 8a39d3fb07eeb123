// Layers whose matrices have one adapter's changes in them, W + scale * B A, beside the model's own: on these, steps whose
// rows all have that adapter run as steps without adapters do. Made once, kept from step to step, as long as there is room.
//
// Only matrices in the compute type are merged: what else the adapter changes (those in e4m3 or in four bits, experts,
// routers, the embedding, the head) is launched beside the products as ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "step/adapter_layout.h"
#include "step/weights.h"

namespace batchllm::cuda {

class MergedLayers {
  public:
    // Whose: -1: there are none.
    int32_t slot() const { return slot_; }
    int64_t bytes() const { return bytes_; }
    std::byte *memory() const { return memory_; }
    const std::vector<DeviceLayer> &layers() const { return layers_; }
    // Whether the adapter's change of the product, by the number of its launch, is left to be launched; whether any is.
    bool leaves(size_t product) const { return left_[product]; }
    bool leaves_any() const { return leaves_any_; }

    // What an adapter with these products takes; 0: nothing of it can be merged. changed: [products].
    static int64_t bytes(const std::vector<DeviceLayer> &layers, const std::vector<bool> &changed,
                         DType element);
    // For the adapter of a slot. memory: of so many bytes.
    void place(int32_t slot, const std::vector<DeviceLayer> &layers, const AdaptedModel &model,
               const std::vector<bool> &changed, DType element, std::byte *memory);
    // Makes them. entries: the adapter's.
    Status launch(const std::vector<DeviceLayer> &layers, const AdaptedModel &model, DType element,
                  const AdapterEntry *entries, cudaStream_t stream) const;
    void clear() { *this = {}; }

  private:
    int32_t slot_ = -1;
    int64_t bytes_ = 0;
    std::byte *memory_ = nullptr;
    std::vector<DeviceLayer> layers_;
    std::vector<size_t> merged_; // products
    std::vector<bool> left_;     // [products]
    bool leaves_any_ = false;
};

} // namespace batchllm::cuda
