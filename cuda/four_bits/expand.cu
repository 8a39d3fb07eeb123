// A warp expands 16 rows x 64 columns: each lane its 16 bytes of codes, as the products do, through shared memory, so that
// it writes 16 bytes of a row at a time.
#include <cuda_fp8.h>

#include "attention/mma.cuh"
#include "four_bits/convert.h"
#include "four_bits/widen.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps; // a block has a half cell
constexpr int kRoom = 16 * (64 * 4 + 16);         // bytes of a warp's rows, in f32

__device__ __forceinline__ float low_of(uint32_t pair, __nv_bfloat16) {
    return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float low_of(uint32_t pair, __half) {
    return __low2float(as_pair<__half>(pair));
}
__device__ __forceinline__ float high_of(uint32_t pair, __nv_bfloat16) {
    return __uint_as_float(pair & 0xffff0000u);
}
__device__ __forceinline__ float high_of(uint32_t pair, __half) {
    return __high2float(as_pair<__half>(pair));
}

// The scales of one of a thread's rows, as floats.
struct RowScales {
    float scale, zero;
};
template <typename T> __device__ __forceinline__ RowScales int4_scale(uint32_t word) {
    return {high_of(word, T()) + low_of(word & 0xfff0u, T()), static_cast<float>(word & 15u)};
}

// Eight values of sixteen columns, in the order of registers, the lower half-word first: exact, then rounded to f32.
template <typename T, PackedForm Form>
__device__ __forceinline__ void values(uint32_t word, const RowScales (&scales)[2], float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int r = i / 2, shift = i % 2 * 16;
        const RowScales &own = scales[r % 2];
        if constexpr (is_int4(Form)) {
            const float code = static_cast<float>(word >> (4 * r + shift) & 15u);
            v[i] = (code - own.zero) * own.scale;
        } else {
            const auto bit = [&](int b) {
                return word >> (place_of_bit(false, r, b) + shift) & 1u;
            };
            // A float of 16 bits without its bias, as bf16.
            const uint32_t bits = bit(3) << 15 | bit(2) << 8 | bit(1) << 7 | bit(0) << 6;
            v[i] = __uint_as_float(bits << 16) * own.scale;
        }
    }
}

