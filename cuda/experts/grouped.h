// The grouped products: for the turns of each expert y = x W^T + bias with the expert's own W, or with gate and
// up in W activation(gate) * up of it. The tiles are made on the device (experts/routing.h); the launch is the same
// for every routing. A result does not depend on what other turns there are.
//
// W as the products read it. For elements of two bytes: panels of kPanel columns (the last filled up with
// zeros), one after another; in a panel a row is 128 bytes, of which chunk c (16 bytes) lies at c ^ (row % 8),
// as wgmma and ldmatrix want it in shared memory. For f32 row-major. Gate and up take turns, kGateRows rows
// each: [gate 0 .. 7, up 0 .. 7, gate 8 .. 15, ..].
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "experts/tile.h"
#include "model/model.h"

namespace batchllm::cuda {

inline constexpr int32_t kPanel = 64;
inline constexpr int32_t kGateRows = 8;

// Columns of W with what fills up the last panel.
inline int64_t padded_columns(int64_t columns, DType element) {
    return element == DType::f32 ? columns : (columns + kPanel - 1) / kPanel * kPanel;
}

struct GroupedArguments {
    DType element;
    const void *x;         // [., columns]
    const int32_t *row_of; // [turns] the row of x; null: the turn's number
    const void *w;         // [experts][rows, columns] as above
    int32_t rows, columns; // of an expert's W; multiples of 8, rows of 16 where gated
    const float *bias;     // [experts, rows] in the order of W's rows; null: none
    bool gated;
    Activation activation;
    void *y; // [turns, rows], or gated [turns, rows / 2]
    const ExpertTile *tiles;
    const int32_t *tile_count;
};

// What can be launched on a device of a compute capability; f32 has one of its own.
enum class GroupedKernel : uint8_t { sm80, sm90 };

cudaError_t launch_grouped(GroupedKernel kernel, const GroupedArguments &arguments, int sms,
                           cudaStream_t stream);
cudaError_t launch_grouped_f32(const GroupedArguments &arguments, int sms, cudaStream_t stream);
cudaError_t launch_grouped_sm80(const GroupedArguments &arguments, int sms, cudaStream_t stream);
cudaError_t launch_grouped_sm90(const GroupedArguments &arguments, int sms, cudaStream_t stream);

} // namespace batchllm::cuda
