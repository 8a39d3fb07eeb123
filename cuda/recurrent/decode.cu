// The gated delta rule for items of one token, with heads of 128 by 128: decode. Bound by memory: S is read once and
// written once, 128 KB a head in f32.
//
// A block has an item and a head, with S in registers: a warp has 32 of its rows (keys), which are contiguous in memory,
// and a lane four columns (values) of each. While S is on its way, three of the warps convolve q, k and v, and the last
// one makes the gates. The sums over rows go through shared memory once:
//     known  = S^T k    found = S^T q
//     change = rate * (v - decay * known)
//     result = decay * found + (q . k) change    which is the new S^T q
//     S      = decay * S + k change^T
// Blocks are small, so that an SM has several: while one computes, others load and store. Where a graph's replay has more
// items than were captured, a block goes on to further items of its head.
#include <algorithm>

#include "recurrent/delta.cuh"

namespace batchllm::cuda {
namespace {

constexpr int kDim = kMostDeltaDim; // of keys and of values
constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kRows = kDim / kWarps; // of S, a warp's
constexpr int kFours = kDim / 4;     // of columns, a lane's each
constexpr int kParts = 3;            // q, k and v, a warp each
constexpr int kGates = kParts;       // the warp with the gates
constexpr int kNewest = kRing - 1;   // of the tokens that the convolution sees, the item's own
static_assert(kFours == 32 && kWarps == kParts + 1 && kRows == 32);

// Blocks on an SM: as many as there are registers for.
template <typename S> constexpr int kBlocks = sizeof(S) == 4 ? 3 : 4;

struct alignas(16) DecodeShared {
    float4 weights[kParts][kDim]; // of the convolution
    float mixed[kParts][kDim];    // q and k of length 1, q divided by the root of key_dim too; v
    float gain[kDim];             // of the normed results
    float4 known[kWarps][kFours], found[kWarps][kFours]; // of the warps' rows
    float overlaps[kWarps];                              // and their parts of q . k
    float decay, rate;
};

// ---- Four columns -------------------------------------------------------------------------------------

// Each product is rounded by itself: the compiler would fuse it with what is added next.
__device__ __forceinline__ float4 scaled(const float4 &x, float scale) {
    return make_float4(__fmul_rn(x.x, scale), __fmul_rn(x.y, scale), __fmul_rn(x.z, scale),
                       __fmul_rn(x.w, scale));
}
__device__ __forceinline__ float element(const float4 &x, int e) {
    return e == 0 ? x.x : e == 1 ? x.y : e == 2 ? x.z : x.w;
}

// Four columns of S as they are stored, widened for the first and for the second pass over S. The second pass uses other
// instructions, since the compiler would otherwise keep in registers what the first one widened.
template <typename S> using Raw = typename StateFour<S>::Raw;
__device__ __forceinline__ float4 widened(const float4 &x) { return x; }
__device__ __forceinline__ float4 widened_again(const float4 &x) { return x; }
__device__ __forceinline__ float4 widened(const uint2 &x) {
    const auto low = [](uint32_t pair) { return __uint_as_float(pair << 16); };
    const auto high = [](uint32_t pair) { return __uint_as_float(pair & 0xffff0000U); };
    return make_float4(low(x.x), high(x.x), low(x.y), high(x.y));
}
__device__ __forceinline__ float4 widened_again(const uint2 &x) {
    const auto low = [](uint32_t pair) { return __uint_as_float(__byte_perm(pair, 0, 0x1044)); };
    const auto high = [](uint32_t pair) { return __uint_as_float(__byte_perm(pair, 0, 0x3244)); };
    return make_float4(low(x.x), high(x.x), low(x.y), high(x.y));
}

// From shared memory. What the second pass over S reads again would otherwise stay in registers.
__device__ __forceinline__ float4 load_again(const float *from) {
    float4 four;
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
                 : "r"(shared_address(from)));
    return four;
}

// ---- What a token needs besides S ---------------------------------------------------------------------

// 0, but what is computed from it is not kept in registers from one use to the next: S takes most of them.
__device__ __forceinline__ unsigned fresh_zero() {
    unsigned zero = 0;
    asm volatile("" : "+r"(zero));
    return zero;
}

// The block's head. The grid: value heads of a key head, key heads, items.
struct DecodeHead {
    int key_head, head;
    bool keeps_keys; // whether it writes q and k to the ring: the first value head of its key head

    __device__ __forceinline__ DecodeHead()
        : key_head(static_cast<int>(blockIdx.y + fresh_zero())),
          head(key_head * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)),
          keeps_keys(blockIdx.x == 0) {}
    // part: q, k or v
    __device__ __forceinline__ int first_channel(const DeltaArguments &a, int part) const {
        return part < 2 ? (part * a.key_heads + key_head) * kDim : (2 * a.key_heads + head) * kDim;
    }
};

