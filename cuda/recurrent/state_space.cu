// Mamba-2's rule token by token. Bound by memory: a token of one request moves S once in and once out, 32 KB a head of
// 128 by 64 in f32.
//
// A block has an item and a head, with S in registers from its first token to its last: a thread 16 rows (keys) by 4
// columns (values). Before they update S, the threads convolve the next token's inputs into shared memory, so that a
// token takes one barrier:
//     S      = decay S + (step k) v^T
//     result = S^T q + skip v, times silu(z), unless that is last
// Several blocks share an SM; while one updates, others load and store. The norm, which spans heads, is a launch of its
// own over the results, each read and written once.
#include "recurrent/state_space.cuh"

#include <algorithm>

namespace batchllm::cuda {
namespace space {
namespace {

template <typename S> using Raw = typename StateFour<S>::Raw; // four columns as they are stored

template <typename S, typename Shape> __device__ __forceinline__ void
load_state(const SpacePart<Shape> &part, const S *from, Raw<S> (&raw)[kRows]) {
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
store_state(const SpacePart<Shape> &part, const float4 (&state)[kRows], S *to) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        if (part.has(r)) {
            *reinterpret_cast<Raw<S> *>(to + (part.row + r) * part.values + part.column) =
                StateFour<S>::narrow(state[r]);
        }
    }
}

// S after the token; returns the thread's part of S^T q.
template <typename Shape> __device__ __forceinline__ float4 advance(const SpaceToken<Shape> &token,
                                                                    const SpacePart<Shape> &part,
                                                                    float4 (&state)[kRows]) {
    float4 sum = {};
    if (!part.any) return sum;
    const float decay = token.decay, step = token.step;
    float4 value = *reinterpret_cast<const float4 *>(token.value + part.column);
    value.x *= step, value.y *= step, value.z *= step, value.w *= step;
    const auto *keys = reinterpret_cast<const float4 *>(token.key + part.row);
    const auto *queries = reinterpret_cast<const float4 *>(token.query + part.row);
    const auto row = [&](float4 *s, float key, float query) {
        s->x = fmaf(value.x, key, decay * s->x), sum.x = fmaf(s->x, query, sum.x);
        s->y = fmaf(value.y, key, decay * s->y), sum.y = fmaf(s->y, query, sum.y);
        s->z = fmaf(value.z, key, decay * s->z), sum.z = fmaf(s->z, query, sum.z);
        s->w = fmaf(value.w, key, decay * s->w), sum.w = fmaf(s->w, query, sum.w);
    };
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
        const float4 key = keys[r / 4], query = queries[r / 4];
        row(&state[r], key.x, query.x), row(&state[r + 1], key.y, query.y);
        row(&state[r + 2], key.z, query.z), row(&state[r + 3], key.w, query.w);
    }
    return sum;
}

// The sum over the warp's rows, for the first lanes to write.
template <typename Shape> __device__ __forceinline__ void
share_sum(const SpacePart<Shape> &part, float4 sum, float (*sums)[Shape::kValues]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        if (offset < part.lanes) break;
        sum.x += __shfl_xor_sync(~0u, sum.x, offset), sum.y += __shfl_xor_sync(~0u, sum.y, offset);
        sum.z += __shfl_xor_sync(~0u, sum.z, offset), sum.w += __shfl_xor_sync(~0u, sum.w, offset);
    }
    if (lane < part.lanes) *reinterpret_cast<float4 *>(sums[threadIdx.x / 32] + part.column) = sum;
}

// Before the norm results may be larger than f16's range; the norm needs only their proportions.
template <typename T> __device__ __forceinline__ float within_range(float x) { return x; }
template <> __device__ __forceinline__ float within_range<__half>(float x) {
    constexpr float kMost = 65504;
    return x > kMost ? kMost : x < -kMost ? -kMost : x; // NaN stays
}

