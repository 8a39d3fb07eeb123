// Tables of angles, and rotations whose keys and values are stored as the layer computes.
#include "elementwise/rope.cuh"

namespace batchllm::cuda {
namespace {

__global__ void rope_table(const int32_t *positions, const uint8_t *axes, const float *frequencies,
                           int32_t tokens, int32_t half, float scale, float2 *table) {
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= int64_t{tokens} * half) return;
    const int64_t at = axes == nullptr ? i / half : 3 * (i / half) + axes[i % half];
    const float angle = static_cast<float>(positions[at]) * frequencies[i % half];
    float2 out;
    sincosf(angle, &out.y, &out.x);
    table[i] = make_float2(out.x * scale, out.y * scale);
}

} // namespace

cudaError_t launch_rope_table(const int32_t *positions, const float *frequencies, int32_t tokens,
                              int32_t half, float scale, float2 *table, cudaStream_t stream,
                              const uint8_t *axes) {
    if (tokens == 0 || half == 0) return cudaSuccess;
    rope_table<<<grid_for(int64_t{tokens} * half, 256), 256, 0, stream>>>(
        positions, axes, frequencies, tokens, half, scale, table);
    return cudaGetLastError();
}

cudaError_t launch_rope(const RopeArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    if (a.head_dim > 512 || a.dims > a.head_dim || a.dims % 2 != 0) return cudaErrorInvalidValue;
    if (a.kv_e4m3) return launch_rope_e4m3(a, stream);
    return with_type(a.element, [&](auto t) {
        using T = decltype(t);
        return launch_stored<T, T>(a, stream);
    });
}

} // namespace batchllm::cuda
