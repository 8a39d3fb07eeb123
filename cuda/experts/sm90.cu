// The grouped products for Hopper: y^T = W x^T, 256 rows of W x up to 128 turns a tile, 64 columns a stage, four
// stages of 48 KB. The turns are wgmma's N, so that a tile computes 16, 32, .. or 128 of them; an expert's tiles
// are equal, and little of the work is lost however many turns it has.
//
// One warpgroup feeds: x by cp.async, a row of 128 bytes by eight threads, wherever row_of says that it is; W
// by one bulk copy, as it lies in its panel. Two compute, 128 rows of W each, gate and up of the same in the same
// threads. Results leave through shared memory, 64 turns at a time; while one of the two does that the other goes
// on computing, and so they drift apart by a part of a tile, as far as the stages let them.
#include "experts/narrow_wgmma.cuh"
#include "experts/work.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kColumns = 256, kStages = 4, kStep = 16; // rows of W a tile; turns by so many
constexpr int kConsumers = 256, kThreads = kConsumers + 128;
constexpr int kXBytes = kTileRows * 128, kWBytes = kColumns * 128, kStage = kXBytes + kWBytes;
// A warpgroup's results on their way out: 64 turns, the stride clear of bank conflicts.
constexpr int kOutTurns = 64, kOutBytes = kOutTurns * (128 * 2 + 16);
constexpr int kOut = kStages * kStage, kBarriers = kOut + 2 * kOutBytes;
constexpr int kShared = kBarriers + 2 * kStages * 8;
static_assert(kShared <= 232448);
using Queue = GroupedQueue<kColumns, kStep>;

enum class Form { plain, silu, gelu, gelu_tanh, clamped_swiglu }; // of the results
constexpr Activation activation_of(Form form) {
    return form == Form::silu        ? Activation::silu
           : form == Form::gelu      ? Activation::gelu
           : form == Form::gelu_tanh ? Activation::gelu_tanh
                                     : Activation::clamped_swiglu;
}

// Place in the ring of stages; both sides step through the same sequence.
struct Place {
    int slot = 0;
    uint32_t phase = 0;
    uint32_t base; // of shared memory

    __device__ explicit Place(uint32_t at) : base(at) {}
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

// The barrier gets an arrival of this thread, which init counted, once its copies so far have come.
__device__ __forceinline__ void copy_async_arrive(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// 8 x 8 matrices of 2-byte elements in mma's accumulator layout, stored with their columns as rows; lane l has the
// address of column l % 8 of matrix l / 8.
__device__ __forceinline__ void store_four_transposed(uint32_t address, const uint32_t (&r)[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
}
__device__ __forceinline__ void store_two_transposed(uint32_t address, const uint32_t (&r)[2]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(address),
                 "r"(r[0]), "r"(r[1])
                 : "memory");
}

__device__ void feed(const GroupedArguments &a, const Queue &queue, Place place) {
    constexpr int kEach = kTileRows * 8 / 128;
    const int thread = static_cast<int>(threadIdx.x) - kConsumers;
    const int chunk = thread % 8, row = thread / 8; // and every 16th row after it
    const int steps = (a.columns + kPanel - 1) / kPanel;
    const auto *x = static_cast<const uint4 *>(a.x);
    const uint32_t to = row * 128 + (chunk ^ row % 8) * 16;
    int4 tile = queue.load(blockIdx.x);
    for (int number = blockIdx.x; number < queue.total; number += gridDim.x) {
        const GroupedWork work = queue.at(number, tile);
        tile = queue.load(number + gridDim.x); // on its way while this one is computed
        uint32_t from[kEach];                  // in chunks
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int turn = work.begin + min(row + 16 * i, work.count - 1);
            const uint32_t source = a.row_of != nullptr ? __ldg(a.row_of + turn) : turn;
            from[i] = source * static_cast<uint32_t>(a.columns / 8) + chunk;
        }
        const auto *w = static_cast<const std::byte *>(a.w) +
                        (int64_t{work.expert} * steps * a.rows + work.column) * 128;
        const uint32_t w_bytes = min(kColumns, a.rows - work.column) * 128;
        for (int s = 0; s < steps; ++s) {
            barrier_wait(place.empty(), place.phase ^ 1);
            const uint32_t stage = place.stage();
            if (thread < 32 && elect_one()) {
                barrier_expect(place.full(), w_bytes);
                bulk_copy(stage, w + int64_t{s} * a.rows * 128, w_bytes, place.full());
            }
            const bool inside = s * kPanel + chunk * 8 < a.columns;
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                if (row + 16 * i >= work.count) break; // what is there is not stored
                copy_async(stage + kWBytes + to + i * 16 * 128, x + (inside ? from[i] + s * 8 : 0),
                           inside);
            }
            copy_async_arrive(place.full());
            place.advance();
        }
    }
    copy_async_wait<0>();
}

