// The pool of KV pages on the device, and where in it a batch's keys and values go.
//
// The planes stand one after the other, each with all pages of one layer of a KV group. A page in a plane takes a multiple
// of what each layer stores there; a layer of a fraction of it reads and writes as if pages had numbers so many times as
// large (page_scale).
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"
#include "device/device.h"
#include "device/staging.h"
#include "model/model.h"
#include "step/input.h"

namespace batchllm::cuda {

class KvPool {
  public:
    // model: kept. type: of keys and values.
    KvPool(const Model &model, DType type);

    // Keys and values of the layers of one KV group.
    int64_t page_bytes() const { return plane_bytes_ * model_.kv_planes(); }
    // A key's place in its plane is a 32-bit number.
    int64_t most_pages() const;
    Status take_pages(int64_t pages);
    // Reads or derives the scales of keys and values in e4m3; without this they are 1.
    Status load_scales(int32_t threads);

    // [KV groups]
    const std::vector<int32_t> &page_scale() const { return page_scale_; }

    // Host: adds each token's place in each KV group (kSlots); the rows beyond the batch have none. tokens: rounded up.
    Status stage_slots(const TokenBatch &batch, int64_t tokens, StepInput *input, Staging *staging);

    // Of a layer, in the staged step: its plane, and where in it the batch's tokens go.
    std::byte *plane_of(const Attention &attention) const {
        return pages_.data() + attention.kv_plane * plane_bytes_ * page_count_;
    }
    const int32_t *slots_of(const Attention &attention, const StepInput &input) const {
        return input.at<int32_t>(kSlots) + attention.kv_group * tokens_;
    }
    struct Scales {
        const float *k = nullptr, *v = nullptr; // [kv_heads], or null: 1
    };
    Scales scales_of(size_t layer) const { return scales_.empty() ? Scales() : scales_[layer]; }

  private:
    const Model &model_;
    int64_t plane_bytes_ = 1; // of a page in a plane
    std::vector<int32_t> page_scale_;
    int64_t page_count_ = 0;
    DeviceMemory pages_; // [planes][pages]...
    DeviceMemory scale_values_;
    std::vector<Scales> scales_; // [layers]
    int64_t tokens_ = 0;         // of the staged step
};

} // namespace batchllm::cuda
