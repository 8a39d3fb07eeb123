// Copies boxes of a matrix by TMA, for sm_90a: one wrapper per instruction, PTX ISA 8.x names. A
// map (device/tensor_map.h) describes the matrix. The part of a box outside the matrix is loaded as
// zeros and is not stored.
#pragma once

#include <cstdint>

#include <cuda.h>

namespace batchllm::cuda {

// Global to shared: the box whose first element is at (column, row); completes on the barrier.
__device__ __forceinline__ void load_box(uint32_t destination, const CUtensorMap &map,
                                         int32_t column, int32_t row, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(destination),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}
// The same for matrix number `matrix` of a map of several.
__device__ __forceinline__ void load_box(uint32_t destination, const CUtensorMap &map,
                                         int32_t column, int32_t row, int32_t matrix,
                                         uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(destination),
                 "l"(&map), "r"(column), "r"(row), "r"(matrix), "r"(barrier)
                 : "memory");
}
// Loads a matrix's box to each CTA of the cluster whose bit in `ctas` is set, at the same place in
// its shared memory.
__device__ __forceinline__ void load_box_to(uint16_t ctas, uint32_t destination,
                                            const CUtensorMap &map, int32_t column, int32_t row,
                                            uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(destination),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(ctas)
                 : "memory");
}
// Shared to global; part of this thread's next group of stores.
__device__ __forceinline__ void store_box(const CUtensorMap &map, int32_t column, int32_t row,
                                          uint32_t source) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
        "r"(column), "r"(row), "r"(source)
        : "memory");
}
__device__ __forceinline__ void store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until this thread's stores have read their data.
__device__ __forceinline__ void store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Waits until this thread's stores are complete.
__device__ __forceinline__ void store_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap &map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

} // namespace batchllm::cuda
