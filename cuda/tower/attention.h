// Attention of a tower (src/model/tower.h): every patch sees all patches of its picture, or of its window, which lie one after
// another in the pack. A block is some query rows of one such range; the host lists the blocks, and a CTA takes one of them for
// one head.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>
#include <vector_types.h>

#include "base/dtype.h"

namespace batchllm::cuda {

struct TowerBlock {
    int32_t begin, end; // patches that see each other
    int32_t first; // its query rows: up to as many as the kernel takes from here on, before end
};

struct TowerAttentionArguments {
    DType element;
    const void *qkv; // [patches, 3, heads, head_dim]: queries, keys, values
    void *out;       // [patches, heads, head_dim]
    const TowerBlock *blocks;
    int32_t block_count;
    int32_t heads, head_dim; // head_dim: tower_head_fits()
    float scale;             // of the scores
};

bool tower_head_fits(DType element, int32_t head_dim);
int32_t tower_block_rows(DType element, int32_t head_dim);

cudaError_t launch_tower_attention(const TowerAttentionArguments &arguments, cudaStream_t stream);

// The same on wgmma, sm_90a only: heads of 64, 72 or 80 elements in 16 bits, for long ranges. Keys have been turned, queries turn
// as they are read, which leaves those in qkv as they are. patches: in qkv.
struct TowerQueries {
    const float *bias;    // [heads, head_dim] or null
    const float2 *angles; // [patches, head_dim / 2] or null
};
bool tower_head_fits_sm90(DType element, int32_t head_dim);
int32_t tower_block_rows_sm90();
cudaError_t launch_tower_attention_sm90(const TowerAttentionArguments &arguments,
                                        const TowerQueries &queries, int64_t patches,
                                        cudaStream_t stream);

} // namespace batchllm::cuda
