// The grouped products for Hopper: y^T = W x^T, 256 rows of W x up to 128 turns a tile, 64 columns a stage, four
// stages of 48 KB. The turns are wgmma's N, so that a tile computes 16, 32, .. or 128 of them; an expert's tiles
// are equal, and little of the work is lost however many turns it has.
//
// Results leave through shared memory, 64 turns at a time; while one of the two computing warpgroups does that the
// other goes on computing, and so they drift apart by a part of a tile, as far as the stages let them.
//
// Where turns have adapters, kernels of their own add these in stages behind a tile's others (sm90_adapters.cuh).
#include "experts/sm90_adapters.cuh"

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

template <typename T, Epilogue F, bool Adapted> __device__ void
compute(const GroupedArguments &a, const Queue &queue, Ring place, unsigned char *shared) {
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const int steps = (a.columns + kPanel - 1) / kPanel;
    unsigned char *out = shared + kOut + group * out_bytes(kOutTurns);
    for_each_tile(queue, [&](const GroupedWork &work) {
        with_turns(work, [&](auto turns) {
            constexpr int Turns = decltype(turns)::value;
            float sums[2][Turns / 2] = {}; // so that it does not live on from tile to tile
            if constexpr (Adapted) {
                AddAdapters<is_gated(F)> adapters(a, work);
                multiply<T, Turns>(&place, steps, group, sums);
                adapters.template add_all<T, Turns>(a, group, &place, shared, sums);
            } else {
                multiply<T, Turns>(&place, steps, group, sums);
            }
            if (a.bias != nullptr) add_bias<Turns>(a, work, group, sums);
            store_all<T, F, kOutTurns, Turns>(a, work, group, sums, out);
        });
    });
}

template <typename T, Epilogue F, bool Adapted> __global__ void __launch_bounds__(kThreads, 1)
    grouped(const __grid_constant__ GroupedArguments a) {
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
        if constexpr (Adapted) {
            feed<2>(a, queue, place, PanelsOfW(a), NoScales(), FeedAdapters<is_gated(F)>(a));
        } else {
            feed<2>(a, queue, place, PanelsOfW(a), NoScales());
        }
    } else {
        registers_more<224>();
        compute<T, F, Adapted>(a, queue, place, shared);
    }
}

template <typename T, bool Adapted>
cudaError_t launch(const GroupedArguments &a, int sms, cudaStream_t stream) {
    const auto with = [&](auto kernel) { return launch_tiles(kernel, kShared, a, sms, stream); };
    if (squares(a)) return with(grouped<T, Epilogue::relu_squared, Adapted>);
    if (!a.gated) return with(grouped<T, Epilogue::plain, Adapted>);
    switch (a.activation) {
    case Activation::silu:
        return with(grouped<T, Epilogue::silu, Adapted>);
    case Activation::gelu:
        return with(grouped<T, Epilogue::gelu, Adapted>);
    case Activation::gelu_tanh:
        return with(grouped<T, Epilogue::gelu_tanh, Adapted>);
    case Activation::clamped_swiglu:
        return with(grouped<T, Epilogue::clamped_swiglu, Adapted>);
    case Activation::relu_squared: // of a gate: supported.h refuses it
    case Activation::xielu:
        break;
    }
    return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t launch_of(const GroupedArguments &a, int sms, cudaStream_t stream) {
    if (a.adapters.tiles == nullptr) return launch<T, false>(a, sms, stream);
    if (a.adapters.t_stride > kMostGroupedRanks) return cudaErrorInvalidValue;
    return launch<T, true>(a, sms, stream);
}

} // namespace

cudaError_t launch_grouped_sm90(const GroupedArguments &a, int sms, cudaStream_t stream) {
    if (a.element == DType::bf16) return launch_of<__nv_bfloat16>(a, sms, stream);
    return a.element == DType::f16 ? launch_of<__half>(a, sms, stream) : cudaErrorInvalidValue;
}

} // namespace batchllm::cuda
