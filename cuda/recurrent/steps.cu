// The gated delta rule token by token. Bound by memory: a token of one request moves S once in and once out, 128
// KB a head of 128 by 128 in f32.
//
// A block has one item and head after another, and two kinds of warps that wait for each other at mbarriers:
//     mixers make what a token needs beside S: q, k, v convolved, gates, the result's gain;
//     two groups of eight warps take every second S into registers, step through the item's tokens and store it.
// S is copied to a ring of stages in shared memory, as far ahead as there are stages: a group that has taken one
// starts the copy of the next to the same stage.
// A group's warp has 32 rows (keys) by 64 columns (values), a lane 16 by 4. The sums over the rows go through shared
// memory once:
//     known  = S^T k    found = S^T q
//     change = rate * (v - decay * known)
//     result = decay * found + (q . k) change    which is the new S^T q
//     S      = decay * S + k change^T
#include "attention/mma.cuh"
#include "recurrent/delta.cuh"
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#include "attention/hopper.cuh"
#endif

namespace batchllm::cuda {
namespace {

constexpr int kGroups = 2, kWarps = 8; // of a group
constexpr int kGroupThreads = 32 * kWarps;
constexpr int kMixers = 2; // of a group
// Five warps for each of an SM's four files of registers, which gives each thread 96.
constexpr int kThreads = kGroups * (kGroupThreads + 32 * kMixers);
constexpr int kTokens = 4; // that a group's mixers are ahead
constexpr int kMostStages = 8;
constexpr int kRows = 16;                         // of S, a thread's
constexpr int kParts = kMostDeltaDim / 2 / kRows; // of the rows, that warps have

// What a token needs beside S. q and k are not normed. Zeros beyond a head's dims.
struct StepToken {
    float mixed[3][kMostDeltaDim]; // q, k and v
    float gain[kMostDeltaDim];     // of the normed result
    float decay, forget, learn;    // forget and learn: decay and rate over k's length
    float of_query, overlap;       // 1 / (q's length times the root of key_dim); q . k
    bool first, last, continues; // of the item's tokens; continues: S is not zeros before the first
    int64_t out;                 // elements from DeltaArguments::out on
    int32_t slot;                // where S goes
    int32_t head;
    int32_t next; // what will be in the same stage: where it comes from
};

// ---- mbarriers, on 8.0 too ------------------------------------------------------------------------

__device__ __forceinline__ void expect_arrivals(uint64_t *barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals));
}
__device__ __forceinline__ void arrive(uint64_t *barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(
                     shared_address(barrier))
                 : "memory");
}
// Until the barrier's phase `use` is over.
__device__ __forceinline__ void await(uint64_t *barrier, uint32_t use) {
#if __CUDA_ARCH__ >= 900
    barrier_wait(shared_address(barrier), use & 1);
#else
    uint32_t over = 0;
    while (over == 0) {
        asm volatile("{\n.reg .pred over;\n"
                     "mbarrier.test_wait.parity.shared.b64 over, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, over;\n}"
                     : "=r"(over)
                     : "r"(shared_address(barrier)), "r"(use & 1)
                     : "memory");
    }
#endif
}

// ---- What a block has to do -------------------------------------------------------------------------

// One item and head after another, of which the block has every gridDim-th: its j-th.
struct StepWork {
    const DeltaItem *items; // of the level
    int count;              // items and heads of the level
    int value_heads;

    __device__ explicit StepWork(const DeltaArguments &a)
        : items(a.items + a.level->begin),
          count((a.level->chunked - a.level->begin) * a.value_heads), value_heads(a.value_heads) {}
    __device__ int at(int j) const { return static_cast<int>(blockIdx.x + j * gridDim.x); }
    __device__ bool has(int j) const { return at(j) < count; }
    __device__ const DeltaItem &item(int j) const { return items[at(j) / value_heads]; }
    __device__ int head(int j) const { return at(j) % value_heads; }
    __device__ int from(int j) const { return has(j) ? item(j).from : -1; }
};

// ---- Stages -----------------------------------------------------------------------------------------

// Place j % count has the block's j-th S. Its barrier is one of twice as many, so that each is always waited for by
// the same group, which has seen all of its phases before.
struct Stages {
    unsigned char *memory;
    uint64_t *loaded; // [2 * count]
    uint32_t count, bytes;
    uint32_t used_bytes; // of a stage: S
    bool bulk;           // one copy of all of it

