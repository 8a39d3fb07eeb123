// Some CTAs have sixteen rows of a tile at a time, each CTA a part of the columns; a warp has 32 of them at once, as expand has
// (adapters/expand.cu).
//
// Into e4m3, they are a cluster of eight. Activated elements wait in shared memory, each for the thread that has put it there,
// until the greatest of their row is known. They wait in bf16: its range is f32's, and e4m3 keeps three bits.
#include "gated/adapted_activation.h"

#include <algorithm>
#include <type_traits>

#include "adapters/registers.cuh"
#include "adapters/take_t.cuh"
#include "adapters/tile.cuh"
#include "attention/mma.cuh"
#include "device/cluster.cuh"
#include "elementwise/activation.cuh"
#include "elementwise/quantize.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps, kMostAcross = 8; // CTAs of a row
constexpr int kRows = 16;
constexpr int32_t kMostShared = 232448 - 1024; // the rest is static
constexpr int32_t kMostOfPart = 128;           // ranks

// Shared memory: two parts' t, then what waits.
constexpr int32_t of_t(int32_t most_of_part) { return kRows * stride_of(most_of_part) * 2; }
constexpr int32_t groups_of_cta(int32_t width, int32_t across) {
    return (width / kPackedRows + across - 1) / across;
}
constexpr int32_t shared_bytes(int32_t width, int32_t most_of_part, bool in_e4m3) {
    return 2 * of_t(most_of_part) +
           (in_e4m3 ? groups_of_cta(width, kMostAcross) * kRows * kPackedRows * 2 : 0);
}

// A part of the adapter, and what a lane has of its B for 32 columns: of up to sixteen ranks, since most adapters have no more.
template <typename T> struct Part {
    const T *t; // in shared memory
    const uint4 *b;
    int32_t rank;

    struct Ahead {
        uint4 w[2];
    };

    __device__ const uint4 *of_group(int32_t group) const {
        return b + group * rank * (kPackedRows / 8) + threadIdx.x % 32;
    }
    __device__ __forceinline__ Ahead load(int32_t group) const {
        Ahead ahead{};
        const uint4 *const from = of_group(group);
        if (rank > 0) ahead.w[0] = __ldg(from);
        if (rank >= 16) ahead.w[1] = __ldg(from + 32);
        return ahead;
    }
    __device__ __forceinline__ void add(int32_t group, const Ahead &ahead,
                                        float (&sums)[4][4]) const {
        if (rank == 0) return;
        const uint4 *from = of_group(group);
        if (rank == 8) return add_eight(0, ahead.w[0], sums);
        add_sixteen(0, ahead.w[0], ahead.w[1], sums);
        int32_t k = 16;
        for (; k + 16 <= rank; k += 16) {
            from += 64;
            add_sixteen(k, __ldg(from), __ldg(from + 32), sums);
        }
        if (k < rank) add_eight(k, __ldg(from + 64), sums);
    }

  private:
    __device__ __forceinline__ void add_sixteen(int32_t k, const uint4 &first, const uint4 &second,
                                                float (&sums)[4][4]) const {
        const int lane = threadIdx.x % 32;
        const int32_t stride = stride_of(rank);
        const T *from = t + lane / 4 * stride + k + lane % 4 * 4;
        const uint2 low = *reinterpret_cast<const uint2 *>(from);
        const uint2 high = *reinterpret_cast<const uint2 *>(from + 8 * stride);
        const uint32_t x[4] = {low.x, high.x, low.y, high.y};
        add_sixteen_ranks<T>(x, first, second, sums);
    }
    __device__ __forceinline__ void add_eight(int32_t k, const uint4 &w,
                                              float (&sums)[4][4]) const {
        const int lane = threadIdx.x % 32;
        const int32_t stride = stride_of(rank);
        const T *from = t + lane / 4 * stride + k + lane % 4 * 2;
        const auto low = *reinterpret_cast<const uint32_t *>(from);
        const auto high = *reinterpret_cast<const uint32_t *>(from + 8 * stride);
        add_eight_ranks<T>(low, high, w, sums);
    }
};

// Eight columns of a row, of which sums have those from `half` on: packed as To, and their greatest size.
template <typename T, typename To, Activation Kind>
__device__ __forceinline__ uint4 activate(const uint4 &gate, const uint4 &up,
                                          const float (&of_gate)[4][4], const float (&of_up)[4][4],
                                          int half, float alpha, float *most) {
    const uint32_t gates[4] = {gate.x, gate.y, gate.z, gate.w};
    const uint32_t ups[4] = {up.x, up.y, up.z, up.w};
    uint32_t packed[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float2 g = unpack(gates[j], T()), u = unpack(ups[j], T());
        const float first = quickly_activated<Kind>(fmaf(alpha, of_gate[j][half], g.x)) *
                            fmaf(alpha, of_up[j][half], u.x);
        const float second = quickly_activated<Kind>(fmaf(alpha, of_gate[j][half + 1], g.y)) *
                             fmaf(alpha, of_up[j][half + 1], u.y);
        *most = fmaxf(*most, fmaxf(fabsf(first), fabsf(second)));
        packed[j] = pack(first, second, To());
    }
    return {packed[0], packed[1], packed[2], packed[3]};
}

