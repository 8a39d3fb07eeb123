// The gated delta rule and Mamba-2's, token by token. Bound by memory: a token of one request moves S once in and once
// out, 128 KB of a delta net's head of 128 by 128 in f32.
//
// A block has an item and a head, with S in registers from its first token to its last: a thread 16 rows (keys) by 4
// columns (values). Before they are at a token's end, the threads convolve the next one's inputs into shared memory, so
// that a token takes one barrier. A state-space layer's S is updated before it, and the result is summed over warps behind
// it:
//     S      = decay S + (step k) v^T
//     result = S^T q + skip v, times silu(z)
// A delta net's S is updated behind it, of sums over the old one; q and k are not of length 1, these are:
//     known  = S^T k    found = S^T q
//     change = rate (v - decay known)
//     result = decay found + (q . k) change, normed, times silu(z)
//     S      = decay S + k change^T
// Several blocks share an SM; while one updates, others load and store. Mamba-2's norm, which spans heads, is a launch of
// its own over the results, each read and written once.
#include "recurrent/steps.cuh"

#include <algorithm>

namespace batchllm::cuda {
namespace steps {
namespace {

template <typename S> using Raw = typename StateFour<S>::Raw; // four columns as they are stored

template <typename S, typename Shape> __device__ __forceinline__ void
load_state(const StepPart<Shape> &part, const S *from, Raw<S> (&raw)[kRows]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        raw[r] = Raw<S>{};
        if (from != nullptr && part.has(r)) {
            raw[r] = __ldcg(reinterpret_cast<const Raw<S> *>(from + (part.row + r) * part.values +
                                                             part.column));
        }
    }
}

template <typename S, typename Shape> __device__ __forceinline__ void
store_state(const StepPart<Shape> &part, const float4 (&state)[kRows], S *to) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        if (part.has(r)) {
            *reinterpret_cast<Raw<S> *>(to + (part.row + r) * part.values + part.column) =
                StateFour<S>::narrow(state[r]);
        }
    }
}

// action(r, key, query) of the thread's rows
template <typename Shape, typename Action> __device__ __forceinline__ void
for_each_row(const StepToken<Shape> &token, const StepPart<Shape> &part, const Action &action) {
    const auto *keys = reinterpret_cast<const float4 *>(token.key + part.row);
    const auto *queries = reinterpret_cast<const float4 *>(token.query + part.row);
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
        const float4 key = keys[r / 4], query = queries[r / 4];
        action(r, key.x, query.x), action(r + 1, key.y, query.y);
        action(r + 2, key.z, query.z), action(r + 3, key.w, query.w);
    }
}

// Over the rows of all lanes that have the same columns.
template <typename Shape>
__device__ __forceinline__ void sum_lanes(const StepPart<Shape> &part, float4 *sum) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        if (offset < part.lanes) break;
        sum->x += __shfl_xor_sync(~0u, sum->x, offset);
        sum->y += __shfl_xor_sync(~0u, sum->y, offset);
        sum->z += __shfl_xor_sync(~0u, sum->z, offset);
        sum->w += __shfl_xor_sync(~0u, sum->w, offset);
    }
}

// S after the token, of a state-space layer; the warp's part of S^T q.
template <typename Shape>
__device__ __forceinline__ void advance(const StepToken<Shape> &token, const StepPart<Shape> &part,
                                        float4 (&state)[kRows], WarpSums<Shape, false> *sums) {
    float4 found = {};
    if (part.any) {
        const float decay = token.decay;
        const float4 value =
            scaled(*reinterpret_cast<const float4 *>(token.value + part.column), token.rate);
        for_each_row(token, part, [&](int r, float key, float query) {
            state[r] = scaled(state[r], decay);
            add_scaled(&state[r], value, key);
            add_scaled(&found, state[r], query);
        });
    }
    sum_lanes(part, &found);
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (lane < part.lanes) *reinterpret_cast<float4 *>(sums->found + part.column) = found;
}