    __device__ Stages(unsigned char *memory, uint64_t *loaded, uint32_t count, uint32_t bytes,
                      uint32_t used_bytes)
        : memory(memory), loaded(loaded), count(count), bytes(bytes), used_bytes(used_bytes) {
#if __CUDA_ARCH__ >= 900
        bulk = used_bytes % 16 == 0;
#else
        bulk = false;
#endif
        for (uint32_t i = 0; i < 2 * count; ++i) {
            expect_arrivals(loaded + i, bulk ? 1 : kGroupThreads);
        }
    }

    // Starts the copy, by a group's threads. From null: there will be nothing.
    __device__ __forceinline__ void load(uint32_t j, const void *from) const {
        const uint32_t to = shared_address(memory + j % count * bytes);
        const uint32_t thread = threadIdx.x % kGroupThreads;
        uint64_t *barrier = loaded + j % (2 * count);
#if __CUDA_ARCH__ >= 900
        if (bulk) {
            if (thread / 32 == 0 && elect_one()) {
                barrier_expect(shared_address(barrier), from == nullptr ? 0 : used_bytes);
                if (from != nullptr) bulk_copy(to, from, used_bytes, shared_address(barrier));
            }
            return;
        }
#endif
        const auto *source = static_cast<const unsigned char *>(from);
#pragma unroll 4
        for (uint32_t p = thread * 8; from != nullptr && p < used_bytes; p += kGroupThreads * 8) {
            asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to + p), "l"(source + p)
                         : "memory");
        }
        asm volatile(
            "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier))
            : "memory");
    }
    // The j-th S, once it is there.
    __device__ __forceinline__ const unsigned char *wait(uint32_t j) const {
        await(loaded + j % (2 * count), j / (2 * count));
        return memory + j % count * bytes;
    }
};

// What threads seldom read is here too, as S takes two thirds of their registers.
struct StepShared {
    StepWork work;
    Stages stages;
    StepToken tokens[kGroups][kTokens];
    // By every second token, known and found, parts, columns.
    float4 sums[kGroups][2][2][kParts][32];
    uint64_t loaded[2 * kMostStages];
    uint64_t mixed[kGroups][kTokens], used[kGroups][kTokens];
};

// ---- Mixers -----------------------------------------------------------------------------------------

// A lane's four channels of a part, as they are stored. kWhole: heads are of 128 by 128, so that four are there and
// aligned.
template <size_t kBytes> struct FourRaw { using type = uint2; };
template <> struct FourRaw<4> { using type = uint4; };
template <typename T> struct Four {
    typename FourRaw<sizeof(T)>::type raw;
    __device__ __forceinline__ void set(int e, T x) { reinterpret_cast<T *>(&raw)[e] = x; }
    __device__ __forceinline__ T at(int e) const { return reinterpret_cast<const T *>(&raw)[e]; }
    // Zeros where not `there`; and from here on in whole registers, not element by element.
    __device__ __forceinline__ void keep_if(bool there) {
        auto *words = reinterpret_cast<uint32_t *>(&raw);
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(raw) / 4); ++i) {
            words[i] = there ? words[i] : 0;
            asm volatile("" : "+r"(words[i]));
        }
    }
};

template <bool kWhole, typename T>
__device__ __forceinline__ Four<T> load_four(const T *from, int count) {
    Four<T> four;
    if constexpr (kWhole) {
        four.raw = *reinterpret_cast<const decltype(four.raw) *>(from);
    } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) four.set(e, e < count ? from[e] : from_float<T>(0.0f));
    }
    return four;
}
template <bool kWhole, typename T>
__device__ __forceinline__ void store_four(T *to, int count, const Four<T> &four) {
    if constexpr (kWhole) {
        *reinterpret_cast<decltype(four.raw) *>(to) = four.raw;
    } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (e < count) to[e] = four.at(e);
        }
    }
}

// The rows that the item's next token will see, of an item of one token. Rows of one slot that other blocks
// still read are not among those written.
template <bool kWhole, typename T>
__device__ __forceinline__ void keep_in_ring(const DeltaArguments &a, const DeltaItem &item,
                                             int channel, int count, const Four<T> (&seen)[kRing]) {
    T *ring = ring_of<T>(a, item.state) + channel;
    const int back = item.from == item.state ? 1 : kRing;
#pragma unroll
    for (int i = 0; i < kRing; ++i) {
        const int position = item.position - i;
        if (i >= back || position < 0) break;
        store_four<kWhole>(ring + int64_t{position % kRing} * a.channels(), count,
                           seen[kRing - 1 - i]);
    }
}

