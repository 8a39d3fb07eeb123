// A tile of few rows (few.h) has no shared memory to wait for: mma.sync's operands come straight from memory, the eight rows of a
// tile as the first eight of its sixteen, and many loads are in flight before the first product.
//
// Shrink: a CTA has a tile and up to 24 rows of A; its warps share x's columns, and their sums are added in their order.
// Expand: a warp has a tile and a slice of y's columns.
#include "adapters/few.h"

#include <algorithm>
#include <type_traits>

#include "adapters/codes.cuh"
#include "adapters/columns.cuh"
#include "adapters/registers.cuh"
#include "adapters/tile.cuh"
#include "attention/mma.cuh"
#include "device/early_launch.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kMostBlocks = 3, kRanks = 8 * kMostBlocks; // of t's columns, of an item
constexpr int kStep = 32;                                // columns of x, of a warp's load
constexpr int32_t kSlice = 512;                          // columns of y, of an item

// Of a lane: which of the tile's rows it has in an operand, or -1.
__device__ __forceinline__ int32_t own_place(const AdapterTile &tile) {
    const int32_t place = static_cast<int32_t>(threadIdx.x) % 32 / 4;
    return place < tile.count ? tile.begin + place : -1;
}

// ---- Shrink -------------------------------------------------------------------------------------

// Eight of x's columns: in 16 bits, or in e4m3, whose elements are exact in 16 bits.
template <bool Scaled> using OfX = std::conditional_t<Scaled, uint2, uint4>;
template <typename T> __device__ __forceinline__ uint4 in_16_bits(const uint4 &x) { return x; }
template <typename T> __device__ __forceinline__ uint4 in_16_bits(const uint2 &codes) {
    return widened<T>(codes);
}

// The warp's part of the sums of the tile's rows and of so many eights of A's rows: some of x's columns. Since a sum's order is
// free, a lane takes 8 columns that follow one another, where the instructions expect four times two.
template <typename T, bool Scaled, int Blocks> __device__ __forceinline__ void
add_columns(const AdapterArguments &a, const T *of_a, int32_t row, float (&sums)[kMostBlocks][4]) {
    // Of e4m3 as many columns as a scale may be of.
    constexpr int together = Blocks == 1 && !Scaled ? 8 : 4;
    constexpr int32_t wide = together * kStep, of_x = Scaled ? 1 : sizeof(T);
    static_assert(!Scaled || wide == kScaleBlock);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int32_t of_warp = ((a.columns + kWarps - 1) / kWarps + wide - 1) / wide * wide;
    const int32_t end = min((warp + 1) * of_warp, a.columns);
    const T *const from = of_a + int64_t{lane / 4} * a.columns;
    const auto *const row_of_x =
        static_cast<const unsigned char *>(a.x) + int64_t{row} * a.columns * of_x;
    for (int32_t begin = warp * of_warp; begin < end; begin += wide) {
        uint4 w[together][Blocks];
        OfX<Scaled> x[together];
#pragma unroll
        for (int i = 0; i < together; ++i) {
            const int32_t column = begin + i * kStep + lane % 4 * 8;
            x[i] = {};
            if (row >= 0 && column < end) {
                x[i] = __ldg(reinterpret_cast<const OfX<Scaled> *>(row_of_x + column * of_x));
            }
#pragma unroll
            for (int j = 0; j < Blocks; ++j) {
                w[i][j] = {};
                if (column >= end) continue;
                w[i][j] = __ldg(
                    reinterpret_cast<const uint4 *>(from + int64_t{8 * j} * a.columns + column));
            }
        }
        float scale = 0, of_columns[Blocks][4] = {};
        if constexpr (Scaled) {
            const int64_t of_group = begin / kScaleBlock * a.x_group_stride;
            if (row >= 0) scale = __ldg(a.x_scales + row * a.x_row_stride + of_group);
        }
#pragma unroll
        for (int i = 0; i < together; ++i) {
            const uint4 own = in_16_bits<T>(x[i]);
            const uint32_t first[4] = {own.x, 0, own.y, 0}, second[4] = {own.z, 0, own.w, 0};
#pragma unroll
            for (int j = 0; j < Blocks; ++j) {
                float(&to)[4] = Scaled ? of_columns[j] : sums[j];
                mma_sync(to, first, w[i][j].x, w[i][j].y, T());
                mma_sync(to, second, w[i][j].z, w[i][j].w, T());
            }
        }
        if constexpr (Scaled) {
#pragma unroll
            for (int j = 0; j < Blocks; ++j) {
                sums[j][0] = fmaf(scale, of_columns[j][0], sums[j][0]);
                sums[j][1] = fmaf(scale, of_columns[j][1], sums[j][1]);
            }
        }
    }
}

