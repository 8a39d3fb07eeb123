// The gated delta rule token by token. Bound by memory: a token of one request moves S once in and once out, 128
// KB a head of 128 by 128 in f32.
//
// A block has one head of one item, and S in its registers: eight warps have 16 rows (keys) each, a lane four
// columns (values). So a warp's accesses are 512 bytes of one row. The rows' sums go through shared memory:
//     known  = S^T k                  over the rows
//     change = rate * (v - decay * known)
//     S      = decay * S + k change^T
//     result = S^T q                  over the rows
#include "attention/mma.cuh"
#include "recurrent/delta.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRows = kMostDeltaDim / kWarps; // of S, a warp's

struct StepShared {
    float mixed[3][kMostDeltaDim]; // q, k and v convolved
    float squares[kWarps];         // q's in the first half, then k's
    float4 known[kWarps][32];
    float4 result[kWarps][32];
};

struct StepPlace {
    DeltaItem item;
    int head, key_head;
    bool keeps; // the block writes its key head's part of the ring
};

// The rows that the item's next token will see, of an item of one token. Rows of one slot that other blocks
// still read are not among those written.
template <typename T>
__device__ __forceinline__ void keep_in_ring(const DeltaArguments &a, const DeltaItem &item,
                                             int channel, const T (&inputs)[kRing]) {
    T *ring = ring_of<T>(a, item.state);
    const int back = item.from == item.state ? 1 : kRing;
#pragma unroll
    for (int i = 0; i < kRing; ++i) {
        const int position = item.position - i;
        if (i >= back || position < 0) break;
        ring[position % kRing * a.channels() + channel] = inputs[kRing - 1 - i];
    }
}

// A thread's channels of a token: of q or k, and in the first half of the block of v.
constexpr int kMixed = 2;

// The i-th of them: its place in StepShared::mixed, or -1.
__device__ __forceinline__ int mixed_place(int i) {
    const int place = static_cast<int>(threadIdx.x) + i * kThreads;
    return place < 3 * kMostDeltaDim ? place : -1;
}

// The channel of a place; -1: there is none, as the head has fewer.
__device__ __forceinline__ int channel_of(const DeltaArguments &a, const StepPlace &where,
                                          int place) {
    const int part = place / kMostDeltaDim, e = place % kMostDeltaDim; // a part is whole warps
    if (place < 0 || e >= (part < 2 ? a.key_dim : a.value_dim)) return -1;
    return part < 2 ? part * a.keys_size() + where.key_head * a.key_dim + e
                    : 2 * a.keys_size() + where.head * a.value_dim + e;
}

// What the convolution sees of token t.
template <typename T> struct MixInputs { T of[kMixed][kRing]; };
template <typename T> __device__ __forceinline__ MixInputs<T>
load_inputs(const DeltaArguments &a, const StepPlace &where, int t) {
    MixInputs<T> inputs;
#pragma unroll
    for (int i = 0; i < kMixed; ++i) {
        const int channel = channel_of(a, where, mixed_place(i));
#pragma unroll
        for (int w = 0; w < kRing; ++w) {
            inputs.of[i][w] =
                channel < 0 ? from_float<T>(0.0f)
                            : convolution_input<T>(a, where.item, t - (kRing - 1) + w, channel);
        }
    }
    return inputs;
}

// Its q, k and v.
template <typename T>
__device__ __forceinline__ void mix(const DeltaArguments &a, const StepPlace &where,
                                    const MixInputs<T> &inputs, StepShared *shared) {
#pragma unroll
    for (int i = 0; i < kMixed; ++i) {
        const int place = mixed_place(i);
        if (place < 0) continue;
        const int channel = channel_of(a, where, place), part = place / kMostDeltaDim;
        float x = 0;
        if (channel >= 0) {
            x = convolved(a, channel, inputs.of[i]);
            if (where.item.token_count == 1 && (part == 2 || where.keeps)) {
                keep_in_ring(a, where.item, channel, inputs.of[i]);
            }
        }
        (&shared->mixed[0][0])[place] = x;
        if (part == 2) continue;
        const float squares = warp_sum(x * x);
        if (threadIdx.x % 32 == 0) shared->squares[threadIdx.x / 32] = squares;
    }
}

// 1 / length of q (half 0) or k (half 1)
__device__ __forceinline__ float shortening(const StepShared &shared, int half) {
    float sum = 1e-6f;
#pragma unroll
    for (int w = 0; w < kWarps / 2; ++w) sum += shared.squares[half * (kWarps / 2) + w];
    return rsqrtf(sum);
}

__device__ __forceinline__ void add_scaled(float4 *to, const float4 &x, float scale) {
    to->x += x.x * scale, to->y += x.y * scale, to->z += x.z * scale, to->w += x.w * scale;
}

