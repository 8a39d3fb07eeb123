// Where a step's time on the device goes: events between its parts, added up once the step has ended.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "device/device.h"

namespace batchllm::cuda {

enum class Part : uint8_t {
    begin, // of a step: nothing before this counts
    input,
    norm,
    qkv,
    rope,
    attention,
    delta,
    convolution,
    quantize, // of attention's result
    output,
    routing,
    gate_up,
    activation,
    down,
    combine,
    exchange, // between ranks
    logits,
    sample,
    count
};
inline constexpr const char *kPartNames[] = {
    "",           "input",       "norm",     "qkv",      "rope",    "attention",
    "delta",      "convolution", "quantize", "output",   "routing", "gate/up",
    "activation", "down",        "combine",  "exchange", "logits",  "sample"};
static_assert(std::size(kPartNames) == static_cast<size_t>(Part::count));

class Profile {
  public:
    bool on = false;
    std::array<double, static_cast<size_t>(Part::count)> seconds{};

    // Assigns the time since the last mark to this part.
    Status mark(Part part, cudaStream_t stream) {
        if (!on) return {};
        if (used_ == events_.size()) {
            ASSIGN_OR_RETURN(Event event, Event::create(true));
            events_.push_back(std::move(event));
            parts_.push_back(part);
        }
        parts_[used_] = part;
        return check_cuda(cudaEventRecord(events_[used_++], stream), "a profile's event");
    }
    // Must be called after the stream has reached the step's end.
    Status collect() {
        for (size_t i = 1; i < used_; ++i) {
            if (parts_[i] == Part::begin) continue;
            float milliseconds = 0;
            RETURN_IF_CUDA(cudaEventElapsedTime(&milliseconds, events_[i - 1], events_[i]));
            seconds[static_cast<size_t>(parts_[i])] += static_cast<double>(milliseconds) * 1e-3;
        }
        used_ = 0;
        return {};
    }

  private:
    std::vector<Event> events_;
    std::vector<Part> parts_;
    size_t used_ = 0;
};

} // namespace batchllm::cuda
