// A model's steps on the device, for tests of what steps compute: of one request, whose tokens are in two pages. Includes
// cmocka: include this last.
#pragma once

#include <memory>
#include <vector>

#include "attention/family.h"
#include "device/staging.h"
#include "step/forward.h"

#include "cuda_arrays.h"

namespace batchllm::cuda {

// What a step's options say of this device.
inline void set_device(ForwardOptions *options, const char *family = "auto") {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    options->attention.sms = properties.multiProcessorCount;
    options->attention.family = find_attention(family, properties.major, properties.minor);
}

class StepRun {
  public:
    StepRun(const Model &model, const ForwardOptions &options) : vocabulary_(model.vocabulary) {
        auto made = Forward::create(model, options);
        check(made.status());
        forward_ = std::move(made).value();
        check(forward_->parts().kv.take_pages(4));
        StepStates &states = forward_->parts().states;
        if (states.slot_bytes() > 0) check(states.take_slots(1));
        check(staging_.reserve(1 << 20));
        auto stream = Stream::create();
        check(stream.status());
        stream_ = std::move(stream).value();
    }

    const Forward &forward() const { return *forward_; }

    // The request's tokens [first, first + tokens.size()): those before have been in a step. Logits of the wanted ones, each
    // counted from first, one row after another.
    std::vector<float> logits(int32_t first, const std::vector<int32_t> &tokens,
                              const std::vector<int32_t> &wanted) {
        const auto size = static_cast<int32_t>(tokens.size());
        TokenBatch batch;
        batch.tokens = tokens;
        for (int32_t i = 0; i < size; ++i) batch.positions.push_back(first + i);
        const bool state = forward_->parts().states.slot_bytes() > 0;
        batch.nodes.push_back({-1, 0, first + size, 0, size, false, state ? 0 : -1});
        batch.pages = {{{2, 1}, {{0, 0}}}};
        const auto count = static_cast<int64_t>(wanted.size());
        staging_.clear();
        check(forward_->stage(batch, wanted, count, &staging_));
        check(staging_.send(nullptr));
        check(cudaDeviceSynchronize());
        check(forward_->run(staging_, stream_));
        OutputHead &head = forward_->head();
        check(head.compute_logits(0, count, stream_));
        check(cudaDeviceSynchronize());
        std::vector<float> all(static_cast<size_t>(count * vocabulary_));
        for (int64_t i = 0; i < count; ++i) {
            check(cudaMemcpy(all.data() + i * vocabulary_, head.logits() + i * head.logits_stride(),
                             static_cast<size_t>(vocabulary_) * sizeof(float),
                             cudaMemcpyDeviceToHost));
        }
        return all;
    }

  private:
    int64_t vocabulary_;
    std::unique_ptr<Forward> forward_;
    Staging staging_;
    Stream stream_;
};

} // namespace batchllm::cuda
