// The grouped products in e4m3 for Hopper, W in e4m3 (experts/sm90_e4m3.cuh). Of 64 rows of W at a time where registers
// hold no more; the tensor cores then compute for the other of the two warpgroups.
#include "experts/sm90_e4m3.cuh"

namespace batchllm::cuda {
namespace {

WGMMA_SS_ALL("e4m3", __nv_fp8_e4m3, 32, "")

// What a stage's products read.
template <bool Blocks> struct Stage : StageSums<Blocks> {
    Operand w, x;

    __device__ __forceinline__ Stage(const Ring &place, int group, const unsigned char *shared)
        : StageSums<Blocks>(place.slot, group, shared), w(place.stage() + group * 128 * 128),
          x(place.stage() + kWBytes) {}
    // made: of the 64 rows of W with number b.
    template <int N> __device__ __forceinline__ void multiply(int b, float (&made)[N]) const {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            wgmma_ss(made, w.at(b * 64 * 128 + k * 32), x.at(k * 32), k > 0, __nv_fp8_e4m3());
        }
        wgmma_commit();
    }
};

// W in panels, with scales of rows or of blocks.
template <bool Blocks> struct InPanels {
    static constexpr bool kBlocks = Blocks, kWholeTurns = false, kBiased = false,
                          kBfloatAlone = false;
    static constexpr int kRegisters = 224, kFeeders = 56;
    using Queue = cuda::Queue;
    using FeedW = PanelsOfW;

    static __device__ __forceinline__ void prepare(unsigned char *) {}
    template <typename Act>
    static __device__ __forceinline__ void with_turns(const GroupedWork &work, const Act &act) {
        cuda::with_turns(work, act);
    }
    // sums[b]: of 64 of the warpgroup's rows of W.
    template <bool Gated, int Turns>
    static __device__ __forceinline__ void multiply(const GroupedArguments &a, Ring *place,
                                                    int group, const unsigned char *shared,
                                                    float (&sums)[2][Turns / 2]) {
        const int steps = steps_of(a);
        constexpr bool both = Turns <= 96; // of the 64 rows at once: registers hold no more
        float made[both ? 2 : 1][Turns / 2];
        await_stage(*place);
        for (int s = 0; s < steps; ++s) {
            const Stage<Blocks> stage(*place, group, shared);
            const uint32_t empty = place->empty();
            place->advance();
            stage.multiply(0, made[0]);
            const auto first = stage.template first<Turns / 2>();
            if constexpr (both) {
                stage.multiply(1, made[1]);
                if (s + 1 < steps) await_stage(*place);
                wgmma_wait<1>();
                stage.template add<Gated>(first, made[0], sums[0]);
            } else {
                wgmma_wait<0>();
                stage.template add<Gated>(first, made[0], sums[0]);
                stage.multiply(1, made[0]);
                if (s + 1 < steps) await_stage(*place);
            }
            wgmma_wait<0>();
            stage.template add<Gated>(first, made[both ? 1 : 0], sums[1]);
            release(empty);
        }
    }
};

template <bool Adapted>
cudaError_t launch(const GroupedArguments &a, int sms, cudaStream_t stream) {
    constexpr Activation silu = Activation::silu;
    const bool blocks = a.scales.scaling == Scaling::blocks;
    const auto kernel = a.gated  ? blocks ? grouped_e4m3<InPanels<true>, true, silu, Adapted>
                                          : grouped_e4m3<InPanels<false>, true, silu, Adapted>
                         : blocks ? grouped_e4m3<InPanels<true>, false, silu, Adapted>
                                 : grouped_e4m3<InPanels<false>, false, silu, Adapted>;
    return launch_tiles(kernel, kShared, a, sms, stream);
}

} // namespace

cudaError_t launch_grouped_e4m3(const GroupedArguments &a, int sms, cudaStream_t stream) {
    const GroupedScales &s = a.scales;
    if (a.rows % kScaleBlock != 0 || a.columns % kScaleBlock != 0 || s.x == nullptr ||
        s.w == nullptr || s.scaling == Scaling::none || a.bias != nullptr || squares(a)) {
        return cudaErrorInvalidValue;
    }
    if (a.gated && (a.activation != Activation::silu || a.rows % kColumns != 0 || s.y == nullptr)) {
        return cudaErrorInvalidValue;
    }
    if (!a.gated && s.y_type != DType::bf16 && s.y_type != DType::f16) return cudaErrorInvalidValue;
    if (a.adapters.tiles == nullptr) return launch<false>(a, sms, stream);
    const bool takes = s.y_type == DType::bf16 && a.adapters.t_stride <= kMostGroupedRanks;
    return takes ? launch<true>(a, sms, stream) : cudaErrorInvalidValue;
}

} // namespace batchllm::cuda