// A lane's columns, over all warps.
__device__ __forceinline__ float4 over_warps(const float4 (&parts)[kWarps][32], int lane) {
    float4 sum = parts[0][lane];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) add_scaled(&sum, parts[w][lane], 1.0f);
    return sum;
}

// The result's norm times silu of its gate, by one warp.
template <typename T> __device__ __forceinline__ void
finish(const DeltaArguments &a, const StepPlace &place, int64_t token, float4 gate, float4 result) {
    const int lane = threadIdx.x % 32, column = 4 * lane;
    const float squares = warp_sum(result.x * result.x + result.y * result.y + result.z * result.z +
                                   result.w * result.w);
    if (column >= a.value_dim) return;
    const float scale = rsqrtf(squares / static_cast<float>(a.value_dim) + a.epsilon);
    const int at = place.head * a.value_dim + column;
    T *out = static_cast<T *>(a.out) + token * a.values_size() + at;
    const float4 w = reinterpret_cast<const float4 *>(a.norm)[lane];
    out[0] = from_float<T>(result.x * scale * w.x * silu(gate.x));
    out[1] = from_float<T>(result.y * scale * w.y * silu(gate.y));
    out[2] = from_float<T>(result.z * scale * w.z * silu(gate.z));
    out[3] = from_float<T>(result.w * scale * w.w * silu(gate.w));
}

// Token t of the item, whose S the block has. All of the block call this. meanwhile: called once what the token
// needs is on its way.
template <typename T, typename Meanwhile>
__device__ __forceinline__ void step_token(const DeltaArguments &a, const StepPlace &place, int t,
                                           StepShared *shared, float4 (&state)[kRows],
                                           const Meanwhile &meanwhile) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t token = int64_t{place.item.token_begin} + t;
    const DeltaGates gates = gates_of<T>(a, token, place.head);
    const float decay = expf(gates.log_decay);
    float4 gate = {}; // of the result
    if (warp == 0 && 4 * lane < a.value_dim) {
        gate =
            load4(projected_of<T>(a, token) + a.channels() + place.head * a.value_dim + 4 * lane);
    }
    const MixInputs<T> inputs = load_inputs<T>(a, place, t);
    meanwhile();
    mix(a, place, inputs, shared);
    __syncthreads();
    const auto *keys = reinterpret_cast<const float4 *>(shared->mixed[1] + warp * kRows);
    const auto *queries = reinterpret_cast<const float4 *>(shared->mixed[0] + warp * kRows);
    const float of_key = shortening(*shared, 1);
    float4 known = {};
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
        const float4 key = keys[r / 4];
        add_scaled(&known, state[r], key.x);
        add_scaled(&known, state[r + 1], key.y);
        add_scaled(&known, state[r + 2], key.z);
        add_scaled(&known, state[r + 3], key.w);
    }
    shared->known[warp][lane] = known;
    __syncthreads();
    known = over_warps(shared->known, lane);
    const float4 value = reinterpret_cast<const float4 *>(shared->mixed[2])[lane];
    const float forget = decay * of_key, learn = gates.rate * of_key;
    const float4 change =
        make_float4(learn * (value.x - forget * known.x), learn * (value.y - forget * known.y),
                    learn * (value.z - forget * known.z), learn * (value.w - forget * known.w));
    const float of_query = shortening(*shared, 0) * rsqrtf(static_cast<float>(a.key_dim));
    float4 result = {};
    const auto advance = [&](float4 *row, float key, float query) {
        row->x *= decay, row->y *= decay, row->z *= decay, row->w *= decay;
        add_scaled(row, change, key);
        add_scaled(&result, *row, query);
    };
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
        const float4 key = keys[r / 4], query = queries[r / 4];
        advance(&state[r], key.x, query.x);
        advance(&state[r + 1], key.y, query.y);
        advance(&state[r + 2], key.z, query.z);
        advance(&state[r + 3], key.w, query.w);
    }
    result.x *= of_query, result.y *= of_query, result.z *= of_query, result.w *= of_query;
    shared->result[warp][lane] = result;
    __syncthreads();
    // The next token's mix() and sums write nothing that is read here.
    if (warp == 0) finish<T>(a, place, token, gate, over_warps(shared->result, lane));
}

// A thread's part of a block's S: four columns of each of its warp's rows.
template <typename S> struct StepRows {
    S *slot; // null: zeros
    int first;
    bool inside; // the thread has columns

    __device__ bool has(const DeltaArguments &a, int r) const {
        return slot != nullptr && inside && first + r < a.key_dim;
    }
    __device__ typename StateFour<S>::Raw *at(const DeltaArguments &a, int r) const {
        return reinterpret_cast<typename StateFour<S>::Raw *>(slot + (first + r) * a.value_dim);
    }
};

template <typename S>
__device__ __forceinline__ StepRows<S> rows_of(const DeltaArguments &a, int slot, int head) {
    const int column = threadIdx.x % 32 * 4;
    return {slot < 0 ? nullptr : state_of<S>(a, slot, head) + column,
            static_cast<int>(threadIdx.x / 32) * kRows, column < a.value_dim};
}

