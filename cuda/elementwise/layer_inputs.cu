// Bound by memory: a token's parts are read and written once, with its row of the table.
#include "elementwise/layer_inputs.h"

#include "elementwise/activation.cuh"
#include "elementwise/element.cuh"
#include "elementwise/elementwise.h"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 4;

// A warp is one part of one token.
template <typename T> __global__ void layer_inputs(const __grid_constant__ LayerInputsArguments a) {
    const int part = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
    if (part >= a.layers) return;
    int32_t token = a.tokens[blockIdx.x];
    // A row whose logits were not finite has no token, and what follows of it does not count.
    if (token < 0) token = max(a.samples[-1 - token].token, 0);
    const int64_t row = int64_t{a.layers} * a.width, at = int64_t{part} * a.width;
    T *to = static_cast<T *>(a.inputs) + blockIdx.x * row + at;
    const T *from = static_cast<const T *>(a.table) + token * row + at;
    const int first = static_cast<int>(threadIdx.x) % 32 * kVector;
    float sum = 0;
    for (int i = first; i < a.width; i += 32 * kVector) {
        float x[8];
        load8(to + i, x);
#pragma unroll
        for (int k = 0; k < 8; ++k) sum += x[k] * x[k];
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    const float scale = rsqrtf(sum / static_cast<float>(a.width) + a.norm.epsilon);
    for (int i = first; i < a.width; i += 32 * kVector) {
        float x[8], own[8], weight[8];
        load8(to + i, x);
        load8(from + i, own);
        load8(a.norm.weight + i, weight);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            x[k] = a.scale * (a.embedding_scale * own[k] + x[k] * scale * weight[k]);
        }
        store8(to + i, x);
    }
}

template <typename T, Activation Kind>
__global__ void layer_part(const __grid_constant__ LayerPartArguments a) {
    const int vectors = a.width / kVector;
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= int64_t{a.count} * vectors) return;
    const int64_t row = i / vectors;
    const int column = static_cast<int>(i % vectors) * kVector;
    const int64_t token = a.rows != nullptr ? a.rows[row] : row;
    float x[8], part[8];
    load8(static_cast<const T *>(a.x) + row * a.width + column, x);
    load8(static_cast<const T *>(a.inputs) + token * a.stride + column, part);
#pragma unroll
    for (int k = 0; k < 8; ++k) part[k] *= activated<Kind>(x[k]);
    store8(static_cast<T *>(a.out) + row * a.width + column, part);
}

template <Activation Kind>
cudaError_t launch_layer_part(const LayerPartArguments &a, cudaStream_t stream) {
    const unsigned blocks = grid_for(int64_t{a.count} * (a.width / kVector), 256);
    return with_type(a.element, [&](auto t) {
        layer_part<decltype(t), Kind><<<blocks, 256, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

} // namespace

cudaError_t launch_layer_inputs(const LayerInputsArguments &a, cudaStream_t stream) {
    if (a.count == 0) return cudaSuccess;
    if (!a.norm.is_plain_rms() || a.width % kVector != 0) return cudaErrorInvalidValue;
    const dim3 grid(static_cast<unsigned>(a.count),
                    static_cast<unsigned>((a.layers + kWarps - 1) / kWarps));
    return with_type(a.element, [&](auto t) {
        layer_inputs<decltype(t)><<<grid, kWarps * 32, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

cudaError_t launch_layer_part(const LayerPartArguments &a, cudaStream_t stream) {
    if (a.count == 0) return cudaSuccess;
    if (a.width % kVector != 0) return cudaErrorInvalidValue;
    switch (a.kind) {
    case Activation::silu:
        return launch_layer_part<Activation::silu>(a, stream);
    case Activation::gelu:
        return launch_layer_part<Activation::gelu>(a, stream);
    case Activation::gelu_tanh:
        return launch_layer_part<Activation::gelu_tanh>(a, stream);
    case Activation::relu_squared:
        return launch_layer_part<Activation::relu_squared>(a, stream);
    case Activation::clamped_swiglu: // supported.h refuses it
    case Activation::xielu:
        break;
    }
    return cudaErrorInvalidValue;
}

} // namespace batchllm::cuda