// The weights of the warp's part, asynchronously.
__device__ __forceinline__ void load_weights(const DeltaArguments &a, const DecodeHead &of,
                                             DecodeShared *shared) {
    const int part = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    if (part == kGates) return;
    const auto *from = reinterpret_cast<const float4 *>(a.convolution) + of.first_channel(a, part);
#pragma unroll
    for (int e = lane; e < kDim; e += 32) {
        copy_async(shared_address(&shared->weights[part][e]), from + e, true);
    }
    copy_async_commit();
}

// A lane's inputs of a token.
template <typename T> struct DecodeInputs {
    int part, lane,
        begin; // begin: where its channels, or its outputs' gates, are in a row of inputs
    Packed4<T> seen[kRing] = {}; // the newest last; of the warp with the gates that one alone: z
    T rate = {}, step = {};      // of the warp with the gates

    __device__ __forceinline__ DecodeInputs(const DeltaArguments &a, const DecodeHead &of,
                                            const StateItem &item)
        : part(static_cast<int>(threadIdx.x) / 32), lane(static_cast<int>(threadIdx.x) % 32) {
        begin =
            4 * lane + (part < kGates ? of.first_channel(a, part) : a.channels() + of.head * kDim);
        const T *row = projected_of<T>(a, item.token_begin);
        seen[kNewest] = load4_past_l1(row + begin);
        if (part == kGates) {
            row += a.channels() + a.values_size() + of.head;
            rate = row[0], step = row[a.value_heads];
            return;
        }
        const T *ring = ring_of<T>(a, item.from) + begin;
#pragma unroll
        for (int w = 0; w < kNewest; ++w) {
            const int position = item.position + w - kNewest;
            if (position >= 0) seen[w] = load4_past_l1(ring + position % kRing * a.channels());
        }
    }
    __device__ __forceinline__ void make(const DeltaArguments &a, const DecodeHead &of,
                                         DecodeShared *shared) const {
        float x[4];
        if (part < kGates) {
            float squares = 0;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float inputs[kRing] = {to_float(seen[0].at(e)), to_float(seen[1].at(e)),
                                             to_float(seen[2].at(e)), to_float(seen[3].at(e))};
                x[e] = convolved(shared->weights[part][4 * lane + e], inputs);
                squares = fmaf(x[e], x[e], squares);
            }
            if (part < 2) {
                float scale = rsqrtf(warp_sum(squares) + 1e-6F);
                if (part == 0) scale *= rsqrtf(static_cast<float>(kDim));
#pragma unroll
                for (float &each : x) each *= scale;
            }
            *reinterpret_cast<float4 *>(shared->mixed[part] + 4 * lane) =
                make_float4(x[0], x[1], x[2], x[3]);
            return;
        }
        const float4 norm = reinterpret_cast<const float4 *>(a.norm)[lane];
        const float4 gate = widen(seen[kNewest]);
        *reinterpret_cast<float4 *>(shared->gain + 4 * lane) =
            make_float4(norm.x * silu(gate.x), norm.y * silu(gate.y), norm.z * silu(gate.z),
                        norm.w * silu(gate.w));
        const DeltaGates gates =
            gates_of(to_float(rate), to_float(step), a.step[of.head], a.decay[of.head]);
        if (lane == 0) shared->decay = expf(gates.log_decay), shared->rate = gates.rate;
    }
    // Writes the ring. Where the item stays in its slot, only the token's row: other blocks may still read the others.
    __device__ __forceinline__ void keep(const DeltaArguments &a, const DecodeHead &of,
                                         const StateItem &item) const {
        if (part == kGates || (part < 2 && !of.keeps_keys)) return;
        T *ring = ring_of<T>(a, item.state) + begin;
        const int rows = item.from == item.state ? 1 : kRing;
#pragma unroll
        for (int back = 0; back < kRing; ++back) {
            if (back >= rows || item.position < back) break;
            store4(ring + (item.position - back) % kRing * a.channels(), seen[kNewest - back]);
        }
    }
};

// ---- The rule -----------------------------------------------------------------------------------------

// The warp's parts of known, found and q . k, to shared memory.
template <typename S>
__device__ __forceinline__ void multiply(DecodeShared *shared, const Raw<S> (&state)[kRows]) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const float *queries = shared->mixed[0] + warp * kRows, *keys = shared->mixed[1] + warp * kRows;
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
    shared->known[warp][lane] = known;
    shared->found[warp][lane] = found;
    const float overlap = warp_sum(queries[lane] * keys[lane]);
    if (lane == 0) shared->overlaps[warp] = overlap;
}

__device__ __forceinline__ float4 over_warps(const float4 (&parts)[kWarps][kFours], int lane) {
    float4 sum = parts[0][lane];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) add_scaled(&sum, parts[w][lane], 1.0F);
    return sum;
}