template <typename T, typename S, typename Shape> __device__ __forceinline__ void
run_item(const StateSpaceArguments &s, const SpacePart<Shape> &part, const StateItem &item,
         int head, SpaceChannels<T, Shape> *channels, SpaceShared<Shape> *shared) {
    const DeltaArguments &a = s.delta;
    const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / 32;
    const int64_t first = item.token_begin;
    // All is asked for before anything waits.
    SpaceInput<T> input = load_input(a, *channels, part, first, head);
    T before[kEach][kRing - 1];
    channels->load_before(a, item, before);
    const float bias = a.step[head], decay = a.decay[head];
    const float skip = s.skip == nullptr ? 0.0f : s.skip[head];
    Raw<S> raw[kRows];
    load_state(part, item.from < 0 ? nullptr : state_of<S>(a, item.from, head), raw);
    channels->begin(before);
    make_token(s, channels, input, bias, decay, &shared->tokens[0]);
    if (item.token_count == 1) channels->keep(a, item, head);
    __syncthreads();
    float4 state[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) state[r] = StateFour<S>::wide(raw[r]);
    for (int t = 0; t < item.token_count; ++t) {
        const SpaceToken<Shape> &token = shared->tokens[t % 2];
        const float gate = to_float(input.gate);
        const bool more = t + 1 < item.token_count;
        if (more) input = load_input(a, *channels, part, first + t + 1, head);
        const float4 sum = advance(token, part, state);
        share_sum(part, sum, shared->sums[t % 2]);
        const float value = thread < part.values ? token.value[thread] : 0.0f;
        if (more) make_token(s, channels, input, bias, decay, &shared->tokens[(t + 1) % 2]);
        // Behind it the next token is there, and this one's place is free.
        __syncthreads();
        if (thread >= part.values) continue;
        float result = skip * value;
        for (int w = 0; w < (Shape::kWhole ? Shape::kThreads / 32 : warps); ++w) {
            result += shared->sums[t % 2][w][thread];
        }
        static_cast<T *>(a.out)[(first + t) * a.values_size() + head * part.values + thread] =
            from_float<T>(within_range<T>(s.gate_last ? result : result * silu(gate)));
    }
    store_state(part, state, state_of<S>(a, item.state, head));
}

template <typename T, typename S, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks)
    state_space_steps(const __grid_constant__ StateSpaceArguments s) {
    __shared__ SpaceShared<Shape> shared;
    const int head = static_cast<int>(blockIdx.x);
    const SpacePart<Shape> part(s.delta);
    SpaceChannels<T, Shape> channels(s, part, head);
    const StateLevel level = *s.delta.level;
    if (!Shape::kWhole) {
        auto *floats = reinterpret_cast<float *>(shared.tokens);
        for (unsigned i = threadIdx.x; i < sizeof shared.tokens / 4; i += blockDim.x) floats[i] = 0;
        __syncthreads();
    }
    for (int i = level.begin + static_cast<int>(blockIdx.y); i < level.chunked; i += gridDim.y) {
        run_item<T, S>(s, part, s.delta.items[i], head, &channels, &shared);
    }
}

// Threads of a block of the general kind: all of S, and three channels each.
int threads_for(int keys, int values) {
    int lanes = kMostStateValues / 4;
    while (lanes / 2 * 4 >= values) lanes /= 2;
    const int of_state = (keys + kRows - 1) / kRows * lanes;
    const int of_channels = (2 * keys + values + kEach - 1) / kEach;
    return (std::max({of_state, of_channels, values, 128}) + 31) / 32 * 32;
}

// Blocks of each head: one for each item of the captured step, and enough for the device, since a graph's next replay may
// have many more, of which blocks then have several. Not one for each token: of a step of prompts most are no items of
// this launch.
template <typename Shape> int blocks_of_head(const StateSpaceArguments &s) {
    const DeltaArguments &a = s.delta;
    constexpr int kRounds = 4;
    const int at_once = std::max(a.sms, 1) * Shape::kBlocks;
    const int enough = (kRounds * at_once + a.value_heads - 1) / a.value_heads;
    return std::min({a.most_items, std::max(s.stepped, enough), 65535});
}

template <typename T, typename S, typename Shape>
cudaError_t launch_steps(const StateSpaceArguments &s, cudaStream_t stream) {
    const DeltaArguments &a = s.delta;
    const dim3 grid(static_cast<unsigned>(a.value_heads),
                    static_cast<unsigned>(blocks_of_head<Shape>(s)));
    const int threads = Shape::kWhole ? Shape::kThreads : threads_for(a.key_dim, a.value_dim);
    state_space_steps<T, S, Shape><<<grid, static_cast<unsigned>(threads), 0, stream>>>(s);
    return cudaGetLastError();
}