// A warp is done with the stage.
__device__ __forceinline__ void release(uint32_t barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// sums[b]: of 64 of the warpgroup's rows of W. A thread has of rows lane / 4 and lane / 4 + 8 of its warp's
// sixteen, for each eight turns, two turns beside each other.
template <typename T, int Turns> __device__ __forceinline__ void
multiply(Place *place, int steps, int group, float (&sums)[2][Turns / 2]) {
    Place before = *place;
    for (int s = 0; s < steps; ++s) {
        barrier_wait(place->full(), place->phase);
        async_proxy_fence(); // cp.async's bytes, which the barrier has shown, to wgmma
        wgmma_fence();
        const Operand w(place->stage() + group * 128 * 128), x(place->stage() + kWBytes);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            wgmma_ss(sums[0], w.at(k * 32), x.at(k * 32), s > 0 || k > 0, T());
            wgmma_ss(sums[1], w.at(64 * 128 + k * 32), x.at(k * 32), s > 0 || k > 0, T());
        }
        wgmma_commit();
        if (s > 0) {
            wgmma_wait<1>();
            release(before.empty());
        }
        before = *place;
        place->advance();
    }
    wgmma_wait<0>();
    release(before.empty());
}

// To all turns. A thread's rows of W are multiply's.
template <int Turns> __device__ __forceinline__ void add_bias(const GroupedArguments &a,
                                                              const GroupedWork &work, int group,
                                                              float (&sums)[2][Turns / 2]) {
    const float *bias = a.bias + int64_t{work.expert} * a.rows;
    const int thread = threadIdx.x % 128;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
        const int row = work.column + group * 128 + b * 64 + thread / 32 * 16 + thread % 32 / 4;
        const float low = row < a.rows ? __ldg(bias + row) : 0.0f;
        const float high = row + 8 < a.rows ? __ldg(bias + row + 8) : 0.0f;
#pragma unroll
        for (int i = 0; i < Turns / 2; ++i) sums[b][i] += i % 4 < 2 ? low : high;
    }
}

// Turns [64 Chunk, 64 Chunk + 64) of the warpgroup's rows of W. out: its own room, a row a turn.
template <typename T, Form F, int Turns, int Chunk>
__device__ __forceinline__ void store(const GroupedArguments &a, const GroupedWork &work, int group,
                                      const float (&sums)[2][Turns / 2], unsigned char *out) {
    constexpr bool gated = F != Form::plain;
    constexpr int columns = gated ? 64 : 128, stride = columns * 2 + 16;
    constexpr int first = 8 * Chunk, last = first + 8 < Turns / 8 ? first + 8 : Turns / 8;
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    named_barrier(1 + group, 128); // what was there has been read
    // Matrices of 8 columns x 8 turns, stored a turn after the other.
#pragma unroll
    for (int b = 0; b < 2; ++b) {
        const uint32_t to = shared_address(out) + lane % 8 * stride;
        if constexpr (gated) { // of two eights of turns
            const uint32_t at = to + lane / 8 % 2 * 8 * stride + (b * 32 + warp * 8) * 2;
#pragma unroll
            for (int j = first; j < last; j += 2) {
                uint32_t r[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float *d = sums[b] + 4 * (j + i);
                    r[i] = pack(quickly_gated<activation_of(F)>(d[0], d[2]),
                                quickly_gated<activation_of(F)>(d[1], d[3]), T());
                }
                store_two_transposed(at + (j - first) * 8 * stride, r);
            }
        } else { // of both eights of columns, and two of turns
            const uint32_t at =
                to + lane / 16 * 8 * stride + (b * 64 + warp * 16 + lane / 8 % 2 * 8) * 2;
#pragma unroll
            for (int j = first; j < last; j += 2) {
                const float *d = sums[b] + 4 * j;
                const uint32_t r[4] = {pack(d[0], d[1], T()), pack(d[2], d[3], T()),
                                       pack(d[4], d[5], T()), pack(d[6], d[7], T())};
                store_four_transposed(at + (j - first) * 8 * stride, r);
            }
        }
    }
    named_barrier(1 + group, 128);
    constexpr int across = columns / 8; // threads of a turn
    const int width = gated ? a.rows / 2 : a.rows;
    const int column =
        (gated ? work.column / 2 : work.column) + group * columns + thread % across * 8;
    T *y = static_cast<T *>(a.y) + int64_t{work.begin} * width + column;
#pragma unroll
    for (int i = 0; i < kOutTurns * across / 128; ++i) {
        const int turn = thread / across + i * (128 / across);
        if (column < width && 64 * Chunk + turn < work.count) {
            *reinterpret_cast<uint4 *>(y + int64_t{64 * Chunk + turn} * width) =
                *reinterpret_cast<const uint4 *>(out + turn * stride + thread % across * 16);
        }
    }
}