template <typename Out> __device__ __forceinline__ void put_pair(Out *to, float low, float high) {
    *reinterpret_cast<uint32_t *>(to) = pack(low, high, Out());
}
__device__ __forceinline__ void put_pair(float *to, float low, float high) {
    *reinterpret_cast<float2 *>(to) = make_float2(low, high);
}
__device__ __forceinline__ void put_pair(__nv_fp8_e4m3 *to, float low, float high) {
    *reinterpret_cast<__nv_fp8x2_storage_t *>(to) =
        __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// Where a row is written if gate and up are put apart.
__device__ __forceinline__ int row_apart(int row, int rows) {
    return row / 16 * 8 + row % 8 + row % 16 / 8 * (rows / 2);
}

template <typename T, PackedForm Form, typename Out> __global__ void __launch_bounds__(kThreads)
    expand(const ExpandArguments a) {
    __shared__ __align__(16) unsigned char shared[kWarps * kRoom];
    const PackedShape shape{Form, a.shape.rows, a.shape.columns};
    const auto block = static_cast<int32_t>(blockIdx.x),
               column_block = static_cast<int32_t>(blockIdx.y);
    const auto matrix = static_cast<int64_t>(blockIdx.z);
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, pair = thread / 4;
    const int c = column_block / 2, half = column_block % 2;
    const std::byte *cell = a.packed + matrix * shape.bytes() + shape.cell(c, block);
    const std::byte *codes = cell + shared_scales(Form) + half * half_bytes(Form);
    const uint4 four = __ldg(reinterpret_cast<const uint4 *>(codes) + thread);
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
    const int first_row = block * kCellRows + warp * 16; // of the matrix
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = first_row + lane / 4 + 8 * i;
        factor[i] = a.factors != nullptr && row < shape.rows
                        ? __ldg(a.factors + matrix * shape.rows + row)
                        : 1.0f;
        if constexpr (sizeof(Out) == 1) {
            const int to = a.apart ? row_apart(row, shape.rows) : row;
            if (row < shape.rows) factor[i] /= __ldg(a.scales + matrix * shape.rows + to);
        }
    }
    constexpr int stride = 64 + 16 / static_cast<int>(sizeof(Out));
    Out *room = reinterpret_cast<Out *>(shared + warp * kRoom);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        RowScales scales[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const std::byte *after = codes + kHalfCodes;
            if constexpr (Form == PackedForm::int4_128) {
                scales[i] =
                    int4_scale<T>(__ldg(reinterpret_cast<const uint32_t *>(cell) + pair * 2 + i));
            } else if constexpr (Form == PackedForm::int4_32) {
                scales[i] = int4_scale<T>(
                    __ldg(reinterpret_cast<const uint32_t *>(after) + j / 2 * 64 + pair * 2 + i));
            } else if constexpr (Form == PackedForm::mxfp4) {
                const auto byte = static_cast<uint32_t>(after[pair * 4 + i * 2 + j / 2]);
                scales[i] = {__uint_as_float(byte << 23), 0};
            } else {
                const auto byte = static_cast<uint32_t>(after[pair * 8 + i * 4 + j]);
                scales[i] = {__uint_as_float(byte * (16u << 16) + 0x70000000u), 0};
            }
        }
        float v[8];
        values<T, Form>(words[j], scales, v);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            put_pair(room + (lane / 4 + r % 2 * 8) * stride + j * 16 + lane % 4 * 2 + r / 2 * 8,
                     v[2 * r] * factor[r % 2], v[2 * r + 1] * factor[r % 2]);
        }
    }
    __syncwarp();
    constexpr int kChunk = 16 / static_cast<int>(sizeof(Out)), across = 64 / kChunk;
    Out *out = static_cast<Out *>(a.out);
#pragma unroll
    for (int i = 0; i < 16 * across / 32; ++i) {
        const int r = (i * 32 + lane) / across, chunk = (i * 32 + lane) % across;
        const int row = first_row + r, column = column_block * 64 + chunk * kChunk;
        if (row >= shape.rows) continue;
        const uint4 piece = *reinterpret_cast<const uint4 *>(room + r * stride + chunk * kChunk);
        if (a.panels) { // 16 bits: chunks of eight
            const int64_t at = ((matrix * shape.halves() + column_block) * shape.rows + row) * 8 +
                               (chunk ^ row % 8);
            reinterpret_cast<uint4 *>(out)[at] = piece;
            continue;
        }
        if (column >= shape.columns) continue;
        const int to = a.apart ? row_apart(row, shape.rows) : row;
        *reinterpret_cast<uint4 *>(out + (matrix * shape.rows + to) * shape.columns + column) =
            piece;
    }
}

template <typename T, PackedForm Form>
cudaError_t launch_of(const ExpandArguments &a, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>(a.shape.row_blocks()),
                      static_cast<unsigned>(a.shape.halves()), static_cast<unsigned>(a.matrices));
    if (a.type == DType::e4m3) {
        if constexpr (!is_int4(Form))
            return cudaErrorInvalidValue;
        else
            expand<T, Form, __nv_fp8_e4m3><<<blocks, kThreads, 0, stream>>>(a);
    } else if (a.type == DType::f32) {
        expand<T, Form, float><<<blocks, kThreads, 0, stream>>>(a);
    } else if (a.type == DType::bf16) {
        expand<T, Form, __nv_bfloat16><<<blocks, kThreads, 0, stream>>>(a);
    } else {
        expand<T, Form, __half><<<blocks, kThreads, 0, stream>>>(a);
    }
    return cudaGetLastError();
}

