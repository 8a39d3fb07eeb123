// Fused attention for every device from sm_80 on, part by part: O = softmax(scale Q K^T) V over paged keys and
// values, by mma.sync m16n8k16 and cp.async.
//
// Persistent: one or two CTAs per SM take jobs from the two queues until both are empty. Keys and
// values go through a ring of slots in shared memory, four of them, or two if there is less room.
// Each is filled while the previous ones are computed on:
//   matrix job  a slot is kKeys keys of K or of V: K0 V0 K1 V1 ... The warps share it; each has
//               16 kRowTiles of the 128 query rows, its scores and its part of O in registers.
//   stream job  each of four warps has its own 16 keys of every page, its own ring for them (a slot
//               is their K or V), all (up to 16) query rows, and its own running maximum. The warps
//               do not wait for one another until they merge at the end.
// For heads of 512, no warp can hold a row of O: two warps share 16 rows, each with half of the
// columns and both with all the scores, in two passes of 64 rows. Stream jobs work in the same way,
// with most of their warps only copying.
// For e4m3 (Stored), products are in f16: stream jobs widen keys in registers; a matrix job's slot
// arrives as bytes in its second half, which the threads widen in place, each thread what it has
// copied.
// Softmax in base 2: p = 2^((s - max) scale log2 e), log-sum-exp = max scale log2 e + log2 sum p.
//
// On an H200, 32/8 heads of 128 (bench/attention --family sm80): 8192 causal 326 TFLOP/s, decode 3.7 to
// 4.4 TB/s; docs/lab/jobs.md has the rest.
#pragma once

#include "attention/common.cuh"
#include "attention/e4m3.cuh"

namespace batchllm::cuda::sm80 {

constexpr int kStreamWarps = 4;

template <int HeadDim> struct Shape {
    // Registers are the limit: a thread has kColumns / 2 kRowTiles floats of O, kKeys / 2 kRowTiles
    // scores.
    static constexpr int kWarps = HeadDim <= 128 ? 4 : 8;
    static constexpr int kThreads = 32 * kWarps;
    // For heads of 512 a warp has half of O's columns, and two warps have the scores of the same
    // rows; a matrix job's rows take two passes over its keys.
    static constexpr int kParts = HeadDim <= 256 ? 1 : 2;                        // of O's columns
    static constexpr int kColumns = HeadDim / kParts;                            // that a warp has
    static constexpr int kRows = HeadDim <= 256 ? kMatrixRows : kMatrixRows / 2; // of a pass
    static constexpr int kRowTiles = kRows * kParts / (16 * kWarps);
    static constexpr int kKeys = HeadDim <= 128 ? 64 : HeadDim <= 256 ? 32 : 16;
    // Whether stream jobs have their own form; otherwise they run as matrix jobs in which most
    // warps have no rows.
    static constexpr bool kStreams = HeadDim <= 256;
    static constexpr int kMostCtas = HeadDim <= 128 ? 2 : 1;
    static constexpr int kSlotBytes = kKeys * HeadDim * 2;
    static constexpr int kQueryBytes = kRows * HeadDim * 2;
    static constexpr int kStreamSlotBytes = 16 * HeadDim * 2;
    static constexpr int kResultStride = HeadDim + 8;           // floats; few bank conflicts
    static constexpr int kBlockBytes = kPageKeys * HeadDim * 2; // one page's K or V of a head
    static constexpr int kHalfBlock = kPageKeys * 128;
    static constexpr int bytes(int slots) { return kQueryBytes + slots * kSlotBytes; }
    static constexpr int stream_slots(int slots, int slot_bytes = kStreamSlotBytes) {
        return bytes(slots) / (kStreamWarps * slot_bytes);
    }
};

struct Rest {
    int number; // number of the job; -1: no more
    AttentionItem item;
    alignas(16) AttentionRow rows[kMatrixRows]; // its query tokens
    float max_sum[kStreamWarps][kStreamRows][2];
    uint8_t merge_list[kMatrixRows]; // indices of rows
    int merge_count;
};
constexpr int kRestBytes = 3072; // including the alignment of what follows
static_assert(sizeof(Rest) <= kRestBytes);

// Draws jobs from the queue that this CTA prefers, then from the other. The next stream job is
// drawn while the caller works on the current one. Matrix jobs are long, so one drawn early would
// be missing elsewhere.
struct JobSource {
    const AttentionArguments &a;
    int queue;
    int exhausted = 0;
    int ticket = -1; // -1: not drawn yet

    __device__ int take() { // -1: both are empty
        const int matrix_jobs = a.matrix_items * a.kv_heads;
        while (true) {
            if (ticket < 0) ticket = atomicAdd(&a.queues[queue], 1);
            if (ticket < (queue == 0 ? matrix_jobs : a.stream_items * a.kv_heads)) break;
            exhausted |= 1 << queue;
            if (exhausted == 3) return -1;
            queue ^= 1;
            ticket = -1;
        }
        const int job = queue == 0 ? ticket : matrix_jobs + ticket;
        ticket = queue == 0 ? -1 : atomicAdd(&a.queues[1], 1);
        return job;
    }
};

// Called once by each CTA that found the queues empty; the last one resets them for the next
// launch.
__device__ __forceinline__ void leave_queues(const AttentionArguments &a) {
    if (atomicAdd(&a.queues[2], 1) != static_cast<int>(gridDim.x) - 1) return;
    a.queues[0] = 0;
    a.queues[1] = 0;
    a.queues[2] = 0;
}

} // namespace batchllm::cuda::sm80
