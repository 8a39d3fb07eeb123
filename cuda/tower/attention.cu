// O = softmax(scale Q K^T) V over ranges of patches.
//
// In 16 bits: four warps with 32 query rows each (16 where heads are wide), which read every fragment of keys and values once
// for all of their rows; tiles of 64 keys by cp.async, one ahead; mma.sync; the online softmax of attention/common.cuh. Rows in
// shared memory are 16 bytes longer than a multiple of 32, so that ldmatrix reads from all banks.
// In f32: a warp takes a row, its lanes the elements of a head. For checks, not for speed.
#include "tower/attention.h"

#include "attention/common.cuh"
#include "elementwise/element.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kKeys = 64; // of a tile
constexpr int kPlainRows = 16;
constexpr int kMostPlainDim = 256;

template <int Dims> struct Shape {
    static constexpr int kSteps = (Dims + 15) / 16;      // of Q K^T
    static constexpr int kColumns = Dims / 8;            // of O, in tiles of mma
    static constexpr int kRowTiles = Dims <= 80 ? 2 : 1; // of 16 rows, of a warp
    static constexpr int kRows = kWarps * kRowTiles * 16;
    static constexpr int kStride = kSteps * 16 + 8; // of rows in shared memory
    static constexpr int kTile = kKeys * kStride;
    static constexpr int kBytes = (kRows * kStride + 4 * kTile) * 2;
};

// `rows` rows of a head, zeros beyond `valid` rows and beyond head_dim.
template <int Dims, typename T> __device__ __forceinline__ void
fetch(const T *from, int64_t stride, int head_dim, int rows, int valid, uint32_t to) {
    using S = Shape<Dims>;
    constexpr int kChunks = S::kSteps * 2;
    for (int i = threadIdx.x; i < rows * kChunks; i += kThreads) {
        const int row = i / kChunks, chunk = i % kChunks;
        const bool reads = row < valid && chunk * 8 < head_dim;
        copy_async(to + (row * S::kStride + chunk * 8) * 2,
                   reads ? from + row * stride + chunk * 8 : from, reads);
    }
}

