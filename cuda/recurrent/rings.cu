// What the next token's convolution will see, behind items of several tokens.
#include "recurrent/delta.cuh"

#include <algorithm>

namespace batchllm::cuda {
namespace {

constexpr int kRingThreads = 256;

template <typename T> __global__ void delta_rings(const __grid_constant__ DeltaArguments a) {
    const DeltaLevel level = *a.level;
    const int channel = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
    if (channel >= a.channels()) return;
    for (int i = level.several + static_cast<int>(blockIdx.x); i < level.end; i += gridDim.x) {
        const DeltaItem item = a.items[i];
        T *ring = ring_of<T>(a, item.state);
        for (int back = 0; back < kRing; ++back) {
            const int t = item.token_count - 1 - back, position = item.position + t;
            if (position < 0 || (t < 0 && item.from == item.state)) break;
            ring[position % kRing * a.channels() + channel] =
                convolution_input<T>(a, item, t, channel);
        }
    }
}

} // namespace

cudaError_t launch_delta_rings(const DeltaArguments &a, cudaStream_t stream) {
    if (a.most_items == 0) return cudaSuccess;
    const dim3 grid(static_cast<unsigned>(std::min(a.most_items, 64)),
                    static_cast<unsigned>((a.channels() + kRingThreads - 1) / kRingThreads));
    return with_type(a.element, [&](auto t) {
        delta_rings<decltype(t)><<<grid, kRingThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
