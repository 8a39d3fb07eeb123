// A warp chooses for a token, its lanes holding the scores. A block of kRoutedTokens tokens counts its
// turns of each expert; a second launch adds up the counts of the blocks before it, each block for itself,
// and a token's place among its block's is the number of set bits below its own. So the order is the
// tokens', whatever ran first.
#include "experts/routing.h"

#include <climits>
#include <type_traits>

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr float kLowest = -INFINITY;

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
    return x;
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}

// Expert 32 i + lane is the lane's i-th. Logits -> scores; those beyond the last are 0.
template <int N> __device__ __forceinline__ void score(const RoutingArguments &a, int64_t token,
                                                       int lane, float (&x)[N]) {
    const float *logits = a.logits + token * a.stride;
    float most = kLowest, sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const int e = 32 * i + lane;
        x[i] = kLowest;
        if (e < a.experts) x[i] = logits[e] + (a.bias != nullptr ? a.bias[e] : 0.0f);
        most = fmaxf(most, x[i]);
    }
    if (a.kind == RouterKind::sparse_mixer) return;
    if (a.kind == RouterKind::sigmoid) {
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = 1.0f / (1.0f + expf(-x[i]));
        return;
    }
    most = warp_max(most);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        x[i] = 32 * i + lane < a.experts ? expf(x[i] - most) : 0.0f;
        sum += x[i];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = x[i] / sum;
}

// Takes the groups that may not be chosen out of what is chosen by. sums: [groups], the warp's own.
template <int N>
__device__ void drop_groups(const RoutingArguments &a, int lane, float (&by)[N], float *sums) {
    const int size = a.experts / a.groups;
    for (int g = 0; g < a.groups; ++g) {
        float first = kLowest, second = kLowest;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int e = 32 * i + lane;
            if (e < g * size || e >= (g + 1) * size) continue;
            second = fmaxf(second, fminf(first, by[i]));
            first = fmaxf(first, by[i]);
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            const float f = __shfl_xor_sync(~0u, first, offset);
            const float s = __shfl_xor_sync(~0u, second, offset);
            second = fmaxf(fminf(first, f), fmaxf(second, s));
            first = fmaxf(first, f);
        }
        if (lane == 0) sums[g] = a.group_best == 1 ? first : first + second;
    }
    if (lane == 0) { // the first of equal ones
        for (int kept = 0; kept < a.chosen_groups; ++kept) {
            int best = 0;
            for (int g = 1; g < a.groups; ++g) best = sums[g] > sums[best] ? g : best;
            sums[best] = kLowest;
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const int e = 32 * i + lane;
        if (e < a.experts && sums[e / size] != kLowest) by[i] = kLowest;
    }
    __syncwarp();
}

// Of what is left, the highest and of equal ones the first: its bit is set in `taken` of its lane.
template <int N> __device__ __forceinline__ void take_best(const RoutingArguments &a, int lane,
                                                           const float (&by)[N], uint32_t *taken) {
    float best = kLowest;
    int expert = INT_MAX;
#pragma unroll
    for (int i = N - 1; i >= 0; --i) {
        const bool open = (*taken >> i & 1) == 0 && 32 * i + lane < a.experts;
        if (open && by[i] >= best) {
            best = by[i];
            expert = 32 * i + lane;
        }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(~0u, best, offset);
        const int its = __shfl_xor_sync(~0u, expert, offset);
        if (other > best || (other == best && its < expert)) {
            best = other;
            expert = its;
        }
    }
    if (expert % 32 == lane) *taken |= 1u << (expert / 32);
}

// A sparse mixer's choice; x, the logits, becomes the weights of the two.
template <int N> __device__ void mix(const RoutingArguments &a, int lane, float (&x)[N],
                                     const float (&by)[N], uint32_t *taken) {
    float weights[2];
    uint32_t first = 0; // the lane's, where it has the first of the two
    for (int c = 0; c < 2; ++c) {
        take_best(a, lane, by, taken);
        const uint32_t own = *taken & ~first;
        float most = kLowest, sum = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if ((own >> i & 1) != 0) most = x[i];
        }
        most = warp_max(most);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const bool open = 32 * i + lane < a.experts && (first >> i & 1) == 0;
            const bool near = (most - x[i]) / fmaxf(fabsf(x[i]), most) <= 2 * a.jitter;
            sum += open && near ? expf(x[i] - most) : 0.0f;
        }
        weights[c] = 1.0f / warp_sum(sum);
        if (c == 0) first = *taken;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if ((*taken >> i & 1) != 0) x[i] = weights[(first >> i & 1) != 0 ? 0 : 1];
    }
}

