// The gated delta rule token by token, behind steps_inputs.cu. Bound by memory: a token of one request moves S once in
// and once out, 128 KB a head of 128 by 128 in f32.
//
// A block has an item and a head, with S in registers from its first token to its last. A warp has 32 rows (keys) of S,
// which are contiguous in memory, a lane four columns (values) of them. The sums over the rows go through shared memory
// once, which takes a token's only barrier:
//     known  = S^T k    found = S^T q
//     change = rate * (v - decay * known)
//     result = decay * found + (q . k) change    which is the new S^T q
//     S      = decay * S + k change^T
// Blocks are small, so that an SM has several: while one computes, others load and store. S is asked for before the launch
// before has ended.
#include "recurrent/steps.cuh"

#include <algorithm>

namespace batchllm::cuda {
namespace steps {
namespace {

constexpr int kThreads = kMostDeltaDim, kWarps = kThreads / 32; // of a block
constexpr int kRows = kMostDeltaDim / kWarps;                   // of S, a warp's
constexpr int kColumns = kMostDeltaDim / 4;                     // of lanes

__device__ __forceinline__ void add_scaled(float4 *to, const float4 &x, float scale) {
    to->x = fmaf(x.x, scale, to->x), to->y = fmaf(x.y, scale, to->y);
    to->z = fmaf(x.z, scale, to->z), to->w = fmaf(x.w, scale, to->w);
}
__device__ __forceinline__ float4 scaled(const float4 &x, float scale) {
    return make_float4(__fmul_rn(x.x, scale), __fmul_rn(x.y, scale), __fmul_rn(x.z, scale),
                       __fmul_rn(x.w, scale));
}
__device__ __forceinline__ float element(const float4 &x, int e) {
    return e == 0 ? x.x : e == 1 ? x.y : e == 2 ? x.z : x.w;
}

template <typename S> using Raw = typename StateFour<S>::Raw; // four columns

// Four columns as they are kept, widened for the first and for the second pass over S: by other instructions, since the
// compiler would keep 128 registers of what the first one widened.
__device__ __forceinline__ float4 widened(const float4 &x) { return x; }
__device__ __forceinline__ float4 widened_again(const float4 &x) { return x; }
__device__ __forceinline__ float4 widened(const uint2 &x) {
    const auto low = [](uint32_t pair) { return __uint_as_float(pair << 16); };
    const auto high = [](uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); };
    return make_float4(low(x.x), high(x.x), low(x.y), high(x.y));
}
__device__ __forceinline__ float4 widened_again(const uint2 &x) {
    const auto low = [](uint32_t pair) { return __uint_as_float(__byte_perm(pair, 0, 0x1044)); };
    const auto high = [](uint32_t pair) { return __uint_as_float(__byte_perm(pair, 0, 0x3244)); };
    return make_float4(low(x.x), high(x.x), low(x.y), high(x.y));
}

// By every second token.
struct StepShared {
    float query[2][kMostDeltaDim],
        key[2][kMostDeltaDim];           // each warp writes and reads those of its rows
    float4 sums[2][2][kWarps][kColumns]; // the warps' parts of known and found
    float overlaps[2][kWarps];           // and of q . k
};

// The grid: value heads of a key head, key heads, items.
template <bool kWhole> struct StepHead {
    int key_dim, value_dim, key_head, head;
    __device__ __forceinline__ explicit StepHead(const DeltaArguments &a)
        : key_dim(kWhole ? kMostDeltaDim : a.key_dim),
          value_dim(kWhole ? kMostDeltaDim : a.value_dim), key_head(static_cast<int>(blockIdx.y)),
          head(static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x)) {}
};

// What a thread loads of a token: q and k of the row that has its number, v of its columns, the head's gates.
template <typename T, bool kWhole> struct StepInputs {
    MixedOne<T> query, key;
    Mixed<T, kWhole> value;
    T rate, step;

    __device__ __forceinline__ void load(const DeltaArguments &a, const StepHead<kWhole> &of,
                                         int64_t token) {
        const int thread = static_cast<int>(threadIdx.x), column = thread % 32 * 4;
        const int at = of.key_head * of.key_dim + thread, keys = a.key_heads * of.key_dim;
        const bool there = kWhole || thread < of.key_dim;
        query.load(a, token, at, there);
        key.load(a, token, keys + at, there);
        value.load(a, token, 2 * keys + of.head * of.value_dim + column, of.value_dim - column);
        const T *row = projected_of<T>(a, token) + a.channels() + a.values_size() + of.head;
        rate = row[0], step = row[a.value_heads];
    }
};

// The result, normed, times its gain; by one warp.
template <typename T, bool kWhole>
__device__ __forceinline__ void finish(const DeltaArguments &a, const StepHead<kWhole> &of,
                                       int64_t token, const float4 &result, const Four<T> &gate) {
    const int lane = static_cast<int>(threadIdx.x) % 32, count = of.value_dim - 4 * lane;
    const float squares =
        result.x * result.x + result.y * result.y + result.z * result.z + result.w * result.w;
    const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(of.value_dim) + a.epsilon);
    float4 norm = {};
    if (kWhole || count > 0) norm = reinterpret_cast<const float4 *>(a.norm)[lane];
    Four<T> out;
    out[0] = from_float<T>(result.x * scale * (norm.x * silu(to_float(gate[0]))));
    out[1] = from_float<T>(result.y * scale * (norm.y * silu(to_float(gate[1]))));
    out[2] = from_float<T>(result.z * scale * (norm.z * silu(to_float(gate[2]))));
    out[3] = from_float<T>(result.w * scale * (norm.w * silu(to_float(gate[3]))));
    store_four<kWhole>(static_cast<T *>(a.out) + token * a.values_size() + of.head * of.value_dim +
                           4 * lane,
                       count, out);
}

