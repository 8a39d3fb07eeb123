#include "step/sender.h"

#include <algorithm>
#include <cstring>

#include "elementwise/elementwise.h"
#include "four_bits/convert.h"
#include "model/four_bits.h"

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
    // Bytes of the file, all of a row's or of some columns.
    const bool as_stored = tensor.row_step == 1 && !tensor.stored_transposed &&
                           tensor.factor == 1 && tensor.dtype != DType::u4;
    const bool widens = !as_stored || (tensor.dtype == DType::e4m3 && type != DType::e4m3);
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
            const int64_t stride_in_file = tensor.row_length() * dtype_bytes(sent);
            const std::byte *from = tensor.data + row * stride_in_file;
            if (stride_in_file == row_bytes) {
                read_bytes(from, bytes, pinned);
            } else {
                read_columns(from, rows, row_bytes, stride_in_file, pinned);
            }
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

namespace {

// Where the parts of a row of codes and scales are in the staging memory, of so many rows at once.
struct PackedRows {
    int64_t code_bytes, groups, scale_bytes; // of a row; scale_bytes: of a scale
    int64_t rows, scales, zeros, bytes;      // of all rows: where parts begin, and the end

    PackedRows(PackedForm form, int64_t columns, int64_t own_groups, int64_t most_rows)
        : code_bytes(columns / 2), groups(own_groups), scale_bytes(is_int4(form) ? 4 : 1) {
        const int64_t row = code_bytes + groups * (scale_bytes + 1);
        rows = std::min(most_rows, (kStaging - 32) / row);
        scales = (rows * code_bytes + 15) / 16 * 16;
        zeros = scales + rows * groups * scale_bytes;
        bytes = zeros + (is_int4(form) ? rows * groups : 0);
    }
};

PackSource source_of(const PackedRows &at, PackedForm form, const std::byte *raw, int64_t columns,
                     int64_t group_columns, const PackedPlace &place, int64_t row, int64_t rows) {
    const auto *bytes = reinterpret_cast<const uint8_t *>(raw);
    const bool int4 = is_int4(form);
    return {bytes,
            int4 ? reinterpret_cast<const float *>(raw + at.scales) : nullptr,
            int4 ? bytes + at.zeros : nullptr,
            int4 ? nullptr : bytes + at.scales,
            place.order,
            static_cast<int32_t>(rows),
            static_cast<int32_t>(columns),
            1,
            static_cast<int32_t>(at.groups),
            static_cast<int32_t>(group_columns),
            static_cast<int32_t>(place.first + row / place.run * place.stride),
            static_cast<int32_t>(place.run),
            static_cast<int32_t>(place.stride),
            0};
}

} // namespace

Status Sender::send_vector(const std::vector<MatrixPart> &parts, float *to,
                           const Placing &placing) {
    for (const auto &[tensor, first] : parts) {
        if (!*tensor) continue;
        Tensor column = *tensor;
        column.rows = tensor->rows * tensor->columns;
        column.columns = 1;
        RETURN_IF_ERROR(
            send(column, reinterpret_cast<std::byte *>(to + first), DType::f32, 1, placing));
    }
    return {};
}

