// How the CTAs of a cluster (sm_90) use one another's shared memory, one wrapper per instruction.
// PTX ISA 8.x names.
#pragma once

#include <cstdint>

namespace batchllm::cuda {

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Waits for all threads of all CTAs of the cluster, and makes their earlier writes visible.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
// The address in the CTA with this rank that corresponds to a local address.
__device__ __forceinline__ uint32_t address_in(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
// Read from another CTA's shared memory.
__device__ __forceinline__ float load_float(uint32_t there) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
    return v;
}
__device__ __forceinline__ float2 load_pair(uint32_t there) {
    float2 v;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                 : "=f"(v.x), "=f"(v.y)
                 : "r"(there)
                 : "memory");
    return v;
}
// Arrives at a barrier of the CTA with this rank. It does not publish earlier writes: a release at
// cluster scope would wait until all of them have reached global memory, which takes 1,000 cycles
// or more.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
#if __CUDACC_VER_MAJOR__ >= 13
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     address_in(barrier, rank))
                 : "memory");
#else // its PTX has none that is relaxed; this one releases to the own CTA alone
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in(barrier, rank))
                 : "memory");
#endif
}
// A warp is done with a stage that the first Ctas CTAs fill: its first lanes arrive at the barrier of each.
template <int Ctas> __device__ __forceinline__ void release_in_all(uint32_t barrier) {
    __syncwarp();
    const uint32_t lane = threadIdx.x % 32;
    if (lane < Ctas) barrier_arrive_at(barrier, lane);
}
// Writes x to another CTA's shared memory, and completes four bytes on a barrier there.
__device__ __forceinline__ void store_async(uint32_t there, float x, uint32_t barrier_there) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
            there),
        "f"(x), "r"(barrier_there)
        : "memory");
}

} // namespace batchllm::cuda
