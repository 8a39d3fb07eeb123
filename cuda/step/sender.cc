#include "step/sender.h"

#include <algorithm>
#include <cstring>

#include "elementwise/elementwise.h"

namespace batchllm::cuda {
namespace {

constexpr int64_t kStaging = int64_t{64} << 20;
// What a host thread takes at once: of bytes, so that an expert's matrix of a few MiB is read by many; and of
// elements that are widened.
constexpr int64_t kReadBytes = int64_t{256} << 10, kReadElements = int64_t{512} << 10;

} // namespace

Status Sender::start(int32_t threads, cudaStream_t stream) {
    stream_ = stream;
    pool_ = std::make_unique<ThreadPool>(threads);
    for (int i = 0; i < 2; ++i) {
        ASSIGN_OR_RETURN(pinned_[i], PinnedMemory::create(kStaging, "loading weights"));
        ASSIGN_OR_RETURN(raw_[i], DeviceMemory::create(kStaging, "loading weights"));
        ASSIGN_OR_RETURN(free_[i], Event::create(false));
    }
    return {};
}

// Host threads fill the staging memory: with bytes as they are in the file, or with quantised elements
// that are to be of another type, times their scales.
Status Sender::send(const Tensor &tensor, std::byte *to, DType type, int64_t stride,
                    const Placing &placing) {
    const bool widens =
        !tensor.as_stored() && !(tensor.dtype == DType::e4m3 && type == DType::e4m3);
    // Rounded to bf16 here or there, the bits are the same, and half as many move.
    const bool as_bf16 = type == DType::bf16 && placing.scale == 1 && placing.offset == 0;
    const DType sent = !widens ? tensor.dtype : as_bf16 ? DType::bf16 : DType::f32;
    const int64_t row_bytes = tensor.columns * dtype_bytes(sent);
    if (row_bytes > kStaging) {
        return error(BATCHLLM_ERROR_UNSUPPORTED, "cuda: a weight's row of %lld bytes",
                     static_cast<long long>(row_bytes));
    }
    const int64_t rows_at_once = kStaging / row_bytes;
    for (int64_t row = 0; row < tensor.rows; row += rows_at_once) {
        const int64_t rows = std::min(rows_at_once, tensor.rows - row);
        const int64_t bytes = rows * row_bytes;
        const int side = turn_;
        turn_ ^= 1;
        RETURN_IF_CUDA(cudaEventSynchronize(free_[side]));
        std::byte *pinned = pinned_[side].data();
        if (!widens) {
            read_bytes(tensor.data + row * row_bytes, bytes, pinned);
        } else {
            read_quantized(tensor, row, rows, sent, pinned);
        }
        RETURN_IF_CUDA(cudaMemcpyAsync(raw_[side].data(), pinned, static_cast<size_t>(bytes),
                                       cudaMemcpyHostToDevice, stream_));
        const ConvertArguments convert{raw_[side].data(),
                                       sent,
                                       to,
                                       type,
                                       row,
                                       rows,
                                       tensor.columns,
                                       stride,
                                       placing.row_group,
                                       placing.row_group_out,
                                       placing.column_group,
                                       placing.column_group_out,
                                       placing.scale,
                                       placing.offset,
                                       placing.swizzled};
        RETURN_IF_CUDA(launch_convert(convert, stream_));
        RETURN_IF_CUDA(cudaEventRecord(free_[side], stream_));
    }
    return {};
}

void Sender::read_bytes(const std::byte *from, int64_t bytes, std::byte *pinned) {
    pool_->parallel_for((bytes + kReadBytes - 1) / kReadBytes, [&](int64_t i, int32_t) {
        const int64_t begin = i * kReadBytes;
        std::memcpy(pinned + begin, from + begin,
                    static_cast<size_t>(std::min(kReadBytes, bytes - begin)));
    });
}

void Sender::read_quantized(const Tensor &tensor, int64_t row, int64_t rows, DType type,
                            std::byte *pinned) {
    const int64_t row_bytes = tensor.columns * dtype_bytes(type);
    const int64_t at_once = std::max<int64_t>(1, kReadElements / tensor.columns);
    pool_->parallel_for((rows + at_once - 1) / at_once, [&](int64_t i, int32_t) {
        const int64_t begin = i * at_once;
        read_rows(tensor, row + begin, std::min(at_once, rows - begin), type,
                  pinned + begin * row_bytes);
    });
}

} // namespace batchllm::cuda
