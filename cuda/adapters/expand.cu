// y += alpha * scale * B t of the rows of each adapter, for sm_80 and later. An item of work is a tile of rows and a slice of the
// columns of y, all of one part; a warp has 32 columns at a time. B comes from memory as mma.sync takes it (packed_b()), 512
// bytes a load; t comes to shared memory, unless it is whole its ranges are added up, scaled and rounded on the way; a lane has
// 8 neighbouring columns of a row of y, which are read while the products are made, added to in f32 and rounded once.
#include <algorithm>

#include "adapters/columns.cuh"
#include "adapters/few.h"
#include "adapters/registers.cuh"
#include "adapters/take_t.cuh"
#include "adapters/tile.cuh"
#include "attention/mma.cuh"
#include "device/early_launch.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int32_t kMostRanks = 512; // of a part

// Of short tiles a CTA waits for tile, rows and t as long as it computes: so slices are wide, as far as there are items enough
// for all CTAs.
struct Slices {
    int32_t wide, count;

    __device__ Slices(const AdapterArguments &a, int32_t tiles)
        : wide(a.work.tall ? 512 : 4096), count(count_of(a)) {
        while (wide > 512 && count * tiles < 2 * static_cast<int32_t>(gridDim.x)) {
            wide /= 2;
            count = count_of(a);
        }
    }

  private:
    __device__ int32_t count_of(const AdapterArguments &a) const {
        int32_t slices = 0;
        for (int32_t p = 0; p < a.parts; ++p) {
            slices += (a.first[p + 1] - a.first[p] + wide - 1) / wide;
        }
        return slices;
    }
};

