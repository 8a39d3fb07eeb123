// Pages of latents -> pages of each head's keys and values, sm_90a: keys are latent Wk^T and the turned part, values latent
// Wv^T, in attention/attention.h's layout with heads of 256; what is beyond a key's or a value's end is left alone.
//
// A job is two pages and some heads. A CTA keeps the pages' latents in shared memory, 128 KB, and streams the heads'
// matrices past them in stages of 64 of the latent's elements. Each of two warpgroups has the 64 keys of a page. In e4m3 (Stored) a
// page lands in the second half of its place, and its warpgroup widens it from there.
#include "attention/e4m3.cuh"
#include "attention/hopper.cuh"
#include "device/launch.cuh"
#include "device/stage_ring.cuh"
#include "device/tensor_map.h"
#include "device/tma.cuh"
#include "latent/latent.h"
#include "latent/quad.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kRank = 512, kKeyDim = 576, kHeadDim = latent_head_dim;
constexpr int kConsumers = 256, kThreads = kConsumers + 128;
constexpr int kHeads = 4; // of a job
constexpr int kBlock = kPageKeys * 64 * 2, kLatents = kRank / 64 * kBlock;
constexpr int kStages = 3, kStage = 256 * 128, kSteps = kRank / 64;
constexpr int kBarriers = kStages * kStage; // from the stages on
constexpr int kMore = kBarriers + 2 * kStages * 8;
constexpr int kShared = 2 * kLatents + kMore + 16;
static_assert(kShared <= 232448);
using Ring = StageRing<kStages, kStage, kBarriers>;

// d[64 x N] += A[64 x 16] B[16 x N], A and B in shared memory, B N-major.
#define WGMMA_TURNED(TYPE, CPP, N, LIST, A, B, ...)                                                \
    __device__ __forceinline__ void add_turned(float(&d)[N / 2], uint64_t a, uint64_t b, CPP) {    \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" LIST     \
                     "}, %" #A ", %" #B ", 1, 1, 1, 0, 1;"                                         \
                     : __VA_ARGS__                                                                 \
                     : "l"(a), "l"(b));                                                            \
    }
#define WGMMA_TURNED_ALL(TYPE, CPP)                                                                \
    WGMMA_TURNED(TYPE, CPP, 128, LIST64, 64, 65, R32(d, 0), R32(d, 32))                            \
    WGMMA_TURNED(TYPE, CPP, 192, LIST96, 96, 97, R32(d, 0), R32(d, 32), R32(d, 64))
WGMMA_TURNED_ALL("bf16", __nv_bfloat16)
WGMMA_TURNED_ALL("f16", __half)
#undef WGMMA_TURNED_ALL
#undef WGMMA_TURNED

struct Job {
    int page, head, heads; // the first ones
    __device__ Job(const LatentExpandArguments &a, int number) {
        const int parts = (a.heads + kHeads - 1) / kHeads;
        page = number / parts * 2;
        head = number % parts * kHeads;
        heads = min(kHeads, a.heads - head);
    }
};

template <typename Stored, int Plain, int Value>
__device__ void feed(const LatentExpandArguments &a, const CUtensorMap &keys,
                     const CUtensorMap &values, int jobs, uint32_t latents, Ring place) {
    const uint32_t full = place.base + kMore, empty = full + 8;
    uint32_t phase = 0;
    for (int number = blockIdx.x; number < jobs; number += gridDim.x, phase ^= 1) {
        const Job job(a, number);
        const int pages = min(2, a.count - job.page);
        barrier_wait(empty, phase ^ 1);
        constexpr int bytes = kLatents / 2 * static_cast<int>(sizeof(Stored));
        barrier_expect(full, static_cast<uint32_t>(pages * bytes));
        for (int i = 0; i < pages; ++i) {
            const int64_t from = a.pages[a.expanded[job.page + i]];
            bulk_copy(latents + (i + 1) * kLatents - bytes,
                      static_cast<const Stored *>(a.kv) + from * (kPageKeys * kKeyDim), bytes,
                      full);
        }
        for (int head = job.head; head < job.head + job.heads; ++head) {
            for (int step = 0; step < 2 * kSteps; ++step, place.advance()) {
                barrier_wait(place.empty(), place.phase ^ 1);
                if (step < kSteps) {
                    barrier_expect(place.full(), Plain * 128);
                    for (int part = 0; part < Plain / 64; ++part) {
                        load_box(place.stage() + part * kBlock, keys, part * 64,
                                 head * kRank + step * 64, place.full());
                    }
                } else {
                    barrier_expect(place.full(), Value * 128);
                    load_box(place.stage(), values, (step - kSteps) * 64, head * Value,
                             place.full());
                }
            }
        }
    }
}