__device__ __forceinline__ float dot(const float4 &x, const float4 &y) {
    return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}
__device__ __forceinline__ float4 scaled(const float4 &x, float scale) {
    return make_float4(x.x * scale, x.y * scale, x.z * scale, x.w * scale);
}

// The convolution of a lane's four channels.
template <bool kWhole, typename T>
__device__ __forceinline__ float4 convolved_four(const DeltaArguments &a, int channel, int count,
                                                 const Four<T> (&seen)[kRing]) {
    float4 weights[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        weights[e] = kWhole || e < count
                         ? reinterpret_cast<const float4 *>(a.convolution)[channel + e]
                         : float4{};
    }
    asm volatile("" ::: "memory"); // the four loads stay together
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const T inputs[kRing] = {seen[0].at(e), seen[1].at(e), seen[2].at(e), seen[3].at(e)};
        x[e] = convolved(weights[e], inputs);
    }
    return make_float4(x[0], x[1], x[2], x[3]);
}

// Token t of the item, by a warp. The token's place is written once `used` lets it.
template <typename T, bool kWhole>
__device__ __forceinline__ void mix_token(const DeltaArguments &a, const DeltaItem &item, int head,
                                          int t, StepToken *to, int next, uint64_t *used,
                                          uint32_t use) {
    int lane = threadIdx.x % 32;
    asm volatile("" : "+r"(lane), "+r"(head)); // addresses are not kept from token to token
    const int ratio = a.value_heads / a.key_heads;
    const int key_dim = kWhole ? kMostDeltaDim : a.key_dim;
    const int value_dim = kWhole ? kMostDeltaDim : a.value_dim;
    const int64_t token = int64_t{item.token_begin} + t;
    const auto channel_of = [&](int part) {
        return 4 * lane + (part < 2 ? part * a.keys_size() + head / ratio * key_dim
                                    : 2 * a.keys_size() + head * value_dim);
    };
    const auto count_of = [&](int part) { return (part < 2 ? key_dim : value_dim) - 4 * lane; };
    const auto load = [&](Four<T>(&seen)[kRing], int part) {
#pragma unroll
        for (int w = 0; w < kRing; ++w) {
            const T *row = seen_row<T>(a, item, t, kRing - 1 - w);
            seen[w] = load_four<kWhole>(row + channel_of(part), count_of(part));
        }
    };
    constexpr bool kAhead = sizeof(T) == 2; // there are registers for the next part's
    Four<T> ahead[kRing];
    if (kAhead) load(ahead, 0);
    const int value_at = head * value_dim + 4 * lane;
    const Four<T> gate =
        load_four<kWhole>(projected_of<T>(a, token) + a.channels() + value_at, count_of(2));
    const DeltaGates gates = gates_of<T>(a, token, head);
    float4 norm = {};
    if (count_of(2) > 0) norm = reinterpret_cast<const float4 *>(a.norm)[lane];
    await(used, use);
    reinterpret_cast<float4 *>(to->gain)[lane] =
        make_float4(norm.x * silu(to_float(gate.at(0))), norm.y * silu(to_float(gate.at(1))),
                    norm.z * silu(to_float(gate.at(2))), norm.w * silu(to_float(gate.at(3))));
    if (lane == 0) {
        to->decay = expf(gates.log_decay);
        to->learn = gates.rate; // so far
        to->first = t == 0;
        to->last = t + 1 == item.token_count;
        to->continues = item.from >= 0;
        to->out = token * a.values_size() + head * value_dim;
        to->slot = item.state;
        to->head = head;
        to->next = next;
    }
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {
        if (!kAhead) load(ahead, part);
        Four<T> seen[kRing];
#pragma unroll
        for (int w = 0; w < kRing; ++w) {
            seen[w] = ahead[w];
            seen[w].keep_if(item.position + t >= kRing - 1 - w);
        }
        if (kAhead && part < 2) load(ahead, part + 1);
        const int channel = channel_of(part), count = count_of(part);
        reinterpret_cast<float4 *>(to->mixed[part])[lane] =
            convolved_four<kWhole>(a, channel, count, seen);
        if (item.token_count == 1 && (part == 2 || head % ratio == 0)) {
            keep_in_ring<kWhole>(a, item, channel, count, seen);
        }
    }
    const float4 query = reinterpret_cast<const float4 *>(to->mixed[0])[lane];
    const float4 key = reinterpret_cast<const float4 *>(to->mixed[1])[lane];
    const float of_query =
        rsqrtf(warp_sum(dot(query, query)) + 1e-6f) * rsqrtf(static_cast<float>(key_dim));
    const float of_key = rsqrtf(warp_sum(dot(key, key)) + 1e-6f);
    const float overlap = warp_sum(dot(query, key));
    if (lane == 0) {
        to->forget = to->decay * of_key;
        to->learn *= of_key;
        to->of_query = of_query;
        to->overlap = overlap;
    }
}

