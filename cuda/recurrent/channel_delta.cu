// Kimi's delta rule token by token. Bound by memory where items have one token: S is read once and written once, 128 KB a head
// of 128 by 128 in f32.
//
// A block has an item and a head, with S in registers from its first token to its last: a thread 16 rows (keys) by four columns
// (values), a warp 32 by 64. With S decayed, row by row,
//     known  = S^T k    found = S^T q      whose sums over rows go through shared memory once
//     change = rate * (v - known)
//     result = found + (q . k) change      which is the new S^T q; then normed and gated
//     S      = S + k change^T
// where q and k are of length 1, q divided by the root of their size too: both are left as they are convolved, and results
// scaled. Before a token's sums are shared, the threads make the next one: half of them q and k, the others v, decays and gates.
// So a token takes one barrier, and its inputs a place of three: behind the barrier slower warps may still read this token's,
// while others make the one after the next.
#include "recurrent/channel_delta.h"

#include <algorithm>

#include "recurrent/delta.cuh"

namespace batchllm::cuda {
namespace channels {
namespace {

constexpr int kDim = kMostDeltaDim; // of keys and of values
constexpr int kThreads = 2 * kDim, kWarps = kThreads / 32;
constexpr int kBlocks = 2;               // on an SM, as registers allow
constexpr int kRows = 16;                // of S, a thread's
constexpr int kFours = kDim / 4;         // of columns
constexpr int kParts = kDim / kRows / 2; // of rows, a warp's each
constexpr int kHalfWarps = kWarps / 2;   // that make q and k
constexpr int kPlaces = 3;               // of tokens
constexpr int kEach = 2;                 // channels that a thread convolves, at most
static_assert(kFours == 32 && kParts * 2 == kWarps);

// A token's inputs. Zeros beyond a head's dims.
struct alignas(16) ChannelToken {
    float query[kDim], key[kDim], value[kDim]; // convolved
    float decay[kDim];                         // of S's rows
    float gain[kDim];                          // of the normed results
    // Of the 32 channels of a warp: q . q, k . k, q . k
    float queries[kHalfWarps], keys[kHalfWarps], overlaps[kHalfWarps];
    float rate;
};

struct ChannelShared {
    float4 weights[kEach][kThreads]; // of the convolution, a thread's
    float bias[kDim], norm[kDim];    // what a is added to; the norm's weights
    ChannelToken tokens[kPlaces];
    float4 known[2][kParts][kFours], found[2][kParts][kFours]; // by every second token
};

// A thread's part of S: kRows rows from `row` on, four columns from `column` on.
struct ChannelPart {
    int part, row, column;
    int rows; // of its rows, those within the head; 0: its columns are not

    __device__ explicit ChannelPart(const DeltaArguments &a) {
        const int warp = static_cast<int>(threadIdx.x) / 32;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        part = warp / 2;
        row = part * 2 * kRows + lane / 16 * kRows;
        column = warp % 2 * (kDim / 2) + lane % 16 * 4;
        rows = column < a.value_dim ? a.key_dim - row : 0;
    }
};

template <typename S> using Raw = typename StateFour<S>::Raw; // four columns as they are stored

// Where the thread's part of a head's S begins, and how far apart its rows are. Neither they nor what is computed from them is
// kept in registers from when S is loaded until it is stored.
struct PartPlace {
    int begin, stride;