// ---- The norm ---------------------------------------------------------------------------------------

constexpr int kNormThreads = 256;

// A block has a part of a token's results; a thread four neighbours at a time. kGated: StateSpaceArguments::gate_last.
template <typename T, bool kGated> __global__ void __launch_bounds__(kNormThreads)
    state_space_norm(const __grid_constant__ StateSpaceArguments s, SharedNorm shared,
                     int64_t tokens) {
    __shared__ float sums[2][kNormThreads / 32]; // by every second token
    const DeltaArguments &a = s.delta;
    const int length = a.values_size() / s.norm_parts;
    const int begin = static_cast<int>(blockIdx.x) * length;
    int side = 0;
    for (int64_t token = blockIdx.y; token < tokens; token += gridDim.y, side ^= 1) {
        auto *row = reinterpret_cast<Packed4<T> *>(static_cast<T *>(a.out) +
                                                   token * a.values_size() + begin);
        float squares = 0;
        for (int i = static_cast<int>(threadIdx.x); i < length / 4; i += kNormThreads) {
            const float4 x = widen(row[i]);
            squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
        }
        squares = warp_sum(squares);
        if (threadIdx.x % 32 == 0) sums[side][threadIdx.x / 32] = squares;
        __syncthreads();
        squares = 0;
        for (const float of_warp : sums[side]) squares += of_warp;
        if (shared.squares != nullptr) squares = shared.squares[token * shared.stride];
        const float count = static_cast<float>(length) * static_cast<float>(shared.sharing);
        const float scale = rsqrtf(squares / count + a.epsilon);
        const auto *weights = reinterpret_cast<const float4 *>(a.norm + begin);
        for (int i = static_cast<int>(threadIdx.x); i < length / 4; i += kNormThreads) {
            const float4 x = widen(row[i]);
            float4 weight = weights[i];
            if constexpr (kGated) { // not aligned: there may be an odd number of keys
                const T *gate = projected_of<T>(a, token) + a.channels() + begin + 4 * i;
                weight.x *= silu(to_float(gate[0])), weight.y *= silu(to_float(gate[1]));
                weight.z *= silu(to_float(gate[2])), weight.w *= silu(to_float(gate[3]));
            }
            row[i] = narrow<T>(make_float4(x.x * scale * weight.x, x.y * scale * weight.y,
                                           x.z * scale * weight.z, x.w * scale * weight.w));
        }
    }
}

} // namespace
} // namespace space

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

cudaError_t launch_state_space_steps(const StateSpaceArguments &s, cudaStream_t stream) {
    const DeltaArguments &a = s.delta;
    if (a.most_items == 0) return cudaSuccess;
    if (a.key_heads < 1 || a.value_heads % a.key_heads != 0 ||
        missing_in_state_space(a.key_dim, a.value_dim, a.value_heads, s.norm_parts) != nullptr) {
        return cudaErrorInvalidValue;
    }
    const bool published =
        a.key_dim == space::Published::kKeys && a.value_dim == space::Published::kValues;
    return with_type(a.element, [&](auto t) {
        return with_state(a.state, [&](auto state) {
            using T = decltype(t);
            using S = decltype(state);
            return published ? space::launch_steps<T, S, space::Published>(s, stream)
                             : space::launch_steps<T, S, space::General>(s, stream);
        });
    });
}

cudaError_t launch_state_space_norm(const StateSpaceArguments &s, const SharedNorm &shared,
                                    int64_t tokens, cudaStream_t stream) {
    if (tokens == 0) return cudaSuccess;
    const dim3 grid(static_cast<unsigned>(s.norm_parts),
                    static_cast<unsigned>(std::min<int64_t>(tokens, 65535)));
    return with_type(s.delta.element, [&](auto t) {
        using T = decltype(t);
        const auto norm =
            s.gate_last ? space::state_space_norm<T, true> : space::state_space_norm<T, false>;
        norm<<<grid, space::kNormThreads, 0, stream>>>(s, shared, tokens);
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