__device__ __forceinline__ StepPlace step_place(const DeltaArguments &a, int begin, int i) {
    StepPlace place;
    const int ratio = a.value_heads / a.key_heads;
    place.item = a.items[begin + i / a.value_heads];
    place.head = i % a.value_heads;
    place.key_head = place.head / ratio;
    place.keeps = place.head % ratio == 0;
    return place;
}

// A block has one item and head after another. While it computes one, the next one's S is copied to shared memory,
// where each thread finds what it has copied itself. The copy begins once the loads that the current token waits
// for are on their way.
template <typename T, typename S> __global__ void __launch_bounds__(kThreads, 2)
    delta_steps(const __grid_constant__ DeltaArguments a) {
    using Raw = typename StateFour<S>::Raw;
    __shared__ __align__(16) StepShared shared;
    extern __shared__ __align__(16) unsigned char memory[];
    Raw *const ahead = reinterpret_cast<Raw *>(memory) + threadIdx.x; // [kRows][kThreads]
    const DeltaLevel level = *a.level;
    const int count = (level.chunked - level.begin) * a.value_heads;
    const auto copy = [&](int i) {
        if (i >= count) return;
        const StepPlace place = step_place(a, level.begin, i);
        const StepRows<S> rows = rows_of<S>(a, place.item.from, place.head);
        // Few addresses at a time: S fills half of the registers.
#pragma unroll 4
        for (int r = 0; r < kRows; ++r) {
            const bool valid = rows.has(a, r);
            const void *from = valid ? static_cast<const void *>(rows.at(a, r)) : a.norm;
            copy_state(shared_address(ahead + r * kThreads), from, valid, Raw());
        }
        copy_async_commit();
    };
    int i = static_cast<int>(blockIdx.x);
    copy(i);
    for (; i < count; i += static_cast<int>(gridDim.x)) {
        float4 state[kRows];
        copy_async_wait<0>();
#pragma unroll
        for (int r = 0; r < kRows; ++r) state[r] = StateFour<S>::wide(ahead[r * kThreads]);
        const StepPlace place = step_place(a, level.begin, i);
        for (int t = 0; t < place.item.token_count; ++t) {
            step_token<T>(a, place, t, &shared, state, [&] {
                if (t == 0) copy(i + static_cast<int>(gridDim.x));
            });
        }
        const StepRows<S> to = rows_of<S>(a, place.item.state, place.head);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            if (to.has(a, r)) *to.at(a, r) = StateFour<S>::narrow(state[r]);
        }
    }
}

template <typename T> __global__ void delta_rings(const __grid_constant__ DeltaArguments a) {
    const DeltaLevel level = *a.level;
    const int channel = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
    if (channel >= a.channels()) return;
    for (int i = level.several + static_cast<int>(blockIdx.x); i < level.end; i += gridDim.x) {
        const DeltaItem item = a.items[i];
        T *ring = ring_of<T>(a, item.state);
        for (int back = 0; back < kRing; ++back) {
            const int t = item.token_count - 1 - back, position = item.position + t;
            if (position < 0 || (t < 0 && item.from == item.state)) break;
            ring[position % kRing * a.channels() + channel] =
                convolution_input<T>(a, item, t, channel);
        }
    }
}

bool fits(const DeltaArguments &a) {
    return a.key_heads > 0 && a.value_heads % a.key_heads == 0 && a.key_dim <= kMostDeltaDim &&
           a.value_dim <= kMostDeltaDim && a.value_dim % 4 == 0;
}

} // namespace

cudaError_t launch_delta_steps(const DeltaArguments &a, cudaStream_t stream) {
    if (a.most_items == 0) return cudaSuccess;
    if (!fits(a)) return cudaErrorInvalidValue;
    const int64_t most = int64_t{a.most_items} * a.value_heads;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(most, int64_t{a.sms} * 2));
    return with_type(a.element, [&](auto t) {
        return with_state(a.state, [&](auto s) {
            const auto kernel = delta_steps<decltype(t), decltype(s)>;
            constexpr int bytes = kRows * kThreads * 4 * static_cast<int>(sizeof(s));
            const cudaError_t set =
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
            if (set != cudaSuccess) return set;
            kernel<<<blocks, kThreads, bytes, stream>>>(a);
            return cudaGetLastError();
        });
    });
}

cudaError_t launch_delta_rings(const DeltaArguments &a, cudaStream_t stream) {
    if (a.most_items == 0) return cudaSuccess;
    const dim3 grid(static_cast<unsigned>(std::min(a.most_items, 64)),
                    static_cast<unsigned>((a.channels() + kThreads - 1) / kThreads));
    return with_type(a.element, [&](auto t) {
        delta_rings<decltype(t)><<<grid, kThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