// What differs in the choice of few routers: weights that have scales, and experts that are chosen by their logits.
enum class Choice { plain, scaled, by_logits };

template <int N, Choice C> __device__ void choose(const RoutingArguments &a, int64_t token,
                                                  int lane, float *sums, uint32_t *turns,
                                                  uint32_t bit) {
    float x[N], by[N];
    score(a, token, lane, x);
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const int e = 32 * i + lane;
        float of = x[i];
        if constexpr (C == Choice::by_logits) {
            if (e < a.experts) {
                of = a.logits[token * a.stride + e] + (a.bias != nullptr ? a.bias[e] : 0.0f);
            }
        }
        by[i] = e < a.experts && a.correction != nullptr ? of + a.correction[e] : of;
        if (isnan(by[i])) by[i] = kLowest; // so that they have an order
    }
    if (a.groups > a.chosen_groups) drop_groups(a, lane, by, sums);
    uint32_t taken = 0;
    if (a.kind == RouterKind::sparse_mixer) {
        mix(a, lane, x, by, &taken);
    } else {
        for (int c = 0; c < a.chosen; ++c) take_best(a, lane, by, &taken);
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += (taken >> i & 1) != 0 ? x[i] : 0.0f;
    sum = warp_sum(sum);
    const float scale = a.normalised ? a.scale / (sum + a.epsilon + 1e-20f) : a.scale;
    int before = 0; // chosen ones that come first
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const bool mine = (taken >> i & 1) != 0;
        const uint32_t all = __ballot_sync(~0u, mine);
        if (mine) {
            const int e = 32 * i + lane;
            const int64_t at = token * a.chosen + before + __popc(all & ((1u << lane) - 1));
            a.experts_of[at] = e;
            a.weights[at] = x[i] * scale;
            if constexpr (C == Choice::scaled) a.weights[at] *= a.expert_scale[e];
            atomicOr(turns + e, bit);
        }
        before += __popc(all);
    }
}

template <int N, Choice C> __global__ void __launch_bounds__(kThreads)
    choose_experts(const __grid_constant__ RoutingArguments a) {
    __shared__ uint32_t turns[kMostExperts];
    __shared__ float sums[kWarps][kMostGroups];
    for (int e = threadIdx.x; e < a.experts; e += kThreads) turns[e] = 0;
    __syncthreads();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int t = warp; t < kRoutedTokens; t += kWarps) {
        const int64_t token = int64_t{blockIdx.x} * kRoutedTokens + t;
        if (token < a.tokens) choose<N, C>(a, token, lane, sums[warp], turns, 1u << t);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < a.experts; e += kThreads) {
        a.counts[int64_t{blockIdx.x} * a.experts + e] = __popc(turns[e]);
    }
}

// Sums over the block of values before each thread's own, and of all.
__device__ int2 prefix_sum(int value, int *sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = value;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const int below = __shfl_up_sync(~0u, sum, offset);
        if (lane >= offset) sum += below;
    }
    __syncthreads(); // the sums before these have been read
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    int before = sum - value, all = 0;
    for (int w = 0; w < kWarps; ++w) {
        if (w < warp) before += sums[w];
        all += sums[w];
    }
    return {before, all};
}

