// A block a row. Bound by reading the row: twice for greedy with a log-probability, about eight times
// with top-k and top-p, from L2. No sort: top-k and top-p search the largest threshold by radix, eight
// bits of the logit's order a pass, over counts or over summed weights.
#include "sampling.h"

#include <cfloat>
#include <climits>

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
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
};

// Whole numbers in the order of the floats.
__device__ __forceinline__ uint32_t order_of(float x) {
    const uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(uint32_t order) {
    return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

__device__ unsigned long long weight_units(float logit, float largest, float temperature) {
    // As double: the argument's rounding would be seen in the last bits.
    return static_cast<unsigned long long>(exp((double)((logit - largest) / temperature)) * kUnit);
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

__device__ void apply_edits(float *logits, const SampleTask &task, const LogitEdit *edits) {
    for (int i = threadIdx.x; i < task.edit_count; i += kThreads) {
        const LogitEdit edit = edits[task.edit_begin + i];
        float x = logits[edit.token] + edit.bias;
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

__device__ int draw(const float *logits, int n, float largest, int likeliest,
                    const SampleTask &task, Shared &s) {
    const auto units = [&](float x) { return weight_units(x, largest, task.temperature); };
    uint32_t floor = 0; // values of lower order are left out
    unsigned long long before = 0;
    if (task.top_k > 0 && task.top_k < n) {
        floor = radix_select(
            logits, n, 0, static_cast<unsigned long long>(task.top_k), [](float) { return 1ull; },
            &before, s);
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
        // Equal logits are few: one warp finds the last one kept.
        if (threadIdx.x < 32) {
            unsigned long long seen = 0;
            int last = INT_MAX;
            for (int base = 0; base < n && last == INT_MAX; base += 32) {
                const int i = base + threadIdx.x;
                const bool equal = i < n && order_of(logits[i]) == floor;
                const unsigned mask = __ballot_sync(~0u, equal);
                const unsigned long long here = __popc(mask);
                if (seen + here >= kept) {
                    unsigned rest = mask;
                    for (unsigned long long k = seen + 1; k < kept; ++k) rest &= rest - 1;
                    last = base + __ffs(static_cast<int>(rest)) - 1;
                }
                seen += here;
            }
            if (threadIdx.x == 0) s.indices[0] = last;
        }
        __syncthreads();
        last_equal = s.indices[0];
        __syncthreads();
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
        for (int base = begin; base < end; base += 32) {
            const int i = base + lane;
            const unsigned long long own = i < end ? kept_units(i) : 0;
            unsigned long long upto = own;
            for (int offset = 1; offset < 32; offset *= 2) {
                const unsigned long long lower = __shfl_up_sync(~0u, upto, offset);
                if (lane >= offset) upto += lower;
            }
            const unsigned past = __ballot_sync(~0u, reached + upto > target);
            if (past != 0) {
                if (lane == __ffs(static_cast<int>(past)) - 1) s.chosen = i;
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

__global__ void __launch_bounds__(kThreads) sample_rows(SampleArguments a) {
    __shared__ Shared s;
    const SampleTask task = a.tasks[blockIdx.x];
    float *logits = a.logits + int64_t{task.row} * a.stride;
    const int n = a.vocabulary;
    Extent extent = find_extent(logits, n, s);
    SampleResult result{-1, extent.finite, 0};
    if (!extent.finite) {
        if (threadIdx.x == 0) give(a, task, result);
        return;
    }
    double log_total = 0;
    if (task.logprob || task.target_count > 0) {
        log_total = log_sum_exp(logits, n, extent.largest, s);
    }
    if (task.target_count > 0) {
        for (int i = threadIdx.x; i < task.target_count; i += kThreads) {
            a.target_logprobs[task.target_begin + i] = static_cast<float>(
                static_cast<double>(logits[a.targets[task.target_begin + i]]) - log_total);
        }
        if (threadIdx.x == 0) give(a, task, result);
        return;
    }
    if (task.edit_count > 0) {
        apply_edits(logits, task, a.edits);
        extent = find_extent(logits, n, s);
        if (!extent.finite) {
            result.finite = 0;
            if (threadIdx.x == 0) give(a, task, result);
            return;
        }
    }
    result.token = task.temperature == 0 ? extent.index
                                         : draw(logits, n, extent.largest, extent.index, task, s);
    // Of the model's own distribution: a chosen token that was edited is done by the host.
    if (task.logprob) {
        result.logprob = static_cast<float>(static_cast<double>(logits[result.token]) - log_total);
    }
    if (threadIdx.x == 0) give(a, task, result);
}

} // namespace

cudaError_t launch_sample(const SampleArguments &a, cudaStream_t stream) {
    if (a.count == 0) return cudaSuccess;
    sample_rows<<<static_cast<unsigned>(a.count), kThreads, 0, stream>>>(a);
    return cudaGetLastError();
}

} // namespace batchllm::cuda
