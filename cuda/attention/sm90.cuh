// The fused attention kernel of sm_90a, part by part: sizes and what a CTA's shared memory holds.
//
// One CTA per SM, persistent, with roles that overlap from job to job:
//   warps 0-7   consumers: two warpgroups that compute
//   warp 8      feeder: streams K and V blocks into a ring of shared-memory slots with bulk copies.
//               Half of the SMs read memory at its full rate only if the feeder takes less than 900
//               cycles per slot
//   warp 9      fetcher: draws jobs, fetches their item, rows and first page numbers, and a stream
//               job's queries
//   warp 10     signaller: announces a job's partials once they are written
//   warp 11     merges partials
// A job has one of three forms. Feeder and consumers agree on the order of its slots:
//   wide    more than 64 query rows: a slot is kKeys keys of K or of V: K0 K1 V0 K2 V1 ... V(n-1).
//           Each warpgroup has 64 of the 128 rows.
//   narrow  in the matrix queue, up to 64 rows: a slot is kPairKeys keys, K then V. Each warpgroup
//           has all rows and every second slot.
//   stream  a slot is kPairKeys keys, K then V. Each warp has 16 keys of some slots and all (up to
//           16) rows. For e4m3 a slot is kKeys keys, which take as many bytes. Jobs of up to
//           kAloneSlots slots go to the warpgroups in turn: each begins and ends its own while the
//           other computes.
// For e4m3 (Stored), wide jobs read 2-byte pages made before the launch and are otherwise
// unchanged. A narrow job's slot arrives as bytes, which its warpgroup widens in place; streams
// widen them in registers.
// Softmax in base 2: p = 2^((s - max) scale log2 e), log-sum-exp = max scale log2 e + log2 sum p.
#pragma once

#include "attention/common.cuh"
#include "attention/e4m3.cuh"
#include "attention/hopper.cuh"

