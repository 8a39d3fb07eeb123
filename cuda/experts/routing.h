// Router logits -> for each token its experts and their weights (model/model.h, Router), and the turns:
// the pairs of a token and one of its experts, in the order of experts and then of tokens. A number of
// launches that depends on nothing but the model's shape, and nothing that the host must know.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "experts/tile.h"
#include "model/kinds.h"

namespace batchllm::cuda {

inline constexpr int32_t kRoutedTokens = 32; // of a block: one word has a bit for each
inline constexpr int32_t kMostExperts = 1024;
inline constexpr int32_t kMostGroups = 64;

struct RoutingArguments {
    RouterKind kind;
    const float *logits;       // [tokens, stride]
    int32_t stride;            // at least experts
    const float *bias;         // [experts] of the logits, or null
    const float *correction;   // [experts], or null
    const float *expert_scale; // [experts] of the weights, or null: 1
    int32_t tokens, experts, chosen, groups, chosen_groups;
    bool normalised;
    float scale;
    float epsilon;      // added to the sum of the chosen ones' scores
    float jitter;       // of a sparse mixer
    int32_t group_best; // experts whose scores are a group's: 1 or 2
    // Experts are chosen by their logits, which differ where scores are equal; not with expert_scale.
    bool by_logits;

    int32_t *experts_of; // [tokens, chosen] ascending
    float *weights;      // [tokens, chosen]
    int32_t *counts;   // [blocks of kRoutedTokens tokens, experts] turns: between the two launches
    int32_t *token_of; // [tokens * chosen] of a turn
    int32_t *turn_of;  // [tokens, chosen]
    ExpertTile *tiles; // [most_tiles()] of the experts that have tokens
    int32_t *tile_count; // [1]
};

inline int64_t routing_blocks(int64_t tokens) {
    return (tokens + kRoutedTokens - 1) / kRoutedTokens;
}

cudaError_t launch_routing(const RoutingArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