// What a delta net's change is made of, the warp's part.
template <typename Shape> __device__ __forceinline__ void sum_rows(const StepToken<Shape> &token,
                                                                   const StepPart<Shape> &part,
                                                                   const float4 (&state)[kRows],
                                                                   WarpSums<Shape, true> *sums) {
    float4 found = {}, known = {}, products = {};
    if (part.any) {
        for_each_row(token, part, [&](int r, float key, float query) {
            add_scaled(&found, state[r], query), add_scaled(&known, state[r], key);
            products.x += query * query, products.y += key * key, products.z += query * key;
        });
    }
    sum_lanes(part, &found), sum_lanes(part, &known), sum_lanes(part, &products);
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (lane < part.lanes) {
        *reinterpret_cast<float4 *>(sums->found + part.column) = found;
        *reinterpret_cast<float4 *>(sums->known + part.column) = known;
    }
    if (lane == 0) sums->products = products;
}

template <typename Shape> __device__ __forceinline__ int warps_of() {
    return Shape::kWhole ? Shape::kThreads / 32 : static_cast<int>(blockDim.x) / 32;
}

// Over the warps; of(sums): four neighbours of theirs
template <typename Shape, typename Of>
__device__ __forceinline__ float4 over_warps(const WarpSums<Shape, true> *sums, const Of &of) {
    float4 sum = {};
#pragma unroll(Shape::kWhole ? Shape::kThreads / 32 : 1)
    for (int w = 0; w < warps_of<Shape>(); ++w) {
        add_scaled(&sum, *reinterpret_cast<const float4 *>(of(sums[w])), 1.0f);
    }
    return sum;
}

// What of a token of a delta net all columns have in common. forget, learn: decay and rate over k's length; of_query: 1 /
// (q's length times the root of its dim).
struct DeltaFactors {
    float decay, forget, learn, of_query, overlap;

    template <typename Shape>
    __device__ __forceinline__ DeltaFactors(const StepToken<Shape> &token,
                                            const WarpSums<Shape, true> *sums, int keys) {
        const float4 products = over_warps(sums, [](const auto &of) { return &of.products.x; });
        const float of_key = rsqrtf(products.y + 1e-6f);
        decay = token.decay;
        forget = decay * of_key;
        learn = token.rate * of_key;
        of_query = rsqrtf(products.x + 1e-6f) * rsqrtf(static_cast<float>(keys));
        overlap = products.z;
    }
};

// Of four columns.
template <typename Shape>
__device__ __forceinline__ float4 change_of(const DeltaFactors &factors,
                                            const StepToken<Shape> &token,
                                            const WarpSums<Shape, true> *sums, int column) {
    const float4 known = over_warps(sums, [&](const auto &of) { return of.known + column; });
    float4 change = *reinterpret_cast<const float4 *>(token.value + column);
    add_scaled(&change, known, -factors.forget);
    return scaled(change, factors.learn);
}

// Of a lane's four columns, as they are stored; zeros from `count` on.
template <typename Shape, typename T>
__device__ __forceinline__ Four<T> load_four(const T *from, int count) {
    Four<T> four;
    if constexpr (Shape::kWhole) {
        four = *reinterpret_cast<const Four<T> *>(from);
    } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) four.x[e] = e < count ? from[e] : from_float<T>(0.0f);
    }
    return four;
}