// Four neighbours, which are read twice rather than kept.
__device__ __forceinline__ float4 load_again(const float *from) {
    float4 four;
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
                 : "r"(shared_address(from)));
    return four;
}
__device__ __forceinline__ float4 over_warps(const float4 (&parts)[kWarps][kColumns], int lane) {
    float4 sum = parts[0][lane];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) add_scaled(&sum, parts[w][lane], 1.0f);
    return sum;
}

// S after the token; returns the result. Kept: S's type in registers.
template <typename Kept>
__device__ __forceinline__ float4 advance(const float4 &value, float decay, float rate,
                                          StepShared *shared, int side, Raw<Kept> (&state)[kRows],
                                          float4 *change) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const float *keys = shared->key[side] + warp * kRows;
    const float *queries = shared->query[side] + warp * kRows;
    float4 known = {}, found = {};
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
        const float4 key = load_again(keys + r), query = load_again(queries + r);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const float4 s = widened(state[r + e]);
            add_scaled(&known, s, element(key, e)), add_scaled(&found, s, element(query, e));
        }
    }
    shared->sums[side][0][warp][lane] = known;
    shared->sums[side][1][warp][lane] = found;
    __syncthreads();
    float overlap = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) overlap += shared->overlaps[side][w];
    *change = value;
    add_scaled(change, over_warps(shared->sums[side][0], lane), -decay);
    *change = scaled(*change, rate);
    float4 result = scaled(over_warps(shared->sums[side][1], lane), decay);
    add_scaled(&result, *change, overlap);
    return result;
}
template <typename Kept> __device__ __forceinline__ void update(const float4 &change, float decay,
                                                                const StepShared &shared, int side,
                                                                Raw<Kept> (&state)[kRows]) {
    const float *keys = shared.key[side] + static_cast<int>(threadIdx.x) / 32 * kRows;
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
        const float4 key = load_again(keys + r);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float4 s = scaled(widened_again(state[r + e]), decay);
            add_scaled(&s, change, element(key, e));
            state[r + e] = StateFour<Kept>::narrow(s);
        }
    }
}

// kOne: the item has one token.
template <typename T, typename S, bool kWhole, bool kOne> __device__ __forceinline__ void
run_item(const DeltaArguments &a, const StateItem item, StepShared *shared, int *side) {
    using Kept = std::conditional_t<kOne, S, float>;
    const StepHead<kWhole> of(a);
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, column = thread % 32 * 4;
    const int row = warp * kRows;
    const auto has = [&](int r) {
        return kWhole || (row + r < of.key_dim && column < of.value_dim);
    };
    const int begin = (of.head * of.key_dim + row) * of.value_dim + column;
    Raw<Kept> state[kRows];
    if (item.from >= 0) {
        const S *from = state_of<S>(a, item.from, 0) + begin;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            Raw<S> raw{};
            if (has(r)) raw = __ldcg(reinterpret_cast<const Raw<S> *>(from + r * of.value_dim));
            if constexpr (kOne) {
                state[r] = raw;
            } else {
                state[r] = StateFour<S>::wide(raw);
            }
        }
    } else {
#pragma unroll
        for (int r = 0; r < kRows; ++r) state[r] = Raw<Kept>{};
    }
    const float bias = a.step[of.head], head_decay = a.decay[of.head];
    wait_for_launch_before();
    StepInputs<T, kWhole> inputs;
    inputs.load(a, of, item.token_begin);
    const int count = kOne ? 1 : item.token_count;
    for (int t = 0; t < count; ++t, *side ^= 1) {
        const int64_t token = int64_t{item.token_begin} + t;
        const bool finishes = t % kWarps == warp;
        Four<T> gate = {};
        if (finishes) {
            gate = load_four<kWhole>(projected_of<T>(a, token) + a.channels() +
                                         of.head * of.value_dim + column,
                                     of.value_dim - column);
        }
        const float query = inputs.query.get(), key = inputs.key.get();
        shared->query[*side][thread] = query, shared->key[*side][thread] = key;
        const float overlap = warp_sum(query * key);
        if (thread % 32 == 0) shared->overlaps[*side][warp] = overlap;
        const float4 value = inputs.value.get();
        const DeltaGates gates =
            gates_of(to_float(inputs.rate), to_float(inputs.step), bias, head_decay);
        const float decay = expf(gates.log_decay);
        __syncwarp();
        if (t + 1 < count) inputs.load(a, of, token + 1);
        float4 change;
        const float4 result =
            advance<Kept>(value, decay, gates.rate, shared, *side, state, &change);
        if (finishes) finish<T>(a, of, token, result, gate);
        update<Kept>(change, decay, *shared, *side, state);
    }
    S *to = state_of<S>(a, item.state, 0) + begin;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        Raw<S> raw;
        if constexpr (kOne) {
            raw = state[r];
        } else {
            raw = StateFour<S>::narrow(state[r]);
        }
        if (has(r)) *reinterpret_cast<Raw<S> *>(to + r * of.value_dim) = raw;
    }
}

