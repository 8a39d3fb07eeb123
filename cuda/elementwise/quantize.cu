// Bound by memory: rows are read once (twice as wide with a gate), kept in registers until their greatest is
// known, and written with a byte an element. One block a row.
#include "elementwise/quantize.h"

#include <type_traits>

#include "elementwise/activation.cuh"
#include "elementwise/element.cuh"
#include "elementwise/norm.h"
#include "elementwise/quantize.cuh"

namespace batchllm::cuda {
namespace {

template <typename T, int Vectors> __global__ void __launch_bounds__(1024)
    quantize_rows(const QuantizeArguments a) {
    __shared__ unsigned maxima[32];
    const int64_t row = blockIdx.x;
    const int64_t from_row = a.from != nullptr ? a.from[row] : row;
    const T *from = static_cast<const T *>(a.x) + from_row * a.width;
    Packed8<T> x[Vectors];
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = static_cast<int>(v * blockDim.x + threadIdx.x) * kVector;
        if (i < a.width) x[v] = load_once(from + i);
    }
    store_row_e4m3(x, a.width, static_cast<__nv_fp8_e4m3 *>(a.out) + row * a.width, a.scales, row,
                   maxima);
}

// In 16 bits all of a row's loads are under way before the first is needed: as f32 registers do not hold them.
template <typename T, Activation Kind, bool Gated, int Vectors>
__global__ void __launch_bounds__(1024)
    activate_rows(const ActivationArguments a, const RowScales scales) {
    constexpr bool ahead = sizeof(T) == 2;
    __shared__ unsigned maxima[32];
    const int64_t row = blockIdx.x;
    if (a.left_out != nullptr && a.left_out[row] != 0) return;
    constexpr int parts = Gated ? 2 : 1;
    const T *from = static_cast<const T *>(a.x) + row * parts * a.width;
    Packed8<T> gates[Vectors], ups[Vectors];
    const auto load = [&](int v, int i) {
        gates[v] = load_once(from + i);
        if constexpr (Gated) ups[v] = load_once(from + a.width + i);
    };
#pragma unroll
    for (int v = 0; ahead && v < Vectors; ++v) {
        const int i = static_cast<int>(v * blockDim.x + threadIdx.x) * kVector;
        if (i < a.width) load(v, i);
    }
    float x[Vectors][8];
    const float2 curve = curve_of<Kind>(a.curve);
#pragma unroll
    for (int v = 0; v < Vectors; ++v) {
        const int i = static_cast<int>(v * blockDim.x + threadIdx.x) * kVector;
        if (i >= a.width) break;
        if constexpr (!ahead) load(v, i);
        float up[8];
        widen(gates[v], x[v]);
        if constexpr (Gated) widen(ups[v], up);
        if (a.bias != nullptr) {
            for (int k = 0; k < 8; ++k) {
                x[v][k] += a.bias[i + k];
                if constexpr (Gated) up[k] += a.bias[a.width + i + k];
            }
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            if constexpr (ahead && Kind != Activation::xielu) {
                x[v][k] = quickly_activated<Kind>(x[v][k]);
            } else {
                x[v][k] = activated<Kind>(x[v][k], curve);
            }
            if constexpr (Gated) x[v][k] *= up[k];
        }
    }
    store_row_e4m3(x, a.width, static_cast<__nv_fp8_e4m3 *>(a.out) + row * a.width, scales, row,
                   maxima);
}

// Calls launch with a row's vectors a thread, as a constant, and the threads of its block: few, that an SM holds many
// rows.
template <typename Launch> cudaError_t with_rows(int32_t width, const Launch &launch) {
    const int vectors = width / kVector;
    const auto threads = [&](int each) { return (vectors + each * 32 - 1) / (each * 32) * 32; };
    if (width % kVector != 0 || width > kMostNormed) return cudaErrorInvalidValue;
    if (threads(1) <= 128) return launch(std::integral_constant<int, 1>(), threads(1));
    if (threads(2) <= 128) return launch(std::integral_constant<int, 2>(), threads(2));
    return launch(std::integral_constant<int, 4>(), threads(4));
}

template <Activation Kind> cudaError_t
launch_activation_e4m3(const ActivationArguments &a, const RowScales &scales, cudaStream_t stream) {
    return with_rows(a.width, [&](auto vectors, int threads) {
        return with_type(a.element, [&](auto t) {
            using T = decltype(t);
            constexpr int n = decltype(vectors)::value;
            const auto kernel =
                a.gated ? activate_rows<T, Kind, true, n> : activate_rows<T, Kind, false, n>;
            kernel<<<static_cast<unsigned>(a.rows), threads, 0, stream>>>(a, scales);
            return cudaGetLastError();
        });
    });
}

} // namespace

cudaError_t launch_quantize_rows(const QuantizeArguments &a, cudaStream_t stream) {
    if (a.rows == 0) return cudaSuccess;
    if (a.scales.data == nullptr) return cudaErrorInvalidValue;
    return with_rows(a.width, [&](auto vectors, int threads) {
        return with_type(a.element, [&](auto t) {
            quantize_rows<decltype(t), decltype(vectors)::value>
                <<<static_cast<unsigned>(a.rows), threads, 0, stream>>>(a);
            return cudaGetLastError();
        });
    });
}

cudaError_t launch_activation_e4m3(const ActivationArguments &a, const RowScales &scales,
                                   cudaStream_t stream) {
    if (a.rows == 0) return cudaSuccess;
    if (scales.data == nullptr) return cudaErrorInvalidValue;
    switch (a.kind) {
    case Activation::silu:
        return launch_activation_e4m3<Activation::silu>(a, scales, stream);
    case Activation::gelu:
        return launch_activation_e4m3<Activation::gelu>(a, scales, stream);
    case Activation::gelu_tanh:
        return launch_activation_e4m3<Activation::gelu_tanh>(a, scales, stream);
    case Activation::relu_squared:
        return launch_activation_e4m3<Activation::relu_squared>(a, scales, stream);
    case Activation::xielu:
        return launch_activation_e4m3<Activation::xielu>(a, scales, stream);
    case Activation::clamped_swiglu: // supported.h refuses it
        break;
    }
    return cudaErrorInvalidValue;
}

} // namespace batchllm::cuda
