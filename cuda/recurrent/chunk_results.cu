// The last of the launches for chunks (chunk.h): the gated norm of results. Each is read once and written once, four
// elements a lane; bound by memory as long as an element takes few instructions, hence the approximate silu. And what
// launches all of them, one after the other.
//
// A warp has one head and 16 tokens of a chunk.
#include "recurrent/chunk.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTokens = kStateChunk / (kThreads / 32);
constexpr int kResults = 4; // tokens that are loaded together

template <typename T> __device__ __forceinline__ Packed4<T> load4(const T *from) {
    return {*reinterpret_cast<const uint2 *>(from)};
}

template <typename T> __global__ void __launch_bounds__(kThreads)
    chunk_results(const __grid_constant__ ChunkArguments c) {
    const DeltaArguments &a = c.delta;
    const StateLevel level = *a.level;
    const int head = static_cast<int>(blockIdx.y), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float4 norm = reinterpret_cast<const float4 *>(a.norm)[lane];
    const float weights[4] = {norm.x, norm.y, norm.z, norm.w};
    const int at = head * kHeadDim + 4 * lane;
    for (int i = level.chunk_begin + static_cast<int>(blockIdx.x); i < level.chunk_end;
         i += gridDim.x) {
        const ChunkPlace place(c, c.chunks[i]);
        const int end = min((warp + 1) * kTokens, place.count);
        T *out = static_cast<T *>(a.out) + place.token * a.values_size() + at;
        const T *gates = projected_of<T>(a, place.token) + a.channels() + at;
        const auto finish = [&](int t, const Packed4<T> &result, const Packed4<T> &gate) {
            float x[4], squares = 0;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                x[e] = to_float(result.at(e));
                squares += x[e] * x[e];
            }
            const float scale =
                rsqrtf(warp_sum(squares) / static_cast<float>(kHeadDim) + a.epsilon);
#pragma unroll
            for (int e = 0; e < 4; ++e)
                x[e] *= scale * weights[e] * silu_approximate(to_float(gate.at(e)));
            store4(out + int64_t{t} * a.values_size(),
                   Packed4<T>{{pack(x[0], x[1], T()), pack(x[2], x[3], T())}});
        };
#pragma unroll 1
        for (int t = warp * kTokens; t < end; t += kResults) {
            Packed4<T> result[kResults], gate[kResults];
#pragma unroll
            for (int b = 0; b < kResults; ++b) {
                const int64_t token = min(t + b, end - 1);
                result[b] = load4(out + token * a.values_size());
                gate[b] = load4(gates + token * a.stride);
            }
#pragma unroll
            for (int b = 0; b < kResults; ++b) {
                if (t + b < end) finish(t + b, result[b], gate[b]);
            }
        }
    }
}

} // namespace

static_assert(takes_chunks(DType::f16, kHeadDim, kHeadDim));

cudaError_t launch_chunk_results(const ChunkArguments &a, cudaStream_t stream) {
    if (a.delta.sm90) return cudaSuccess; // launch_across_sm90 makes them
    const dim3 grid(static_cast<unsigned>(a.chunk_count),
                    static_cast<unsigned>(a.delta.value_heads));
    return with_half(a.delta.element, [&](auto t) {
        chunk_results<decltype(t)><<<grid, kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

cudaError_t launch_delta_chunks(const ChunkArguments &a, cudaStream_t stream) {
    if (a.chunk_count == 0) return cudaSuccess;
    if (!takes_chunks(a.delta.element, a.delta.key_dim, a.delta.value_dim)) {
        return cudaErrorInvalidValue;
    }
    if (!a.delta.sm90) { // launch_within_sm90 makes its own
        if (const cudaError_t code = launch_chunk_inputs(a, stream); code != cudaSuccess) {
            return code;
        }
    }
    for (const auto launch : {launch_within_chunks, launch_across_chunks, launch_chunk_results}) {
        if (const cudaError_t code = launch(a, stream); code != cudaSuccess) return code;
    }
    return cudaSuccess;
}

} // namespace batchllm::cuda
