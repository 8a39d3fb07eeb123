// A mapped tensor -> the device, converted and placed there. Two pinned buffers: while the device copies and
// converts from one, host threads read the mapped file into the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "four_bits/pack.h"
#include "model/model.h"
#include "step/matrix_form.h"

namespace batchllm::cuda {

class Sender {
  public:
    // Before the first send. The stream outlives the sender's work.
    Status start(int32_t threads, cudaStream_t stream);
    // Enqueued when this returns. stride: of to's rows, in elements.
    Status send(const Tensor &tensor, std::byte *to, DType type, int64_t stride,
                const Placing &placing);

    // Parts of a vector of f32, each all elements of a tensor, from to[first] on.
    Status send_vector(const std::vector<MatrixPart> &parts, float *to, const Placing &placing);

    // A tensor, packed with four bits.
    Status send_packed(const Tensor &tensor, const PackTarget &target, const PackedPlace &place);
    // Instead, made up: codes at random, of scales with which weights deviate by some 0.02.
    Status make_packed(int64_t rows, int64_t columns, const PackTarget &target,
                       const PackedPlace &place, cudaStream_t stream);

  private:
    void read_bytes(const std::byte *from, int64_t bytes, std::byte *pinned);
    void read_columns(const std::byte *from, int64_t rows, int64_t row_bytes, int64_t stride,
                      std::byte *pinned);
    void read_quantized(const Tensor &tensor, int64_t row, int64_t rows, DType type,
                        std::byte *pinned);

    cudaStream_t stream_ = nullptr;
    std::unique_ptr<ThreadPool> pool_;
    PinnedMemory pinned_[2];
    DeviceMemory raw_[2];
    Event free_[2];
    int turn_ = 0;
    DeviceMemory made_up_; // codes, then scales
};

} // namespace batchllm::cuda
