// An adapter (LoRA, arXiv 2106.09685), once read: low-rank changes to matrices of a model. Where the model computes
// y = W x, a row with the adapter computes
//     y = W x + scale * B (A x)
// before anything that follows the product, such as an activation. The bias of W is added as ever.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/model.h"

namespace batchllm {

// The change to one matrix W [rows, columns]. A and B are f32, f16 or bf16, contiguous (Tensor::as_stored), of any
// alignment and finite. Both have the same rank, but the matrices of an adapter may have different ranks and scales.
// Matrices that are one tensor in the checkpoint (q, k and v; gate and up) have equal a.data if the adapter names that
// tensor: A x is then the same for all of them.
struct LowRank {
    Tensor a;        // [rank, columns]
    Tensor b;        // [rows, rank]
    float scale = 1; // finite

    int64_t rank() const { return a.rows; }
};

// 128 bits over everything that changes results: names, shapes, types and bytes of the matrices, and the scales. Not
// over the adapter's name or path.
using AdapterHash = std::array<uint64_t, 2>;

// Belongs to the model that it was read for, which must outlive it.
struct Adapter {
    // The changes to matrices of that model, by their addresses: &layer.attention()->q.values,
    // &experts.each[e].up.values, &linear_attention.input[i] and so on.
    std::unordered_map<const Tensor *, LowRank> changes;
    // The change to the embedding, with A [rank, vocabulary] and B [hidden, rank]: the embedding of
    // token t becomes
    //     embedding_scale * (E[t] + scale * B a)     a: column t of A
    // A head that is tied to it stays as it is, unless `changes` has it. a.rows is 0: no change.
    LowRank embedding;
    AdapterHash hash = {};
    std::vector<std::unique_ptr<std::byte[]>> bytes; // what the tensors refer to
    std::vector<std::string> warnings;               // what may be wrong with its files

    // Null: the adapter leaves the matrix as it is.
    const LowRank *of(const Tensor &matrix) const {
        const auto found = changes.find(&matrix);
        return found == changes.end() ? nullptr : &found->second;
    }
};

} // namespace batchllm
