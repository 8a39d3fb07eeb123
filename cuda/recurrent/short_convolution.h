// A layer's short convolution (ShortConvolution in model/model.h), from the product of its input matrix to what its
// output matrix takes. With B, C and x of a token, and p = B * x in f32,
//     out = C * (bias + filter[0] * p of the token width - 1 tokens earlier + .. + filter[width - 1] * p)
// in this order, token by token, so that a token's bits do not depend on which others are in the step.
//
// A node's state in a slot, of one layer:
//     ring   [width - 1][channels] f32: p of position i in row i % (width - 1)
// In f32, as on the CPU: p of two elements of 16 bits is exact then, and f16's range is not left. Rows of positions
// before 0 are neither written nor read. It is read from the slot `from` and written to the slot `state`, which may be
// the same one.
#pragma once

#include "recurrent/chunk.h"

namespace batchllm::cuda {

inline constexpr int32_t kConvolvedChannels = 8; // of a thread; channels are a multiple of it

struct ShortConvolutionArguments {
    DType element;
    const void *projected;    // [tokens, stride]: B, C and x of all channels
    int64_t stride;           // a multiple of 8: vectors of 16 bytes are aligned in every row
    const float *filter;      // [width, channels], the newest token's last
    const float *filter_bias; // [channels], or null
    const float *input_bias;  // [3 * channels] of B, C and x, or null
    std::byte *states;        // the layer's part of slot 0
    int64_t slot_bytes;
    void *out;                // [tokens, channels] elements
    const StateItem *items;   // of the step
    const StateChunk *chunks; // of the step; a level's have all tokens of its items [chunked, end)
    const StateLevel *level;  // on the device: a graph's next replay has another
    int64_t tokens;           // of the step, rounded up
    int32_t channels, width;  // width: from 2 to kRing
    int32_t sms;

    __host__ __device__ float *ring(int32_t slot) const {
        return reinterpret_cast<float *>(states + int64_t{slot} * slot_bytes);
    }
};

// All that the level's items need, their rings included.
cudaError_t launch_short_convolution(const ShortConvolutionArguments &arguments,
                                     cudaStream_t stream);

} // namespace batchllm::cuda
