// What a tower does to rows besides products, norms and attention; and what its outputs become in the text model. "element" is
// the compute type; sums are f32. Each is one pass over its rows, bound by memory.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include "base/dtype.h"
#include "elementwise/norm.h"

namespace batchllm::cuda {

// A patch of the pack.
struct TowerPatch {
    int32_t source; // its number among the values that were sent
    int32_t row, column;
    int32_t rows, columns; // of its picture
};

// to[p] = values[patches[p].source], then zeros
struct TowerValuesArguments {
    DType element;
    const float *values; // [patches, width]
    const TowerPatch *patches;
    void *to; // [patches, to_width]
    int32_t count, width, to_width;
};
cudaError_t launch_tower_values(const TowerValuesArguments &arguments, cudaStream_t stream);

// x[p] += bias + the position's row of the table, or the bilinear mean of four (Tower::interpolated)
struct TowerPositionArguments {
    DType type; // of the residual stream
    void *x;    // [patches, hidden]
    const TowerPatch *patches;
    const float *bias;  // [hidden] or null
    const float *table; // [side * side, hidden] or null
    int32_t count, hidden, side;
    bool interpolated;
};
cudaError_t launch_tower_positions(const TowerPositionArguments &arguments, cudaStream_t stream);

// angles[p, i] = scale times cos and sin of the patch's row (axes[i] 1) or column (2) * frequencies[i]
struct TowerAngleArguments {
    const TowerPatch *patches;
    const float *frequencies; // [half]
    const uint8_t *axes;      // [half]
    float scale;
    float2 *angles; // [patches, half]
    int32_t count, half;
};
cudaError_t launch_tower_angles(const TowerAngleArguments &arguments, cudaStream_t stream);

// out = norm(x), of rows that a warp holds: a tower's are short, and a block for each would mostly wait for its sums.
inline constexpr int32_t kMostTowerNormed = 2048;
struct TowerNormArguments {
    DType element, type; // of out; of x
    const void *x;       // [count, hidden], hidden a multiple of 8
    DeviceNorm norm;
    void *out; // [count, hidden]; may be x
    int32_t count, hidden;
};
cudaError_t launch_tower_norm(const TowerNormArguments &arguments, cudaStream_t stream);

// Queries and keys in place, or keys alone: the bias, then the rotation of element i with i + head_dim / 2.
struct TowerTurnArguments {
    DType element;
    void *qkv;            // [patches, 3, heads, head_dim], head_dim a multiple of 8
    const float *bias;    // [2, heads, head_dim] or null
    const float2 *angles; // [patches, head_dim / 2] or null
    int32_t count, heads, head_dim;
    bool keys_alone = false;
};
cudaError_t launch_tower_turn(const TowerTurnArguments &arguments, cudaStream_t stream);

// to[t] = the mean of x[t * each ...], which is of this type
cudaError_t launch_tower_means(DType type, const void *x, float *to, int32_t tokens, int32_t each,
                               int32_t hidden, cudaStream_t stream);

// The outputs of pictures: places [parts, hidden] each, of the type of the text model's residual stream.
struct PictureOutputs {
    DType type;
    void *data;
    int64_t parts, hidden;
};

// Part `part` of places[t] = scale * (x[t] + bias)
struct TowerOutputArguments {
    PictureOutputs to;
    const float *x;    // [tokens, hidden]
    const float *bias; // [hidden] or null
    float scale;
    const int32_t *places; // [tokens]
    int64_t part;
    int32_t tokens;
};
cudaError_t launch_tower_outputs(const TowerOutputArguments &arguments, cudaStream_t stream);

// A token of a step that stands for a part of a picture.
struct PictureToken {
    int32_t token;
    int32_t place;
};
// residual[token] = part `part` of its place, or, add, is increased by that
cudaError_t launch_picture_tokens(const PictureOutputs &from, int64_t part,
                                  const PictureToken *tokens, int32_t count, bool add,
                                  void *residual, cudaStream_t stream);

} // namespace batchllm::cuda
