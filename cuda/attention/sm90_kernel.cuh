// Fused attention for Hopper: O = softmax(scale Q K^T) V over paged keys and values. The kernel and
// its launch; attention/sm90.cuh describes the design.
#pragma once

#include "attention/sm90_feed.cuh"
#include "attention/sm90_fetch.cuh"
#include "attention/sm90_narrow.cuh"
#include "attention/sm90_stream.cuh"
#include "attention/sm90_wide.cuh"
#include "device/launch.cuh"

namespace batchllm::cuda::sm90 {

// Stored: T, or E4m3.
template <int HeadDim, bool Special, typename T, typename Stored>
__global__ void __launch_bounds__(kThreads, 1)
    attention(const __grid_constant__ AttentionArguments a) {
    using S = Shape<HeadDim>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t slots = shared_address(shared) + S::kRegionBytes;
    Rest *rest = reinterpret_cast<Rest *>(shared + S::kRest);
    if (threadIdx.x == 0) {
        constexpr int kWarps = kConsumers / 32;
        rest->merge_next = 0;
        for (int i = 0; i < kJobs; ++i) {
            barrier_init(shared_address(&rest->job_full[i]), 1);
            barrier_init(shared_address(&rest->job_done[i]), kWarps);
            barrier_init(shared_address(&rest->job_empty[i]), 2); // feeder and signaller
            barrier_init(shared_address(&rest->job_fed[i]), 1);
        }
        for (int i = 0; i < S::kQueries; ++i) {
            barrier_init(shared_address(&rest->queries_full[i]), 1);
            barrier_init(shared_address(&rest->queries_empty[i]), kWarps);
        }
        barrier_init(shared_address(&rest->draw), 1);
        barrier_init(shared_address(&rest->region_free), kWarps);
        for (int i = 0; i < S::kSlots; ++i) {
            for (auto &full : rest->full) barrier_init(shared_address(&full[i]), 1);
            barrier_init(shared_address(&rest->empty[i]), kWarps);
        }
        barrier_init_fence();
    }
    __syncthreads();

    if (threadIdx.x >= kConsumers) {
        registers_fewer<S::kAuxiliaryRegisters>();
        const int warp = threadIdx.x / 32;
        if (warp == 8) {
            feed<HeadDim, Stored>(a, slots, rest);
        } else if (warp == 9) {
            fetch_jobs<HeadDim, T, Stored>(a, shared, rest);
        } else if (warp == 10) {
            signal_jobs(a, rest);
        } else {
            merge_partials<HeadDim, Special, T, true>(a, rest, threadIdx.x % 32);
        }
    } else {
        registers_more<S::kConsumerRegisters>();
        const int thread = threadIdx.x;
        if (thread >= 128) named_barrier_arrive(kTurn, kConsumers); // warpgroup 0 is first
        hold_factors<Stored>(a, rest, thread);
        Consumer<HeadDim> self{Ratio(a)};
        Ring<kJobs> ring;
        while (true) {
            barrier_wait(shared_address(&rest->job_full[ring.slot]), ring.phase);
            const Job &job = rest->jobs[ring.slot];
            if (__shfl_sync(~0u, job.number, 0) < 0) break;
            const Form form =
                static_cast<Form>(__shfl_sync(~0u, int(form_of(a, job, self.ratio.ratio)), 0));
            auto next = ring;
            next.advance();
            if (form != Form::stream) self.meet();
            if (form == Form::stream) {
                stream_job<HeadDim, Special, T, Stored>(a, job, shared, slots, rest, self, ring,
                                                        thread);
            } else if (form == Form::narrow) {
                narrow_job<HeadDim, Special, T, Stored>(a, job, shared, slots, rest, self, thread);
            } else {
                wide_job<HeadDim, Special, T, Stored>(a, job, shared, slots, rest, self, next,
                                                      thread);
            }
            self.after_wide = form == Form::wide;
            __syncwarp();
            if (thread % 32 == 0) barrier_arrive(shared_address(&rest->job_done[ring.slot]));
            ring = next;
        }
        merge_partials<HeadDim, Special, T, false>(a, rest, thread % 32);
    }
}

template <int HeadDim, bool Special, typename T, typename Stored>
cudaError_t launch_kernel(const AttentionArguments &a, int sms, cudaStream_t stream) {
    return launch_with_shared(attention<HeadDim, Special, T, Stored>, static_cast<unsigned>(sms),
                              kThreads, kSharedBytes<HeadDim>, stream, a);
}

template <bool Special, typename T, typename Stored>
cudaError_t launch_type(const AttentionArguments &a, int sms, cudaStream_t stream) {
    switch (a.head_dim) {
    case 64:
        return launch_kernel<64, Special, T, Stored>(a, sms, stream);
    case 128:
        return launch_kernel<128, Special, T, Stored>(a, sms, stream);
    case 256:
        return launch_kernel<256, Special, T, Stored>(a, sms, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

// InBytes: keys and values are in e4m3.
template <bool Special, bool InBytes>
cudaError_t launch(const AttentionArguments &a, int sms, cudaStream_t stream) {
    const auto of_type = [&](auto type) {
        using T = decltype(type);
        return launch_type<Special, T, std::conditional_t<InBytes, E4m3, T>>(a, sms, stream);
    };
    return a.type == AttentionType::bf16 ? of_type(__nv_bfloat16()) : of_type(__half());
}
extern template cudaError_t launch<true, false>(const AttentionArguments &, int, cudaStream_t);
extern template cudaError_t launch<false, true>(const AttentionArguments &, int, cudaStream_t);
extern template cudaError_t launch<true, true>(const AttentionArguments &, int, cudaStream_t);

} // namespace batchllm::cuda::sm90
