// The gated product for Hopper: persistent, a tile of 128 rows of x by 128 columns of y, so by 128 rows of G and 128 of
// U, a CTA at a time; a stage has 128 bytes of each of these rows. Two CTAs of a cluster have the same columns
// and each loads half of what they need of W for both: one G's rows, the other U's. One thread of a CTA loads; two
// warpgroups multiply, 64 rows of x each. Gate and up of a number of y are sums of one thread. Results leave by TMA
// while the next tile begins; the two warpgroups drift apart as far as the stages let them, so that one multiplies while
// the other activates.
//
// Sums of e4m3 are added up in f32 every 128 elements: the tensor cores' own sums keep fewer bits.
#include <type_traits>

#include "attention/hopper.cuh"
#include "device/tensor_map.h"
#include "device/tma.cuh"
#include "elementwise/activation.cuh"
#include "gated/gated.h"

namespace batchllm::cuda {
namespace {

constexpr int kRows = 128, kColumns = 128; // of y, a tile's
constexpr int kTogether =
    8; // pairs of tiles of rows whose products with the same columns follow one another
constexpr int kStages = 4, kConsumers = 256, kThreads = kConsumers + 128;
constexpr int kX = kRows * 128, kHalfOfW = kColumns * 128, kStage = kX + 2 * kHalfOfW; // bytes
constexpr int kOut = kStages * kStage, kHalfOut = 64 * 128; // results of 64 rows, 64 columns
constexpr int kBarriers = kOut + 4 * kHalfOut;
constexpr int kShared = kBarriers + 2 * kStages * 8;
static_assert(kShared <= 232448);

// What the kernel knows besides the maps.
struct Shape {
    int32_t pairs;  // of tiles of rows
    int32_t across; // tiles of columns
    int32_t steps;  // stages a tile
    int32_t width;  // of y
    int32_t rows;   // of x that have scales
    const float *of_x, *of_w;
};

struct Tile {
    int32_t row, column; // of y, its first
};

// Calls act with each of this CTA's tiles.
template <typename Act>
__device__ __forceinline__ void for_each_tile(const Shape &s, const Act &act) {
    const int32_t rank = static_cast<int32_t>(cluster_rank());
    const int32_t of_group = kTogether * s.across, total = s.pairs * s.across;
    for (int32_t number = blockIdx.x / 2; number < total; number += gridDim.x / 2) {
        const int32_t group = number / of_group, place = number % of_group;
        const int32_t pairs = min(kTogether, s.pairs - group * kTogether);
        const int32_t pair = group * kTogether + place % pairs;
        act(Tile{(2 * pair + rank) * kRows, place / pairs * kColumns});
    }
}

// Place in the ring of stages; both sides step through the same sequence.
struct Ring {
    int slot = 0;
    uint32_t phase = 0;
    uint32_t base; // of shared memory

