#include "ranks/peers.cuh"

namespace batchllm::cuda {
namespace {

__global__ void signal(const __grid_constant__ PeerSignals s, bool waits) {
    const uint32_t count = *s.own_count + 1;
    __syncwarp();
    const int rank = static_cast<int>(threadIdx.x);
    if (rank >= s.ranks) return;
    if (rank == s.own) *s.own_count = count;
    __threadfence_system();
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(s.to[rank]), "r"(count) : "memory");
    if (waits) wait_for_rank(s.counts, count, s.ended, rank);
}

} // namespace

cudaError_t launch_signal(const PeerSignals &signals, cudaStream_t stream) {
    signal<<<1, 32, 0, stream>>>(signals, false);
    return cudaGetLastError();
}

cudaError_t launch_meeting(const PeerSignals &signals, cudaStream_t stream) {
    signal<<<1, 32, 0, stream>>>(signals, true);
    return cudaGetLastError();
}

} // namespace batchllm::cuda