// A token's result of a delta net, normed and gated, by a warp. gates: the lane's of z.
template <typename T, typename Shape> __device__ __forceinline__ void
finish(const DeltaArguments &a, const StepToken<Shape> &token, const DeltaFactors &factors,
       const WarpSums<Shape, true> *sums, const Four<T> &gates, int values, T *out) {
    const int column = static_cast<int>(threadIdx.x % 32) * 4;
    const bool there = Shape::kWhole || column < values;
    float4 result = {}, weights = {};
    if (there) {
        result = scaled(over_warps(sums, [&](const auto &of) { return of.found + column; }),
                        factors.decay);
        add_scaled(&result, change_of(factors, token, sums, column), factors.overlap);
        result = scaled(result, factors.of_query);
        weights = *reinterpret_cast<const float4 *>(a.norm + column);
    }
    const float squares = warp_sum(result.x * result.x + result.y * result.y + result.z * result.z +
                                   result.w * result.w);
    const float scale = rsqrtf(squares / static_cast<float>(values) + a.epsilon);
    if (!there) return;
    const auto gated = [&](float x, float weight, T z) {
        return from_float<T>(x * scale * (weight * silu(to_float(z))));
    };
    *reinterpret_cast<Four<T> *>(out + column) = {
        {gated(result.x, weights.x, gates.x[0]), gated(result.y, weights.y, gates.x[1]),
         gated(result.z, weights.z, gates.x[2]), gated(result.w, weights.w, gates.x[3])}};
}

// A step of a delta net behind the barrier: S, and by one of the warps the result.
template <typename T, typename Shape>
__device__ __forceinline__ void finish_step(const DeltaArguments &a, const StepToken<Shape> &token,
                                            const StepPart<Shape> &part,
                                            const WarpSums<Shape, true> *sums, bool finishes,
                                            const Four<T> &gates, T *out, float4 (&state)[kRows]) {
    const DeltaFactors factors(token, sums, part.keys);
    if (finishes) finish<T, Shape>(a, token, factors, sums, gates, part.values, out);
    if (!part.any) return;
    const float4 change = change_of(factors, token, sums, part.column);
    for_each_row(token, part, [&](int r, float key, float) {
        state[r] = scaled(state[r], factors.decay);
        add_scaled(&state[r], change, key);
    });
}

// Before Mamba-2's norm results may be larger than f16's range; the norm needs only their proportions.
template <typename T> __device__ __forceinline__ float within_range(float x) { return x; }
template <> __device__ __forceinline__ float within_range<__half>(float x) {
    constexpr float kMost = 65504;
    return x > kMost ? kMost : x < -kMost ? -kMost : x; // NaN stays
}

template <bool kDelta, typename T, typename S, typename Shape> __device__ __forceinline__ void
run_item(const StateSpaceArguments &s, const StepPart<Shape> &part, const DeltaItem &item, int head,
         StepChannels<T, Shape> *channels, StepShared<Shape, kDelta> *shared) {
    const DeltaArguments &a = s.delta;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
    const int64_t first = item.token_begin;
    // All is asked for before anything waits.
    auto inputs = load_inputs<kDelta>(a, *channels, part, first, head);
    T before[Shape::kEach][kRing - 1];
    channels->load_before(a, item, before);
    const float bias = a.step[head], decay = a.decay[head];
    const float skip = s.skip == nullptr ? 0.0f : s.skip[head];
    Raw<S> raw[kRows];
    load_state(part, item.from < 0 ? nullptr : state_of<S>(a, item.from, head), raw);
    channels->begin(before);
    make_token<kDelta>(s, channels, inputs, bias, decay, &shared->tokens[0]);
    if (item.token_count == 1) channels->keep(a, item, head);
    __syncthreads();
    float4 state[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) state[r] = StateFour<S>::wide(raw[r]);
    for (int t = 0; t < item.token_count; ++t) {
        const StepToken<Shape> &token = shared->tokens[t % 3];
        auto *sums = shared->sums[t % 2];
        T *out = static_cast<T *>(a.out) + (first + t) * a.values_size() + head * part.values;
        const float gate = to_float(inputs.gate);
        Four<T> gates{};
        const bool finishes = kDelta && warp == t % warps_of<Shape>();
        if (finishes) {
            const int column = thread % 32 * 4;
            const T *z = projected_of<T>(a, first + t) + a.channels() + head * part.values;
            gates = load_four<Shape>(z + column, part.values - column);
        }
        const bool more = t + 1 < item.token_count;
        if (more) inputs = load_inputs<kDelta>(a, *channels, part, first + t + 1, head);
        if constexpr (kDelta) {
            sum_rows(token, part, state, sums + warp);
        } else {
            advance(token, part, state, sums + warp);
        }
        if (more) {
            make_token<kDelta>(s, channels, inputs, bias, decay, &shared->tokens[(t + 1) % 3]);
        }
        __syncthreads(); // the sums are there, and the next token
        if constexpr (kDelta) {
            finish_step<T>(a, token, part, sums, finishes, gates, out, state);
        } else if (thread < part.values) {
            float result = skip * token.value[thread];
            for (int w = 0; w < warps_of<Shape>(); ++w) result += sums[w].found[thread];
            out[thread] = from_float<T>(within_range<T>(result * silu(gate)));
        }
    }
    store_state(part, state, state_of<S>(a, item.state, head));
}