// Of the group's tokens every kMixers-th.
template <typename T, bool kWhole> __device__ __forceinline__ void
run_mixer(const DeltaArguments &a, StepShared *shared, int group, int mixer) {
    const StepWork &work = shared->work;
    const Stages &stages = shared->stages;
    const int lane = threadIdx.x % 32;
    DeltaItem ahead = {}; // the lane's, of 32 that are loaded together
    int same_stage = -1;  // where what is in its stage next comes from
    uint32_t n = 0;       // the group's tokens so far
    for (int i = 0; work.has(group + i * kGroups); ++i) {
        const int j = group + i * kGroups;
        if (i % 32 == 0) {
            const int of_lane = j + lane * kGroups;
            if (work.has(of_lane)) ahead = work.item(of_lane);
            same_stage = work.from(of_lane + static_cast<int>(stages.count));
        }
        const auto field = [&](int x) { return __shfl_sync(~0u, x, i % 32); };
        const DeltaItem item{field(ahead.state), field(ahead.from), field(ahead.token_begin),
                             field(ahead.token_count), field(ahead.position)};
        const int next = field(same_stage);
        for (int t = 0; t < item.token_count; ++t, ++n) {
            if (n % kMixers != static_cast<uint32_t>(mixer)) continue;
            const uint32_t place = n % kTokens, use = n / kTokens;
            mix_token<T, kWhole>(a, item, work.head(j), t, &shared->tokens[group][place], next,
                                 &shared->used[group][place], use + 1);
            __syncwarp();
            if (lane == 0) arrive(&shared->mixed[group][place]);
        }
    }
}

// ---- Groups -----------------------------------------------------------------------------------------

__device__ __forceinline__ void add_scaled(float4 *to, const float4 &x, float scale) {
    to->x = fmaf(x.x, scale, to->x), to->y = fmaf(x.y, scale, to->y);
    to->z = fmaf(x.z, scale, to->z), to->w = fmaf(x.w, scale, to->w);
}
__device__ __forceinline__ float4 over_parts(const float4 (&parts)[kParts][32], int column) {
    float4 sum = parts[0][column];
#pragma unroll
    for (int p = 1; p < kParts; ++p) add_scaled(&sum, parts[p][column], 1.0f);
    return sum;
}
__device__ __forceinline__ float4 change_of(const StepToken &token, const float4 &known,
                                            const float4 &value) {
    const auto change = [&](float k, float v) { return token.learn * (v - token.forget * k); };
    return make_float4(change(known.x, value.x), change(known.y, value.y), change(known.z, value.z),
                       change(known.w, value.w));
}

// The result, normed, times its gain; by one warp.
template <typename T, bool kWhole> __device__ __forceinline__ void
finish(const DeltaArguments &a, const StepToken &token, const float4 (&sums)[2][kParts][32]) {
    const int lane = threadIdx.x % 32;
    const int value_dim = kWhole ? kMostDeltaDim : a.value_dim;
    const float4 change = change_of(token, over_parts(sums[0], lane),
                                    reinterpret_cast<const float4 *>(token.mixed[2])[lane]);
    float4 result = scaled(over_parts(sums[1], lane), token.decay);
    add_scaled(&result, change, token.overlap);
    result = scaled(result, token.of_query);
    const float squares = warp_sum(dot(result, result));
    const float scale = rsqrtf(squares / static_cast<float>(value_dim) + a.epsilon);
    const float4 gain = reinterpret_cast<const float4 *>(token.gain)[lane];
    Four<T> out;
    out.set(0, from_float<T>(result.x * scale * gain.x));
    out.set(1, from_float<T>(result.y * scale * gain.y));
    out.set(2, from_float<T>(result.z * scale * gain.z));
    out.set(3, from_float<T>(result.w * scale * gain.w));
    store_four<kWhole>(static_cast<T *>(a.out) + token.out + 4 * lane, value_dim - 4 * lane, out);
}

