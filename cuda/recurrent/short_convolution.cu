// Bound by memory, or in small steps by the launch. In 16 bits a channel of a token is 6 bytes read and 2 written; of
// each item 4 (width - 1) more are read, and up to as many written. A long item reads 4 (width - 1) bytes of every
// eighth token's neighbours again, mostly from L2.
#include "recurrent/short_convolution.cuh"

#include "elementwise/element.cuh"

namespace batchllm::cuda {
namespace {

template <typename T> struct DeviceMemoryAccess {
    using Raw = Packed8<T>;
    static __device__ Raw load(const T *from) { return load_past_l1(from); }
    static __device__ void widen(const Raw &from, float (&out)[kConvolvedChannels]) {
        cuda::widen(from, out);
    }
    static __device__ void load(const float *from, float (&out)[kConvolvedChannels]) {
        load8(from, out);
    }
    template <typename To>
    static __device__ void store(To *to, const float (&values)[kConvolvedChannels]) {
        store8(to, values);
    }
};

template <typename T, int kWidth, bool kBiased>
__global__ void __launch_bounds__(kConvolutionThreads, kConvolutionBlocks)
    short_convolution(const __grid_constant__ ShortConvolutionArguments a) {
    const auto vector = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    convolve_pieces<T, kWidth, kBiased, DeviceMemoryAccess<T>>(
        a, vector, static_cast<int32_t>(blockIdx.y), static_cast<int32_t>(gridDim.y));
}

template <typename T, int kWidth>
cudaError_t launch(const ShortConvolutionArguments &a, cudaStream_t stream) {
    const ConvolutionGrid grid(a);
    const dim3 blocks(static_cast<unsigned>(grid.across), static_cast<unsigned>(grid.along));
    const auto threads = static_cast<unsigned>(grid.threads);
    if (a.filter_bias != nullptr || a.input_bias != nullptr) {
        short_convolution<T, kWidth, true><<<blocks, threads, 0, stream>>>(a);
    } else {
        short_convolution<T, kWidth, false><<<blocks, threads, 0, stream>>>(a);
    }
    return cudaGetLastError();
}

} // namespace

cudaError_t launch_short_convolution(const ShortConvolutionArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    if (a.channels <= 0 || a.channels % kConvolvedChannels != 0) return cudaErrorInvalidValue;
    return with_type(a.element, [&](auto t) {
        using T = decltype(t);
        switch (a.width) {
        case 2:
            return launch<T, 2>(a, stream);
        case 3:
            return launch<T, 3>(a, stream);
        case 4:
            return launch<T, 4>(a, stream);
        }
        return cudaErrorInvalidValue;
    });
}

} // namespace batchllm::cuda