template <typename T, bool Scaled> __global__ void __launch_bounds__(kThreads, 3)
    shrink_few(const __grid_constant__ AdapterArguments a) {
    __shared__ float shared[kWarps][kFewRows][kRanks];
    const int32_t chunks = (a.most_ranks + kRanks - 1) / kRanks;
    const int32_t total = __ldg(a.work.few_count) * chunks;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int32_t number = blockIdx.x; number < total; number += gridDim.x) {
        const AdapterTile tile = load_tile(a.work.tiles + number / chunks);
        const int32_t first = number % chunks * kRanks;
        const AdapterEntry &entry = tile.entries[a.product];
        const int32_t left = __ldg(&entry.ranks) - first;
        if (left <= 0) continue;
        const int blocks = min(kMostBlocks, left / 8);
        const auto *of_a = reinterpret_cast<const T *>(
                               __ldg(reinterpret_cast<const unsigned long long *>(&entry.a))) +
                           int64_t{first} * a.columns;
        const int32_t place = own_place(tile);
        const int32_t row = place >= 0 ? row_of_x(a, place) : -1;
        wait_for_launches();
        float sums[kMostBlocks][4] = {};
        if (blocks == 1) {
            add_columns<T, Scaled, 1>(a, of_a, row, sums);
        } else if (blocks == 2) {
            add_columns<T, Scaled, 2>(a, of_a, row, sums);
        } else {
            add_columns<T, Scaled, 3>(a, of_a, row, sums);
        }
        __syncthreads(); // what was there has been read
#pragma unroll
        for (int j = 0; j < kMostBlocks; ++j) {
            *reinterpret_cast<float2 *>(&shared[warp][lane / 4][8 * j + lane % 4 * 2]) =
                make_float2(sums[j][0], sums[j][1]);
        }
        __syncthreads();
        for (int n = threadIdx.x; n < tile.count * 8 * blocks; n += kThreads) {
            const int32_t in_tile = n / (8 * blocks), column = n % (8 * blocks);
            float sum = 0;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) sum += shared[w][in_tile][column];
            const int32_t own = row_at(a, tile.begin + in_tile);
            if (own < 0) continue;
            const int64_t at = int64_t{own} * a.t_stride + first + column;
            if (a.whole) {
                sum *= scale_of(entry, a.parts, first + column);
                static_cast<T *>(a.t)[at] = static_cast<T>(sum);
            } else {
                static_cast<float *>(a.t)[at] = sum;
            }
        }
    }
    wait_for_launches(); // also without work: what comes next must not overtake the launch before
}

// ---- Expand -------------------------------------------------------------------------------------

// A row's part of t from a column on, scaled: an operand of mma.sync for 16 ranks or for 8.
template <typename T>
__device__ __forceinline__ uint2 operand_of_t(const AdapterArguments &a, const AdapterPart &part,
                                              int32_t row, int32_t column, bool sixteen) {
    const int lane = threadIdx.x % 32;
    if (row < 0) return {};
    const int64_t at =
        int64_t{row} * a.t_stride + part.first + column + lane % 4 * (sixteen ? 4 : 2);
    if (a.whole) {
        const T *const from = static_cast<const T *>(a.t) + at;
        if (sixteen) return *reinterpret_cast<const uint2 *>(from);
        return {*reinterpret_cast<const uint32_t *>(from), 0};
    }
    const float *const from = static_cast<const float *>(a.t) + at;
    const float2 low = *reinterpret_cast<const float2 *>(from);
    const float2 high = sixteen ? *reinterpret_cast<const float2 *>(from + 2) : float2{};
    return {pack(part.scale * low.x, part.scale * low.y, T()),
            pack(part.scale * high.x, part.scale * high.y, T())};
}