// Groups of 32 columns, kApart columns apart, and sixteens of the tile's rows from `first` on: their sums, added to y.
constexpr int32_t kApart = kPackedRows * kWarps;
template <typename T, typename Y, int Rows, int Groups>
__device__ __forceinline__ void add_groups(const AdapterArguments &a, const AdapterTile &tile,
                                           const AdapterPart &part, int32_t number, int32_t first,
                                           int32_t column, int32_t end, const uint4 *b, const T *t,
                                           const int32_t *rows) {
    const int lane = threadIdx.x % 32;
    const int32_t stride = stride_of(part.rank), own = column + lane % 4 * 8;
    const int32_t apart = part.rank * (kApart / 8); // units
    Y *const of_y = static_cast<Y *>(a.y) + place_of(a, number, own);
    const int32_t y_apart = further(a, kApart);
    Eight<Y> y[Groups][2 * Rows];
#pragma unroll
    for (int i = 0; i < 2 * Rows; ++i) {
        const int row = first + 8 * i + lane / 4;
#pragma unroll
        for (int g = 0; g < Groups; ++g) {
            if (row < tile.count && rows[row] >= 0 && own + g * kApart < end) {
                y[g][i].load(of_y + int64_t{rows[row] - a.first_row} * a.width + g * y_apart);
            }
        }
    }
    float sums[Groups][Rows][4][4] = {};
    t += first * stride + lane / 4 * stride;
    b += lane;
    int32_t k = 0;
    for (; k + 16 <= part.rank; k += 16, b += 64) {
        uint4 w[Groups][2] = {};
#pragma unroll
        for (int g = 0; g < Groups; ++g) {
            if (column + g * kApart >= end) continue;
            w[g][0] = __ldg(b + g * apart);
            w[g][1] = __ldg(b + g * apart + 32);
        }
#pragma unroll
        for (int i = 0; i < Rows; ++i) {
            const T *from = t + 16 * i * stride + k + lane % 4 * 4;
            const uint2 low = *reinterpret_cast<const uint2 *>(from);
            const uint2 high = *reinterpret_cast<const uint2 *>(from + 8 * stride);
            const uint32_t x[4] = {low.x, high.x, low.y, high.y};
#pragma unroll
            for (int g = 0; g < Groups; ++g) {
                add_sixteen_ranks<T>(x, w[g][0], w[g][1], sums[g][i]);
            }
        }
    }
    if (k < part.rank) {
        uint4 w[Groups] = {};
#pragma unroll
        for (int g = 0; g < Groups; ++g) {
            if (column + g * kApart < end) w[g] = __ldg(b + g * apart);
        }
#pragma unroll
        for (int i = 0; i < Rows; ++i) {
            const T *from = t + 16 * i * stride + k + lane % 4 * 2;
            const auto low = *reinterpret_cast<const uint32_t *>(from);
            const auto high = *reinterpret_cast<const uint32_t *>(from + 8 * stride);
#pragma unroll
            for (int g = 0; g < Groups; ++g) {
                add_eight_ranks<T>(low, high, w[g], sums[g][i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 2 * Rows; ++i) {
        const int row = first + 8 * i + lane / 4, half = i % 2 * 2;
#pragma unroll
        for (int g = 0; g < Groups; ++g) {
            if (row >= tile.count || rows[row] < 0 || own + g * kApart >= end) continue;
            float(&s)[4][4] = sums[g][i / 2];
            y[g][i].add({s[0] + half, s[1] + half, s[2] + half, s[3] + half}, a.alpha);
            y[g][i].store(of_y + int64_t{rows[row] - a.first_row} * a.width + g * y_apart);
        }
    }
}

template <typename T, typename Y, int Tall> __global__ void __launch_bounds__(kThreads, 2)
    expand(const __grid_constant__ AdapterArguments a) {
    // Of short tiles a warp has two groups at once, of tall ones two sixteens of rows: as many loads are in flight.
    constexpr int kRows = Tall == 1 ? 1 : 2, kGroups = Tall == 1 ? 2 : 1;
    extern __shared__ __align__(16) unsigned char shared[];
    int32_t *rows = reinterpret_cast<int32_t *>(shared); // [16 Tall]
    T *t = reinterpret_cast<T *>(shared + 16 * Tall * sizeof(int32_t));
    const int32_t tiles = __ldg(a.work.tile_count);
    const AdapterTile *const first = tiles_after_few(a.work);
    const Slices slices(a, tiles);
    const int32_t total = tiles * slices.count;
    const int warp = threadIdx.x / 32;
    // Of tall tiles the last rows come first: what was written last is still in L2. Of short ones a slice of all tiles comes before
    // the next one: slices are of several widths, and so a CTA does not have the same one of each tile.
    for (int32_t turn = blockIdx.x; turn < total; turn += gridDim.x) {
        const int32_t number =
            Tall == 1 ? turn % tiles * slices.count + turn / tiles : total - 1 - turn;
        const AdapterTile tile = load_tile(first + number / slices.count);
        const Slice slice(a, slices.wide, number % slices.count);
        const AdapterEntry &entry = tile.entries[a.product];
        const AdapterPart part = load_part(&entry, slice.part);
        if (part.rank == 0) continue;
        const uint4 *b = static_cast<const uint4 *>(entry.b) + part.b_units;
        wait_for_launches();
        __syncthreads(); // what was there has been read
        if (const auto place = static_cast<int32_t>(threadIdx.x); place < 16 * Tall) {
            rows[place] = place < tile.count ? row_at(a, tile.begin + place) : -1;
        }
        __syncthreads();
        take_t<T>(a, part, rows, Tall, a.ranges(), t);
        __syncthreads();
        for (int32_t column = slice.begin + kPackedRows * warp; column < slice.end;
             column += kApart * kGroups) {
            const int64_t group = (column - a.first[slice.part]) / kPackedRows;
            const uint4 *of_group = b + group * part.rank * (kPackedRows / 8);
            for (int32_t row = 0; row < tile.count; row += 16 * kRows) {
                add_groups<T, Y, kRows, kGroups>(a, tile, part, slice.part, row, column, slice.end,
                                                 of_group, t, rows);
            }
        }
    }
    wait_for_launches(); // also without work: what comes next must not overtake the launch before
}

// f32: a thread has a column of y.
__global__ void expand_plain(const __grid_constant__ AdapterArguments a) {
    const int32_t tiles = __ldg(a.work.tile_count), ranges = a.ranges();
    const Slices slices(a, tiles);
    const int32_t total = tiles * slices.count;
    for (int32_t number = blockIdx.x; number < total; number += gridDim.x) {
        const AdapterTile tile = load_tile(tiles_after_few(a.work) + number / slices.count);
        const Slice slice(a, slices.wide, number % slices.count);
        const AdapterEntry &entry = tile.entries[a.product];
        const AdapterPart part = entry.parts[slice.part];
        if (part.rank == 0) continue;
        const float *b =
            reinterpret_cast<const float *>(static_cast<const uint4 *>(entry.b) + part.b_units);
        const int32_t wide = slice.end - slice.begin;
        for (int32_t n = threadIdx.x; n < tile.count * wide; n += kThreads) {
            const int32_t row = row_at(a, tile.begin + n / wide), column = slice.begin + n % wide;
            if (row < 0) continue;
            float sum = 0;
            for (int32_t k = 0; k < part.rank; ++k) {
                const float *t =
                    static_cast<const float *>(a.t) + int64_t{row} * a.t_stride + part.first + k;
                float of_rank = 0;
                for (int32_t r = 0; r < ranges; ++r) {
                    of_rank += t[int64_t{r} * a.t_rows * a.t_stride];
                }
                sum = fmaf(part.scale * of_rank,
                           b[packed_b(column - a.first[slice.part], k, part.rank)], sum);
            }
            const int32_t of_eight = a.turns ? column % kPartTurn : 0;
            float *y = static_cast<float *>(a.y) + int64_t{row - a.first_row} * a.width +
                       place_of(a, slice.part, column - of_eight) + of_eight;
            *y = fmaf(a.alpha, sum, *y);
        }
    }
}

template <typename T, typename Y, int Tall>
cudaError_t launch(const AdapterArguments &a, int sms, cudaStream_t stream) {
    const int ranks = std::min(a.most_ranks, kMostRanks);
    const int shared = 16 * Tall * static_cast<int>(sizeof(int32_t) + sizeof(T) * stride_of(ranks));
    const auto ctas = static_cast<unsigned>(2 * sms);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(ctas);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = static_cast<size_t>(shared);
    config.stream = stream;
    // Lists without rows are made on the device just before.
    return launch_config(expand<T, Y, Tall>, config, a.work.rows != nullptr, a);
}
template <typename T, typename Y>
cudaError_t launch_of(const AdapterArguments &a, int sms, cudaStream_t stream) {
    return a.work.tall ? launch<T, Y, kTallTile / 16>(a, sms, stream)
                       : launch<T, Y, kShortTile / 16>(a, sms, stream);
}

} // namespace

cudaError_t launch_adapter_expand(const AdapterArguments &a, int sms, cudaStream_t stream) {
    if (a.parts < 1 || a.parts > kAdapterParts || a.width % 8 != 0) return cudaErrorInvalidValue;
    for (int32_t p = 0; p <= a.parts; ++p) {
        if (a.first[p] % 8 != 0 && a.element != DType::f32) return cudaErrorInvalidValue;
    }
    if (a.work.has_few) {
        const cudaError_t status = launch_expand_few(a, sms, stream);
        if (status != cudaSuccess || !a.work.has_others) return status;
    }
    switch (a.element) {
    case DType::bf16:
        if (a.y_type == DType::bf16) return launch_of<__nv_bfloat16, __nv_bfloat16>(a, sms, stream);
        if (a.y_type == DType::f32) return launch_of<__nv_bfloat16, float>(a, sms, stream);
        break;
    case DType::f16:
        if (a.y_type == DType::f16) return launch_of<__half, __half>(a, sms, stream);
        if (a.y_type == DType::f32) return launch_of<__half, float>(a, sms, stream);
        break;
    case DType::f32:
        if (a.y_type != DType::f32) break;
        expand_plain<<<static_cast<unsigned>(4 * sms), kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    default:
        break;
    }
    return cudaErrorInvalidValue;
}

} // namespace batchllm::cuda
