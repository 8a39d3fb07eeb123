// Adapters of a layer's experts: the turns of each expert and adapter as work of adapters' launches (adapters/adapters.h), and
// the activation of gate and up as a launch of its own, since adapters are added before it.
#pragma once

#include "adapters/adapters.h"
#include "experts/tile.h"
#include "experts/tile_adapters.h"
#include "model/kinds.h"

namespace batchllm::cuda {

// -> tiles of one expert and one adapter each, whose places and rows are turns; and which adapters the products' tiles have.
struct AdaptedTurns {
    const ExpertTile *of_experts;
    const int32_t *expert_tiles;        // [1]
    const int32_t *token_of;            // [turns]
    const AdapterEntry *const *entries; // of each token's adapter, or null
    // Of the adapter's entries: the first expert's first, and how many each expert has. An adapter may end before them.
    int32_t first, each;
    bool tall;           // AdapterWork's
    AdapterTile *tiles;  // [turns]
    int32_t *tile_count; // [1]
    uint8_t *in_tiles;   // [turns] whether the turn is in one
    // [tiles of experts], as Hopper's products have them; null: not wanted.
    TileAdapters *tile_adapters;
};
cudaError_t launch_adapted_turns(const AdaptedTurns &arguments, int sms, cudaStream_t stream);

// activated[turn] = activation(gate) * up; or of up alone max(up, 0)^2.
struct TurnActivation {
    DType element;
    Activation kind; // relu_squared: there is no gate
    const void *x;   // [turns, 2 width], gate and up by turns, kGateRows each; or [turns, width]
    void *activated; // [turns, width]
    int64_t turns;
    int32_t width;                     // a multiple of kGateRows
    const uint8_t *left_out = nullptr; // [turns]; turns where it is not 0 are left as they are
};
cudaError_t launch_turn_activation(const TurnActivation &arguments, int sms, cudaStream_t stream);

} // namespace batchllm::cuda