    __device__ explicit Ring(uint32_t at) : base(at) {}
    __device__ uint32_t stage() const { return base + slot * kStage; }
    __device__ uint32_t full() const { return base + kBarriers + slot * 8; }
    __device__ uint32_t empty() const { return base + kBarriers + (kStages + slot) * 8; }
    __device__ void advance() {
        if (++slot == kStages) {
            slot = 0;
            phase ^= 1;
        }
    }
};

// By one thread. The stage is free in both CTAs before its half of W is loaded to both.
__device__ void feed(const CUtensorMap &x, const CUtensorMap &w, const Shape &s, Ring place,
                     int32_t across) {
    const auto rank = static_cast<int32_t>(cluster_rank());
    for_each_tile(s, [&](const Tile &tile) {
        const int32_t of_w = tile.column + rank * s.width;
        for (int32_t step = 0; step < s.steps; ++step) {
            barrier_wait(place.empty(), place.phase ^ 1);
            barrier_expect(place.full(), kStage);
            load_box(place.stage(), x, step * across, tile.row, place.full());
            load_box_to(3, place.stage() + kX + rank * kHalfOfW, w, step * across, of_w,
                        place.full());
            place.advance();
        }
    });
}

// A warp is done with the stage, which the next loads of both CTAs write.
__device__ __forceinline__ void release(uint32_t barrier) {
    __syncwarp();
    const uint32_t lane = threadIdx.x % 32;
    if (lane < 2) barrier_arrive_at(barrier, lane);
}

// sums: of the warpgroup's 64 rows, 128 columns of gate, then of up.
template <typename T> __device__ __forceinline__ void multiply(Ring *place, int steps, int group,
                                                               float (&sums)[2 * kColumns / 2]) {
    uint32_t before = 0;
    for (int s = 0; s < steps; ++s) {
        barrier_wait(place->full(), place->phase);
        wgmma_fence();
        const Operand x(place->stage() + group * 64 * 128), w(place->stage() + kX);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            wgmma_ss(sums, x.at(k * 32), w.at(k * 32), s > 0 || k > 0, T());
        }
        wgmma_commit();
        if (s > 0) {
            wgmma_wait<1>();
            release(before);
        }
        before = place->empty();
        place->advance();
    }
    wgmma_wait<0>();
    release(before);
}

// The same of e4m3: half of the columns at once, since registers hold no more besides.
__device__ __forceinline__ void multiply_e4m3(Ring *place, int steps, int group,
                                              float (&sums)[kColumns]) {
    float made[kColumns / 2];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums[i] = 0;
    for (int s = 0; s < steps; ++s) {
        barrier_wait(place->full(), place->phase);
        const Operand x(place->stage() + group * 64 * 128), w(place->stage() + kX);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                wgmma_ss(made, x.at(k * 32), w.at(half * kHalfOfW + k * 32), k > 0,
                         __nv_fp8_e4m3());
            }
            wgmma_commit();
            wgmma_wait<0>();
            if (half == 1) release(place->empty());
#pragma unroll
            for (int i = 0; i < kColumns / 2; ++i) {
                asm volatile("" : "+f"(made[i])::"memory"); // it is there now
                sums[half * kColumns / 2 + i] += made[i];
            }
        }
        place->advance();
    }
}

// By the scales of the rows of x and of W.
__device__ __forceinline__ void scale(const Shape &s, const Tile &tile, int group,
                                      float (&sums)[kColumns]) {
    const int thread = threadIdx.x % 128, lane = thread % 32;
    const int row = tile.row + group * 64 + thread / 32 * 16 + lane / 4;
    const float low = row < s.rows ? __ldg(s.of_x + row) : 0;
    const float high = row + 8 < s.rows ? __ldg(s.of_x + row + 8) : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const auto *of_w =
            reinterpret_cast<const float2 *>(s.of_w + half * s.width + tile.column) + lane % 4;
#pragma unroll
        for (int i = 0; i < kColumns / 8; ++i) {
            float *d = sums + half * kColumns / 2 + 4 * i;
            const float2 of = __ldg(of_w + 4 * i);
            d[0] *= low * of.x, d[1] *= low * of.y;
            d[2] *= high * of.x, d[3] *= high * of.y;
        }
    }
}

template <typename R, Activation F>
__device__ __forceinline__ void store(const CUtensorMap &y, const Tile &tile, int group,
                                      uint32_t out, const float (&sums)[kColumns]) {
    const int thread = threadIdx.x % 128, lane = thread % 32;
    const bool stores = thread < 32 && elect_one();
    if (stores) store_wait_read();
    named_barrier(1 + group, 128); // what was there has been read
    const uint32_t row = thread / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < kColumns / 8; i += 2) { // eight columns each
        uint32_t r[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float *gate = sums + 4 * i + 2 * j, *up = gate + kColumns / 2;
            r[j] = pack(quickly_activated<F>(gate[0]) * up[0],
                        quickly_activated<F>(gate[1]) * up[1], R());
        }
        const uint32_t chunk = (i % 8 + lane / 16) ^ lane % 8;
        store_matrix(out + i / 8 * kHalfOut + row * 128 + chunk * 16, r);
    }
    async_proxy_fence();
    named_barrier(1 + group, 128);
    if (stores) {
        store_box(y, tile.column, tile.row + group * 64, out);
        store_box(y, tile.column + 64, tile.row + group * 64, out + kHalfOut);
        store_commit();
    }
}

