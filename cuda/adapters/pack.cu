// Adapters' matrices as files have them -> A and B as the products take them, all of an adapter in one launch.
#include <algorithm>

#include "adapters/adapters.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace batchllm::cuda {
namespace {

__device__ float element(const AdapterPiece &p, int64_t at) {
    if (p.type == DType::f32) return static_cast<const float *>(p.from)[at];
    if (p.type == DType::f16) return __half2float(static_cast<const __half *>(p.from)[at]);
    return __bfloat162float(static_cast<const __nv_bfloat16 *>(p.from)[at]);
}
__device__ void put(float v, int64_t at, float *to) { to[at] = v; }
__device__ void put(float v, int64_t at, __nv_bfloat16 *to) { to[at] = __float2bfloat16(v); }
__device__ void put(float v, int64_t at, __half *to) { to[at] = __float2half(v); }

// Blocks of y take pieces, those of x their elements.
template <typename T> __global__ void pack_pieces(const AdapterPiece *pieces, int32_t count) {
    for (int32_t i = blockIdx.y; i < count; i += gridDim.y) {
        const AdapterPiece p = pieces[i];
        const int64_t all = p.places * p.ranks;
        for (int64_t n = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; n < all;
             n += gridDim.x * int64_t{blockDim.x}) {
            // Neighbours read neighbours.
            const int64_t place = p.is_b ? n / p.ranks : n % p.places;
            const auto rank = static_cast<int32_t>(p.is_b ? n % p.ranks : n / p.places);
            const int64_t in_head = place % p.padded;
            const int64_t of_from = place / p.padded * p.stride + p.begin + in_head;
            const bool there = in_head < p.size && of_from < p.from_places && rank < p.rank;
            const int64_t at =
                p.is_b || p.turned ? of_from * p.rank + rank : rank * p.from_places + of_from;
            const int32_t ranks = p.to_ranks > 0 ? p.to_ranks : p.ranks;
            put(there ? p.factor * element(p, at) : 0.0F,
                p.is_b ? packed_b(p.to_row + place, p.to_rank + rank, ranks) : n,
                static_cast<T *>(p.to));
        }
    }
}

} // namespace

cudaError_t load_adapter_pack(DType element) {
    cudaFuncAttributes attributes;
    switch (element) {
    case DType::bf16:
        return cudaFuncGetAttributes(&attributes, pack_pieces<__nv_bfloat16>);
    case DType::f16:
        return cudaFuncGetAttributes(&attributes, pack_pieces<__half>);
    case DType::f32:
        return cudaFuncGetAttributes(&attributes, pack_pieces<float>);
    default:
        return cudaErrorInvalidValue;
    }
}

cudaError_t launch_adapter_pack(DType element, const AdapterPiece *pieces, int32_t count, int sms,
                                cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    const dim3 blocks(static_cast<unsigned>(sms / 8 + 1),
                      static_cast<unsigned>(std::min(count, 64)));
    switch (element) {
    case DType::bf16:
        pack_pieces<__nv_bfloat16><<<blocks, 256, 0, stream>>>(pieces, count);
        return cudaGetLastError();
    case DType::f16:
        pack_pieces<__half><<<blocks, 256, 0, stream>>>(pieces, count);
        return cudaGetLastError();
    case DType::f32:
        pack_pieces<float><<<blocks, 256, 0, stream>>>(pieces, count);
        return cudaGetLastError();
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace batchllm::cuda