// A thread's part of S: kRows rows from `row` on, four columns from `column` on.
struct StepPart {
    int row, column, sums; // sums: which of the warps' that have the same columns
    __device__ StepPart() {
        const int warp = threadIdx.x / 32 % kWarps, lane = threadIdx.x % 32;
        sums = warp / 2;
        row = sums * 2 * kRows + lane / 16 * kRows;
        column = warp % 2 * 64 + lane % 16 * 4;
    }
};

template <typename T, typename S, bool kWhole>
__device__ __forceinline__ void run_group(const DeltaArguments &a, StepShared *shared, int group) {
    const StepWork &work = shared->work;
    const Stages &stages = shared->stages;
    using Raw = typename StateFour<S>::Raw;
    const int warp = threadIdx.x / 32 % kWarps, lane = threadIdx.x % 32;
    const StepPart part;
    const int value_dim = kWhole ? kMostDeltaDim : a.value_dim;
    const auto has = [&](int r) {
        return kWhole || (part.row + r < a.key_dim && part.column < value_dim);
    };
    const int begin = part.row * value_dim + part.column;
    const auto load = [&](int j, int from) {
        if (!work.has(j)) return;
        stages.load(j, from < 0 ? nullptr : state_of<S>(a, from, work.head(j)));
    };
    for (int j = group; j < static_cast<int>(stages.count); j += kGroups) load(j, work.from(j));
    uint32_t n = 0; // the group's tokens so far
    float4 state[kRows];
    for (int j = group; work.has(j); j += kGroups) {
        bool last = false;
        for (; !last; ++n) {
            const uint32_t place = n % kTokens;
            const StepToken &token = shared->tokens[group][place];
            await(&shared->mixed[group][place], n / kTokens);
            last = token.last;
            if (token.first) {
                const bool continues = token.continues;
                const S *from = reinterpret_cast<const S *>(stages.wait(j)) + begin;
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    state[r] = float4{};
                    if (continues && has(r)) {
                        state[r] = StateFour<S>::wide(
                            *reinterpret_cast<const Raw *>(from + r * value_dim));
                    }
                }
            }
            const auto *keys = reinterpret_cast<const float4 *>(token.mixed[1] + part.row);
            const auto *queries = reinterpret_cast<const float4 *>(token.mixed[0] + part.row);
            float4 known = {}, found = {};
#pragma unroll
            for (int r = 0; r < kRows; r += 4) {
                const float4 key = keys[r / 4], query = queries[r / 4];
                add_scaled(&known, state[r], key.x), add_scaled(&found, state[r], query.x);
                add_scaled(&known, state[r + 1], key.y), add_scaled(&found, state[r + 1], query.y);
                add_scaled(&known, state[r + 2], key.z), add_scaled(&found, state[r + 2], query.z);
                add_scaled(&known, state[r + 3], key.w), add_scaled(&found, state[r + 3], query.w);
            }
            // The lanes of one half of the warp take the one, those of the other the other.
            float4(&sums)[2][kParts][32] = shared->sums[group][n % 2];
            const auto both = [&](float x, float y) {
                const float other = __shfl_xor_sync(~0u, lane < 16 ? y : x, 16);
                return (lane < 16 ? x : y) + other;
            };
            sums[lane / 16][part.sums][part.column / 4] =
                make_float4(both(known.x, found.x), both(known.y, found.y), both(known.z, found.z),
                            both(known.w, found.w));
            // Before the group's next but one token writes there, each warp is here again.
            asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kGroupThreads) : "memory");
            if (token.first) load(j + static_cast<int>(stages.count), token.next);
            const float4 change =
                change_of(token, over_parts(sums[0], part.column / 4),
                          reinterpret_cast<const float4 *>(token.mixed[2])[part.column / 4]);
            const float decay = token.decay;
            const auto advance = [&](float4 *row, float key) {
                *row = scaled(*row, decay);
                add_scaled(row, change, key);
            };