// Blocks on an SM: as many as there are registers for.
template <typename S, bool kOne> constexpr int kBlocks = !kOne ? 2 : sizeof(S) == 4 ? 3 : 4;

// several: which of the level's items, those of several tokens or those of one.
template <typename T, typename S, bool kWhole, bool kOne>
__global__ void __launch_bounds__(kThreads, kBlocks<S, kOne>)
    delta_steps(const __grid_constant__ DeltaArguments a, bool several) {
    __shared__ StepShared shared;
    const StateLevel level = *a.level;
    const int end = several ? level.chunked : level.several;
    const int first = several ? level.several : level.begin;
    int side = 0; // of what there are two of
    for (int i = first + static_cast<int>(blockIdx.z); i < end; i += gridDim.z) {
        run_item<T, S, kWhole, kOne>(a, a.items[i], &shared, &side);
    }
}

bool fits(const DeltaArguments &a) {
    return a.key_heads > 0 && a.value_heads % a.key_heads == 0 && a.key_dim <= kMostDeltaDim &&
           a.value_dim <= kMostDeltaDim && a.value_dim % 4 == 0 && a.value_heads <= INT16_MAX;
}

// A block for each item of the captured step, and enough for the device, since a graph's next replay may have many more,
// of which blocks then have several. Not one for each token: of a step of prompts most are no items of this launch.
template <typename T, typename S, bool kWhole, bool kOne>
cudaError_t launch_kind(const DeltaArguments &a, bool several, cudaStream_t stream) {
    constexpr int kRounds = 4;
    const int at_once = std::max(a.sms, 1) * kBlocks<S, kOne>;
    const int enough = (kRounds * at_once + a.value_heads - 1) / a.value_heads;
    const int blocks = std::min({a.most_items, std::max(several ? a.few : a.ones, enough), 65535});
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(a.value_heads / a.key_heads),
                          static_cast<unsigned>(a.key_heads), static_cast<unsigned>(blocks));
    config.blockDim = dim3(kThreads);
    config.stream = stream;
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &early;
    config.numAttrs = a.sm90 ? 1 : 0;
    return cudaLaunchKernelEx(&config, delta_steps<T, S, kWhole, kOne>, a, several);
}

template <typename T, typename S>
cudaError_t launch_rule(const DeltaArguments &a, bool several, cudaStream_t stream) {
    if (!whole(a)) return launch_kind<T, S, false, false>(a, several, stream);
    return several ? launch_kind<T, S, true, false>(a, true, stream)
                   : launch_kind<T, S, true, true>(a, false, stream);
}

} // namespace
} // namespace steps

cudaError_t launch_delta_steps(const DeltaArguments &a, bool several, cudaStream_t stream) {
    if (a.most_items == 0) return cudaSuccess;
    if (!steps::fits(a)) return cudaErrorInvalidValue;
    return with_type(a.element, [&](auto t) {
        return with_state(a.state, [&](auto s) {
            using T = decltype(t);
            using S = decltype(s);
            for (const bool of_several : {false, true}) {
                if (of_several && !several) continue;
                cudaError_t code = launch_delta_steps_inputs(a, of_several, stream);
                if (code != cudaSuccess) return code;
                code = steps::launch_rule<T, S>(a, of_several, stream);
                if (code != cudaSuccess) return code;
            }
            return cudaSuccess;
        });
    });
}

} // namespace batchllm::cuda