    __device__ __forceinline__ PartPlace(const DeltaArguments &a, const ChannelPart &part)
        : begin(part.row * a.value_dim + part.column), stride(a.value_dim) {
        asm volatile("" : "+r"(begin), "+r"(stride));
    }
};

template <typename S> __device__ __forceinline__ void
load_state(const DeltaArguments &a, const ChannelPart &part, const S *from, Raw<S> (&raw)[kRows]) {
    const PartPlace place(a, part);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        raw[r] = Raw<S>{};
        if (from == nullptr || r >= part.rows) continue;
        raw[r] = __ldcg(reinterpret_cast<const Raw<S> *>(from + place.begin + r * place.stride));
    }
}

template <typename S> __device__ __forceinline__ void
store_state(const DeltaArguments &a, const ChannelPart &part, const float4 (&state)[kRows], S *to) {
    const PartPlace place(a, part);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        if (r >= part.rows) continue;
        *reinterpret_cast<Raw<S> *>(to + place.begin + r * place.stride) =
            StateFour<S>::narrow(state[r]);
    }
}

__device__ __forceinline__ float sigmoid(float x) {
    return reciprocal_approximate(1.0f + expf(-x));
}

// What a thread loads of a token while others are computed.
template <typename T> struct ChannelInput {
    T newest[kEach];
    T a, z, rate;
};

// What a thread makes of each token of a head: q and k in one channel, or v, the decay of a row of S and the gain of a column.
template <typename T> struct ChannelMaker {
    int head;
    int channel[kEach];       // -1: none
    float seen[kEach][kRing]; // the newest token's last

    __device__ ChannelMaker(const DeltaArguments &a, int its_head, ChannelShared *shared)
        : head(its_head) {
        const int key = head / (a.value_heads / a.key_heads) * a.key_dim + e();
        channel[0] = channel[1] = -1;
        if (of_keys() && e() < a.key_dim) channel[0] = key, channel[1] = a.keys_size() + key;
        if (has_gain(a)) channel[0] = 2 * a.keys_size() + head * a.value_dim + e();
#pragma unroll
        for (int c = 0; c < kEach; ++c) {
            float4 weights = {};
            if (channel[c] >= 0) {
                weights = reinterpret_cast<const float4 *>(a.convolution)[channel[c]];
            }
            shared->weights[c][threadIdx.x] = weights;
        }
        if (has_decay(a)) shared->bias[e()] = a.step[head * a.key_dim + e()];
        if (has_gain(a)) shared->norm[e()] = a.norm[e()];
    }
    static __device__ __forceinline__ bool of_keys() { return threadIdx.x < kDim; }
    // Of the head's dims.
    static __device__ __forceinline__ int e() { return static_cast<int>(threadIdx.x) % kDim; }
    static __device__ __forceinline__ bool has_decay(const DeltaArguments &a) {
        return !of_keys() && e() < a.key_dim;
    }
    static __device__ __forceinline__ bool has_gain(const DeltaArguments &a) {
        return !of_keys() && e() < a.value_dim;
    }

    // What its channels have seen before the item's first token.
    __device__ __forceinline__ void begin(const DeltaArguments &a, const StateItem &item) {
#pragma unroll
        for (int c = 0; c < kEach; ++c) {
#pragma unroll
            for (int w = 1; w < kRing; ++w) {
                T x = from_float<T>(0.0f);
                if (channel[c] >= 0) x = convolution_input<T>(a, item, w - kRing, channel[c]);
                seen[c][w] = to_float(x);
            }
        }
    }
    __device__ __forceinline__ ChannelInput<T> load(const ChannelDeltaArguments &c,
                                                    int64_t token) const {
        const DeltaArguments &a = c.delta;
        const T *row = projected_of<T>(a, token);
        const T none = from_float<T>(0.0f);
        ChannelInput<T> input{{none, none}, none, none, none};
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            if (channel[i] >= 0) input.newest[i] = row[channel[i]];
        }
        const int64_t of_head = token * a.value_heads + head;
        if (has_decay(a)) input.a = static_cast<const T *>(c.a)[of_head * a.key_dim + e()];
        if (has_gain(a)) input.z = static_cast<const T *>(c.z)[of_head * a.value_dim + e()];
        if (threadIdx.x == kDim) input.rate = row[c.rate_begin + head];
        return input;
    }
    __device__ __forceinline__ void make(const DeltaArguments &a, const ChannelInput<T> &input,
                                         int place, ChannelShared *shared) {
        ChannelToken *to = &shared->tokens[place];
        float mixed[kEach];
#pragma unroll
        for (int c = 0; c < kEach; ++c) {
#pragma unroll
            for (int w = 0; w + 1 < kRing; ++w) seen[c][w] = seen[c][w + 1];
            seen[c][kRing - 1] = to_float(input.newest[c]);
            mixed[c] = convolved(shared->weights[c][threadIdx.x], seen[c]); // without a channel 0
        }
        if (of_keys()) {
            to->query[e()] = mixed[0], to->key[e()] = mixed[1];
            const float queries = warp_sum(mixed[0] * mixed[0]);
            const float keys = warp_sum(mixed[1] * mixed[1]);
            const float overlap = warp_sum(mixed[0] * mixed[1]);
            if (e() % 32 != 0) return;
            const int warp = e() / 32;
            to->queries[warp] = queries, to->keys[warp] = keys, to->overlaps[warp] = overlap;
            return;
        }
        to->value[e()] = mixed[0];
        float decay = 0, gain = 0;
        if (has_decay(a)) {
            decay = expf(-expf(a.decay[head]) * softplus(to_float(input.a) + shared->bias[e()]));
        }
        if (has_gain(a)) gain = shared->norm[e()] * sigmoid(to_float(input.z));
        to->decay[e()] = decay;
        to->gain[e()] = gain;
        if (threadIdx.x == kDim) to->rate = sigmoid(to_float(input.rate));
    }
    // Writes the ring of an item of one token, after make(). Where the item stays in its slot, only that token's row: other
    // blocks may still read the others.
    __device__ __forceinline__ void keep(const DeltaArguments &a, const StateItem &item) const {
        T *ring = ring_of<T>(a, item.state);
        const int back = item.from == item.state ? 1 : kRing;
        const bool keeps_keys = head % (a.value_heads / a.key_heads) == 0;
#pragma unroll
        for (int c = 0; c < kEach; ++c) {
            if (channel[c] < 0 || (of_keys() && !keeps_keys)) continue;
#pragma unroll
            for (int i = 0; i < kRing; ++i) {
                if (i >= back || item.position < i) break;
                ring[int64_t{(item.position - i) % kRing} * a.channels() + channel[c]] =
                    from_float<T>(seen[c][kRing - 1 - i]);
            }
        }
    }
};

