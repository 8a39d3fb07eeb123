// Fused attention for every device from sm_80 on. The kernel and its launch; attention/sm80.cuh
// describes the design.
#pragma once

#include "attention/sm80_matrix.cuh"
#include "attention/sm80_merge.cuh"
#include "attention/sm80_stream.cuh"
#include "device/launch.cuh"

#include <algorithm>
#include <cstddef>

namespace batchllm::cuda::sm80 {

// Stored: T, or E4m3.
template <int HeadDim, int Slots, bool Special, typename T, typename Stored>
__global__ void __launch_bounds__(Shape<HeadDim>::kThreads, Shape<HeadDim>::kMostCtas)
    attention(const __grid_constant__ AttentionArguments a) {
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ Rest rest;
    const int lane = threadIdx.x % 32;
    JobSource source{a, blockIdx.x < gridDim.x / 2 ? 0 : 1};
    while (true) {
        if (threadIdx.x < 32) { // warp 0 fetches the job; only lane 0 draws
            int number = 0;
            if (lane == 0) number = source.take();
            number = __shfl_sync(~0u, number, 0);
            if (number >= 0) {
                constexpr int kWords = sizeof(AttentionItem) / 4;
                const auto *item = reinterpret_cast<const int *>(&a.items[number / a.kv_heads]);
                const int word = lane < kWords ? __ldg(item + lane) : 0;
                if (lane < kWords) reinterpret_cast<int *>(&rest.item)[lane] = word;
                const int row_begin =
                    __shfl_sync(~0u, word, offsetof(AttentionItem, row_begin) / 4);
                const int row_count =
                    __shfl_sync(~0u, word, offsetof(AttentionItem, row_count) / 4);
                const auto *rows = reinterpret_cast<const int4 *>(a.rows + row_begin);
                for (int i = lane; i < row_count; i += 32) {
                    reinterpret_cast<int4 *>(rest.rows)[i] = __ldg(rows + i);
                }
            }
            if (lane == 0) rest.number = number;
        }
        __syncthreads();
        const int number = rest.number;
        if (number < 0) break;
        const int kv_head = number % a.kv_heads;
        const bool matrix = number < a.matrix_items * a.kv_heads;
        if (!Shape<HeadDim>::kStreams || matrix) {
            matrix_job<HeadDim, Slots, Special, T, Stored>(a, kv_head, shared_address(shared),
                                                           rest);
        } else if constexpr (Shape<HeadDim>::kStreams) {
            stream_job<HeadDim, Slots, Special, T, Stored>(a, kv_head, shared, rest);
        }
        if (rest.item.partial)
            merge_partials<HeadDim, Special, T>(a, kv_head, a.heads / a.kv_heads, rest);
        __syncthreads(); // all are done with the shared memory
    }
    if (threadIdx.x == 0) leave_queues(a);
}

template <int HeadDim, int Slots, bool Special, typename T, typename Stored>
cudaError_t launch_kernel(const AttentionArguments &a, int ctas, cudaStream_t stream) {
    using S = Shape<HeadDim>;
    return launch_with_shared(attention<HeadDim, Slots, Special, T, Stored>,
                              static_cast<unsigned>(ctas), S::kThreads, S::bytes(Slots), stream, a);
}

// Shared memory of the device.
struct Memory {
    int of_sm = 0, of_block = 0, reserved = 0;
    bool few_slots = false; // even if there is room for more
};

// As many CTAs per SM as registers and memory allow, then as many slots.
template <int HeadDim, bool Special, typename T, typename Stored> cudaError_t
launch_slots(const AttentionArguments &a, int sms, const Memory &memory, cudaStream_t stream) {
    using S = Shape<HeadDim>;
    for (int ctas = S::kMostCtas; ctas > 0; --ctas) {
        const int room =
            std::min(memory.of_block, memory.of_sm / ctas - memory.reserved) - kRestBytes;
        if (room >= S::bytes(4) && !memory.few_slots) {
            return launch_kernel<HeadDim, 4, Special, T, Stored>(a, ctas * sms, stream);
        }
        if (room >= S::bytes(2))
            return launch_kernel<HeadDim, 2, Special, T, Stored>(a, ctas * sms, stream);
    }
    return cudaErrorInvalidConfiguration;
}

template <bool Special, typename T, typename Stored> cudaError_t
launch_type(const AttentionArguments &a, int sms, const Memory &memory, cudaStream_t stream) {
    switch (a.head_dim) {
    case 64:
        return launch_slots<64, Special, T, Stored>(a, sms, memory, stream);
    case 128:
        return launch_slots<128, Special, T, Stored>(a, sms, memory, stream);
    case 256:
        return launch_slots<256, Special, T, Stored>(a, sms, memory, stream);
    case 512:
        return launch_slots<512, Special, T, Stored>(a, sms, memory, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

// InBytes: keys and values are in e4m3.
template <bool Special, bool InBytes>
cudaError_t launch(const AttentionArguments &a, int sms, bool few_slots, cudaStream_t stream) {
    int device = 0;
    Memory memory;
    memory.few_slots = few_slots;
    cudaError_t status = cudaGetDevice(&device);
    const auto ask = [&](int *value, cudaDeviceAttr what) {
        if (status == cudaSuccess) status = cudaDeviceGetAttribute(value, what, device);
    };
    ask(&memory.of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    ask(&memory.of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    ask(&memory.reserved, cudaDevAttrReservedSharedMemoryPerBlock);
    if (status != cudaSuccess) return status;
    const auto of_type = [&](auto type) {
        using T = decltype(type);
        return launch_type<Special, T, std::conditional_t<InBytes, E4m3, T>>(a, sms, memory,
                                                                             stream);
    };
    return a.type == AttentionType::bf16 ? of_type(__nv_bfloat16()) : of_type(__half());
}

// Stream results fit in the smallest ring of a launch, in which a warp has two slots.
template <int HeadDim> constexpr bool fits() {
    using S = Shape<HeadDim>;
    return kStreamWarps * kStreamRows * S::kResultStride * 4 <= S::bytes(2) &&
           S::stream_slots(2) >= 2 && S::bytes(2) + kRestBytes <= 99 * 1024;
}
static_assert(fits<64>() && fits<128>() && fits<256>());
static_assert(Shape<512>::bytes(2) + kRestBytes <= 99 * 1024);

extern template cudaError_t launch<true, false>(const AttentionArguments &, int, bool,
                                                cudaStream_t);
extern template cudaError_t launch<false, true>(const AttentionArguments &, int, bool,
                                                cudaStream_t);
extern template cudaError_t launch<true, true>(const AttentionArguments &, int, bool, cudaStream_t);

} // namespace batchllm::cuda::sm80