// The result, normed, times its gain; by one warp. to: of the head.
template <typename T> __device__ __forceinline__ void
finish(const DecodeShared &shared, const float4 &change, float epsilon, T *to) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float overlap = 0;
#pragma unroll
    for (const float part : shared.overlaps) overlap += part;
    float4 x = scaled(over_warps(shared.found, lane), shared.decay);
    add_scaled(&x, change, overlap);
    const float squares = warp_sum(x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w);
    const float scale = rsqrtf(squares / static_cast<float>(kDim) + epsilon);
    const float4 gain = *reinterpret_cast<const float4 *>(shared.gain + 4 * lane);
    Packed4<T> out;
    out.set(0, from_float<T>(x.x * scale * gain.x));
    out.set(1, from_float<T>(x.y * scale * gain.y));
    out.set(2, from_float<T>(x.z * scale * gain.z));
    out.set(3, from_float<T>(x.w * scale * gain.w));
    store4(to + 4 * lane, out);
}

template <typename T, typename S> __device__ __forceinline__ void
run_item(const DeltaArguments &a, const StateItem item, DecodeShared *shared) {
    const DecodeHead of;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int begin = (of.head * kDim + warp * kRows) * kDim + 4 * lane;
    Raw<S> state[kRows] = {};
    if (item.from >= 0) {
        const S *from = state_of<S>(a, item.from, 0) + begin;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            state[r] = __ldcg(reinterpret_cast<const Raw<S> *>(from + r * kDim));
        }
    }
    const DecodeInputs<T> inputs(a, of, item);
    copy_async_wait<0>(); // for the weights, which the warp itself has asked for
    __syncwarp();
    inputs.make(a, of, shared);
    inputs.keep(a, of, item);
    __syncthreads();
    multiply<S>(shared, state);
    __syncthreads();
    const float decay = shared->decay;
    float4 change = *reinterpret_cast<const float4 *>(shared->mixed[2] + 4 * lane);
    add_scaled(&change, over_warps(shared->known, lane), -decay);
    change = scaled(change, shared->rate);
    if (warp == 0) {
        finish<T>(*shared, change, a.epsilon,
                  static_cast<T *>(a.out) + int64_t{item.token_begin} * a.values_size() +
                      of.head * kDim);
    }
    const float *keys = shared->mixed[1] + warp * kRows;
#pragma unroll
    for (int r = 0; r < kRows; r += 4) {
        const float4 key = load_again(keys + r);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float4 s = scaled(widened_again(state[r + e]), decay);
            add_scaled(&s, change, element(key, e));
            state[r + e] = StateFour<S>::narrow(s);
        }
    }
    S *to = state_of<S>(a, item.state, 0) + begin;
#pragma unroll
    for (int r = 0; r < kRows; ++r) *reinterpret_cast<Raw<S> *>(to + r * kDim) = state[r];
}

template <typename T, typename S> __global__ void __launch_bounds__(kThreads, kBlocks<S>)
    delta_decode(const __grid_constant__ DeltaArguments a) {
    __shared__ DecodeShared shared;
    const StateLevel level = *a.level;
    int i = level.begin + static_cast<int>(blockIdx.z);
    if (i >= level.several) return;
    load_weights(a, DecodeHead(), &shared);
    for (;;) {
        run_item<T, S>(a, a.items[i], &shared);
        i += static_cast<int>(gridDim.z);
        if (i >= level.several) return;
        __syncthreads(); // before the next item's inputs are there
    }
}

} // namespace

bool takes_delta_decode(const DeltaArguments &a) {
    return a.key_dim == kDim && a.value_dim == kDim && a.key_heads > 0 &&
           a.value_heads % a.key_heads == 0 && a.value_heads <= INT16_MAX;
}

cudaError_t launch_delta_decode(const DeltaArguments &a, int32_t items, cudaStream_t stream) {
    if (!takes_delta_decode(a)) return cudaErrorInvalidValue;
    return with_type(a.element, [&](auto t) {
        return with_state(a.state, [&](auto s) {
            using S = decltype(s);
            // At least so many rounds of blocks: a graph's next replay may have many more items.
            constexpr int kRounds = 4;
            const int enough = (kRounds * a.sms * kBlocks<S> + a.value_heads - 1) / a.value_heads;
            const int blocks = std::min({a.most_items, std::max(items, enough), 65535});
            const dim3 grid(static_cast<unsigned>(a.value_heads / a.key_heads),
                            static_cast<unsigned>(a.key_heads), static_cast<unsigned>(blocks));
            delta_decode<decltype(t), S><<<grid, kThreads, 0, stream>>>(a);
            return cudaGetLastError();
        });
    });
}

} // namespace batchllm::cuda