template <typename T, int Dims> __global__ void __launch_bounds__(kThreads, 2)
    attend(const TowerAttentionArguments a) {
    using S = Shape<Dims>;
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t queries = shared_address(shared);
    const uint32_t ring = queries + S::kRows * S::kStride * 2; // keys and values, two of each
    const TowerBlock block = a.blocks[blockIdx.x];
    const int head = blockIdx.y, lane = threadIdx.x % 32;
    const int own = static_cast<int>(threadIdx.x) / 32 * S::kRowTiles * 16; // the warp's first row
    const int64_t width = int64_t{a.heads} * a.head_dim, stride = 3 * width;
    const T *from = static_cast<const T *>(a.qkv) + head * a.head_dim;
    const T *keys = from + block.begin * stride + width, *values = keys + width;
    const int rows = min(S::kRows, block.end - block.first), count = block.end - block.begin;
    const auto fetch_tile = [&](int tile) {
        const uint32_t to = ring + tile % 2 * (2 * S::kTile * 2);
        const int64_t at = int64_t{tile} * kKeys * stride;
        const int valid = count - tile * kKeys;
        fetch<Dims>(keys + at, stride, a.head_dim, kKeys, valid, to);
        fetch<Dims>(values + at, stride, a.head_dim, kKeys, valid, to + S::kTile * 2);
        copy_async_commit();
    };
    fetch<Dims>(from + block.first * stride, stride, a.head_dim, S::kRows, rows, queries);
    fetch_tile(0);

    // Where a lane's row of a matrix of 8 x 8 is in 16 x 16: first down, then right; for keys first right, then down.
    const uint32_t down = ((lane / 8 % 2 * 8 + lane % 8) * S::kStride + lane / 16 * 8) * 2;
    const uint32_t right = ((lane / 16 * 8 + lane % 8) * S::kStride + lane / 8 % 2 * 8) * 2;
    uint32_t q[S::kRowTiles][S::kSteps][4];
    float o[S::kRowTiles][S::kColumns][4] = {};
    float maximum[S::kRowTiles][2], sum[S::kRowTiles][2] = {};
    for (auto &of_tile : maximum) of_tile[0] = of_tile[1] = -INFINITY;
    const float c = a.scale * kLog2e;
    const int tile_count = tiles(count, kKeys);
    for (int tile = 0; tile < tile_count; ++tile) {
        if (tile + 1 < tile_count) {
            fetch_tile(tile + 1);
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        __syncthreads();
        if (own < rows) {
            const uint32_t k = ring + tile % 2 * (2 * S::kTile * 2), v = k + S::kTile * 2;
            if (tile == 0) {
#pragma unroll
                for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
                    for (int step = 0; step < S::kSteps; ++step) {
                        load_matrix(q[m][step],
                                    queries + down + ((own + m * 16) * S::kStride + step * 16) * 2);
                    }
                }
            }
            float s[S::kRowTiles][kKeys / 2] = {};
#pragma unroll
            for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
                for (int j = 0; j < kKeys / 16; ++j) {
                    uint32_t b[4];
                    load_matrix(b, k + right + (j * 16 * S::kStride + step * 16) * 2);
#pragma unroll
                    for (int m = 0; m < S::kRowTiles; ++m) {
                        mma_sync(s[m] + 8 * j, q[m][step], b[0], b[1], T());
                        mma_sync(s[m] + 8 * j + 4, q[m][step], b[2], b[3], T());
                    }
                }
            }
            const int left = count - tile * kKeys;
            uint32_t p[S::kRowTiles][kKeys / 16][4];
#pragma unroll
            for (int m = 0; m < S::kRowTiles; ++m) {
                if (left < kKeys) {
#pragma unroll
                    for (int i = 0; i < kKeys / 2; ++i) {
                        if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= left) s[m][i] = -INFINITY;
                    }
                }
                float factor[2];
                if (softmax(s[m], maximum[m], sum[m], factor, c)) {
#pragma unroll
                    for (int n = 0; n < S::kColumns; ++n) {
                        o[m][n][0] *= factor[0], o[m][n][1] *= factor[0];
                        o[m][n][2] *= factor[1], o[m][n][3] *= factor[1];
                    }
                }
#pragma unroll
                for (int i = 0; i < kKeys / 16 * 4; ++i) {
                    p[m][i / 4][i % 4] = pack(s[m][2 * i], s[m][2 * i + 1], T());
                }
            }
#pragma unroll
            for (int j = 0; j < kKeys / 16; ++j) {
#pragma unroll
                for (int n = 0; n < S::kColumns; n += 2) {
                    uint32_t b[4];
                    load_matrix_transposed(b, v + down + (j * 16 * S::kStride + n * 8) * 2);
#pragma unroll
                    for (int m = 0; m < S::kRowTiles; ++m) {
                        mma_sync(o[m][n], p[m][j], b[0], b[1], T());
                        if (n + 1 < S::kColumns) mma_sync(o[m][n + 1], p[m][j], b[2], b[3], T());
                    }
                }
            }
        }
        __syncthreads(); // before the tile's memory takes the one after the next
    }
    T *out = static_cast<T *>(a.out) + block.first * width + head * a.head_dim;
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float total = sum[m][i];
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            const int row = own + m * 16 + i * 8 + lane / 4;
            if (row >= rows) continue;
            const float inverse = 1 / total;
#pragma unroll
            for (int n = 0; n < S::kColumns; ++n) {
                const int column = n * 8 + lane % 4 * 2;
                if (column >= a.head_dim) continue;
                *reinterpret_cast<uint32_t *>(out + row * width + column) =
                    pack(o[m][n][2 * i] * inverse, o[m][n][2 * i + 1] * inverse, T());
            }
        }
    }
}

