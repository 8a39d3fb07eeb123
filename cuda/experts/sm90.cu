// The grouped products for Hopper: 128 turns x 256 rows of W a tile, 64 columns a stage, four stages of 48 KB.
// One warpgroup feeds: x by cp.async, a row of 128 bytes by eight threads, wherever row_of says that it is; W
// by one bulk copy, as it lies in its panel. Two compute, 64 turns each, a wgmma of 64 x 256 at a time; the
// second has nothing to do where a tile has no more than 64 turns, which takes half the time. Results leave
// through shared memory, in rows of 256 bytes: while one of the two does that the other goes on computing, and
// so they drift apart by a part of a tile, as far as the stages let them.
#include "experts/wide_wgmma.cuh"
#include "experts/work.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kColumns = 256, kStages = 4;
constexpr int kConsumers = 256, kThreads = kConsumers + 128;
constexpr int kXBytes = kTileRows * 128, kWBytes = kColumns * 128, kStage = kXBytes + kWBytes;
// A warp's results on their way out: 16 rows of 128 elements, the stride clear of bank conflicts.
constexpr int kOutColumns = 128, kOutStride = 2 * kOutColumns + 16, kOutBytes = 16 * kOutStride;
constexpr int kOut = kStages * kStage, kBarriers = kOut + kConsumers / 32 * kOutBytes;
constexpr int kShared = kBarriers + 2 * kStages * 8;
static_assert(kShared <= 232448);

enum class Form { plain, silu, gelu, gelu_tanh }; // of the results
constexpr Activation activation_of(Form form) {
    return form == Form::silu   ? Activation::silu
           : form == Form::gelu ? Activation::gelu
                                : Activation::gelu_tanh;
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
__device__ void feed(const GroupedArguments &a, const GroupedQueue<kColumns> &queue, Place place) {
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
                bulk_copy(stage + kXBytes, w + int64_t{s} * a.rows * 128, w_bytes, place.full());
            }
            const bool inside = s * kPanel + chunk * 8 < a.columns;
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                if (row + 16 * i >= work.count) break; // what is there is not stored
                copy_async(stage + to + i * 16 * 128, x + (inside ? from[i] + s * 8 : 0), inside);
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

template <typename T> __device__ __forceinline__ void
multiply(const Place &first, int steps, int group, float (&sums)[128], Place *next) {
    Place place = first, before = first;
    for (int s = 0; s < steps; ++s) {
        barrier_wait(place.full(), place.phase);
        async_proxy_fence(); // cp.async's bytes, which the barrier has shown, to wgmma
        wgmma_fence();
        const Operand x(place.stage() + group * 64 * 128), w(place.stage() + kXBytes);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            wgmma_ss(sums, x.at(k * 32), w.at(k * 32), s > 0 || k > 0, T());
        }
        wgmma_commit();
        if (s > 0) {
            wgmma_wait<1>();
            release(before.empty());
        }
        before = place;
        place.advance();
    }
    wgmma_wait<0>();
    release(before.empty());
    *next = place;
}

// Eight columns of a warp's sixteen rows, two words a thread: rows lane / 4 and lane / 4 + 8.
template <typename T, Form F> __device__ __forceinline__ void
result(const float (&sums)[128], int block, uint32_t *low, uint32_t *high) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (F == Form::plain) {
            x[i] = sums[4 * block + i];
        } else {
            x[i] =
                quickly_activated<activation_of(F)>(sums[8 * block + i]) * sums[8 * block + 4 + i];
        }
    }
    *low = pack(x[0], x[1], T());
    *high = pack(x[2], x[3], T());
}

