// Pages of e4m3 -> pages of 2-byte elements, for the wide jobs of attention on 9.0: bound by memory, one byte read
// and two written. A thread handles 16-byte chunks of the output; a block's unit is a page of one
// KV head.
#include <cuda_runtime.h>

#include "attention/e4m3.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 256, kTogether = 4, kBlocks = 6; // blocks per SM

// Two e4m3 as two elements.
__device__ __forceinline__ uint32_t as(uint32_t pair, __half) { return pair; }
__device__ __forceinline__ uint32_t as(uint32_t pair, __nv_bfloat16) {
    const float2 x = __half22float2(*reinterpret_cast<const __half2 *>(&pair));
    return pack(x.x, x.y, __nv_bfloat16());
}

template <typename T> __global__ void __launch_bounds__(kThreads, kBlocks)
    widen_pages(const __grid_constant__ AttentionArguments a) {
    const int chunks =
        2 * kPageKeys * a.head_dim / 8; // per unit; a multiple of kThreads * kTogether
    const int units = a.widened_count * a.kv_heads;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const int page = __ldg(a.pages + __ldg(a.widened + unit / a.kv_heads));
        const int64_t from_unit = int64_t{page} * a.kv_heads + unit % a.kv_heads;
        const auto *from = static_cast<const unsigned char *>(a.kv) + from_unit * chunks * 8;
        auto *to = static_cast<uint4 *>(a.wide) + int64_t{unit} * chunks;
        for (int first = threadIdx.x; first < chunks; first += kThreads * kTogether) {
            uint2 bytes[kTogether];
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                const int chunk = first + i * kThreads, row = chunk / 8;
                const int eight = chunk % 8 ^ row % 8; // the row's group of eight, in order
                bytes[i] = __ldg(reinterpret_cast<const uint2 *>(
                    from + row * 64 + ((eight / 2 ^ row / 2 % 4) << 4) + eight % 2 * 8));
            }
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                uint4 wide;
                widen(bytes[i].x, wide.x, wide.y);
                widen(bytes[i].y, wide.z, wide.w);
                to[first + i * kThreads] =
                    make_uint4(as(wide.x, T()), as(wide.y, T()), as(wide.z, T()), as(wide.w, T()));
            }
        }
    }
}

} // namespace

cudaError_t launch_widen(const AttentionArguments &a, int sms, cudaStream_t stream) {
    if (a.widened_count == 0) return cudaSuccess;
    const auto kernel =
        a.type == AttentionType::bf16 ? widen_pages<__nv_bfloat16> : widen_pages<__half>;
    kernel<<<static_cast<unsigned>(kBlocks * sms), kThreads, 0, stream>>>(a);
    return cudaGetLastError();
}

} // namespace batchllm::cuda