// A block has the rows of a cell, a warp sixteen of them, whose columns of cells its two halves share.
template <typename T, PackedForm Form> __global__ void __launch_bounds__(kThreads)
    row_scales(const ExpandArguments a, float *out) {
    const PackedShape shape{Form, a.shape.rows, a.shape.columns};
    const auto block = static_cast<int32_t>(blockIdx.x);
    const auto matrix = static_cast<int64_t>(blockIdx.y);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int i = lane % 16 / 8, pair = warp * 8 + lane % 8;
    const std::byte *packed = a.packed + matrix * shape.bytes();
    float most = 0;
    const auto take = [&](const std::byte *scales) {
        const RowScales own =
            int4_scale<T>(__ldg(reinterpret_cast<const uint32_t *>(scales) + pair * 2 + i));
        most = fmaxf(most, fabsf(own.scale) * fmaxf(own.zero, 15 - own.zero));
    };
    for (int c = lane / 16; c < shape.cell_columns(); c += 2) {
        const std::byte *cell = packed + shape.cell(c, block);
        if constexpr (Form == PackedForm::int4_128) {
            take(cell);
        } else {
            for (int half = 0; half < shape.halves_of(c); ++half) {
                const std::byte *after = cell + half * half_bytes(Form) + kHalfCodes;
                take(after), take(after + 256);
            }
        }
    }
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 16));
    const int row = block * kCellRows + warp * 16 + i * 8 + lane % 8;
    if (lane >= 16 || row >= shape.rows) return;
    const int to = a.apart ? row_apart(row, shape.rows) : row;
    out[matrix * shape.rows + to] = most > 0 ? most / 448.0f : 1.0f;
}

template <typename T>
cudaError_t launch_scales(const ExpandArguments &a, float *out, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>(a.shape.row_blocks()),
                      static_cast<unsigned>(a.matrices));
    if (a.shape.form == PackedForm::int4_128) {
        row_scales<T, PackedForm::int4_128><<<blocks, kThreads, 0, stream>>>(a, out);
    } else {
        row_scales<T, PackedForm::int4_32><<<blocks, kThreads, 0, stream>>>(a, out);
    }
    return cudaGetLastError();
}

template <typename T> cudaError_t launch_int4(const ExpandArguments &a, cudaStream_t stream) {
    return a.shape.form == PackedForm::int4_128 ? launch_of<T, PackedForm::int4_128>(a, stream)
                                                : launch_of<T, PackedForm::int4_32>(a, stream);
}

} // namespace

cudaError_t launch_expand(const ExpandArguments &a, cudaStream_t stream) {
    const bool e4m3 = a.type == DType::e4m3;
    const bool typed = a.type == DType::f32 || a.type == DType::bf16 || a.type == DType::f16 ||
                       (e4m3 && a.scales != nullptr);
    if (!typed || (a.panels && (a.type == DType::f32 || e4m3 || a.apart)) ||
        a.shape.columns % (e4m3                   ? 16
                           : a.type == DType::f32 ? 4
                                                  : 8) !=
            0 ||
        (a.apart && a.shape.rows % 16 != 0)) {
        return cudaErrorInvalidValue;
    }
    if (a.shape.rows == 0 || a.shape.columns == 0 || a.matrices == 0) return cudaSuccess;
    switch (a.shape.form) {
    case PackedForm::int4_128:
    case PackedForm::int4_32:
        return a.packed_for == DType::f16 ? launch_int4<__half>(a, stream)
                                          : launch_int4<__nv_bfloat16>(a, stream);
    case PackedForm::mxfp4:
        return launch_of<__nv_bfloat16, PackedForm::mxfp4>(a, stream);
    case PackedForm::nvfp4:
        return launch_of<__nv_bfloat16, PackedForm::nvfp4>(a, stream);
    case PackedForm::mxfp4_e4m3:
        break;
    }
    return cudaErrorInvalidValue;
}

cudaError_t launch_row_scales(const ExpandArguments &a, float *out, cudaStream_t stream) {
    if (!is_int4(a.shape.form) || (a.apart && a.shape.rows % 16 != 0)) return cudaErrorInvalidValue;
    if (a.shape.rows == 0 || a.matrices == 0) return cudaSuccess;
    return a.packed_for == DType::f16 ? launch_scales<__half>(a, out, stream)
                                      : launch_scales<__nv_bfloat16>(a, out, stream);
}

} // namespace batchllm::cuda
