// The grouped products: for the turns of each expert y = x W^T + bias with the expert's own W, or max(., 0)^2 of that,
// or with gate and up in W activation(gate) * up. The tiles are made on the device (experts/routing.h); the launch is
// the same for every routing. A result does not depend on what other turns there are.
//
// W as the products read it. For elements of two bytes: panels of kPanel columns (the last filled up with
// zeros), one after another; in a panel a row is 128 bytes, of which chunk c (16 bytes) lies at c ^ (row % 8),
// as wgmma and ldmatrix want it in shared memory. For e4m3 the same with panels of kScaleBlock columns. For f32
// row-major. Gate and up take turns, kGateRows rows each: [gate 0 .. 7, up 0 .. 7, gate 8 .. 15, ..].
//
// In e4m3 x has a scale for each kScaleBlock elements of a row, and W one for each of an expert's rows or for
// kScaleBlock x kScaleBlock of it. The sum of a block is the tensor cores', in their own precision; the sum of blocks,
// times their scales, is in f32. What a gated product makes is e4m3 again, scaled in the same way by powers of two.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "experts/tile.h"
#include "experts/tile_adapters.h"
#include "linear/scaling.h"
#include "model/kinds.h"

namespace batchllm::cuda {

inline constexpr int32_t kPanel = 64;

// Columns of W with what fills up the last panel.
inline int64_t padded_columns(int64_t columns, DType element) {
    return element == DType::f32 ? columns : (columns + kPanel - 1) / kPanel * kPanel;
}

// Of a product in e4m3.
struct GroupedScales {
    Scaling scaling; // of W: rows or blocks
    const float *x;  // [., scale_groups(columns)]; of gated products with W in mxfp4: [.]
    // Rows: [experts, rows]. Blocks: [experts, columns / kScaleBlock, rows / kScaleBlock][2], for each kScaleBlock
    // rows of W the scale of gate's and that of up's; where not gated, the same twice.
    const float *w;
    float *y;     // gated: [turns, scale_groups(rows / 2)]
    DType y_type; // of what is not gated, and of what adapters add: bf16 or f16
};

// What adapters add to a product before anything else is done with it; GroupedKernel::sm90, in two bytes, or in e4m3 where
// results and adapters are bf16.
struct GroupedAdapters {
    const TileAdapters *tiles; // of each tile; null: nothing is added
    int32_t product;           // AdapterArguments'
    // [turns, t_stride] of the element's type, bf16 for e4m3: whole sums, times their scales
    const void *t;
    int32_t t_stride;     // at most kMostGroupedRanks
    int32_t most_of_part; // AdapterArguments'
};
// Of an adapter, all parts together: t of a tile's turns and B must fit into a stage.
inline constexpr int32_t kMostGroupedRanks = 64;

struct GroupedArguments {
    DType element;
    const void *x;         // [., columns]
    const int32_t *row_of; // [turns] the row of x; null: the turn's number
    const void *w;         // [experts][rows, columns] as above
    int32_t rows, columns; // of an expert's W; multiples of 8, rows of 16 where gated
    const float *bias;     // [experts, rows] in the order of W's rows; null: none, as in e4m3
    bool gated;
    Activation activation; // gated: of the gate
    bool squared;          // not gated: y is max(., 0)^2; not in e4m3
    void *y;               // [turns, rows], or gated [turns, rows / 2]
    const ExpertTile *tiles;
    const int32_t *tile_count;
    GroupedScales scales; // of e4m3
    GroupedAdapters adapters;
};

inline bool squares(const GroupedArguments &a) { return !a.gated && a.squared; }

// Whether experts of this shape can be in e4m3, on devices that have GroupedKernel::sm90.
constexpr bool experts_take_e4m3(int64_t hidden, int64_t width, Activation activation) {
    return hidden % kScaleBlock == 0 && width % kScaleBlock == 0 && activation == Activation::silu;
}

// What can be launched on a device of a compute capability; f32 has one of its own.
enum class GroupedKernel : uint8_t { sm80, sm90 };

cudaError_t launch_grouped(GroupedKernel kernel, const GroupedArguments &arguments, int sms,
                           cudaStream_t stream);
cudaError_t launch_grouped_f32(const GroupedArguments &arguments, int sms, cudaStream_t stream);
cudaError_t launch_grouped_sm80(const GroupedArguments &arguments, int sms, cudaStream_t stream);
cudaError_t launch_grouped_sm90(const GroupedArguments &arguments, int sms, cudaStream_t stream);
cudaError_t launch_grouped_e4m3(const GroupedArguments &arguments, int sms, cudaStream_t stream);

} // namespace batchllm::cuda