// kOutColumns columns of the warp's rows, from the First-th eight on. out: the warp's own room.
template <typename T, Form F, int First>
__device__ __forceinline__ void store(const GroupedArguments &a, const GroupedWork &work, int row,
                                      const float (&sums)[128], unsigned char *out) {
    const int lane = threadIdx.x % 32;
    const uint32_t to =
        shared_address(out) + (lane / 8 % 2 * 8 + lane % 8) * kOutStride + lane / 16 * 16;
    __syncwarp(); // what was there has been read
#pragma unroll
    for (int b = 0; b < kOutColumns / 8; b += 2) {
        uint32_t r[4];
        result<T, F>(sums, First + b, r, r + 1);
        result<T, F>(sums, First + b + 1, r + 2, r + 3);
        store_matrix(to + b * 16, r);
    }
    __syncwarp();
    const int width = F == Form::plain ? a.rows : a.rows / 2;
    const int begin = F == Form::plain ? work.column : work.column / 2;
    const int column = begin + First * 8 + lane % 16 * 8;
    if (column >= width) return;
    T *y = static_cast<T *>(a.y) + int64_t{work.begin + row} * width + column;
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        const int r = i + lane / 16;
        if (row + r >= work.count) break;
        *reinterpret_cast<uint4 *>(y + int64_t{r} * width) =
            *reinterpret_cast<const uint4 *>(out + r * kOutStride + lane % 16 * 16);
    }
}

template <typename T, bool Gated>
__device__ __forceinline__ void store(const GroupedArguments &a, const GroupedWork &work, int row,
                                      const float (&sums)[128], unsigned char *out) {
    if constexpr (!Gated) {
        store<T, Form::plain, 0>(a, work, row, sums, out);
        store<T, Form::plain, kOutColumns / 8>(a, work, row, sums, out);
    } else if (a.activation == Activation::silu) {
        store<T, Form::silu, 0>(a, work, row, sums, out);
    } else if (a.activation == Activation::gelu) {
        store<T, Form::gelu, 0>(a, work, row, sums, out);
    } else {
        store<T, Form::gelu_tanh, 0>(a, work, row, sums, out);
    }
    __syncwarp();
}

template <typename T, bool Gated> __device__ void compute(const GroupedArguments &a,
                                                          const GroupedQueue<kColumns> &queue,
                                                          Place place, unsigned char *shared) {
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), group = warp / 4;
    const int steps = (a.columns + kPanel - 1) / kPanel;
    unsigned char *out = shared + kOut + warp * kOutBytes;
    int4 tile = queue.load(blockIdx.x);
    for (int number = blockIdx.x; number < queue.total; number += gridDim.x) {
        const GroupedWork work = queue.at(number, tile);
        tile = queue.load(number + gridDim.x); // on its way while this one is computed
        if (group * 64 >= work.count) {
            for (int s = 0; s < steps; ++s) {
                barrier_wait(place.full(), place.phase);
                release(place.empty());
                place.advance();
            }
            continue;
        }
        float sums[128];
        Place next = place;
        multiply<T>(place, steps, group, sums, &next);
        place = next;
        store<T, Gated>(a, work, warp * 16, sums, out);
    }
}

template <typename T, bool Gated> __global__ void __launch_bounds__(kThreads, 1)
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
    const GroupedQueue<kColumns> queue(a);
    if (threadIdx.x >= kConsumers) {
        registers_fewer<40>();
        feed(a, queue, place);
    } else {
        registers_more<232>();
        compute<T, Gated>(a, queue, place, shared);
    }
}

template <typename T, bool Gated>
cudaError_t launch(const GroupedArguments &a, int sms, cudaStream_t stream) {
    const auto kernel = grouped<T, Gated>;
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (status != cudaSuccess) return status;
    kernel<<<static_cast<unsigned>(sms), kThreads, kShared, stream>>>(a);
    return cudaGetLastError();
}

} // namespace

cudaError_t launch_grouped_sm90(const GroupedArguments &a, int sms, cudaStream_t stream) {
    if (a.element == DType::bf16) {
        return a.gated ? launch<__nv_bfloat16, true>(a, sms, stream)
                       : launch<__nv_bfloat16, false>(a, sms, stream);
    }
    if (a.element != DType::f16) return cudaErrorInvalidValue;
    return a.gated ? launch<__half, true>(a, sms, stream) : launch<__half, false>(a, sms, stream);
}

} // namespace batchllm::cuda