// The greatest of rows over a cluster, in turns.
struct Maxima {
    unsigned of_cta[2][kRows]; // of this CTA's columns
    float inverses[kRows];     // of scales

    // A warp's: of its lanes' two rows.
    __device__ void add(int turn, float (&most)[2]) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 1));
            most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 2));
            // The bits of such floats are in the order of the floats.
            if (lane % 4 == 0) {
                atomicMax(&of_cta[turn][lane / 4 + 8 * half], __float_as_uint(most[half]));
            }
        }
    }
    // By all threads of the cluster. A turn's maxima are zeros again two turns later, when no other CTA reads them.
    __device__ void scale(int turn, const int32_t *rows, float *scales) {
        cluster_sync();
        if (threadIdx.x < kRows) {
            const uint32_t own = shared_address(&of_cta[turn][threadIdx.x]);
            float greatest = 0;
#pragma unroll
            for (uint32_t cta = 0; cta < kMostAcross; ++cta) {
                greatest = fmaxf(greatest, load_float(address_in(own, cta)));
            }
            const float of_row = scale_of_row(greatest);
            inverses[threadIdx.x] = __frcp_rn(of_row);
            const int32_t row = rows[threadIdx.x];
            if (cluster_rank() == 0 && row >= 0) scales[row] = of_row;
        }
        __syncthreads();
    }
};

// Out: T, or e4m3 with scales.
template <typename T, typename Out, Activation Kind> __global__ void __launch_bounds__(kThreads, 2)
    adapted_activation(const __grid_constant__ AdapterArguments a, int32_t across, Out *out,
                       float *scales) {
    constexpr bool in_e4m3 = !std::is_same_v<T, Out>;
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ Maxima maxima;
    __shared__ int32_t rows[kRows];
    const int32_t width = a.first[1], groups = groups_of_cta(width, across);
    const int32_t first_group = static_cast<int32_t>(blockIdx.x) % across * groups;
    const int32_t end = min(groups, width / kPackedRows - first_group);
    T *const t = reinterpret_cast<T *>(shared);
    T *const t_of_up = t + of_t(a.most_of_part) / 2;
    auto *const waiting = reinterpret_cast<uint4 *>(shared + 2 * of_t(a.most_of_part));
    const AdapterTile *const tiles = tiles_after_few(a.work);
    const int32_t sixteens = a.work.tall ? kTallTile / kRows : 1;
    const int32_t total = __ldg(a.work.tile_count) * sixteens, ranges = a.ranges();
    const int32_t apart = static_cast<int32_t>(gridDim.x) / across;
    const int32_t of_up_from_gate = a.turns ? kPartTurn : width;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int parity = 0;
    int32_t number = static_cast<int32_t>(blockIdx.x) / across;
    AdapterTile next = number < total ? load_tile(tiles + number / sixteens) : AdapterTile{};
    for (; number < total; number += apart) {
        AdapterTile tile = next;
        if (number + apart < total) next = load_tile(tiles + (number + apart) / sixteens);
        const int32_t before = number % sixteens * kRows;
        if (before >= tile.count) continue; // all CTAs of a row
        tile.begin += before;
        tile.count = min(tile.count - before, kRows);
        const AdapterEntry &entry = tile.entries[a.product];
        const AdapterPart gate = load_part(&entry, 0), up = load_part(&entry, 1);
        const auto *b = reinterpret_cast<const uint4 *>(
            __ldg(reinterpret_cast<const unsigned long long *>(&entry.b)));
        parity ^= 1;
        __syncthreads(); // what was there has been read
        if (const auto place = static_cast<int32_t>(threadIdx.x); place < kRows) {
            rows[place] = place < tile.count ? row_at(a, tile.begin + place) : -1;
            maxima.of_cta[parity][place] = 0;
        }
        __syncthreads();
        const int32_t low = rows[lane / 4], high = rows[lane / 4 + 8];
        const Part<T> of_gate{t, b + gate.b_units, gate.rank},
            of_up{t_of_up, b + up.b_units, up.rank};
        struct Ahead {
            uint4 gates[2], ups[2]; // of the lane's two rows
            typename Part<T>::Ahead gate, up;
        };
        const auto load = [&](int32_t group) {
            Ahead ahead{};
            if (group >= end) return ahead;
            const int32_t place = first_group + group;
            const int32_t column = place * kPackedRows + lane % 4 * 8;
            const T *const from = static_cast<const T *>(a.y) + (a.turns ? 2 * column : column);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int32_t row = half == 0 ? low : high;
                if (row < 0) continue;
                const T *const of_row = from + int64_t{row - a.first_row} * a.width;
                ahead.gates[half] = __ldcs(reinterpret_cast<const uint4 *>(of_row));
                ahead.ups[half] = __ldcs(reinterpret_cast<const uint4 *>(of_row + of_up_from_gate));
            }
            ahead.gate = of_gate.load(place);
            ahead.up = of_up.load(place);
            return ahead;
        };
        Ahead now = load(warp);
        if (gate.rank > 0) take_t<T>(a, gate, rows, 1, ranges, t);
        if (up.rank > 0) take_t<T>(a, up, rows, 1, ranges, t_of_up);
        __syncthreads();
        const auto place_of_out = [&](int32_t group, int32_t row) {
            return out + int64_t{row - a.first_row} * width + (first_group + group) * kPackedRows +
                   lane % 4 * 8;
        };
        float most[2] = {};
        for (int32_t group = warp; group < end; group += kWarps) {
            const Ahead after = load(group + kWarps);
            float gates[4][4] = {}, ups[4][4] = {};
            of_gate.add(first_group + group, now.gate, gates);
            of_up.add(first_group + group, now.up, ups);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                using To = std::conditional_t<in_e4m3, __nv_bfloat16, T>;
                const uint4 eight = activate<T, To, Kind>(now.gates[half], now.ups[half], gates,
                                                          ups, 2 * half, a.alpha, &most[half]);
                const int32_t row = half == 0 ? low : high;
                if constexpr (in_e4m3) {
                    waiting[(2 * group + half) * 32 + lane] = eight;
                } else if (row >= 0) {
                    *reinterpret_cast<uint4 *>(place_of_out(group, row)) = eight;
                }
            }
            now = after;
        }
        if constexpr (in_e4m3) {
            maxima.add(parity, most);
            maxima.scale(parity, rows, scales - a.first_row);
            for (int32_t group = warp; group < end; group += kWarps) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int32_t row = half == 0 ? low : high;
                    if (row < 0) continue;
                    float x[8];
                    widen(Packed8<__nv_bfloat16>{waiting[(2 * group + half) * 32 + lane]}, x);
                    store8_e4m3(place_of_out(group, row), x, maxima.inverses[lane / 4 + 8 * half]);
                }
            }
        }
    }
    if constexpr (in_e4m3) cluster_sync(); // others may still read this CTA's maxima
}

