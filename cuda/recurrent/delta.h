// A layer of gated delta nets (LinearAttention in model/model.h), from the product of its input matrix to what its output
// matrix takes: convolution, gates, the delta rule over each context node of a step, gated norm.
//
// A node's state in a slot, of one layer:
//     S      [value_heads][key_dim][value_dim] f32, or bf16, rounded at the end of each step
//     ring   [kRing][channels] elements: what the convolution saw at position p, in row p % kRing
// S and ring are read from the slot `from` and written to the slot `state`, which may be the same one.
//
// Three ways to the same result. Decode is for items of one token, with heads of 128 by 128. Steps go token by token, with
// heads of any size up to that: items of a few tokens, elements in f32. Both read S once and write it once, and do the
// convolution and the norm on the way. Chunks (chunk.h) are products of matrices, for long items.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "base/dtype.h"

namespace batchllm::cuda {

inline constexpr int32_t kMostDeltaDim = 128; // of keys and of values
inline constexpr int32_t kRing = 4;           // tokens that a convolution sees, at most

// The tokens of one context node in a step.
struct StateItem {
    int32_t state, from;              // slots; from -1: zeros
    int32_t token_begin, token_count; // of the step's
    int32_t position;                 // of the first
};

// Items whose states do not depend on each other: [begin, several) have one token each; [several, chunked) have several
// and go token by token; [chunked, end) go in chunks.
struct StateLevel {
    int32_t begin, several, chunked, end;
    int32_t chunk_begin, chunk_end; // of the step's chunks
};

struct DeltaArguments {
    DType element;
    DType state;           // S: f32 or bf16
    const void *projected; // [tokens, stride]: q, k, v, z, b, a of all heads
    int64_t stride;
    const float *convolution; // [channels, kRing], the newest token's last
    const float *decay;       // [value_heads]
    const float *step;        // [value_heads]; channel_delta.h: [value_heads, key_dim]
    const float *norm;        // [value_dim]
    float epsilon;
    std::byte *states; // the layer's part of slot 0
    int64_t slot_bytes;
    void *out;               // [tokens, value_heads * value_dim] elements
    const StateItem *items;  // of the step
    const StateLevel *level; // on the device: a graph's next replay has another
    int32_t most_items;      // no level has more, in a graph's replays either
    int32_t key_heads, value_heads;
    int32_t key_dim, value_dim; // at most kMostDeltaDim; value_dim % 4 == 0
    int32_t sms;
    bool sm90; // by kernels for compute capability 9.0 alone, where there are such

    __host__ __device__ int32_t keys_size() const { return key_heads * key_dim; }
    __host__ __device__ int32_t values_size() const { return value_heads * value_dim; }
    __host__ __device__ int32_t channels() const { return 2 * keys_size() + values_size(); }
    __host__ __device__ int64_t ring_begin() const {
        return int64_t{values_size()} * key_dim * (state == DType::f32 ? 4 : 2);
    }
};

// Items [begin, chunked), or only those of several tokens, [several, chunked). The rings of items of one token are
// written too; those of the others are left to launch_delta_rings.
cudaError_t launch_delta_steps(const DeltaArguments &arguments, bool several, cudaStream_t stream);

// Items [begin, several), of one token each, with their rings. It adds up in another order than launch_delta_steps, so
// not all bits are the same. items: how many there are when it is launched. A graph's next replay may have more: then it
// is slower.
cudaError_t launch_delta_decode(const DeltaArguments &arguments, int32_t items,
                                cudaStream_t stream);
// Whether launch_delta_decode takes such heads.
bool takes_delta_decode(const DeltaArguments &arguments);

// The rings of items [several, end), once nothing reads them any more.
cudaError_t launch_delta_rings(const DeltaArguments &arguments, cudaStream_t stream);

} // namespace batchllm::cuda
