// For which layers with a state the CUDA backend computes prompts in chunks, by products of matrices (cuda/recurrent).
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace batchllm {

struct Model; // model/model.h

// Whether there are kernels for a delta net's heads; none for one that decays by channel.
constexpr bool takes_chunks(DType element, int32_t key_dim, int32_t value_dim) {
    return (element == DType::bf16 || element == DType::f16) && key_dim == 128 && value_dim == 128;
}

// The same of Mamba-2. Not in f16, which the numbers of S and of q . k may exceed.
constexpr bool takes_state_space_chunks(DType element, int32_t key_dim, int32_t value_dim) {
    return element == DType::bf16 && key_dim == 128 && value_dim == 64;
}

// Whether prompts go in chunks: where all delta nets and Mamba-2 layers have such kernels. A model that has neither does so
// always: the bits of short convolutions do not depend on chunks.
bool goes_in_chunks(const Model &model, DType element, bool reproducible);

} // namespace batchllm
