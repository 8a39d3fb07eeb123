// A row of logits -> the order of its k-th largest value, or of the value where a running sum
// reaches a bound, and the tokens that are not below it. One block per row; all of its threads
// call, and get the same answer.
//
// There is no sort. The k-th largest value is at least the k-th largest of the threads' own maxima.
// Few values are not below that, and they are ranked in shared memory. If there are many (equal
// logits, a large k), and for sums, the threshold is found by a radix search, eight bits of the
// order per pass, over counts or summed weights.
#pragma once

#include <climits>
#include <cstdint>

namespace batchllm::cuda::sampling {

inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kCandidates = 1024;

struct Shared {
    double sums[kWarps];
    unsigned long long counts[kWarps];
    float values[kWarps];
    int indices[kWarps];
    int flags;
    unsigned long long histogram[256];
    unsigned long long before;
    uint32_t prefix;
    int chosen;
    uint32_t largest[kThreads];
    // The values that gather() found.
    uint32_t orders[kCandidates];
    int ids[kCandidates];
    int found;
};

// Maps floats to integers in the same order; equal for 0 and -0.
__device__ __forceinline__ uint32_t order_of(float x) {
    const uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t order) {
    return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

// of_warps: shared memory, [kWarps].
template <typename T> __device__ T block_sum(T x, T *of_warps) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
    __syncthreads();
    T total = 0;
    for (int w = 0; w < kWarps; ++w) total += of_warps[w];
    return total;
}

// A warp's share of the ids, for walking them in order.
struct Stretch {
    int begin, end;
    __device__ Stretch(int n, int warp) {
        const int length = (n + kWarps - 1) / kWarps;
        begin = warp * length;
        end = min(n, begin + length);
    }
};

// The order of the value at which the running sum of measure(i), from the largest value down, reaches
// wanted (> 0); *before: the sum of what is larger. Values whose order is below `floor` do not count.
template <typename Measure>
__device__ uint32_t radix_select(const float *logits, int n, uint32_t floor,
                                 unsigned long long wanted, const Measure &measure,
                                 unsigned long long *before, Shared &s) {
    uint32_t prefix = 0;
    unsigned long long larger = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        for (int i = threadIdx.x; i < 256; i += kThreads) s.histogram[i] = 0;
        __syncthreads();
        const uint32_t mask = shift == 24 ? 0u : ~0u << (shift + 8);
        for (int i = threadIdx.x; i < n; i += kThreads) {
            const uint32_t order = order_of(logits[i]);
            if ((order & mask) != prefix || order < floor) continue;
            const unsigned long long m = measure(logits[i]);
            if (m > 0) atomicAdd(&s.histogram[(order >> shift) & 255], m);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned long long sum = larger;
            int bucket = 255;
            int last = -1; // the lowest bucket that is not empty
            for (; bucket >= 0; --bucket) {
                if (s.histogram[bucket] == 0) continue;
                last = bucket;
                if (sum + s.histogram[bucket] >= wanted) break;
                sum += s.histogram[bucket];
            }
            if (bucket < 0) { // the total is less than wanted: take the lowest
                bucket = last < 0 ? 0 : last;
                if (last >= 0) sum -= s.histogram[last];
            }
            s.before = sum;
            s.prefix = prefix | static_cast<uint32_t>(bucket) << shift;
        }
        __syncthreads();
        larger = s.before;
        prefix = s.prefix;
    }
    *before = larger;
    return prefix;
}

// The id of the k-th value (from 1), by increasing id, that has this order; INT_MAX: there are
// fewer.
__device__ inline int kth_equal(const float *logits, int n, uint32_t order, unsigned long long k,
                                Shared &s) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto [begin, end] = Stretch(n, warp);
    unsigned long long count = 0;
    int last = 0; // the last id that this lane saw
    for (int i = begin + lane; i < end; i += 32) {
        if (order_of(logits[i]) != order) continue;
        ++count;
        last = i;
    }
    const bool saw = count > 0;
    for (int offset = 16; offset > 0; offset /= 2) count += __shfl_xor_sync(~0u, count, offset);
    __syncthreads();
    if (lane == 0) s.counts[warp] = count;
    if (threadIdx.x == 0) s.indices[0] = INT_MAX;
    __syncthreads();
    unsigned long long seen = 0;
    for (int w = 0; w < warp; ++w) seen += s.counts[w];
    if (seen < k && k <= seen + count) {
        if (count == 1) {
            if (saw) s.indices[0] = last;
        } else {
            for (int base = begin; base < end; base += 32) {
                const int i = base + lane;
                const unsigned mask = __ballot_sync(~0u, i < end && order_of(logits[i]) == order);
                const unsigned long long here = __popc(mask);
                if (seen + here >= k) {
                    unsigned rest = mask;
                    while (++seen < k) rest &= rest - 1;
                    if (lane == 0) s.indices[0] = base + __ffs(static_cast<int>(rest)) - 1;
                    break;
                }
                seen += here;
            }
        }
    }
    __syncthreads();
    return s.indices[0];
}

// Collects in s the values above the order, and those equal to it up to an id. False: not enough
// room.
__device__ inline bool gather(const float *logits, int n, uint32_t order, int last_equal,
                              Shared &s) {
    __syncthreads();
    if (threadIdx.x == 0) s.found = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += kThreads) {
        const uint32_t own = order_of(logits[i]);
        if (own < order || (own == order && i > last_equal)) continue;
        const int at = atomicAdd(&s.found, 1);
        if (at < kCandidates) {
            s.orders[at] = own;
            s.ids[at] = i;
        }
    }
    __syncthreads();
    return s.found <= kCandidates;
}

// The same for the k largest and some more: all values not below the k-th largest of the threads'
// own maxima.
__device__ inline bool gather_largest(const float *logits, int n, int k, Shared &s) {
    if (k > kThreads || k > n) return false;
    uint32_t own = 0; // below the order of every number
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += kThreads) own = max(own, order_of(logits[i]));
    __syncthreads();
    s.largest[threadIdx.x] = own;
    __syncthreads();
    int better = 0;
    for (int i = 0; i < kThreads; ++i) {
        const uint32_t other = s.largest[i];
        better += other > own || (other == own && i < static_cast<int>(threadIdx.x));
    }
    if (better == k - 1) s.prefix = own;
    __syncthreads();
    return gather(logits, n, s.prefix, INT_MAX, s);
}

// The order of the k-th largest, 0 < k <= n; *before: how many are larger.
__device__ inline uint32_t kth_largest(const float *logits, int n, int k,
                                       unsigned long long *before, Shared &s) {
    if (!gather_largest(logits, n, k, s)) {
        return radix_select(
            logits, n, 0, static_cast<unsigned long long>(k), [](float) { return 1ull; }, before,
            s);
    }
    for (int c = threadIdx.x; c < s.found; c += kThreads) {
        int larger = 0, equal = 0;
        for (int i = 0; i < s.found; ++i) {
            larger += s.orders[i] > s.orders[c];
            equal += s.orders[i] == s.orders[c];
        }
        if (larger < k && k <= larger + equal) { // equal values write the same result
            s.prefix = s.orders[c];
            s.before = static_cast<unsigned long long>(larger);
        }
    }
    __syncthreads();
    *before = s.before;
    return s.prefix;
}

} // namespace batchllm::cuda::sampling