template <bool kDelta, typename T, typename S, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    item_steps(const __grid_constant__ StateSpaceArguments s) {
    __shared__ StepShared<Shape, kDelta> shared;
    const int head = static_cast<int>(blockIdx.x);
    const StepPart<Shape> part(s.delta);
    StepChannels<T, Shape> channels(s, part, head);
    const DeltaLevel level = *s.delta.level;
    if (!Shape::kWhole) {
        auto *floats = reinterpret_cast<float *>(shared.tokens);
        for (unsigned i = threadIdx.x; i < sizeof shared.tokens / 4; i += blockDim.x) floats[i] = 0;
        __syncthreads();
    }
    for (int i = level.begin + static_cast<int>(blockIdx.y); i < level.chunked; i += gridDim.y) {
        run_item<kDelta, T, S>(s, part, s.delta.items[i], head, &channels, &shared);
        __syncthreads(); // before the next item's first token
    }
}

// Threads of a block of the general kind: all of S, and its channels.
int threads_for(int keys, int values) {
    int lanes = kMostStateValues / 4;
    while (lanes / 2 * 4 >= values) lanes /= 2;
    const int of_state = (keys + kRows - 1) / kRows * lanes;
    const int of_channels = (2 * keys + values + General::kEach - 1) / General::kEach;
    return (std::max({of_state, of_channels, values, 128}) + 31) / 32 * 32;
}

template <bool kDelta, typename T, typename S, typename Shape>
cudaError_t launch_kind(const StateSpaceArguments &s, cudaStream_t stream) {
    const DeltaArguments &a = s.delta;
    // Blocks go on to other items where a replay has more; so many always, since it may have had few before.
    constexpr int kRounds = 4; // of as many blocks as run at once
    const int fill = (a.sms * Shape::kBlocks * kRounds + a.value_heads - 1) / a.value_heads;
    const int rows = std::min({a.most_items, std::max(a.stepped, fill), 65535});
    const dim3 grid(static_cast<unsigned>(a.value_heads), static_cast<unsigned>(rows));
    const int threads = Shape::kWhole ? Shape::kThreads : threads_for(a.key_dim, a.value_dim);
    item_steps<kDelta, T, S, Shape><<<grid, static_cast<unsigned>(threads), 0, stream>>>(s);
    return cudaGetLastError();
}

template <bool kDelta> cudaError_t launch_steps(const StateSpaceArguments &s, cudaStream_t stream) {
    const DeltaArguments &a = s.delta;
    using Whole = Published<kDelta>;
    const bool whole = a.key_dim == Whole::kKeys && a.value_dim == Whole::kValues;
    return with_type(a.element, [&](auto t) {
        return with_state(a.state, [&](auto state) {
            using T = decltype(t);
            using S = decltype(state);
            return whole ? launch_kind<kDelta, T, S, Whole>(s, stream)
                         : launch_kind<kDelta, T, S, General>(s, stream);
        });
    });
}

// ---- The norm ---------------------------------------------------------------------------------------

constexpr int kNormThreads = 256;

