#include <algorithm>
#include <numeric>

#include "latent/latent.h"

namespace batchllm::cuda {

void set_latent_costs(WorklistOptions *options) {
    // As many tokens as fill whole tiles, at least sixteen: the tiles of an item read its keys at about the same time.
    const int32_t fill = kLatentTileRows / std::gcd(options->heads, kLatentTileRows);
    options->tile_rows = kLatentTileRows;
    options->matrix_tokens = (16 + fill - 1) / fill * fill;
    options->stream_tokens = std::max(1, kLatentTileRows / options->heads);
    options->tile_us = 2.2;
    options->item_us = 3;
    options->merge_us = 0.15;
}

} // namespace batchllm::cuda