// counts -> of each expert, its turns in all blocks, and in those before this one. A few threads share
// an expert's column where there are enough.
__device__ void add_counts(const RoutingArguments &a, int *all, int *before) {
    for (int e = threadIdx.x; e < a.experts; e += kThreads) all[e] = before[e] = 0;
    __syncthreads();
    const int blocks = static_cast<int>(gridDim.x);
    const int columns = (a.experts + 31) / 32 * 32;
    const int parts = max(1, kThreads / columns);
    for (int e = threadIdx.x % columns; e < a.experts; e += kThreads) {
        const int part = static_cast<int>(threadIdx.x) / columns;
        if (part >= parts) break;
        int sum = 0, below = 0;
#pragma unroll 8
        for (int b = part; b < blocks; b += parts) {
            const int count = __ldg(a.counts + int64_t{b} * a.experts + e);
            sum += count;
            below += b < static_cast<int>(blockIdx.x) ? count : 0;
        }
        atomicAdd(all + e, sum);
        atomicAdd(before + e, below);
    }
    __syncthreads();
}

__global__ void __launch_bounds__(kThreads)
    place_turns(const __grid_constant__ RoutingArguments a) {
    __shared__ int all[kMostExperts], before[kMostExperts];
    __shared__ uint32_t turns[kMostExperts];
    __shared__ int sums[kWarps];
    add_counts(a, all, before);
    int begin = 0, first = 0; // of the expert: its turn and its tile
    for (int base = 0; base < a.experts; base += kThreads) {
        const int e = base + static_cast<int>(threadIdx.x);
        const int count = e < a.experts ? all[e] : 0;
        const int tiles = (count + kTileRows - 1) / kTileRows;
        const int2 rows = prefix_sum(count, sums), places = prefix_sum(tiles, sums);
        if (e < a.experts) {
            before[e] += begin + rows.x;
            turns[e] = 0;
            for (int i = 0; blockIdx.x == 0 && i < tiles; ++i) {
                a.tiles[first + places.x + i] = {e, begin + rows.x, begin + rows.x + count,
                                                 first + places.x};
            }
        }
        begin += rows.y;
        first += places.y;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.tile_count = first;
    __syncthreads();
    const int64_t token = int64_t{blockIdx.x} * kRoutedTokens;
    const int64_t left = min(int64_t{kRoutedTokens}, a.tokens - token);
    const int count = static_cast<int>(left) * a.chosen;
    const int32_t *experts_of = a.experts_of + token * a.chosen;
    for (int i = threadIdx.x; i < count; i += kThreads) {
        atomicOr(turns + experts_of[i], 1u << (i / a.chosen));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kThreads) {
        const int e = experts_of[i], t = i / a.chosen;
        const int turn = before[e] + __popc(turns[e] & ((1u << t) - 1));
        a.turn_of[token * a.chosen + i] = turn;
        a.token_of[turn] = static_cast<int32_t>(token) + t;
    }
}

template <typename Launch> cudaError_t with_experts(int32_t experts, const Launch &launch) {
    if (experts <= 32) return launch(std::integral_constant<int, 1>());
    if (experts <= 64) return launch(std::integral_constant<int, 2>());
    if (experts <= 128) return launch(std::integral_constant<int, 4>());
    if (experts <= 256) return launch(std::integral_constant<int, 8>());
    if (experts <= 512) return launch(std::integral_constant<int, 16>());
    return launch(std::integral_constant<int, 32>());
}

} // namespace

cudaError_t launch_routing(const RoutingArguments &a, cudaStream_t stream) {
    if (a.tokens == 0) return cudaSuccess;
    if (a.experts > kMostExperts || a.groups > kMostGroups || a.chosen > a.experts ||
        (a.by_logits && a.expert_scale != nullptr)) {
        return cudaErrorInvalidValue;
    }
    const auto blocks = static_cast<unsigned>(routing_blocks(a.tokens));
    const cudaError_t chosen = with_experts(a.experts, [&](auto n) {
        constexpr int N = decltype(n)::value;
        const auto kernel = a.by_logits                 ? choose_experts<N, Choice::by_logits>
                            : a.expert_scale != nullptr ? choose_experts<N, Choice::scaled>
                                                        : choose_experts<N, Choice::plain>;
        kernel<<<blocks, kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
    if (chosen != cudaSuccess) return chosen;
    place_turns<<<blocks, kThreads, 0, stream>>>(a);
    return cudaGetLastError();
}

} // namespace batchllm::cuda
