// Memory aligned for vectors, taken from the system in whole pages: initially zero, and free until
// it is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.h"

namespace batchllm::cpu {

class Buffer {
  public:
    Buffer() = default;
    // The error BATCHLLM_ERROR_OUT_OF_MEMORY names the size and what the memory was for.
    static Result<Buffer> create(int64_t bytes, const char *what);

    Buffer(Buffer &&other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Buffer &operator=(Buffer &&other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer();

    std::byte *data() const { return data_; }
    float *floats() const { return reinterpret_cast<float *>(data_); }
    int64_t bytes() const { return bytes_; }

    // Makes the buffer at least this large; if it grows, its contents are lost.
    Status reserve(int64_t bytes, const char *what);

  private:
    std::byte *data_ = nullptr;
    int64_t bytes_ = 0;
};

} // namespace batchllm::cpu