// A block has a part of a token's results; a thread four neighbours at a time.
template <typename T> __global__ void __launch_bounds__(kNormThreads)
    state_space_norm(const __grid_constant__ StateSpaceArguments s, int64_t tokens) {
    __shared__ float sums[2][kNormThreads / 32]; // by every second token
    const DeltaArguments &a = s.delta;
    const int length = a.values_size() / s.norm_parts;
    const int begin = static_cast<int>(blockIdx.x) * length;
    int side = 0;
    for (int64_t token = blockIdx.y; token < tokens; token += gridDim.y, side ^= 1) {
        auto *row =
            reinterpret_cast<Four<T> *>(static_cast<T *>(a.out) + token * a.values_size() + begin);
        float squares = 0;
        for (int i = static_cast<int>(threadIdx.x); i < length / 4; i += kNormThreads) {
            const float4 x = load4(row[i].x);
            squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
        }
        squares = warp_sum(squares);
        if (threadIdx.x % 32 == 0) sums[side][threadIdx.x / 32] = squares;
        __syncthreads();
        squares = 0;
        for (const float of_warp : sums[side]) squares += of_warp;
        const float scale = rsqrtf(squares / static_cast<float>(length) + a.epsilon);
        const auto *weights = reinterpret_cast<const float4 *>(a.norm + begin);
        for (int i = static_cast<int>(threadIdx.x); i < length / 4; i += kNormThreads) {
            const float4 x = load4(row[i].x), weight = weights[i];
            row[i] = {{from_float<T>(x.x * scale * weight.x), from_float<T>(x.y * scale * weight.y),
                       from_float<T>(x.z * scale * weight.z),
                       from_float<T>(x.w * scale * weight.w)}};
        }
    }
}

} // namespace
} // namespace steps

const char *missing_in_state_space(int32_t key_dim, int32_t value_dim, int32_t value_heads,
                                   int32_t norm_parts) {
    if (key_dim > kMostStateKeys) return "a state-space layer with a state of more than 256";
    if (value_dim > kMostStateValues) return "a state-space layer with heads of more than 128";
    if (value_dim % 4 != 0) return "a state-space layer with heads of no multiple of 4";
    if (norm_parts < 1 || value_heads % norm_parts != 0) {
        return "a state-space layer's norm of each head, or of parts that divide heads";
    }
    return nullptr;
}

cudaError_t launch_delta_steps(const DeltaArguments &a, cudaStream_t stream) {
    if (a.most_items == 0) return cudaSuccess;
    if (a.key_heads < 1 || a.value_heads % a.key_heads != 0 || a.key_dim > kMostDeltaDim ||
        a.value_dim > kMostDeltaDim || a.value_dim % 4 != 0) {
        return cudaErrorInvalidValue;
    }
    return steps::launch_steps<true>({a, nullptr, nullptr, 0, 0, 0}, stream);
}

cudaError_t launch_state_space_steps(const StateSpaceArguments &s, cudaStream_t stream) {
    const DeltaArguments &a = s.delta;
    if (a.most_items == 0) return cudaSuccess;
    if (a.key_heads < 1 || a.value_heads % a.key_heads != 0 ||
        missing_in_state_space(a.key_dim, a.value_dim, a.value_heads, s.norm_parts) != nullptr) {
        return cudaErrorInvalidValue;
    }
    return steps::launch_steps<false>(s, stream);
}

cudaError_t launch_state_space_norm(const StateSpaceArguments &s, int64_t tokens,
                                    cudaStream_t stream) {
    if (tokens == 0) return cudaSuccess;
    const dim3 grid(static_cast<unsigned>(s.norm_parts),
                    static_cast<unsigned>(std::min<int64_t>(tokens, 65535)));
    return with_type(s.delta.element, [&](auto t) {
        steps::state_space_norm<decltype(t)><<<grid, steps::kNormThreads, 0, stream>>>(s, tokens);
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
