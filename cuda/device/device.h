// CUDA handles as values: memory, streams and events that are freed with their owner, and errors as
// Status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <cuda_runtime_api.h>

#include "base/status.h"

namespace batchllm::cuda {

// BATCHLLM_ERROR_OUT_OF_MEMORY for a failed allocation, else BATCHLLM_ERROR_DEVICE.
Status check_cuda(cudaError_t code, const char *what);

// Bytes on the device, or in host memory that the device reads directly (pinned).
enum class Place : uint8_t { device, pinned };

template <Place place> class Memory {
  public:
    Memory() = default;
    // what: its name in errors. bytes 0: no memory.
    static Result<Memory> create(int64_t bytes, const char *what);
    Memory(Memory &&other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Memory &operator=(Memory &&other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Memory();

    std::byte *data() const { return data_; }
    template <typename T> T *as() const { return reinterpret_cast<T *>(data_); }
    int64_t bytes() const { return bytes_; }
    explicit operator bool() const { return data_ != nullptr; }

  private:
    std::byte *data_ = nullptr;
    int64_t bytes_ = 0;
};

using DeviceMemory = Memory<Place::device>;
using PinnedMemory = Memory<Place::pinned>;

Result<DeviceMemory> zeroed_memory(int64_t bytes, const char *what);

template <typename Raw, cudaError_t (*destroy)(Raw)> class Handle {
  public:
    Handle() = default;
    Handle(Handle &&other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
    Handle &operator=(Handle &&other) noexcept {
        std::swap(raw_, other.raw_);
        return *this;
    }
    ~Handle() {
        if (raw_ != nullptr) destroy(raw_);
    }
    operator Raw() const { return raw_; }

  protected:
    Raw raw_ = nullptr;
};

struct Stream : Handle<cudaStream_t, cudaStreamDestroy> {
    static Result<Stream> create();
};

struct Event : Handle<cudaEvent_t, cudaEventDestroy> {
    // sleeps: a thread that waits for it does, instead of asking all the time.
    static Result<Event> create(bool timed, bool sleeps = false);
};

} // namespace batchllm::cuda

// Returns from the enclosing function if the CUDA call fails.
#define RETURN_IF_CUDA(expression)                                                                 \
    RETURN_IF_ERROR(::batchllm::cuda::check_cuda((expression), #expression))
