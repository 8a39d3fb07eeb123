#include "ranks/peers.cuh"

#include <algorithm>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kVector = sizeof(uint4);

__global__ void signal(const __grid_constant__ PeerSignals s, bool waits) {
    const uint32_t count = *s.own_count + 1;
    __syncwarp();
    const int rank = static_cast<int>(threadIdx.x);
    if (rank >= s.ranks) return;
    if (rank == s.own) *s.own_count = count;
    __threadfence_system();
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(s.to[rank]), "r"(count) : "memory");
    if (waits) wait_for_rank(s.counts, count, s.ended, rank);
}

__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
template <typename T> __device__ __forceinline__ T widen(T x) { return x; }
template <typename T, typename Wide> __device__ __forceinline__ T narrow(Wide x) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return __float2bfloat16_rn(x);
    else if constexpr (std::is_same_v<T, __half>)
        return __float2half_rn(x);
    else
        return x;
}

template <typename T> __global__ void __launch_bounds__(kThreads)
    sum_parts(const __grid_constant__ PeerSum s, T *x, int64_t count) {
    using Wide = std::conditional_t<std::is_same_v<T, int32_t>, int32_t, float>;
    constexpr int each = kVector / sizeof(T);
    const int rank = static_cast<int>(threadIdx.x);
    if (rank < s.ranks) wait_for_rank(s.counts, *s.own_count, s.ended, rank);
    __syncthreads();
    const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    const int64_t vectors = count / each;
    for (int64_t v = thread; v < vectors; v += int64_t{gridDim.x} * kThreads) {
        Wide sums[each] = {};
        for (int r = 0; r < s.ranks; ++r) {
            const uint4 part = __ldcg(static_cast<const uint4 *>(s.parts[r]) + v);
            const T *of = reinterpret_cast<const T *>(&part);
#pragma unroll
            for (int k = 0; k < each; ++k) sums[k] += widen(of[k]);
        }
        uint4 sum;
        T *of = reinterpret_cast<T *>(&sum);
#pragma unroll
        for (int k = 0; k < each; ++k) of[k] = narrow<T>(sums[k]);
        reinterpret_cast<uint4 *>(x)[v] = sum;
    }
    const int64_t last = vectors * each + thread;
    if (last >= count) return;
    Wide sum = 0;
    for (int r = 0; r < s.ranks; ++r)
        sum += widen(__ldcg(static_cast<const T *>(s.parts[r]) + last));
    x[last] = narrow<T>(sum);
}

template <typename T>
cudaError_t launch_sum(const PeerSum &sum, void *x, int64_t count, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    const int64_t vectors = count * static_cast<int64_t>(sizeof(T)) / kVector;
    const int64_t blocks = std::clamp<int64_t>((vectors + kThreads - 1) / kThreads, 1, 1024);
    sum_parts<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(sum, static_cast<T *>(x),
                                                                      count);
    return cudaGetLastError();
}

// A block: some of the columns that a rank has made of a row.
__global__ void __launch_bounds__(kThreads) put_together(const __grid_constant__ PeerColumns c) {
    const PeerColumns::Part &part = c.parts[blockIdx.z];
    const auto *from = reinterpret_cast<const float4 *>(part.from + blockIdx.y * part.stride);
    auto *to = reinterpret_cast<float4 *>(c.to + blockIdx.y * c.stride + part.begin);
    const int vectors = (part.columns + 3) / 4, step = static_cast<int>(gridDim.x) * kThreads;
    for (int v = static_cast<int>(blockIdx.x) * kThreads + threadIdx.x; v < vectors; v += step) {
        to[v] = __ldcg(from + v);
    }
}

} // namespace

cudaError_t launch_signal(const PeerSignals &signals, cudaStream_t stream) {
    signal<<<1, 32, 0, stream>>>(signals, false);
    return cudaGetLastError();
}

cudaError_t launch_meeting(const PeerSignals &signals, cudaStream_t stream) {
    signal<<<1, 32, 0, stream>>>(signals, true);
    return cudaGetLastError();
}

cudaError_t launch_peer_sum(const PeerSum &sum, DType type, void *x, int64_t count,
                            cudaStream_t stream) {
    if (type == DType::bf16) return launch_sum<__nv_bfloat16>(sum, x, count, stream);
    if (type == DType::f16) return launch_sum<__half>(sum, x, count, stream);
    return launch_sum<float>(sum, x, count, stream);
}

cudaError_t launch_peer_sum(const PeerSum &sum, int32_t *x, int64_t count, cudaStream_t stream) {
    return launch_sum<int32_t>(sum, x, count, stream);
}

cudaError_t launch_put_together(const PeerColumns &columns, cudaStream_t stream) {
    int32_t most = 0;
    for (int32_t r = 0; r < columns.ranks; ++r) {
        most = std::max(most, columns.parts[static_cast<size_t>(r)].columns);
    }
    if (most == 0 || columns.rows == 0) return cudaSuccess;
    constexpr int32_t of_block = 4 * 4 * kThreads; // four loads of a thread
    const dim3 blocks(static_cast<unsigned>((most + of_block - 1) / of_block),
                      static_cast<unsigned>(columns.rows), static_cast<unsigned>(columns.ranks));
    put_together<<<blocks, kThreads, 0, stream>>>(columns);
    return cudaGetLastError();
}

} // namespace batchllm::cuda