// Columns [begin, end) of the tile's rows, some groups of 32 at once. row: the lane's of an operand. Rank: the part's, if B of all
// groups fits into registers; else 0.
template <typename T, typename Y, int Groups, int Rank>
__device__ __forceinline__ void add_slice(const AdapterArguments &a, const AdapterPart &part,
                                          const Slice &slice, int32_t row, const uint4 *b) {
    const int lane = threadIdx.x % 32;
    const int32_t rank = Rank > 0 ? Rank : part.rank,
                  of_group = rank * (kPackedRows / 8); // units of B
    for (int32_t begin = slice.begin; begin < slice.end; begin += Groups * kPackedRows) {
        const int32_t own = begin + lane % 4 * 8;
        Y *const of_y = static_cast<Y *>(a.y) + int64_t{row - a.first_row} * a.width +
                        place_of(a, slice.part, own);
        const uint4 *from = b + (begin - a.first[slice.part]) / kPackedRows * of_group + lane;
        const auto load = [&](int group, int unit) {
            if (begin + group * kPackedRows >= slice.end) return uint4{};
            return __ldg(from + group * of_group + unit * 32);
        };
        const auto adds = [&](int group) {
            return row >= 0 && own + group * kPackedRows < slice.end;
        };
        Eight<Y> y[Groups];
        constexpr int units = std::max(Rank / 8, 1);
        uint4 w[Groups][units];
#pragma unroll
        for (int g = 0; g < Groups; ++g) {
            if (adds(g)) y[g].load(of_y + further(a, g * kPackedRows));
            for (int i = 0; Rank > 0 && i < units; ++i) w[g][i] = load(g, i);
        }
        uint2 t{};
        if constexpr (Rank > 0) t = operand_of_t<T>(a, part, row, 0, Rank == 16);
#pragma unroll
        for (int g = 0; g < Groups; ++g) {
            float s[4][4] = {};
            if constexpr (Rank == 16) {
                add_sixteen_ranks<T>({t.x, 0, t.y, 0}, w[g][0], w[g][1], s);
            } else if constexpr (Rank == 8) {
                add_eight_ranks<T>(t.x, 0, w[g][0], s);
            } else {
                int32_t k = 0;
                for (; k + 16 <= rank; k += 16) {
                    const uint4 first = load(g, k / 8), second = load(g, k / 8 + 1);
                    const uint2 own = operand_of_t<T>(a, part, row, k, true);
                    add_sixteen_ranks<T>({own.x, 0, own.y, 0}, first, second, s);
                }
                if (k < rank) {
                    add_eight_ranks<T>(operand_of_t<T>(a, part, row, k, false).x, 0, load(g, k / 8),
                                       s);
                }
            }
            if (!adds(g)) continue;
            y[g].add({s[0], s[1], s[2], s[3]}, a.alpha);
            y[g].store(of_y + further(a, g * kPackedRows));
        }
    }
}

template <typename T, typename Y> __global__ void __launch_bounds__(kThreads, 2)
    expand_few(const __grid_constant__ AdapterArguments a) {
    int32_t slices = 0;
    for (int32_t p = 0; p < a.parts; ++p) {
        slices += (a.first[p + 1] - a.first[p] + kSlice - 1) / kSlice;
    }
    const int32_t total = __ldg(a.work.few_count) * slices;
    const auto warps = static_cast<int32_t>(gridDim.x) * kWarps;
    for (auto number = static_cast<int32_t>(blockIdx.x * kWarps + threadIdx.x / 32); number < total;
         number += warps) {
        const AdapterTile tile = load_tile(a.work.tiles + number / slices);
        const Slice slice(a, kSlice, number % slices);
        const AdapterEntry &entry = tile.entries[a.product];
        const AdapterPart part = load_part(&entry, slice.part);
        if (part.rank == 0) continue;
        const auto *b = reinterpret_cast<const uint4 *>(
                            __ldg(reinterpret_cast<const unsigned long long *>(&entry.b))) +
                        part.b_units;
        const int32_t place = own_place(tile);
        const int32_t row = place >= 0 ? row_at(a, place) : -1;
        wait_for_launches();
        if (part.rank == 8) {
            add_slice<T, Y, 16 / sizeof(Y), 8>(a, part, slice, row, b);
        } else if (part.rank == 16) {
            add_slice<T, Y, 4, 16>(a, part, slice, row, b);
        } else {
            add_slice<T, Y, 2, 0>(a, part, slice, row, b);
        }
    }
    wait_for_launches(); // as shrink
}

// ctas: on a multiprocessor.
template <typename Kernel>
cudaError_t launch(Kernel kernel, const AdapterArguments &a, int ctas, cudaStream_t stream) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(ctas));
    config.blockDim = dim3(kThreads);
    config.stream = stream;
    return launch_config(kernel, config, true, a);
}

template <typename T>
cudaError_t launch_shrink_of(const AdapterArguments &a, int sms, cudaStream_t stream) {
    return a.x_scales == nullptr ? launch(shrink_few<T, false>, a, 3 * sms, stream)
                                 : launch(shrink_few<T, true>, a, 3 * sms, stream);
}

} // namespace

cudaError_t launch_shrink_few(const AdapterArguments &a, int sms, cudaStream_t stream) {
    if (a.element == DType::bf16) return launch_shrink_of<__nv_bfloat16>(a, sms, stream);
    if (a.element == DType::f16) return launch_shrink_of<__half>(a, sms, stream);
    return cudaErrorInvalidValue;
}

cudaError_t launch_expand_few(const AdapterArguments &a, int sms, cudaStream_t stream) {
    if (a.y_type != a.element && a.y_type != DType::f32) return cudaErrorInvalidValue;
    if (a.element == DType::bf16) {
        return a.y_type == DType::f32
                   ? launch(expand_few<__nv_bfloat16, float>, a, 2 * sms, stream)
                   : launch(expand_few<__nv_bfloat16, __nv_bfloat16>, a, 2 * sms, stream);
    }
    if (a.element != DType::f16) return cudaErrorInvalidValue;
    return a.y_type == DType::f32 ? launch(expand_few<__half, float>, a, 2 * sms, stream)
                                  : launch(expand_few<__half, __half>, a, 2 * sms, stream);
}

} // namespace batchllm::cuda
