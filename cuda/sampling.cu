// A block a row. Bound by reading the row: twice for greedy with a log-probability, twice more for the
// likeliest, about eight times with top-k and top-p, from L2. No sort. The k-th largest is at least the
// k-th largest of the threads' own largest: what is not below that is few, and is ranked in shared
// memory. Where it is many (equal logits, a large k), and for top-p, the threshold is searched by radix,
// eight bits of the logit's order a pass, over counts or over summed weights.
#include "sampling.h"

#include <cfloat>
#include <climits>

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kCandidates = 1024;
constexpr double kUnit = 1099511627776.0; // 2^40

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
    // What gather() found.
    uint32_t orders[kCandidates];
    int ids[kCandidates];
    int found;
};

// Whole numbers in the order of the floats; equal for 0 and -0.
__device__ __forceinline__ uint32_t order_of(float x) {
    const uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t order) {
    return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

__device__ unsigned long long weight_units(float logit, float largest, float temperature) {
    const float x = (logit - largest) / temperature;
    if (x < -28) return 0; // less than a unit
    // As double: the argument's rounding would be seen in the last bits.
    return static_cast<unsigned long long>(exp(static_cast<double>(x)) * kUnit);
}

struct Extent {
    float largest;
    int index; // the lowest of equals
    bool finite;
};

__device__ Extent find_extent(const float *logits, int n, Shared &s) {
    float best = -INFINITY;
    int index = INT_MAX;
    bool bad = false;
    auto see = [&](float x, int i) {
        bad |= !(x < INFINITY); // NaN or +inf
        if (x > best) {
            best = x;
            index = i;
        }
    };
    const int vectors = n / 4; // rows start at multiples of 16 bytes
    for (int v = threadIdx.x; v < vectors; v += kThreads) {
        const float4 x = reinterpret_cast<const float4 *>(logits)[v];
        see(x.x, 4 * v), see(x.y, 4 * v + 1), see(x.z, 4 * v + 2), see(x.w, 4 * v + 3);
    }
    for (int i = 4 * vectors + threadIdx.x; i < n; i += kThreads) see(logits[i], i);
    auto merge = [&](float x, int i) {
        if (x > best || (x == best && i < index)) {
            best = x;
            index = i;
        }
    };
    for (int offset = 16; offset > 0; offset /= 2) {
        const float x = __shfl_xor_sync(~0u, best, offset);
        const int i = __shfl_xor_sync(~0u, index, offset);
        merge(x, i);
    }
    __syncthreads(); // shared memory of an earlier use
    if (threadIdx.x == 0) s.flags = 0;
    if (threadIdx.x % 32 == 0) {
        s.values[threadIdx.x / 32] = best;
        s.indices[threadIdx.x / 32] = index;
    }
    __syncthreads();
    if (bad) s.flags = 1;
    for (int w = 0; w < kWarps; ++w) merge(s.values[w], s.indices[w]);
    __syncthreads();
    return {best, index, s.flags == 0 && best > -INFINITY};
}

__device__ double block_sum(double x, Shared &s) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) s.sums[threadIdx.x / 32] = x;
    __syncthreads();
    double total = 0;
    for (int w = 0; w < kWarps; ++w) total += s.sums[w];
    return total;
}

__device__ double log_sum_exp(const float *logits, int n, float largest, Shared &s) {
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += kThreads) {
        sum += static_cast<double>(expf(logits[i] - largest));
    }
    return static_cast<double>(largest) + log(block_sum(sum, s));
}

__device__ void apply_edits(float *logits, const SampleTask &task, LogitEdit *edits) {
    for (int i = threadIdx.x; i < task.edit_count; i += kThreads) {
        LogitEdit &edit = edits[task.edit_begin + i];
        float x = logits[edit.token];
        edit.before = x;
        x += edit.bias;
        if (edit.repeated) {
            x = x > 0 ? x / task.repetition_penalty : x * task.repetition_penalty;
        }
        if (edit.times > 0) {
            x = __fsub_rn(__fsub_rn(x, task.presence_penalty),
                          __fmul_rn(task.frequency_penalty, static_cast<float>(edit.times)));
        }
        logits[edit.token] = x;
    }
    __syncthreads();
}

// The logits as they were, for the row's other tasks.
__device__ void undo_edits(float *logits, const SampleTask &task, const LogitEdit *edits) {
    __syncthreads(); // all have read
    for (int i = threadIdx.x; i < task.edit_count; i += kThreads) {
        const LogitEdit &edit = edits[task.edit_begin + i];
        logits[edit.token] = edit.before;
    }
    __syncthreads();
}