template <typename T, Form F, int Turns>
__device__ __forceinline__ void compute_tile(const GroupedArguments &a, const GroupedWork &work,
                                             int steps, int group, Place *place,
                                             unsigned char *out) {
    float sums[2][Turns / 2] = {}; // so that it does not live on from tile to tile
    multiply<T, Turns>(place, steps, group, sums);
    if (a.bias != nullptr) add_bias<Turns>(a, work, group, sums);
    store<T, F, Turns, 0>(a, work, group, sums, out);
    if constexpr (Turns > kOutTurns) store<T, F, Turns, 1>(a, work, group, sums, out);
}

template <typename T, Form F> __device__ void compute(const GroupedArguments &a, const Queue &queue,
                                                      Place place, unsigned char *shared) {
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const int steps = (a.columns + kPanel - 1) / kPanel;
    unsigned char *out = shared + kOut + group * kOutBytes;
    int4 tile = queue.load(blockIdx.x);
    for (int number = blockIdx.x; number < queue.total; number += gridDim.x) {
        const GroupedWork work = queue.at(number, tile);
        tile = queue.load(number + gridDim.x); // on its way while this one is computed
        switch ((__shfl_sync(~0u, work.count, 0) + kStep - 1) / kStep) {
        case 1:
            compute_tile<T, F, 16>(a, work, steps, group, &place, out);
            break;
        case 2:
            compute_tile<T, F, 32>(a, work, steps, group, &place, out);
            break;
        case 3:
            compute_tile<T, F, 48>(a, work, steps, group, &place, out);
            break;
        case 4:
            compute_tile<T, F, 64>(a, work, steps, group, &place, out);
            break;
        case 5:
            compute_tile<T, F, 80>(a, work, steps, group, &place, out);
            break;
        case 6:
            compute_tile<T, F, 96>(a, work, steps, group, &place, out);
            break;
        case 7:
            compute_tile<T, F, 112>(a, work, steps, group, &place, out);
            break;
        default:
            compute_tile<T, F, 128>(a, work, steps, group, &place, out);
        }
    }
}

template <typename T, Form F> __global__ void __launch_bounds__(kThreads, 1)
    grouped(const __grid_constant__ GroupedArguments a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Place place(shared_address(shared));
    if (threadIdx.x == 0) {
        Place each = place;
        for (int i = 0; i < kStages; ++i) {
            barrier_init(each.full(), 128 + 1); // the feeders, and the one that expects W
            barrier_init(each.empty(), kConsumers / 32);
            each.advance();
        }
        barrier_init_fence();
    }
    __syncthreads();
    const Queue queue(a);
    if (threadIdx.x >= kConsumers) {
        registers_fewer<40>();
        feed(a, queue, place);
    } else {
        registers_more<232>();
        compute<T, F>(a, queue, place, shared);
    }
}

template <typename T, Form F>
cudaError_t launch(const GroupedArguments &a, int sms, cudaStream_t stream) {
    const auto kernel = grouped<T, F>;
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (status != cudaSuccess) return status;
    kernel<<<static_cast<unsigned>(sms), kThreads, kShared, stream>>>(a);
    return cudaGetLastError();
}

template <typename T> cudaError_t launch(const GroupedArguments &a, int sms, cudaStream_t stream) {
    if (!a.gated) return launch<T, Form::plain>(a, sms, stream);
    switch (a.activation) {
    case Activation::silu:
        return launch<T, Form::silu>(a, sms, stream);
    case Activation::gelu:
        return launch<T, Form::gelu>(a, sms, stream);
    case Activation::gelu_tanh:
        return launch<T, Form::gelu_tanh>(a, sms, stream);
    case Activation::clamped_swiglu:
        return launch<T, Form::clamped_swiglu>(a, sms, stream);
    }
    return cudaErrorInvalidValue;
}

} // namespace

cudaError_t launch_grouped_sm90(const GroupedArguments &a, int sms, cudaStream_t stream) {
    if (a.element == DType::bf16) return launch<__nv_bfloat16>(a, sms, stream);
    return a.element == DType::f16 ? launch<__half>(a, sms, stream) : cudaErrorInvalidValue;
}

} // namespace batchllm::cuda
