// W + scale * B A of a product's matrix and an adapter: sums in f32, rounded once. A thread has 8 rows of 8 columns each; the
// rows' B is in shared memory, and A comes from L2, where the CTAs of all rows read it. Memory bounds it: W is read and written.
#include "adapters/adapters.h"
#include "adapters/tile.cuh"
#include "attention/mma.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 256, kRows = 8, kColumns = 8; // of a thread
constexpr int32_t kMostRanks = 512;                    // of a part

__device__ __forceinline__ float widened(float v) { return v; }
__device__ __forceinline__ float widened(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float widened(__half v) { return __half2float(v); }

// Eight columns.
__device__ __forceinline__ void load(const float *from, float (&to)[kColumns]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float4 v = reinterpret_cast<const float4 *>(from)[i];
        to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
    }
}
template <typename T> __device__ __forceinline__ void load(const T *from, float (&to)[kColumns]) {
    const uint4 v = *reinterpret_cast<const uint4 *>(from);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack(words[i], T());
        to[2 * i] = pair.x, to[2 * i + 1] = pair.y;
    }
}
__device__ __forceinline__ void store(const float (&v)[kColumns], float *to) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        reinterpret_cast<float4 *>(to)[i] =
            make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    }
}
template <typename T> __device__ __forceinline__ void store(const float (&v)[kColumns], T *to) {
    *reinterpret_cast<uint4 *>(to) = {pack(v[0], v[1], T()), pack(v[2], v[3], T()),
                                      pack(v[4], v[5], T()), pack(v[6], v[7], T())};
}

template <typename T> __global__ void __launch_bounds__(kThreads, 2)
    merge(const __grid_constant__ AdapterMerge m) {
    __shared__ float b[kRows][kMostRanks];
    const auto row = static_cast<int32_t>(blockIdx.y) * kRows;
    const auto column = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x) * kColumns;
    float sums[kRows][kColumns] = {}; // all of W is on its way before the first of it is needed
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        if (row + i >= m.rows || column >= m.columns) continue;
        load(static_cast<const T *>(m.w) + int64_t{row + i} * m.columns + column, sums[i]);
    }
    for (int32_t p = 0; p < m.parts; ++p) {
        if (row >= m.first[p + 1] || row + kRows <= m.first[p]) continue;
        const AdapterPart part = load_part(m.entry, p);
        const T *of_b =
            reinterpret_cast<const T *>(static_cast<const uint4 *>(m.entry->b) + part.b_units);
        __syncthreads(); // what was there has been read
        for (int32_t n = threadIdx.x; n < kRows * part.rank; n += kThreads) {
            const int32_t own = row + n / part.rank, k = n % part.rank;
            const bool inside = own >= m.first[p] && own < m.first[p + 1];
            b[n / part.rank][k] =
                inside ? part.scale * widened(of_b[packed_b(own - m.first[p], k, part.rank)]) : 0;
        }
        __syncthreads();
        if (column >= m.columns) continue;
        const T *a = static_cast<const T *>(m.entry->a) + int64_t{part.first} * m.columns + column;
#pragma unroll 2
        for (int32_t k = 0; k < part.rank; ++k, a += m.columns) {
            float of_a[kColumns];
            load(a, of_a);
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                const float of_row = b[i][k];
#pragma unroll
                for (int j = 0; j < kColumns; ++j) {
                    sums[i][j] = fmaf(of_row, of_a[j], sums[i][j]);
                }
            }
        }
    }
    if (column >= m.columns) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        if (row + i >= m.rows) break;
        store(sums[i], static_cast<T *>(m.merged) + int64_t{row + i} * m.columns + column);
    }
}

} // namespace

cudaError_t launch_adapter_merge(const AdapterMerge &m, cudaStream_t stream) {
    if (m.columns % kColumns != 0 || m.parts < 1 || m.parts > kAdapterParts) {
        return cudaErrorInvalidValue;
    }
    const int32_t wide = kThreads * kColumns;
    const dim3 blocks(static_cast<unsigned>((m.columns + wide - 1) / wide),
                      static_cast<unsigned>((m.rows + kRows - 1) / kRows));
    switch (m.element) {
    case DType::bf16:
        merge<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(m);
        return cudaGetLastError();
    case DType::f16:
        merge<__half><<<blocks, kThreads, 0, stream>>>(m);
        return cudaGetLastError();
    case DType::f32:
        merge<float><<<blocks, kThreads, 0, stream>>>(m);
        return cudaGetLastError();
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace batchllm::cuda
