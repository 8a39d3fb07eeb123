// The instructions of sm_90a that the kernels use, one wrapper each: mbarrier, bulk copies, and
// wgmma with its shared-memory descriptors
// (products of two shared-memory operands: device/wgmma.cuh). PTX ISA 8.x names.
#pragma once

#include "attention/mma.cuh"
#include "device/wgmma.cuh"

namespace batchllm::cuda {

// ---- mbarrier -----------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ __forceinline__ void barrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives once, and adds `bytes` of bulk copies to the expected count.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra end;\n"
                 "bra again;\n"
                 "end:\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
// Whether the phase is complete; does not wait.
__device__ __forceinline__ bool barrier_test(uint32_t barrier, uint32_t parity) {
    uint32_t over;
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 over, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, over;\n"
                 "}"
                 : "=r"(over)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return over != 0;
}
// Barrier `id` among `threads` threads of the CTA (bar.sync); __syncthreads uses id 0.
__device__ __forceinline__ void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Arrives without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// True in one lane of a converged warp. This tells ptxas that it is a single lane: otherwise it
// would issue instructions with operands in uniform registers, such as bulk copies, in a loop over
// the lanes, which takes 150 cycles.
__device__ __forceinline__ bool elect_one() {
    uint32_t chosen;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(chosen));
    return chosen != 0;
}

// ---- Bulk copy, global to shared; stores of matrices --------------------------------------------

// Both addresses and the size must be multiples of 16 bytes; completes on the barrier.
__device__ __forceinline__ void bulk_copy(uint32_t destination, const void *source, uint32_t bytes,
                                          uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(destination),
        "l"(source), "r"(bytes), "r"(barrier)
        : "memory");
}
// The same with an L2 cache policy.
__device__ __forceinline__ void bulk_copy(uint32_t destination, const void *source, uint32_t bytes,
                                          uint32_t barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(destination),
                 "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ uint64_t evict_first() { // for data that nobody else reads soon
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ uint64_t evict_normal() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// Fetches the 128 bytes around the address to L2.
__device__ __forceinline__ void prefetch(const void *address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}
// Makes earlier ordinary stores to shared memory visible to later wgmma and bulk copies.
__device__ __forceinline__ void async_proxy_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Stores four 8 x 8 matrices of 2-byte elements, in mma's accumulator layout; lane l has the
// address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrix(uint32_t address, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

// ---- wgmma --------------------------------------------------------------------------------------

// Operand in shared memory in rows of 128 bytes (64 elements), 128-byte swizzle, groups of 8 rows
// (1024 bytes) one after another: 16-byte chunk c of row r is at chunk c ^ (r % 8). The base is
// aligned to 1024 bytes, apart from the advance along the row. The same descriptor works for a
// K-major operand (row = M or N index, 64 elements of K) and for an MN-major one (row = K index),
// whose next 64 columns are `columns` bytes further on. Only its low word is kept, in a form that
// the compiler knows to be the same in all lanes: wgmma takes it from uniform registers, and moving
// it there for each instruction would cost as much as the product.
struct Operand {
    uint32_t low;
    __device__ __forceinline__ explicit Operand(uint32_t address, uint32_t columns = 16)
        : low(__shfl_sync(~0u, (address & 0x3ffff) >> 4 | columns >> 4 << 16, 0)) {}
    // The descriptor `bytes` further on. High word: 1024 bytes from one group of 8 rows to the
    // next, 128-byte swizzle.
    __device__ __forceinline__ uint64_t at(uint32_t bytes) const {
        return uint64_t(1024 >> 4 | 1u << 30) << 32 | (low + (bytes >> 4));
    }
};

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int Pending> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// wgmma_rs: d[64 x N] += A[64 x 16] B[16 x N], A in registers, B N-major.
#define WGMMA_RS(TYPE, CPP)                                                                        \
    __device__ __forceinline__ void wgmma_rs(float(&d)[32], const uint32_t *a, uint64_t b, CPP) {  \
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" LIST32       \
                     "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                      \
                     : R32(d, 0)                                                                   \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }                                                                                              \
    __device__ __forceinline__ void wgmma_rs(float(&d)[64], const uint32_t *a, uint64_t b, CPP) {  \
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" LIST64      \
                     "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                                      \
                     : R32(d, 0), R32(d, 32)                                                       \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }                                                                                              \
    __device__ __forceinline__ void wgmma_rs(float(&d)[128], const uint32_t *a, uint64_t b, CPP) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {" LIST128     \
                     "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 1;"                                 \
                     : R32(d, 0), R32(d, 32), R32(d, 64), R32(d, 96)                               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                        \
    }
WGMMA_RS("bf16", __nv_bfloat16)
WGMMA_RS("f16", __half)
#undef WGMMA_RS

template <int Registers> __device__ __forceinline__ void registers_more() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers> __device__ __forceinline__ void registers_fewer() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

} // namespace batchllm::cuda