// 16 e4m3 to two chunks of eight elements, scaled.
template <typename T>
__device__ __forceinline__ void widen_scaled(const uint4 &bytes, float scale, uint4 (&chunks)[2]) {
    widen(bytes, chunks);
#pragma unroll
    for (uint4 &chunk : chunks) {
        for (uint32_t *pair : {&chunk.x, &chunk.y, &chunk.z, &chunk.w}) {
            const float2 x = __half22float2(*reinterpret_cast<const __half2 *>(pair));
            *pair = pack(x.x * scale, x.y * scale, T());
        }
    }
}

// A page's latents, in place, by a warpgroup.
template <typename T> __device__ void widen_latents(uint32_t at, float scale) {
    constexpr int kStep = 4 * 128; // chunks of two blocks
    const int thread = threadIdx.x % 128, barrier = 1 + static_cast<int>(threadIdx.x / 128);
    for (int done = 0; done < kLatents / 2 / 16; done += kStep) {
        uint4 bytes[kStep / 128];
#pragma unroll
        for (int i = 0; i < kStep / 128; ++i) {
            bytes[i] = load_shared(at + kLatents / 2 + (done + i * 128 + thread) * 16);
        }
        named_barrier(barrier, 128); // all have read what lies where they write
#pragma unroll
        for (int i = 0; i < kStep / 128; ++i) {
            uint4 chunks[2];
            uint32_t places[2];
            widen_scaled<T>(bytes[i], scale, chunks);
            widened_places(done + i * 128 + thread, places);
            store_shared(at + places[0], chunks[0]);
            store_shared(at + places[1], chunks[1]);
        }
    }
    async_proxy_fence();
    named_barrier(barrier, 128);
}

// The product of a page's latents with a head's matrix, by a warpgroup.
template <bool Turned, typename T, int Count> __device__ __forceinline__ void
multiply(const Operand &latents, Ring *place, float (&sums)[Count]) {
    const bool signals = threadIdx.x % 32 == 0;
    uint32_t before = 0;
    for (int step = 0; step < kSteps; ++step) {
        barrier_wait(place->full(), place->phase);
        const Operand w(place->stage(), Turned ? kBlock : 16);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const uint64_t x = latents.at(static_cast<uint32_t>(step * kBlock + k * 32));
            if constexpr (Turned) {
                add_turned(sums, x, w.at(k * 2048), T());
            } else {
                wgmma_ss(sums, x, w.at(k * 32), 1, T());
            }
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (signals && step > 0) barrier_arrive(before);
        before = place->empty();
        place->advance();
    }
    wgmma_wait<0>();
    if (signals) barrier_arrive(before);
}

// Writes a warp's 16 keys.
template <typename T, int Count>
__device__ __forceinline__ void write(const float (&sums)[Count], T *block) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int key = warp * 16 + lane / 4 + 8 * i;
#pragma unroll
        for (int j = 0; j < Count / 4; j += 4) {
            uint32_t x[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                x[e] = pack(sums[4 * (j + e) + 2 * i], sums[4 * (j + e) + 2 * i + 1], T());
            }
            transpose_in_quad(x);
            *reinterpret_cast<uint4 *>(block + place_in_block(key, (j + lane % 4) * 8, 2)) =
                make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
}

// Where a thread's i-th chunk of a page's turned part goes.
template <typename Stored> __device__ __forceinline__ uint32_t turned_place(int i, int thread) {
    if constexpr (!kInBytes<Stored>) return static_cast<uint32_t>(i * 128 + thread);
    uint32_t places[2];
    widened_places(i / 2 * 128 + thread, places);
    return places[i % 2] / 16;
}