namespace batchllm::cuda::sm90 {

constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 128;
constexpr int kJobs = 6;    // at once: fetched, computed or not yet announced
constexpr int kQueries = 4; // at most: stream jobs whose queries are in shared memory
// The next job is drawn when this many slots of the last one are still to be fed: matrix jobs are
// long, so one drawn early would be missing elsewhere.
constexpr int kLead = 4, kStreamLead = 12;
constexpr int kFactors = 64; // KV heads whose scales are in shared memory

// Named barriers other than 0.
enum Barrier { kAllConsumers = 1, kGroup = 2, kTurn = 4 }; // kGroup, kTurn: one per warpgroup

template <int HeadDim> struct Shape {
    static constexpr int kHalves = HeadDim / 64;                   // blocks of 64 elements
    static constexpr int kColumns = HeadDim < 128 ? HeadDim : 128; // of O per wgmma
    static constexpr int kParts = HeadDim / kColumns;
    static constexpr int kKeys = HeadDim <= 128 ? 128 : 64;
    static constexpr int kSlotBytes = kKeys * HeadDim * 2;
    static constexpr int kSlots = HeadDim == 64 ? 8 : HeadDim == 128 ? 5 : 4;
    static constexpr int kQueries = HeadDim == 256 ? 2 : sm90::kQueries;
    static constexpr int kPairKeys = kKeys / 2;
    // The most slots of a stream job that one warpgroup does alone: with more, the other would be
    // idle for too long. Heads of 256 leave no registers for this choice.
    static constexpr int kAloneSlots = HeadDim == 256 ? 0 : 8;
    // Per thread; in total they are what the launch allocates.
    static constexpr int kConsumerRegisters = HeadDim == 256 ? 232 : 224;
    static constexpr int kAuxiliaryRegisters = HeadDim == 256 ? 40 : 56;
    static constexpr int kStreamQueryStride = HeadDim * 2 + 16; // bytes; avoids bank conflicts
    static constexpr int kStreamQueryBytes = kStreamRows * kStreamQueryStride;
    // Dynamic shared memory, from a 1024-byte boundary: the region (for a matrix job's queries, for
    // merging a narrow or stream job, and for assembling a wide job's rows of O), the slots, stream
    // queries, the rest.
    static constexpr int kRegionBytes = kMatrixRows * HeadDim * 2;
    static constexpr int kStreamQueries = kRegionBytes + kSlots * kSlotBytes;
    static constexpr int kRest = kStreamQueries + kQueries * kStreamQueryBytes;
};

// Keys in a stream job's slot, and how many parts of 16 they form. A warp takes one part at a time.
template <int HeadDim, typename Stored> struct StreamShape {
    static constexpr int kKeys = Shape<HeadDim>::kPairKeys * (kInBytes<Stored> ? 2 : 1);
    static constexpr int kParts = kKeys / 16;
    static_assert(!kInBytes<Stored> || kKeys % kPageKeys == 0);
};

struct Job {
    int number; // -1: no more
    int kv_head;
    AttentionItem item;
    int pages[2][32]; // first page numbers of each stretch
    int token[kMatrixRows], slot[kMatrixRows], position[kMatrixRows]; // of its query tokens
};

struct Rest {
    float max_sum[8][8][2];             // stream merge: [warp][row] maximum (scaled) and sum
    float2 row_max_sum[2][kNarrowRows]; // narrow merge: the same for each warpgroup
    int merge_next;                     // next unit in the CTA's share of the rows to merge
    Job jobs[kJobs];
    alignas(8) uint64_t job_full[kJobs], job_done[kJobs], job_empty[kJobs];
    uint64_t job_fed[kJobs]; // the copies into all slots of the job have been issued
    uint64_t queries_full[kQueries], queries_empty[kQueries];
    uint64_t draw;        // the feeder is near the end of its job: draw the next
    uint64_t region_free; // the last job no longer uses the region
    // For each slot. full[0] is for slots that both warpgroups read, full[1 + g] for those that
    // warpgroup g reads alone. Each use of a slot completes a phase of all three; the two without a
    // reader complete theirs as soon as the slot is empty. So a warpgroup knows the phases of slots
    // that it skipped.
    uint64_t full[3][8], empty[8];
    float factors[2][kFactors]; // e4m3: key_factor and value_factor of the first KV heads
};
template <int HeadDim> constexpr int kSharedBytes = Shape<HeadDim>::kRest + int(sizeof(Rest));
static_assert(kSharedBytes<64> <= 232448 && kSharedBytes<128> <= 232448 &&
              kSharedBytes<256> <= 232448);

// The scales of a job's KV head. They are in shared memory because loading them would wait for L2
// in each job.
template <typename Stored> __device__ __forceinline__ float
held_factor(const AttentionArguments &a, const Rest *rest, int which, int kv_head) {
    if constexpr (!kInBytes<Stored>) return 1;
    if (kv_head < kFactors) return rest->factors[which][kv_head];
    return which == 0 ? cuda::key_factor<Stored>(a, kv_head)
                      : cuda::value_factor<Stored>(a, kv_head);
}
template <typename Stored> __device__ __forceinline__ float
key_factor(const AttentionArguments &a, const Rest *rest, int kv_head) {
    return held_factor<Stored>(a, rest, 0, kv_head);
}
template <typename Stored> __device__ __forceinline__ float
value_factor(const AttentionArguments &a, const Rest *rest, int kv_head) {
    return held_factor<Stored>(a, rest, 1, kv_head);
}
// Called by the consumers before their first job.
template <typename Stored>
__device__ __forceinline__ void hold_factors(const AttentionArguments &a, Rest *rest, int thread) {
    if constexpr (kInBytes<Stored>) {
        if (thread < min(a.kv_heads, kFactors)) {
            rest->factors[0][thread] = cuda::key_factor<Stored>(a, thread);
            rest->factors[1][thread] = cuda::value_factor<Stored>(a, thread);
        }
        named_barrier(kAllConsumers, kConsumers);
    }
}

// Position in a ring of barriers; both sides step through the same sequence.
template <int Slots> struct Ring {
    int slot = 0;
    uint32_t phase = 0;
    __device__ void advance() {
        if (++slot == Slots) {
            slot = 0;
            phase ^= 1;
        }
    }
    __device__ void advance(int places) {
        const int at = slot + places;
        slot = at % Slots;
        phase ^= at / Slots & 1;
    }
};

// Divides a row's number, below kMatrixRows, by the GQA ratio: (r ceil(2^16 / ratio)) >> 16 is
// exact in this range.
struct Ratio {
    int ratio, inverse;
    __device__ explicit Ratio(const AttentionArguments &a)
        : ratio(a.heads / a.kv_heads), inverse((65535 + ratio) / ratio) {}
    __device__ int token(int r) const { return r * inverse >> 16; }
    __device__ int head(int r) const { return r - token(r) * ratio; } // among those of the KV head
};

enum class Form { wide, narrow, stream };

__device__ __forceinline__ Form form_of(const AttentionArguments &a, const Job &job, int ratio) {
    if (job.number >= a.matrix_items * a.kv_heads) return Form::stream;
    return job.item.row_count * ratio > kNarrowRows ? Form::wide : Form::narrow;
}
__device__ __forceinline__ Form form_of(const AttentionArguments &a, const Job &job) {
    return form_of(a, job, a.heads / a.kv_heads);
}
// Whether one warpgroup does a stream job alone.
template <int HeadDim, typename Stored>
__device__ __forceinline__ bool is_alone(const KeyStretch &s0, const KeyStretch &s1) {
    constexpr int kMost = Shape<HeadDim>::kAloneSlots * StreamShape<HeadDim, Stored>::kKeys;
    return kMost > 0 && s0.keys + s1.keys <= kMost;
}

} // namespace batchllm::cuda::sm90