Status Sender::send_packed(const Tensor &tensor, const PackTarget &target,
                           const PackedPlace &place) {
    const FourBits &from = *tensor.four_bits;
    const PackedForm form = target.shape.form;
    const int64_t groups = groups_of(tensor).count;
    PackedRows at(form, tensor.columns, groups, tensor.rows);
    if (at.rows < tensor.rows) {
        at = PackedRows(form, tensor.columns, groups, at.rows / place.run * place.run);
    }
    if (at.rows < place.run) {
        return error(BATCHLLM_ERROR_UNSUPPORTED, "cuda: a weight's row of %lld columns",
                     static_cast<long long>(tensor.columns));
    }
    // A multiple of what fills cache lines of the files that have several rows in a word.
    const int64_t at_once = (kReadBytes / at.code_bytes + 127) / 128 * 128;
    for (int64_t row = 0; row < tensor.rows; row += at.rows) {
        const int64_t rows = std::min(at.rows, tensor.rows - row);
        const int side = turn_;
        turn_ ^= 1;
        RETURN_IF_CUDA(cudaEventSynchronize(free_[side]));
        std::byte *pinned = pinned_[side].data();
        pool_->parallel_for((rows + at_once - 1) / at_once, [&](int64_t i, int32_t) {
            const int64_t begin = i * at_once, count = std::min(at_once, rows - begin);
            auto *bytes = reinterpret_cast<uint8_t *>(pinned);
            read_codes(tensor, row + begin, count, bytes + begin * at.code_bytes);
            uint8_t *scales = bytes + at.scales + begin * at.groups * at.scale_bytes;
            if (is_int4(form)) {
                read_scales_and_zeros(tensor, row + begin, count, reinterpret_cast<float *>(scales),
                                      bytes + at.zeros + begin * at.groups);
            } else {
                read_scale_bytes(tensor, row + begin, count, scales);
            }
        });
        std::byte *raw = raw_[side].data();
        RETURN_IF_CUDA(cudaMemcpyAsync(raw, pinned, static_cast<size_t>(at.bytes),
                                       cudaMemcpyHostToDevice, stream_));
        RETURN_IF_CUDA(launch_pack(
            target, source_of(at, form, raw, tensor.columns, from.group_columns, place, row, rows),
            stream_));
        RETURN_IF_CUDA(cudaEventRecord(free_[side], stream_));
    }
    return {};
}

Status Sender::make_packed(int64_t rows, int64_t columns, const PackTarget &target,
                           const PackedPlace &place, cudaStream_t stream) {
    const PackedForm form = target.shape.form;
    const int64_t group_columns = scale_columns(form);
    const int64_t groups = (columns + group_columns - 1) / group_columns;
    // A multiple of any run.
    const int64_t most = std::max<int64_t>(64, (kStaging / 2 / columns) / 64 * 64);
    const PackedRows at(form, columns, groups, std::min(most, rows));
    const int64_t code_bytes = at.scales;
    if (made_up_.bytes() < at.bytes) {
        RETURN_IF_CUDA(cudaStreamSynchronize(stream));
        made_up_ = {};
        ASSIGN_OR_RETURN(made_up_, DeviceMemory::create(kStaging, "random weights"));
        std::vector<uint8_t> random(static_cast<size_t>(kStaging));
        uint64_t state = 1;
        for (uint8_t &byte : random) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            byte = static_cast<uint8_t>(state >> 56);
        }
        RETURN_IF_CUDA(
            cudaMemcpy(made_up_.data(), random.data(), random.size(), cudaMemcpyHostToDevice));
    }
    // Codes deviate by 4.6 in int4, by 2.8 in e2m1.
    std::vector<float> floats(static_cast<size_t>(is_int4(form) ? at.rows * groups : 0), 0.0044F);
    std::vector<uint8_t> bytes(static_cast<size_t>(at.bytes - code_bytes), is_int4(form)    ? 8
                                                                           : is_mxfp4(form) ? 120
                                                                                            : 0x38);
    if (!floats.empty()) std::memcpy(bytes.data(), floats.data(), floats.size() * 4);
    RETURN_IF_CUDA(cudaStreamSynchronize(stream)); // what was there has been packed
    RETURN_IF_CUDA(cudaMemcpy(made_up_.data() + code_bytes, bytes.data(), bytes.size(),
                              cudaMemcpyHostToDevice));
    for (int64_t row = 0; row < rows; row += at.rows) {
        RETURN_IF_CUDA(launch_pack(target,
                                   source_of(at, form, made_up_.data(), columns, group_columns,
                                             place, row, std::min(at.rows, rows - row)),
                                   stream));
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

void Sender::read_columns(const std::byte *from, int64_t rows, int64_t row_bytes, int64_t stride,
                          std::byte *pinned) {
    const int64_t at_once = std::max<int64_t>(1, kReadBytes / row_bytes);
    pool_->parallel_for((rows + at_once - 1) / at_once, [&](int64_t i, int32_t) {
        for (int64_t r = i * at_once; r < std::min(rows, (i + 1) * at_once); ++r) {
            std::memcpy(pinned + r * row_bytes, from + r * stride, static_cast<size_t>(row_bytes));
        }
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