// Decays S. The warp's parts of S^T k and S^T q, to shared memory.
__device__ __forceinline__ void decay_and_multiply(const ChannelToken &token,
                                                   const ChannelPart &part, float4 (&state)[kRows],
                                                   int side, ChannelShared *shared) {
    float4 known = {}, found = {};
    const auto *decays = reinterpret_cast<const float4 *>(token.decay + part.row);
    const auto *keys = reinterpret_cast<const float4 *>(token.key + part.row);
    const auto *queries = reinterpret_cast<const float4 *>(token.query + part.row);
    const auto row = [&](float4 *s, float decay, float key, float query) {
        s->x *= decay, s->y *= decay, s->z *= decay, s->w *= decay;
        add_scaled(&known, *s, key), add_scaled(&found, *s, query);
    };
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
        const float4 decay = decays[r / 4], key = keys[r / 4], query = queries[r / 4];
        row(&state[r], decay.x, key.x, query.x), row(&state[r + 1], decay.y, key.y, query.y);
        row(&state[r + 2], decay.z, key.z, query.z), row(&state[r + 3], decay.w, key.w, query.w);
    }
    const auto add_other_rows = [](float4 *x) {
        x->x += __shfl_xor_sync(~0u, x->x, 16), x->y += __shfl_xor_sync(~0u, x->y, 16);
        x->z += __shfl_xor_sync(~0u, x->z, 16), x->w += __shfl_xor_sync(~0u, x->w, 16);
    };
    add_other_rows(&known), add_other_rows(&found);
    if (threadIdx.x % 32 >= 16) return;
    shared->known[side][part.part][part.column / 4] = known;
    shared->found[side][part.part][part.column / 4] = found;
}

