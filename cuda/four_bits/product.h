// Products with four-bit weights: y = x W^T, W as it lies packed (four_bits/layout.h), widened to bf16 or f16 on its way to
// the tensor cores; sums are f32. One kernel for a dense layer's product and for those of experts, whose tiles are made
// on the device (experts/routing.h).
//
//     y = ending(scale * factors * sum + bias);  endings: y; y added to what is there; max(y, 0)^2; activation(gate) * up
//
// A result does not depend on the other rows, nor on their number; it does depend on `splits`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "experts/grouped.h"
#include "four_bits/layout.h"
#include "model/kinds.h"

namespace batchllm::cuda {

struct FourBitArguments {
    DType element;        // of x: bf16, or f16 for int4
    PackedShape w_shape;  // of one expert; rows multiples of 8, of 16 where gated; columns of 8
    bool split;           // int4: some scale has a lower part
    const std::byte *w;   // [experts, w_shape.bytes()]; gate and up in turns, 8 rows each
    const void *x;        // [., columns]
    const float *factors; // [experts, rows]; null: 1
    const float *bias;    // [experts, rows]; null: none

    float scale = 1; // of all sums, beside the factors
    bool gated;
    Activation activation; // gated: of the gate; has_packed_ending()
    bool squared;          // not gated: y is max(., 0)^2
    bool add;              // not gated, not squared: to y
    void *y;               // [tokens or turns, rows], or gated [., rows / 2]
    DType y_type;          // element's; or f32, where neither gated nor squared

    // Dense:
    int32_t tokens;
    int32_t splits;        // CTAs that share the columns of W, up to 8; above 1 for few tokens
    const int32_t *row_of; // [turns] the row of x; null: the turn's number
    const ExpertTile *tiles;
    const int32_t *tile_count;
};

constexpr bool has_packed_ending(Activation of_gate) {
    return of_gate != Activation::gelu && of_gate != Activation::relu_squared &&
           of_gate != Activation::xielu;
}
// Whether there are such products; null pointers do not count.
bool takes_four_bits(const FourBitArguments &arguments);

inline constexpr int32_t kFourBitTile = 256; // rows of W

// The fastest number of splits for a dense product, by count of the stages that a CTA goes through. Clusters of more than
// two CTAs lie within a part of the device that has 16 or 18 SMs.
inline int32_t four_bit_splits(const PackedShape &w, int32_t tokens, int32_t sms) {
    const int64_t tiles = int64_t{(w.rows + kFourBitTile - 1) / kFourBitTile} *
                          ((tokens + kTileRows - 1) / kTileRows);
    int32_t best = 1;
    double least = 0;
    for (int32_t splits = 1; splits <= std::min(8, w.cell_columns()); ++splits) {
        const int64_t at_once = splits <= 2 ? sms / splits : sms / 18 * (16 / splits);
        if (at_once == 0) break;
        const int64_t rounds = (tiles + at_once - 1) / at_once;
        const double adding = splits == 1 ? 0 : 2 + std::min(tokens, kTileRows) / 16.0; // in stages
        const double stages =
            static_cast<double>(rounds) * ((w.cell_columns() + splits - 1) / splits + adding);
        if (splits == 1 || stages < 0.97 * least) {
            best = splits;
            least = stages;
        }
    }
    return best;
}

// Devices of compute capability 9.0; 8.0 and later, where splits are not used.
cudaError_t launch_four_bits_sm90(const FourBitArguments &arguments, int sms, cudaStream_t stream);
cudaError_t launch_four_bits_sm80(const FourBitArguments &arguments, int sms, cudaStream_t stream);

// Experts' products of x in e4m3 and W in mxfp4_e4m3, on devices of 9.0: arguments as those of experts/grouped.h in e4m3,
// but w: [experts, PackedShape::bytes()], and scales.w: [experts, rows] factors (Scaling::rows). Columns a multiple of
// 16, the last scale of a row of x may have fewer than kScaleBlock; rows of 8, where gated of 32; bias may be set; y is
// bf16, or gated by silu or clamped_swiglu.
cudaError_t launch_mxfp4_e4m3_sm90(const GroupedArguments &arguments, int sms, cudaStream_t stream);
constexpr bool experts_take_mxfp4_e4m3(int64_t hidden, int64_t width, Activation activation) {
    return hidden % 16 == 0 && width % 16 == 0 &&
           (activation == Activation::silu || activation == Activation::clamped_swiglu);
}

// Of one form each; parts of launch_four_bits_sm90.
cudaError_t launch_int4_128_sm90(const FourBitArguments &, int sms, cudaStream_t);
cudaError_t launch_int4_32_sm90(const FourBitArguments &, int sms, cudaStream_t);
cudaError_t launch_mxfp4_sm90(const FourBitArguments &, int sms, cudaStream_t);
cudaError_t launch_nvfp4_sm90(const FourBitArguments &, int sms, cudaStream_t);

} // namespace batchllm::cuda
