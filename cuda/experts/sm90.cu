// The grouped products for Hopper: y^T = W x^T, 256 rows of W x up to 128 turns a tile, 64 columns a stage, four
// stages of 48 KB. The turns are wgmma's N, so that a tile computes 16, 32, .. or 128 of them; an expert's tiles
// are equal, and little of the work is lost however many turns it has.
//
// Results leave through shared memory, 64 turns at a time; while one of the two computing warpgroups does that the
// other goes on computing, and so they drift apart by a part of a tile, as far as the stages let them.
#include "adapters/registers.cuh"
#include "experts/sm90.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kOutTurns = 64;
constexpr int kBarriers = kOut + 2 * out_bytes(kOutTurns);
constexpr int kShared = kBarriers + 2 * kStages * 8;
static_assert(kShared <= kMostShared);
using Ring = RingPlace<kBarriers>;

// sums[b]: of 64 of the warpgroup's rows of W.
template <typename T, int Turns> __device__ __forceinline__ void
multiply(Ring *place, int steps, int group, float (&sums)[2][Turns / 2]) {
    Ring before = *place;
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

// ---- Adapters ----

// An adapter's B of a thread's two rows of W in each 64, as mma.sync's left operand. A row below 0: there is none.
struct RowsOfB {
    const std::byte *b;
    int32_t rank;
    int low[2], high[2];

    // rows: the first ones; apart: the second ones' distance.
    __device__ RowsOfB(const AdapterEntry *entry, const AdapterPart &part, const int (&rows)[2],
                       int apart, bool has_low, bool has_high, int end)
        : b(reinterpret_cast<const std::byte *>(static_cast<const uint4 *>(entry->b) +
                                                part.b_units)),
          rank(part.rank) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            low[i] = has_low && rows[i] < end ? rows[i] : -1;
            high[i] = has_high && rows[i] + apart < end ? rows[i] + apart : -1;
        }
    }
    // Ranks k + 4 quad and the three after it, of 16.
    __device__ uint2 four(int row, int32_t k, int quad) const {
        if (row < 0) return {};
        return __ldg(reinterpret_cast<const uint2 *>(b + 2 * packed_b(row, k + 4 * quad, rank)));
    }
    // Ranks k + 2 quad and the next, of the eight that are left.
    __device__ uint32_t two(int row, int32_t k, int quad) const {
        if (row < 0) return 0;
        return __ldg(reinterpret_cast<const uint32_t *>(b + 2 * packed_b(row, k + 2 * quad, rank)));
    }
};

// Adds B t of one adapter and part to the sums of its turns, members' bits.
template <typename T, int Turns>
__device__ __forceinline__ void add_part(const GroupedArguments &a, const GroupedWork &work,
                                         const AdapterPart &part, const RowsOfB &b,
                                         const uint32_t (&members)[(Turns + 31) / 32],
                                         float (&sums)[2][Turns / 2]) {
    const int lane = threadIdx.x % 32, quad = lane % 4;
    const AdaptedSums &s = a.adapted;
    int32_t k = 0;
    for (; k + 16 <= part.rank; k += 16) {
        uint32_t w[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint2 low = b.four(b.low[i], k, quad), high = b.four(b.high[i], k, quad);
            w[i][0] = low.x, w[i][1] = high.x, w[i][2] = low.y, w[i][3] = high.y;
        }
#pragma unroll
        for (int j = 0; j < Turns / 8; ++j) {
            const uint32_t of_eight = members[j / 4] >> (j % 4 * 8);
            if ((of_eight & 0xff) == 0) continue;
            const uint2 t =
                four_of_t<T>(s, work.begin + 8 * j + lane / 4, part.first + k + quad * 4,
                             part.scale, of_eight >> (lane / 4) & 1);
#pragma unroll
            for (int i = 0; i < 2; ++i) mma_sync(sums[i] + 4 * j, w[i], t.x, t.y, T());
        }
    }
    if (k == part.rank) return;
    uint32_t w[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        w[i][0] = b.two(b.low[i], k, quad);
        w[i][1] = b.two(b.high[i], k, quad);
    }
#pragma unroll
    for (int j = 0; j < Turns / 8; ++j) {
        const uint32_t of_eight = members[j / 4] >> (j % 4 * 8);
        if ((of_eight & 0xff) == 0) continue;
        const uint2 t =
            four_of_t<T>(s, work.begin + 8 * j + lane / 4, part.first + k + quad / 2 * 4,
                         part.scale, of_eight >> (lane / 4) & 1);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            mma_sync_8(sums[i] + 4 * j, w[i][0], w[i][1], quad % 2 == 0 ? t.x : t.y, T());
        }
    }
}

