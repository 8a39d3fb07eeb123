// Memory aligned for vectors and taken from the system in whole pages: initially zero, and free of
// cost until it is touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.h"

namespace batchllm::cpu {

class Buffer {
  public:
    Buffer() = default;
    // An error of BATCHLLM_ERROR_OUT_OF_MEMORY names what it was for and its size.
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

    // At least so many bytes from now on; what was inside is lost when it grows.
    Status reserve(int64_t bytes, const char *what);

  private:
    std::byte *data_ = nullptr;
    int64_t bytes_ = 0;
};

} // namespace batchllm::cpu