__device__ __forceinline__ float4 over_parts(const float4 (&parts)[kParts][kFours], int four) {
    float4 sum = parts[0][four];
#pragma unroll
    for (int p = 1; p < kParts; ++p) add_scaled(&sum, parts[p][four], 1.0f);
    return sum;
}

__device__ __forceinline__ float over_warps(const float (&parts)[kHalfWarps]) {
    float sum = parts[0];
#pragma unroll
    for (int p = 1; p < kHalfWarps; ++p) sum += parts[p];
    return sum;
}

// What four columns of S change by, times k. of_key: what k is multiplied by to be of length 1.
__device__ __forceinline__ float4 change_of(const ChannelToken &token, float of_key, int four,
                                            const float4 (&parts)[kParts][kFours]) {
    const float4 value = reinterpret_cast<const float4 *>(token.value)[four];
    const float4 known = over_parts(parts, four);
    const auto change = [&](float v, float k) { return token.rate * (v - of_key * k); };
    return make_float4(change(value.x, known.x), change(value.y, known.y), change(value.z, known.z),
                       change(value.w, known.w));
}

__device__ __forceinline__ void update(const ChannelToken &token, const ChannelPart &part,
                                       float4 change, float of_key, float4 (&state)[kRows]) {
    change.x *= of_key, change.y *= of_key, change.z *= of_key, change.w *= of_key;
    const auto *keys = reinterpret_cast<const float4 *>(token.key + part.row);
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
        const float4 key = keys[r / 4];
        add_scaled(&state[r], change, key.x), add_scaled(&state[r + 1], change, key.y);
        add_scaled(&state[r + 2], change, key.z), add_scaled(&state[r + 3], change, key.w);
    }
}

// The result, normed and gated, by one warp: four columns a lane. to: of the token and head.
template <typename T>
__device__ __forceinline__ void finish(const DeltaArguments &a, const ChannelShared &shared,
                                       const ChannelToken &token, float of_key, int side, T *to) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float4 change = change_of(token, of_key, lane, shared.known[side]);
    float4 x = over_parts(shared.found[side], lane);
    add_scaled(&x, change, of_key * over_warps(token.overlaps));
    const float of_query =
        rsqrtf(over_warps(token.queries) + 1e-6f) * rsqrtf(static_cast<float>(a.key_dim));
    x.x *= of_query, x.y *= of_query, x.z *= of_query, x.w *= of_query;
    const float squares = warp_sum(x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w);
    const float scale = rsqrtf(squares / static_cast<float>(a.value_dim) + a.epsilon);
    const float4 gain = reinterpret_cast<const float4 *>(token.gain)[lane];
    if (4 * lane >= a.value_dim) return;
    store4(to + 4 * lane, narrow<T>(make_float4(x.x * scale * gain.x, x.y * scale * gain.y,
                                                x.z * scale * gain.z, x.w * scale * gain.w)));
}

template <typename T, typename S>
__device__ __forceinline__ void run_item(const ChannelDeltaArguments &c, const ChannelPart &part,
                                         const StateItem &item, ChannelMaker<T> *maker,
                                         ChannelShared *shared) {
    const DeltaArguments &a = c.delta;
    const int head = maker->head, warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t first = item.token_begin;
    // All is asked for before anything waits.
    ChannelInput<T> input = maker->load(c, first);
    Raw<S> raw[kRows];
    load_state(a, part, item.from < 0 ? nullptr : state_of<S>(a, item.from, head), raw);
    maker->begin(a, item);
    maker->make(a, input, 0, shared);
    if (item.token_count == 1) {
        maker->keep(a, item);
    } else {
        input = maker->load(c, first + 1);
    }
    __syncthreads();
    float4 state[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) state[r] = StateFour<S>::wide(raw[r]);
    int place = 0; // of the token
    for (int t = 0; t < item.token_count; ++t) {
        const ChannelToken &token = shared->tokens[place];
        const int side = t % 2, next = place + 1 < kPlaces ? place + 1 : 0;
        decay_and_multiply(token, part, state, side, shared);
        if (t + 1 < item.token_count) maker->make(a, input, next, shared);
        if (t + 2 < item.token_count) input = maker->load(c, first + t + 2);
        __syncthreads();
        const float of_key = rsqrtf(over_warps(token.keys) + 1e-6f);
        const float4 change = change_of(token, of_key, part.column / 4, shared->known[side]);
        update(token, part, change, of_key, state);
        if (warp == t % kWarps) {
            finish<T>(a, *shared, token, of_key, side,
                      static_cast<T *>(a.out) + (first + t) * a.values_size() + head * a.value_dim);
        }
        place = next;
    }
    store_state(a, part, state, state_of<S>(a, item.state, head));
    __syncthreads(); // before another item's first token is there
}

