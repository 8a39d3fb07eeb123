// A step's input for the device: sections of one pinned buffer, copied together. The buffer grows
// if a step needs more than any before it. A step's copy must have ended before the next step fills
// the buffer. Sections begin at multiples of 16 bytes.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "device/device.h"

namespace batchllm::cuda {

class Staging {
  public:
    void clear() { used_ = 0; }

    // Memory for a first step, on the device for larger ones too. Growing later waits for the device.
    Status reserve(int64_t bytes, int64_t on_device = 0) {
        ASSIGN_OR_RETURN(host_, PinnedMemory::create(bytes, "a step's input"));
        ASSIGN_OR_RETURN(device_,
                         DeviceMemory::create(std::max(bytes, on_device), "a step's input"));
        return {};
    }

    // Adds a section and returns its place. Its bytes are written through at<T>(), which later
    // calls of add may move.
    template <typename T> Result<int64_t> add(int64_t count) {
        const int64_t place = used_;
        // The device copies whole 16 bytes.
        const int64_t end = place + (count * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 16;
        if (end > host_.bytes()) {
            const int64_t bytes = std::max(2 * host_.bytes(), end + (int64_t{1} << 20));
            ASSIGN_OR_RETURN(PinnedMemory host, PinnedMemory::create(bytes, "a step's input"));
            if (used_ > 0) {
                std::memcpy(host.data(), host_.data(), static_cast<size_t>(used_));
            }
            host_ = std::move(host);
        }
        used_ = end;
        return place;
    }
    template <typename T> Result<int64_t> add(std::span<const T> values) {
        ASSIGN_OR_RETURN(const int64_t place, add<T>(static_cast<int64_t>(values.size())));
        if (!values.empty()) std::memcpy(host_.data() + place, values.data(), values.size_bytes());
        return place;
    }
    template <typename T> T *at(int64_t place) const {
        return reinterpret_cast<T *>(host_.data() + place);
    }

    // Enqueues the copy; after this, on_device returns the sections' addresses.
    Status send(cudaStream_t stream) {
        if (device_.bytes() < used_) {
            device_ = DeviceMemory();
            ASSIGN_OR_RETURN(device_, DeviceMemory::create(host_.bytes(), "a step's input"));
        }
        if (used_ == 0) return {};
        return check_cuda(cudaMemcpyAsync(device_.data(), host_.data(), static_cast<size_t>(used_),
                                          cudaMemcpyHostToDevice, stream),
                          "a step's input");
    }
    template <typename T> T *on_device(int64_t place) const {
        return reinterpret_cast<T *>(device_.data() + place);
    }

  private:
    PinnedMemory host_;
    DeviceMemory device_;
    int64_t used_ = 0;
};

} // namespace batchllm::cuda
