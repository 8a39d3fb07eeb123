// Packing on the device: a block of 128 threads packs a cell of 64 x 128, thread t what thread t of the products reads.
// It reads each row's 64 bytes of codes in pieces of four bytes or more and writes 16 bytes a thread. Sources that
// share words (gate and up) follow each other in the stream. A row's factor (mxfp4_e4m3) is written by the block that has
// its first columns.
#include "four_bits/convert.h"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) pack(PackTarget t, PackSource s) {
    const auto block = static_cast<int32_t>(blockIdx.x), c = static_cast<int32_t>(blockIdx.y);
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const PackedForm form = t.shape.form;
    std::byte *cell = t.data + t.shape.cell(c, block);
    for (int32_t half = 0; half < t.shape.halves_of(c); ++half) {
        auto *to = reinterpret_cast<uint4 *>(cell + shared_scales(form) + half * half_bytes(form)) +
                   thread;
        uint4 words = *to;
        const int32_t column = c * kCellColumns + half * kHalfColumns, row = block * kCellRows;
        words.x = packed_word(form, s, row, column, thread, 0, words.x);
        words.y = packed_word(form, s, row, column, thread, 1, words.y);
        words.z = packed_word(form, s, row, column, thread, 2, words.z);
        words.w = packed_word(form, s, row, column, thread, 3, words.w);
        *to = words;
    }
    const int32_t each = scales_of_cell(form);
    for (int32_t i = thread; i < kCellRows * each; i += kThreads) {
        pack_scale(t, s, c, block, i / each, i % each);
    }
}

// A thread takes eight columns of a row: the row's elements are near, in L1 and L2.
__global__ void __launch_bounds__(kThreads) take_columns(TakeColumnsArguments a) {
    const int32_t eight =
        static_cast<int32_t>(blockIdx.y) * kThreads + static_cast<int32_t>(threadIdx.x);
    if (eight * 8 >= a.columns) return;
    const int64_t row = int64_t{blockIdx.x} * a.columns;
    const auto *x = static_cast<const uint16_t *>(a.x) + row;
    const auto *order = reinterpret_cast<const int4 *>(a.order) + eight * 2;
    const int4 low = __ldg(order), high = __ldg(order + 1);
    const auto pair = [&](int32_t first, int32_t second) {
        return uint32_t{__ldg(x + first)} | uint32_t{__ldg(x + second)} << 16;
    };
    *reinterpret_cast<uint4 *>(static_cast<uint16_t *>(a.out) + row + eight * 8) = make_uint4(
        pair(low.x, low.y), pair(low.z, low.w), pair(high.x, high.y), pair(high.z, high.w));
}

} // namespace

cudaError_t launch_take_columns(const TakeColumnsArguments &a, cudaStream_t stream) {
    if (a.rows == 0) return cudaSuccess;
    if (a.columns % 8 != 0) return cudaErrorInvalidValue;
    const dim3 blocks(static_cast<unsigned>(a.rows),
                      static_cast<unsigned>((a.columns / 8 + kThreads - 1) / kThreads));
    take_columns<<<blocks, kThreads, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_pack(const PackTarget &target, const PackSource &source, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>(target.shape.row_blocks()),
                      static_cast<unsigned>(target.shape.cell_columns()));
    if (blocks.x == 0 || blocks.y == 0) return cudaSuccess;
    if (target.element != DType::bf16 && target.element != DType::f16) return cudaErrorInvalidValue;
    pack<<<blocks, kThreads, 0, stream>>>(target, source);
    return cudaGetLastError();
}

} // namespace batchllm::cuda