#pragma unroll
            for (int r = 0; r < kRows; r += 4) {
                const float4 key = keys[r / 4];
                advance(&state[r], key.x), advance(&state[r + 1], key.y);
                advance(&state[r + 2], key.z), advance(&state[r + 3], key.w);
            }
            if (last) {
                S *to = state_of<S>(a, token.slot, token.head) + begin;
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    if (has(r)) {
                        *reinterpret_cast<Raw *>(to + r * value_dim) =
                            StateFour<S>::narrow(state[r]);
                    }
                }
            }
            if (n % kWarps == static_cast<uint32_t>(warp)) finish<T, kWhole>(a, token, sums);
            __syncwarp();
            if (lane == 0) arrive(&shared->used[group][place]);
        }
    }
}

// S fills stage_bytes of each of the stages in dynamic shared memory, behind StepShared.
constexpr int kStepSharedBytes = (sizeof(StepShared) + 127) / 128 * 128;

template <typename T, typename S, bool kWhole> __global__ void __launch_bounds__(kThreads, 1)
    delta_steps(const __grid_constant__ DeltaArguments a, uint32_t stage_count,
                uint32_t stage_bytes) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto *shared = reinterpret_cast<StepShared *>(memory);
    if (threadIdx.x == 0) {
        shared->work = StepWork(a);
        shared->stages = Stages(memory + kStepSharedBytes, shared->loaded, stage_count, stage_bytes,
                                static_cast<uint32_t>(a.key_dim * a.value_dim * sizeof(S)));
        for (int i = 0; i < kGroups * kTokens; ++i) {
            expect_arrivals(&shared->mixed[0][0] + i, 1);
            expect_arrivals(&shared->used[0][0] + i, kWarps);
        }
#if __CUDA_ARCH__ >= 900
        barrier_init_fence();
#endif
    }
    __syncthreads();
    const int warp = threadIdx.x / 32;
    if (warp < kGroups * kWarps) {
        run_group<T, S, kWhole>(a, shared, warp / kWarps);
    } else {
        const int mixer = warp - kGroups * kWarps;
        run_mixer<T, kWhole>(a, shared, mixer % kGroups, mixer / kGroups);
    }
}

constexpr int kRingThreads = 256;

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

template <typename T, typename S, bool kWhole>
cudaError_t launch_steps(const DeltaArguments &a, cudaStream_t stream) {
    const auto kernel = delta_steps<T, S, kWhole>;
    int most = 0;
    if (const cudaError_t code = most_shared(&most); code != cudaSuccess) return code;
    const int stage = (a.key_dim * a.value_dim * static_cast<int>(sizeof(S)) + 127) / 128 * 128;
    const int stages = std::min(kMostStages, (most - kStepSharedBytes) / stage);
    if (stages < 1) return cudaErrorInvalidConfiguration;
    const int bytes = kStepSharedBytes + stages * stage;
    const cudaError_t set =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (set != cudaSuccess) return set;
    const auto blocks = std::min<int64_t>(int64_t{a.most_items} * a.value_heads, a.sms);
    kernel<<<static_cast<unsigned>(blocks), kThreads, bytes, stream>>>(
        a, static_cast<uint32_t>(stages), static_cast<uint32_t>(stage));
    return cudaGetLastError();
}

} // namespace

cudaError_t launch_delta_steps(const DeltaArguments &a, cudaStream_t stream) {
    if (a.most_items == 0) return cudaSuccess;
    if (!fits(a)) return cudaErrorInvalidValue;
    const bool whole = a.key_dim == kMostDeltaDim && a.value_dim == kMostDeltaDim;
    return with_type(a.element, [&](auto t) {
        return with_state(a.state, [&](auto s) {
            return whole ? launch_steps<decltype(t), decltype(s), true>(a, stream)
                         : launch_steps<decltype(t), decltype(s), false>(a, stream);
        });
    });
}

cudaError_t launch_delta_rings(const DeltaArguments &a, cudaStream_t stream) {
    if (a.most_items == 0) return cudaSuccess;
    const dim3 grid(static_cast<unsigned>(std::min(a.most_items, 64)),
                    static_cast<unsigned>((a.channels() + kRingThreads - 1) / kRingThreads));
    return with_type(a.element, [&](auto t) {
        delta_rings<decltype(t)><<<grid, kRingThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
