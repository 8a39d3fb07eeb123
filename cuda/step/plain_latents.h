// A step's context nodes -> those whose tokens attend to latents in the plain form, and which pages are expanded for them.
//
// In the absorbed form a query's product with a key takes 576 + 512 multiplications a head, in the plain form 512 at most; but
// all keys must be expanded first, for every head, in each layer of each step. So that pays for prompts: their tokens share
// the keys. Decoding tokens, which stand first in a batch, stay in the absorbed form.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "model/model.h"

namespace batchllm::cuda {

struct PlainLatents {
    int32_t first = 0; // the batch's tokens from this one on are in the plain form
    std::vector<AttentionNode>
        nodes; // as in the batch, with tokens counted from `first`, and expanded pages
    std::vector<int32_t> expanded; // [pages] each one's index in the list of the latents' pages

    // Leaves the other tokens to `nodes`. room: pages that can be expanded.
    void choose(const Latent &latent, int32_t tokens, int64_t room,
                std::vector<AttentionNode> *nodes);
};

} // namespace batchllm::cuda