template <typename T, typename R, Activation F>
__device__ void compute(const CUtensorMap &y, const Shape &s, Ring place) {
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const uint32_t out = place.base + kOut + group * 2 * kHalfOut;
    for_each_tile(s, [&](const Tile &tile) {
        float sums[kColumns];
        if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {
            multiply_e4m3(&place, s.steps, group, sums);
            scale(s, tile, group, sums);
        } else {
            multiply<T>(&place, s.steps, group, sums);
        }
        store<R, F>(y, tile, group, out, sums);
    });
    store_wait(); // of the thread that stored
}

template <typename T, typename R, Activation F> __global__ void __cluster_dims__(2)
    __launch_bounds__(kThreads, 1)
        gated_product(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w,
                      const __grid_constant__ CUtensorMap y, const __grid_constant__ Shape shape) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring place(shared_address(shared));
    if (threadIdx.x == 0) {
        Ring each = place;
        for (int i = 0; i < kStages; ++i) {
            barrier_init(each.full(), 1);
            barrier_init(each.empty(), 2 * kConsumers / 32); // the warps of both CTAs
            each.advance();
        }
        barrier_init_fence();
    }
    cluster_sync();
    if (threadIdx.x >= kConsumers) {
        registers_fewer<40>();
        if (threadIdx.x < kConsumers + 32 && elect_one()) {
            feed(x, w, shape, place, 128 / static_cast<int32_t>(sizeof(T)));
        }
        __syncwarp();
    } else {
        registers_more<232>();
        compute<T, R, F>(y, shape, place);
    }
    cluster_sync(); // the other CTA writes to this one's memory until it is done
}

template <typename T, typename R, Activation F>
cudaError_t launch(const GatedArguments &a, int sms, cudaStream_t stream) {
    CUtensorMap x, w, y;
    cudaError_t status = make_tensor_map(a.x, a.element, a.rows, a.columns, kRows, &x);
    if (status == cudaSuccess) {
        status = make_tensor_map(a.w, a.element, 2 * int64_t{a.width}, a.columns, kColumns, &w);
    }
    if (status == cudaSuccess) {
        status = make_tensor_map(a.y, a.result, a.rows, a.width, 64, &y);
    }
    const auto kernel = gated_product<T, R, F>;
    if (status == cudaSuccess) {
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    }
    if (status != cudaSuccess) return status;
    const Shape shape{(a.rows + 2 * kRows - 1) / (2 * kRows),
                      a.width / kColumns,
                      a.columns / (128 / static_cast<int32_t>(sizeof(T))),
                      a.width,
                      a.rows,
                      a.x_scales,
                      a.w_scales};
    const auto ctas = static_cast<unsigned>(sms / 2 * 2);
    kernel<<<ctas, kThreads, kShared, stream>>>(x, w, y, shape);
    return cudaGetLastError();
}

template <typename T, typename R>
cudaError_t launch_of(const GatedArguments &a, int sms, cudaStream_t stream) {
    switch (a.kind) {
    case Activation::silu:
        return launch<T, R, Activation::silu>(a, sms, stream);
    case Activation::gelu:
        return launch<T, R, Activation::gelu>(a, sms, stream);
    case Activation::gelu_tanh:
        return launch<T, R, Activation::gelu_tanh>(a, sms, stream);
    case Activation::clamped_swiglu:
        break; // of experts alone
    }
    return cudaErrorInvalidValue;
}

} // namespace

cudaError_t launch_gated_sm90(const GatedArguments &a, int sms, cudaStream_t stream) {
    if (a.rows == 0) return cudaSuccess;
    const bool bf16 = a.result == DType::bf16;
    if (a.element == DType::e4m3) {
        return bf16 ? launch_of<__nv_fp8_e4m3, __nv_bfloat16>(a, sms, stream)
                    : launch_of<__nv_fp8_e4m3, __half>(a, sms, stream);
    }
    return bf16 ? launch_of<__nv_bfloat16, __nv_bfloat16>(a, sms, stream)
                : launch_of<__half, __half>(a, sms, stream);
}

} // namespace batchllm::cuda