template <typename T, typename S> __global__ void __launch_bounds__(kThreads, kBlocks)
    channel_delta(const __grid_constant__ ChannelDeltaArguments c) {
    __shared__ ChannelShared shared;
    const DeltaArguments &a = c.delta;
    const StateLevel level = *a.level;
    int i = level.begin + static_cast<int>(blockIdx.y);
    if (i >= level.chunked) return;
    const ChannelPart part(a);
    ChannelMaker<T> maker(a, static_cast<int>(blockIdx.x), &shared);
    for (; i < level.chunked; i += static_cast<int>(gridDim.y)) {
        run_item<T, S>(c, part, a.items[i], &maker, &shared);
    }
}

// Blocks of each head: one for each item of the captured step, and enough for the device, since a graph's next replay may
// have many more, of which blocks then have several.
int blocks_of_head(const ChannelDeltaArguments &c) {
    const DeltaArguments &a = c.delta;
    constexpr int kRounds = 4;
    const int at_once = std::max(a.sms, 1) * kBlocks;
    const int enough = (kRounds * at_once + a.value_heads - 1) / a.value_heads;
    return std::min({a.most_items, std::max(c.items, enough), 65535});
}

template <typename T> __global__ void __launch_bounds__(kThreads)
    gate_inputs(const __grid_constant__ GateInputArguments g) {
    const int64_t all = g.tokens * g.rank, step = int64_t{gridDim.x} * kThreads;
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < all; i += step) {
        const T *row = static_cast<const T *>(g.projected) + i / g.rank * g.stride + i % g.rank;
        static_cast<T *>(g.of_z)[i] = row[g.z_begin];
        static_cast<T *>(g.of_a)[i] = row[g.a_begin];
    }
}

} // namespace
} // namespace channels

cudaError_t launch_gate_inputs(const GateInputArguments &g, cudaStream_t stream) {
    if (g.tokens == 0) return cudaSuccess;
    const int64_t blocks = (g.tokens * g.rank + channels::kThreads - 1) / channels::kThreads;
    return with_type(g.element, [&](auto t) {
        channels::gate_inputs<decltype(t)>
            <<<static_cast<unsigned>(std::min<int64_t>(blocks, 1 << 20)), channels::kThreads, 0,
               stream>>>(g);
        return cudaGetLastError();
    });
}

cudaError_t launch_channel_delta(const ChannelDeltaArguments &c, cudaStream_t stream) {
    const DeltaArguments &a = c.delta;
    if (a.most_items == 0) return cudaSuccess;
    if (a.key_heads < 1 || a.value_heads % a.key_heads != 0 || a.key_dim > kMostDeltaDim ||
        a.value_dim > kMostDeltaDim || a.value_dim % 4 != 0) {
        return cudaErrorInvalidValue;
    }
    const dim3 grid(static_cast<unsigned>(a.value_heads),
                    static_cast<unsigned>(channels::blocks_of_head(c)));
    return with_type(a.element, [&](auto t) {
        return with_state(a.state, [&](auto s) {
            channels::channel_delta<decltype(t), decltype(s)>
                <<<grid, channels::kThreads, 0, stream>>>(c);
            return cudaGetLastError();
        });
    });
}

} // namespace batchllm::cuda