// A token's logit as the model gave it.
__device__ float logit_before(const float *logits, int token, const SampleTask &task,
                              const LogitEdit *edits, Shared &s) {
    __syncthreads();
    if (threadIdx.x == 0) s.values[0] = logits[token];
    __syncthreads();
    for (int i = threadIdx.x; i < task.edit_count; i += kThreads) {
        const LogitEdit &edit = edits[task.edit_begin + i];
        if (edit.token == token) s.values[0] = edit.before;
    }
    __syncthreads();
    return s.values[0];
}

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
            int last = -1; // the lowest that is not empty
            for (; bucket >= 0; --bucket) {
                if (s.histogram[bucket] == 0) continue;
                last = bucket;
                if (sum + s.histogram[bucket] >= wanted) break;
                sum += s.histogram[bucket];
            }
            if (bucket < 0) { // less than wanted in all: the lowest there is
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

// The id of the k-th (from 1), by rising id, of the values of that order; INT_MAX: there are fewer.
__device__ int kth_equal(const float *logits, int n, uint32_t order, unsigned long long k,
                         Shared &s) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int stretch = (n + kWarps - 1) / kWarps;
    const int begin = warp * stretch, end = min(n, begin + stretch);
    unsigned long long count = 0;
    int last = 0; // that this lane saw
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

// Puts into s what is above the order, and what equals it up to an id. False: there is no room.
__device__ bool gather(const float *logits, int n, uint32_t order, int last_equal, Shared &s) {
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

// The same with the k largest and some more: what is not below the k-th largest of the threads' own
// largest.
__device__ bool gather_largest(const float *logits, int n, int k, Shared &s) {
    if (k > kThreads || k > n) return false;
    uint32_t own = 0; // below every number's
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
__device__ uint32_t kth_largest(const float *logits, int n, int k, unsigned long long *before,
                                Shared &s) {
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
        if (larger < k && k <= larger + equal) { // of equals, each writes the same
            s.prefix = s.orders[c];
            s.before = static_cast<unsigned long long>(larger);
        }
    }
    __syncthreads();
    *before = s.before;
    return s.prefix;
}

// The likeliest tokens in order, the lower id of equals first.
__device__ void list_likeliest(const float *logits, int n, const SampleTask &task, double log_total,
                               Likely *out, Shared &s) {
    const int k = min(task.likely_count, n);
    if (!gather_largest(logits, n, k, s)) {
        unsigned long long before;
        const uint32_t order = kth_largest(logits, n, k, &before, s);
        const int last =
            kth_equal(logits, n, order, static_cast<unsigned long long>(k) - before, s);
        gather(logits, n, order, last, s); // k of them
    }
    for (int c = threadIdx.x; c < s.found; c += kThreads) {
        int rank = 0;
        for (int i = 0; i < s.found; ++i) {
            rank +=
                s.orders[i] > s.orders[c] || (s.orders[i] == s.orders[c] && s.ids[i] < s.ids[c]);
        }
        if (rank >= k) continue;
        const float logit = logits[s.ids[c]];
        out[rank] = {logit == -INFINITY ? -1 : s.ids[c],
                     static_cast<float>(static_cast<double>(logit) - log_total)};
    }
    for (int i = k + threadIdx.x; i < task.likely_count; i += kThreads) out[i] = {-1, 0};
}

__device__ int draw(const float *logits, int n, float largest, int likeliest,
                    const SampleTask &task, Shared &s) {
    const auto units = [&](float x) { return weight_units(x, largest, task.temperature); };
    uint32_t floor = 0; // values of lower order are left out
    unsigned long long before = 0;
    if (task.top_k > 0 && task.top_k < n) {
        floor = kth_largest(logits, n, task.top_k, &before, s);
    }
    int last_equal = INT_MAX; // of the values that equal the floor, those up to this id are kept
    if (task.top_p < 1) {
        unsigned long long total = 0;
        for (int i = threadIdx.x; i < n; i += kThreads) {
            if (order_of(logits[i]) >= floor) total += units(logits[i]);
        }
        for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(~0u, total, offset);
        __syncthreads();
        if (threadIdx.x % 32 == 0) s.counts[threadIdx.x / 32] = total;
        __syncthreads();
        total = 0;
        for (int w = 0; w < kWarps; ++w) total += s.counts[w];
        const auto wanted = static_cast<unsigned long long>(
            ceil(static_cast<double>(task.top_p) * static_cast<double>(total)));
        floor = radix_select(logits, n, floor, wanted < 1 ? 1 : wanted, units, &before, s);
        // How many of the equal ones, by rising id.
        const unsigned long long each = units(value_of(floor));
        const unsigned long long kept =
            wanted <= before || each == 0 ? 1 : (wanted - before + each - 1) / each;
        last_equal = kth_equal(logits, n, floor, kept, s);
    }
    const auto kept_units = [&](int i) -> unsigned long long {
        const uint32_t order = order_of(logits[i]);
        if (order < floor || (order == floor && i > last_equal)) return 0;
        if (task.min_p > 0 && expf((logits[i] - largest) / task.temperature) < task.min_p) return 0;
        return units(logits[i]);
    };
    // A warp has a stretch of ids; the warp in whose stretch the target falls walks it.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int stretch = (n + kWarps - 1) / kWarps;
    const int begin = warp * stretch, end = min(n, begin + stretch);
    unsigned long long sum = 0;
    for (int i = begin + lane; i < end; i += 32) sum += kept_units(i);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    __syncthreads();
    if (lane == 0) s.counts[warp] = sum;
    if (threadIdx.x == 0) s.chosen = -1;
    __syncthreads();
    unsigned long long total = 0, reached = 0;
    for (int w = 0; w < kWarps; ++w) {
        if (w < warp) reached += s.counts[w];
        total += s.counts[w];
    }
    auto target = static_cast<unsigned long long>(task.uniform * static_cast<double>(total));
    if (target >= total) target = total - 1; // total > 0: the likeliest is always kept
    if (reached <= target && target < reached + s.counts[warp]) {
        constexpr int kEach = 4; // ids of a lane, next to one another
        for (int base = begin; base < end; base += 32 * kEach) {
            unsigned long long own[kEach], upto = 0;
#pragma unroll
            for (int e = 0; e < kEach; ++e) {
                const int i = base + lane * kEach + e;
                own[e] = i < end ? kept_units(i) : 0;
                upto += own[e];
            }
            const unsigned long long of_lane = upto;
            for (int offset = 1; offset < 32; offset *= 2) {
                const unsigned long long lower = __shfl_up_sync(~0u, upto, offset);
                if (lane >= offset) upto += lower;
            }
            const unsigned past = __ballot_sync(~0u, reached + upto > target);
            if (past != 0) {
                if (lane == __ffs(static_cast<int>(past)) - 1) {
                    unsigned long long sum_before = reached + upto - of_lane;
#pragma unroll
                    for (int e = 0; e < kEach; ++e) {
                        if (sum_before <= target && sum_before + own[e] > target) {
                            s.chosen = base + lane * kEach + e;
                        }
                        sum_before += own[e];
                    }
                }
                break;
            }
            reached += __shfl_sync(~0u, upto, 31);
        }
    }
    __syncthreads();
    return s.chosen >= 0 ? s.chosen : likeliest;
}

__device__ void give(const SampleArguments &a, const SampleTask &task, const SampleResult &result) {
    a.results[task.output] = result;
    if (a.answers != nullptr) a.answers[task.output] = result;
}

__device__ SampleResult do_task(const SampleArguments &a, const SampleTask &task, bool alone,
                                Shared &s) {
    float *logits = a.logits + int64_t{task.row} * a.stride;
    const int n = a.vocabulary;
    Likely *likely = a.likely + task.likely_begin;
    const auto nothing = [&] {
        for (int i = threadIdx.x; i < task.likely_count; i += kThreads) likely[i] = {-1, 0};
    };
    Extent extent = find_extent(logits, n, s);
    SampleResult result{-1, extent.finite, 0};
    if (!extent.finite) {
        nothing();
        return result;
    }
    double log_total = 0;
    if (task.logprob || task.target_count > 0 || task.likely_count > 0) {
        log_total = log_sum_exp(logits, n, extent.largest, s);
    }
    if (task.target_count > 0) {
        for (int i = threadIdx.x; i < task.target_count; i += kThreads) {
            a.target_logprobs[task.target_begin + i] = static_cast<float>(
                static_cast<double>(logits[a.targets[task.target_begin + i]]) - log_total);
        }
        return result;
    }
    if (task.likely_count > 0) list_likeliest(logits, n, task, log_total, likely, s);
    if (task.edit_count > 0) {
        __syncthreads(); // the list was read from the logits
        apply_edits(logits, task, a.edits);
        extent = find_extent(logits, n, s);
    }
    if (extent.finite) {
        result.token = task.temperature == 0
                           ? extent.index
                           : draw(logits, n, extent.largest, extent.index, task, s);
    } else {
        result.finite = 0;
        nothing();
    }
    if (task.logprob && result.token >= 0) { // of the model's own distribution
        const float logit = logit_before(logits, result.token, task, a.edits, s);
        result.logprob = static_cast<float>(static_cast<double>(logit) - log_total);
    }
    if (task.edit_count > 0 && !alone) undo_edits(logits, task, a.edits);
    return result;
}

__global__ void __launch_bounds__(kThreads) sample_rows(SampleArguments a) {
    __shared__ Shared s;
    const int together = a.tasks[blockIdx.x].together;
    for (int i = 0; i < together; ++i) {
        const SampleTask task = a.tasks[blockIdx.x + i];
        const SampleResult result = do_task(a, task, together == 1, s);
        if (threadIdx.x == 0) give(a, task, result);
    }
}

} // namespace

cudaError_t launch_sample(const SampleArguments &a, cudaStream_t stream) {
    if (a.count == 0) return cudaSuccess;
    sample_rows<<<static_cast<unsigned>(a.count), kThreads, 0, stream>>>(a);
    return cudaGetLastError();
}

} // namespace batchllm::cuda