// Run by the two warpgroups.
template <typename T, typename Stored, int Plain, int Value> __device__ __forceinline__ void
consume(const LatentExpandArguments &a, int jobs, uint32_t latents, Ring place) {
    const uint32_t full = place.base + kMore, empty = full + 8;
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), thread = threadIdx.x % 128;
    const Operand x(latents + group * kLatents);
    const float scale = kInBytes<Stored> && a.scale != nullptr ? *a.scale : 1.0f;
    uint32_t phase = 0;
    for (int number = blockIdx.x; number < jobs; number += gridDim.x, phase ^= 1) {
        const Job job(a, number);
        const int page = job.page + group;
        const bool valid = page < a.count;
        uint4 turned[4] = {};
        if (valid) {
            const int64_t from = a.pages[a.expanded[page]];
            const auto *part = reinterpret_cast<const uint4 *>(
                static_cast<const Stored *>(a.kv) + (from * kKeyDim + kRank) * kPageKeys);
            if constexpr (kInBytes<Stored>) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    uint4 two[2];
                    widen_scaled<T>(part[i * 128 + thread], scale, two);
                    turned[2 * i] = two[0];
                    turned[2 * i + 1] = two[1];
                }
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) turned[i] = part[i * 128 + thread];
            }
        }
        barrier_wait(full, phase);
        if constexpr (kInBytes<Stored>) widen_latents<T>(latents + group * kLatents, scale);
        for (int head = job.head; head < job.head + job.heads; ++head) {
            T *out = static_cast<T *>(a.out) +
                     (int64_t{page} * a.heads + head) * (2 * kPageKeys * kHeadDim);
            {
                float sums[Plain / 2] = {};
                multiply<true, T>(x, &place, sums);
                if (valid) {
                    write(sums, out);
                    auto *to = reinterpret_cast<uint4 *>(out + Plain * kPageKeys);
#pragma unroll
                    for (int i = 0; i < 4; ++i) to[turned_place<Stored>(i, thread)] = turned[i];
                }
            }
            float sums[Value / 2] = {};
            multiply<false, T>(x, &place, sums);
            if (valid) write(sums, out + kPageKeys * kHeadDim);
        }
        if (thread % 32 == 0) barrier_arrive(empty);
    }
}

template <typename T, typename Stored, int Plain, int Value>
__global__ void __launch_bounds__(kThreads, 1)
    latent_expand(const __grid_constant__ LatentExpandArguments a,
                  const __grid_constant__ CUtensorMap keys,
                  const __grid_constant__ CUtensorMap values) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t latents = shared_address(shared);
    Ring place(latents + 2 * kLatents);
    const uint32_t full = place.base + kMore, empty = full + 8;
    if (threadIdx.x == 0) {
        constexpr int kWarps = kConsumers / 32;
        for (Ring each = place; each.phase == 0; each.advance()) {
            barrier_init(each.full(), 1);
            barrier_init(each.empty(), kWarps);
        }
        barrier_init(full, 1);
        barrier_init(empty, kWarps);
        barrier_init_fence();
    }
    __syncthreads();
    const int parts = (a.heads + kHeads - 1) / kHeads, jobs = (a.count + 1) / 2 * parts;
    if (threadIdx.x >= kConsumers) {
        registers_fewer<40>();
        if (threadIdx.x < kConsumers + 32 && elect_one()) {
            feed<Stored, Plain, Value>(a, keys, values, jobs, latents, place);
        }
    } else {
        registers_more<232>();
        consume<T, Stored, Plain, Value>(a, jobs, latents, place);
    }
}

template <typename T, int Plain, int Value>
cudaError_t launch(const LatentExpandArguments &a, DType type, int sms, cudaStream_t stream) {
    CUtensorMap keys, values;
    const int64_t heads = a.heads;
    cudaError_t status = make_tensor_map(a.keys, type, heads * kRank, Plain, 64, &keys);
    if (status != cudaSuccess) return status;
    status = make_tensor_map(a.values, type, heads * Value, kRank, Value, &values);
    if (status != cudaSuccess) return status;
    const auto kernel =
        a.kv_e4m3 ? latent_expand<T, E4m3, Plain, Value> : latent_expand<T, T, Plain, Value>;
    return launch_with_shared(kernel, static_cast<unsigned>(sms), kThreads, kShared, stream, a,
                              keys, values);
}

} // namespace

cudaError_t launch_latent_expand(const LatentExpandArguments &a, DType element, int sms,
                                 cudaStream_t stream) {
    if (a.count == 0) return cudaSuccess;
    const bool bf16 = element == DType::bf16;
    if (a.plain == 192) {
        return bf16 ? launch<__nv_bfloat16, 192, 256>(a, element, sms, stream)
                    : launch<__half, 192, 256>(a, element, sms, stream);
    }
    return bf16 ? launch<__nv_bfloat16, 128, 128>(a, element, sms, stream)
                : launch<__half, 128, 128>(a, element, sms, stream);
}

} // namespace batchllm::cuda