template <typename T, typename Out, Activation Kind> cudaError_t
launch_into(const AdapterArguments &a, void *out, float *scales, int sms, cudaStream_t stream) {
    constexpr bool in_e4m3 = !std::is_same_v<T, Out>;
    const auto kernel = adapted_activation<T, Out, Kind>;
    const int32_t shared = shared_bytes(a.first[1], a.most_of_part, in_e4m3);
    cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (status != cudaSuccess) return status;
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {kMostAcross, 1, 1};
    // Else at least three groups a warp.
    const int32_t across =
        in_e4m3 ? kMostAcross : std::clamp(a.first[1] / (3 * kWarps * kPackedRows), 1, kMostAcross);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(2 * sms / across * across));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = static_cast<size_t>(shared);
    config.stream = stream;
    if (in_e4m3) { // fewer may fit
        config.attrs = &cluster;
        config.numAttrs = 1;
        int clusters = 0;
        status = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
        if (status != cudaSuccess) return status;
        config.gridDim.x = static_cast<unsigned>(std::max(1, clusters) * across);
    }
    return cudaLaunchKernelEx(&config, kernel, a, across, static_cast<Out *>(out), scales);
}
template <typename T, Activation Kind> cudaError_t
launch_of_kind(const AdapterArguments &a, void *out, float *scales, int sms, cudaStream_t stream) {
    return scales != nullptr ? launch_into<T, __nv_fp8_e4m3, Kind>(a, out, scales, sms, stream)
                             : launch_into<T, T, Kind>(a, out, scales, sms, stream);
}

template <typename T> cudaError_t launch_of(const AdapterArguments &a, Activation kind, void *out,
                                            float *scales, int sms, cudaStream_t stream) {
    switch (kind) {
    case Activation::silu:
        return launch_of_kind<T, Activation::silu>(a, out, scales, sms, stream);
    case Activation::gelu:
        return launch_of_kind<T, Activation::gelu>(a, out, scales, sms, stream);
    case Activation::gelu_tanh:
        return launch_of_kind<T, Activation::gelu_tanh>(a, out, scales, sms, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace

bool takes_adapted_activation(const AdapterArguments &a, const ActivationArguments &activation,
                              bool in_e4m3) {
    const bool plain = activation.kind == Activation::silu || activation.kind == Activation::gelu ||
                       activation.kind == Activation::gelu_tanh;
    return plain && activation.gated && activation.bias == nullptr && a.element != DType::f32 &&
           a.y_type == a.element && a.parts == 2 && !(a.turns && in_e4m3) &&
           a.first[1] % kPackedRows == 0 && a.most_of_part <= kMostOfPart &&
           shared_bytes(a.first[1], a.most_of_part, in_e4m3) <= kMostShared;
}

cudaError_t launch_adapted_activation(const AdapterArguments &a,
                                      const ActivationArguments &activation, float *scales, int sms,
                                      cudaStream_t stream) {
    if (!takes_adapted_activation(a, activation, scales != nullptr)) return cudaErrorInvalidValue;
    return a.element == DType::bf16
               ? launch_of<__nv_bfloat16>(a, activation.kind, activation.out, scales, sms, stream)
               : launch_of<__half>(a, activation.kind, activation.out, scales, sms, stream);
}

} // namespace batchllm::cuda