template <typename T, bool Gated, int Turns> __device__ __forceinline__ void
adapt(const GroupedArguments &a, const GroupedWork &work, int group, float (&sums)[2][Turns / 2]) {
    constexpr int kWords = (Turns + 31) / 32;
    const int lane = threadIdx.x % 32;
    const auto *entries = reinterpret_cast<const unsigned long long *>(a.adapted.entries);
    unsigned long long mine[kWords];
    uint32_t left[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
        const int turn = 32 * i + lane;
        mine[i] = turn < work.count ? __ldg(entries + work.begin + turn) : 0;
        left[i] = __ballot_sync(~0u, mine[i] != 0);
    }
    // The rows of W of this thread: of 16, gate's eight and up's, or two.
    int rows[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = work.column + group * 128 + i * 64 + threadIdx.x % 128 / 32 * 16;
        rows[i] = (Gated ? row / 2 : row) + lane / 4;
    }
    const int end = Gated ? a.rows / 2 : a.rows;
    while (true) {
        unsigned long long first = 0;
#pragma unroll
        for (int i = kWords - 1; i >= 0; --i) {
            const int of = max(__ffs(static_cast<int>(left[i])) - 1, 0);
            const unsigned long long there = __shfl_sync(~0u, mine[i], of);
            if (left[i] != 0) first = there;
        }
        if (first == 0) break;
        uint32_t members[kWords];
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            members[i] = __ballot_sync(~0u, mine[i] == first);
            left[i] &= ~members[i];
        }
        const AdapterEntry *entry =
            reinterpret_cast<const AdapterEntry *>(first) + a.adapted.product;
        if constexpr (Gated) {
#pragma unroll 1
            for (int p = 0; p < 2; ++p) {
                const AdapterPart part = load_part(entry, p);
                if (part.rank == 0) continue;
                const RowsOfB b(entry, part, rows, 0, p == 0, p == 1, end);
                add_part<T, Turns>(a, work, part, b, members, sums);
            }
        } else {
            const AdapterPart part = load_part(entry, 0);
            if (part.rank == 0) continue;
            const RowsOfB b(entry, part, rows, 8, true, true, end);
            add_part<T, Turns>(a, work, part, b, members, sums);
        }
    }
}

template <typename T, Epilogue F, bool Adapted> __device__ void
compute(const GroupedArguments &a, const Queue &queue, Ring place, unsigned char *shared) {
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const int steps = (a.columns + kPanel - 1) / kPanel;
    unsigned char *out = shared + kOut + group * out_bytes(kOutTurns);
    for_each_tile(queue, [&](const GroupedWork &work) {
        with_turns(work, [&](auto turns) {
            constexpr int Turns = decltype(turns)::value;
            float sums[2][Turns / 2] = {}; // so that it does not live on from tile to tile
            multiply<T, Turns>(&place, steps, group, sums);
            if (a.bias != nullptr) add_bias<Turns>(a, work, group, sums);
            if constexpr (Adapted) adapt<T, is_gated(F), Turns>(a, work, group, sums);
            store_all<T, F, kOutTurns, Turns>(a, work, group, sums, out);
        });
    });
}

template <typename T, Epilogue F, bool Adapted = false>
__global__ void __launch_bounds__(kThreads, 1) grouped(const __grid_constant__ GroupedArguments a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const Ring place(shared_address(shared));
    if (threadIdx.x == 0) {
        init_barriers(place);
        barrier_init_fence();
    }
    __syncthreads();
    const Queue queue(a);
    if (threadIdx.x >= kConsumers) {
        registers_fewer<56>();
        feed<2>(a, queue, place, NoScales());
    } else {
        registers_more<224>();
        compute<T, F, Adapted>(a, queue, place, shared);
    }
}

template <typename T> cudaError_t launch(const GroupedArguments &a, int sms, cudaStream_t stream) {
    if (a.adapted.entries != nullptr) {
        if (!takes_adapters(GroupedKernel::sm90, a)) return cudaErrorInvalidValue;
        return launch_tiles(a.gated ? grouped<T, Epilogue::silu, true>
                                    : grouped<T, Epilogue::plain, true>,
                            kShared, a, sms, stream);
    }
    if (squares(a)) {
        return launch_tiles(grouped<T, Epilogue::relu_squared>, kShared, a, sms, stream);
    }
    if (!a.gated) return launch_tiles(grouped<T, Epilogue::plain>, kShared, a, sms, stream);
    switch (a.activation) {
    case Activation::silu:
        return launch_tiles(grouped<T, Epilogue::silu>, kShared, a, sms, stream);
    case Activation::gelu:
        return launch_tiles(grouped<T, Epilogue::gelu>, kShared, a, sms, stream);
    case Activation::gelu_tanh:
        return launch_tiles(grouped<T, Epilogue::gelu_tanh>, kShared, a, sms, stream);
    case Activation::clamped_swiglu:
        return launch_tiles(grouped<T, Epilogue::clamped_swiglu>, kShared, a, sms, stream);
    case Activation::relu_squared: // of a gate: supported.h refuses it
    case Activation::xielu:
        break;
    }
    return cudaErrorInvalidValue;
}

} // namespace

cudaError_t launch_grouped_sm90(const GroupedArguments &a, int sms, cudaStream_t stream) {
    if (a.element == DType::bf16) return launch<__nv_bfloat16>(a, sms, stream);
    return a.element == DType::f16 ? launch<__half>(a, sms, stream) : cudaErrorInvalidValue;
}

} // namespace batchllm::cuda
