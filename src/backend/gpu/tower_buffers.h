// How much device memory the CUDA backend takes for a model's tower (model/tower.h), given its shape: weights, buffers for the
// patches that are computed together, and places for the outputs of loaded pictures. The backend allocates these sizes
// (cuda/step), and predictions do not give them to pages.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "model/model.h"

namespace batchllm {

// In bytes. A row is a patch's.
struct TowerBuffers {
    int64_t residual = 0; // [rows, hidden] of the residual stream's type
    int64_t delta = 0;    // [rows, hidden] of up to f32; results of mergers
    // [rows, hidden] elements: inputs of all products but those after an activation.
    int64_t normed = 0;
    int64_t qkv = 0;       // [rows, 3 hidden] elements; of a merger's projection
    int64_t attended = 0;  // [rows, hidden] elements
    int64_t up = 0;        // [rows, 2 width or width] elements
    int64_t activated = 0; // [rows, width] elements
    int64_t angles = 0;    // [rows, half a head] cos, sin
    int64_t sent = 0;      // what a pack is sent with, of which two may be on their way

    int64_t total() const {
        return residual + delta + normed + qkv + attended + up + activated + angles + 2 * sent;
    }
};

// Patches of one pack where there is room for them: four pictures of 1080p. A larger picture is a pack of its own. There is room
// for the smaller number but where there is little memory.
inline constexpr int64_t most_pack_patches = 32768, least_pack_patches = 16384;
// What `sent` consists of; cuda/step checks it against its types.
inline constexpr int64_t tower_patch_bytes = 20, tower_block_bytes = 12,
                         least_tower_block_rows = 16;

// Widths of feed-forwards and of patches, as products take them.
constexpr int64_t padded_tower_width(int64_t width) { return (width + 15) / 16 * 16; }

TowerBuffers tower_buffers(const Model &model, DType element, DType residual, int64_t patches);
// Of its tensors, as the device has them.
int64_t tower_weight_bytes(const Tower &tower, DType element);

// How many tokens all loaded pictures may have, on a device of so much memory; and what each takes.
int64_t picture_tokens_on_gpu(const Model &model, DType residual, int64_t step_tokens,
                              int64_t memory_bytes);
int64_t picture_token_bytes(const Model &model, DType residual);
// The patches that there are buffers for. left: what else the device has.
int64_t tower_patches_on_gpu(const Model &model, DType element, DType residual,
                             int64_t picture_tokens, int64_t left);

// All of this but weights, and cuBLASLt's workspace, on a device that has so many bytes left. 0: there is no tower.
int64_t tower_bytes_on_gpu(const Model &model, DType element, DType residual, int64_t step_tokens,
                           int64_t memory_bytes, int64_t left);

} // namespace batchllm
