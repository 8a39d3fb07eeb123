// Before and behind the products of chunks: convolution, lengths of q and k, gates; and the gated norm of results.
// Each reads its inputs once and writes its results once, four elements a lane; bound by memory as long as an element
// takes few instructions, hence the approximate silu.
//
// A warp has one head and 16 tokens of a chunk.
#include "recurrent/chunk.cuh"
#include "recurrent/convolve.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTokens = kStateChunk / (kThreads / 32);
constexpr int kBatch = 8, kResults = 4; // tokens that are loaded together

template <typename T> struct alignas(8) Four { T x[4]; };

template <typename T> __device__ __forceinline__ Four<T> load_four(const T *from) {
    Four<T> four;
    *reinterpret_cast<uint2 *>(&four) = *reinterpret_cast<const uint2 *>(from);
    return four;
}

template <typename T> __device__ __forceinline__ void store_four(T *to, const float (&x)[4]) {
    uint2 raw;
    raw.x = pack(x[0], x[1], T());
    raw.y = pack(x[2], x[3], T());
    *reinterpret_cast<uint2 *>(to) = raw;
}

template <typename T> __device__ __forceinline__ void
mix_tokens(const ChunkArguments &c, const ChunkPlace &place, int head, int begin, int end) {
    const DeltaArguments &a = c.delta;
    const int channel = head * kHeadDim + static_cast<int>(threadIdx.x % 32) * 4;
    const bool query = head < a.key_heads, value = head >= 2 * a.key_heads;
    Convolution<4> convolution(
        [&](int e) { return reinterpret_cast<const float4 *>(a.convolution)[channel + e]; });
    const auto see = [&](const Four<T> &four, bool valid = true) {
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] = valid ? to_float(four.x[e]) : 0.0f;
        convolution.see(x);
    };
    Four<T> before[kRing];
#pragma unroll
    for (int w = 1; w < kRing; ++w) {
        before[w] = load_four(seen_row<T>(a, place.item, place.first + begin, kRing - w) + channel);
    }
#pragma unroll
    for (int w = 1; w < kRing; ++w) {
        see(before[w], place.item.position + place.first + begin >= kRing - w);
    }
    const T *from = projected_of<T>(a, place.token) + channel;
    const auto mix = [&](int t, const Four<T> &newest) {
        see(newest);
        float x[4];
        const float squares = convolution.mix(x);
        if (!value) {
            const float scale = unit_scale(warp_sum(squares), kHeadDim, query);
#pragma unroll
            for (int e = 0; e < 4; ++e) x[e] *= scale;
        }
        store_four(mixed_of<T>(c, place.token + t) + channel, x);
    };
#pragma unroll 1
    for (int t = begin; t < end; t += kBatch) {
        Four<T> batch[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            batch[i] = load_four(from + int64_t{min(t + i, end - 1)} * a.stride);
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
            if (t + i < end) mix(t + i, batch[i]);
        }
    }
}

template <typename T> __global__ void __launch_bounds__(kThreads, 6)
    chunk_inputs(const __grid_constant__ ChunkArguments c) {
    const DeltaArguments &a = c.delta;
    const StateLevel level = *a.level;
    const int head = static_cast<int>(blockIdx.y), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = level.chunk_begin + static_cast<int>(blockIdx.x); i < level.chunk_end;
         i += gridDim.x) {
        const ChunkPlace place(c, c.chunks[i]);
        const int begin = warp * kTokens, end = min(begin + kTokens, place.count);
        if (begin >= end) continue;
        mix_tokens<T>(c, place, head, begin, end);
        const int value_head = head - 2 * a.key_heads;
        if (value_head < 0 || begin + lane >= end) continue;
        const int64_t token = place.token + begin + lane;
        const DeltaGates gates = gates_of<T>(a, token, value_head);
        c.gates[token * a.value_heads + value_head] =
            make_float2(gates.log_decay * kLog2e, gates.rate);
    }
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
        const auto finish = [&](int t, const Four<T> &result, const Four<T> &gate) {
            float x[4], squares = 0;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                x[e] = to_float(result.x[e]);
                squares += x[e] * x[e];
            }
            const float scale =
                rsqrtf(warp_sum(squares) / static_cast<float>(kHeadDim) + a.epsilon);
#pragma unroll
            for (int e = 0; e < 4; ++e)
                x[e] *= scale * weights[e] * silu_approximate(to_float(gate.x[e]));
            store_four(out + int64_t{t} * a.values_size(), x);
        };
#pragma unroll 1
        for (int t = warp * kTokens; t < end; t += kResults) {
            Four<T> result[kResults], gate[kResults];
#pragma unroll
            for (int b = 0; b < kResults; ++b) {
                const int64_t token = min(t + b, end - 1);
                result[b] = load_four(out + token * a.values_size());
                gate[b] = load_four(gates + token * a.stride);
            }
#pragma unroll
            for (int b = 0; b < kResults; ++b) {
                if (t + b < end) finish(t + b, result[b], gate[b]);
            }
        }
    }
}

} // namespace

bool takes_chunks(DType element, int32_t key_dim, int32_t value_dim) {
    return dtype_bytes(element) == 2 && key_dim == kHeadDim && value_dim == kHeadDim;
}

cudaError_t launch_chunk_inputs(const ChunkArguments &a, cudaStream_t stream) {
    if (a.delta.sm90) return cudaSuccess; // launch_within_sm90 makes them
    const dim3 grid(static_cast<unsigned>(a.most_chunks),
                    static_cast<unsigned>(2 * a.delta.key_heads + a.delta.value_heads));
    return with_half(a.delta.element, [&](auto t) {
        chunk_inputs<decltype(t)><<<grid, kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

cudaError_t launch_chunk_results(const ChunkArguments &a, cudaStream_t stream) {
    if (a.delta.sm90) return cudaSuccess; // launch_across_sm90 makes them
    const dim3 grid(static_cast<unsigned>(a.most_chunks),
                    static_cast<unsigned>(a.delta.value_heads));
    return with_half(a.delta.element, [&](auto t) {
        chunk_results<decltype(t)><<<grid, kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

cudaError_t launch_delta_chunks(const ChunkArguments &a, cudaStream_t stream) {
    if (a.most_chunks == 0) return cudaSuccess;
    if (!takes_chunks(a.delta.element, a.delta.key_dim, a.delta.value_dim)) {
        return cudaErrorInvalidValue;
    }
    for (const auto launch :
         {launch_chunk_inputs, launch_within_chunks, launch_across_chunks, launch_chunk_results}) {
        if (const cudaError_t code = launch(a, stream); code != cudaSuccess) return code;
    }
    return cudaSuccess;
}

} // namespace batchllm::cuda
