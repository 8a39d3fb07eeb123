// A matrix in the compute type -> e4m3, with a scale for each row's greatest element. The memory in between is kept for
// the next matrix.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"
#include "device/device.h"

namespace batchllm::cuda {

class RowQuantizer {
  public:
    // Memory for [rows, columns] of `element`, which the caller fills on `stream`. It holds whatever it held before.
    Result<std::byte *> begin(DType element, int64_t rows, int64_t columns, cudaStream_t stream);
    // What is there now -> to [rows, columns], scales [rows].
    Status end(std::byte *to, float *scales);

  private:
    DType element_ = DType::bf16;
    int64_t rows_ = 0, columns_ = 0;
    cudaStream_t stream_ = nullptr;
    DeviceMemory whole_;
};

} // namespace batchllm::cuda
