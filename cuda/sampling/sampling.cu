// One block per row (sampling/select.cuh). A mask costs its row another pass. Bound by reading the
// row: twice for greedy with a log-probability, twice more for the likeliest tokens, about eight
// times with top-k and top-p, from L2.
#include "sampling/sampling.h"

#include "sampling/select.cuh"

namespace batchllm::cuda {
namespace {

using namespace sampling;

constexpr double kUnit = 1099511627776.0; // 2^40

__device__ unsigned long long weight_units(float logit, float largest, float temperature) {
    const float x = (logit - largest) / temperature;
    if (x < -28) return 0; // less than a unit
    // In double, because rounding the argument would change the last bits.
    return static_cast<unsigned long long>(exp(static_cast<double>(x)) * kUnit);
}

struct Extent {
    float largest;
    int index; // the lowest of equal ones
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
    __syncthreads(); // an earlier use of the shared memory has ended
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

__device__ double log_sum_exp(const float *logits, int n, float largest, Shared &s) {
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += kThreads) {
        sum += static_cast<double>(expf(logits[i] - largest));
    }
    return static_cast<double>(largest) + log(block_sum(sum, s.sums));
}

// Excludes all tokens except the mask's. `from`: the row from the model, which may be `logits`
// itself.
__device__ void apply_mask(float *logits, const float *from, int n, const uint32_t *mask) {
    for (int i = threadIdx.x; i < n; i += kThreads) {
        const bool allowed = (mask[i / 32] >> (i % 32) & 1) != 0;
        if (!allowed) {
            logits[i] = -INFINITY;
        } else if (from != logits) {
            logits[i] = from[i];
        }
    }
    __syncthreads();
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

// Restores the logits for the row's other tasks.
__device__ void undo_edits(float *logits, const SampleTask &task, const LogitEdit *edits) {
    __syncthreads(); // all have read
    for (int i = threadIdx.x; i < task.edit_count; i += kThreads) {
        const LogitEdit &edit = edits[task.edit_begin + i];
        logits[edit.token] = edit.before;
    }
    __syncthreads();
}

// A token's logit from the model, before any edit.
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

// Lists the likeliest tokens in order; of equal ones, the lower id comes first.
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
    uint32_t floor = 0; // values of a lower order are excluded
    unsigned long long before = 0;
    if (task.top_k > 0 && task.top_k < n) {
        floor = kth_largest(logits, n, task.top_k, &before, s);
    }
    int last_equal = INT_MAX; // of the values equal to the floor, those up to this id are kept
    if (task.top_p < 1) {
        unsigned long long total = 0;
        for (int i = threadIdx.x; i < n; i += kThreads) {
            if (order_of(logits[i]) >= floor) total += units(logits[i]);
        }
        total = block_sum(total, s.counts);
        const auto wanted = static_cast<unsigned long long>(
            ceil(static_cast<double>(task.top_p) * static_cast<double>(total)));
        floor = radix_select(logits, n, floor, wanted < 1 ? 1 : wanted, units, &before, s);
        // How many of the equal ones are kept, by increasing id.
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
    // Each warp has a range of ids; the warp whose range contains the target walks it.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto [begin, end] = Stretch(n, warp);
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
        constexpr int kEach = 4; // adjacent ids per lane
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
    const int mask = a.mask_of == nullptr || task.target_count > 0 ? -1 : a.mask_of[task.output];
    if (mask >= 0) {
        const float *from = logits;
        if (task.spare >= 0) {
            logits = a.spare + int64_t{task.spare} * a.stride;
            __syncthreads(); // an earlier task is done with it
        }
        apply_mask(logits, from, n, a.masks + int64_t{mask} * ((n + 31) / 32));
    }
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
    if (task.likely_count > 0) list_likeliest(logits, n, task, log_total, likely, s);
    if (task.target_count > 0) {
        for (int i = threadIdx.x; i < task.target_count; i += kThreads) {
            a.target_logprobs[task.target_begin + i] = static_cast<float>(
                static_cast<double>(logits[a.targets[task.target_begin + i]]) - log_total);
        }
        return result;
    }
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
    if (task.logprob && result.token >= 0) { // in the model's own distribution
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