template <int Dims, typename T>
cudaError_t launch_shape(const TowerAttentionArguments &a, cudaStream_t stream) {
    const auto kernel = attend<T, Dims>;
    const cudaError_t code = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape<Dims>::kBytes);
    if (code != cudaSuccess) return code;
    const dim3 grid(static_cast<unsigned>(a.block_count), static_cast<unsigned>(a.heads));
    kernel<<<grid, kThreads, Shape<Dims>::kBytes, stream>>>(a);
    return cudaGetLastError();
}

// ---- f32 ----

__global__ void attend_plain(const TowerAttentionArguments a) {
    constexpr int kElements = kMostPlainDim / 32; // of a lane
    const TowerBlock block = a.blocks[blockIdx.x];
    const int head = blockIdx.y, lane = threadIdx.x % 32;
    const int64_t width = int64_t{a.heads} * a.head_dim, stride = 3 * width;
    const float *from = static_cast<const float *>(a.qkv) + head * a.head_dim;
    const int end = min(block.first + kPlainRows, block.end);
    for (int row = block.first + static_cast<int>(threadIdx.x) / 32; row < end; row += kWarps) {
        float q[kElements], o[kElements] = {};
        for (int i = 0; i < kElements; ++i) {
            const int e = lane + 32 * i;
            q[i] = e < a.head_dim ? from[row * stride + e] * a.scale : 0.0f;
        }
        float largest = -INFINITY, sum = 0;
        for (int key = block.begin; key < block.end; ++key) {
            const float *k = from + key * stride + width, *v = k + width;
            float dot = 0;
            for (int i = 0; i < kElements; ++i) {
                const int e = lane + 32 * i;
                if (e < a.head_dim) dot += q[i] * k[e];
            }
            for (int offset = 16; offset > 0; offset /= 2) dot += __shfl_xor_sync(~0u, dot, offset);
            const float next = fmaxf(largest, dot);
            const float keep = expf(largest - next), weight = expf(dot - next);
            largest = next;
            sum = sum * keep + weight;
            for (int i = 0; i < kElements; ++i) {
                const int e = lane + 32 * i;
                if (e < a.head_dim) o[i] = o[i] * keep + weight * v[e];
            }
        }
        float *out = static_cast<float *>(a.out) + row * width + head * a.head_dim;
        for (int i = 0; i < kElements; ++i) {
            const int e = lane + 32 * i;
            if (e < a.head_dim) out[e] = o[i] / sum;
        }
    }
}

} // namespace

bool tower_head_fits(DType element, int32_t head_dim) {
    return head_dim % 8 == 0 && head_dim <= (element == DType::f32 ? kMostPlainDim : 128);
}

int32_t tower_block_rows(DType element, int32_t head_dim) {
    if (element == DType::f32) return kPlainRows;
    return head_dim <= 80 ? Shape<80>::kRows : Shape<128>::kRows;
}

cudaError_t launch_tower_attention(const TowerAttentionArguments &a, cudaStream_t stream) {
    if (a.block_count == 0) return cudaSuccess;
    if (!tower_head_fits(a.element, a.head_dim)) return cudaErrorInvalidValue;
    return with_type(a.element, [&](auto t) {
        using T = decltype(t);
        if constexpr (sizeof(T) == 4) {
            const dim3 grid(static_cast<unsigned>(a.block_count), static_cast<unsigned>(a.heads));
            attend_plain<<<grid, kThreads, 0, stream>>>(a);
            return cudaGetLastError();
        } else {
            if (a.head_dim <= 32) return launch_shape<32, T>(a, stream);
            if (a.head_dim <= 64) return launch_shape<64, T>(a, stream);
            if (a.head_dim <= 72) return launch_shape<72, T>(a, stream);
            if (a.head_dim <= 80) return launch_shape<80, T>(a, stream);
            return launch_shape<128, T>(a, stream);
        }
    });
}

} // namespace batchllm::cuda
