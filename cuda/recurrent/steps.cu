// The gated delta rule token by token. Bound by memory: a token of one request moves S once in and once out, 128
// KB a head of 128 by 128 in f32.
//
// A block has one item and head after another, and two kinds of warps that wait for each other at mbarriers:
//     mixers make what a token needs besides S: q, k, v convolved, gates, the result's gain;
//     two groups of eight warps take every second S into registers, step through the item's tokens and store it.
// S is copied to a ring of stages in shared memory, as far ahead as there are stages: a group that has taken one
// starts the copy of the next to the same stage.
// A group's warp has 32 rows (keys) by 64 columns (values), a lane 16 by 4. The sums over the rows go through shared
// memory once:
//     known  = S^T k    found = S^T q
//     change = rate * (v - decay * known)
//     result = decay * found + (q . k) change    which is the new S^T q
//     S      = decay * S + k change^T
#include "device/launch.cuh"
#include "recurrent/steps_mixers.cuh"

namespace batchllm::cuda {
namespace steps {
namespace {

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
    Packed4<T> out;
    out.set(0, from_float<T>(result.x * scale * gain.x));
    out.set(1, from_float<T>(result.y * scale * gain.y));
    out.set(2, from_float<T>(result.z * scale * gain.z));
    out.set(3, from_float<T>(result.w * scale * gain.w));
    store_some<kWhole>(static_cast<T *>(a.out) + token.out + 4 * lane, value_dim - 4 * lane, out);
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

// A weight for each of the group's threads, of the convolution of the block's first head or of the norm: its mixers then
// find them in L1.
__device__ __forceinline__ float first_weight(const DeltaArguments &a) {
    const int head = static_cast<int>(blockIdx.x) % a.value_heads;
    const int key_head = head / (a.value_heads / a.key_heads);
    const int part = static_cast<int>(threadIdx.x) / kMostDeltaDim;
    const int e = static_cast<int>(threadIdx.x) % kMostDeltaDim;
    if (part > 3 || e >= (part < 2 ? a.key_dim : a.value_dim)) return 0;
    return part == 3 ? a.norm[e]
                     : a.convolution[(channel_begin(a, head, key_head, part) + e) * kRing];
}

// The first copies start together: where they are from is read by the lanes.
template <typename S, bool kWhole>
__device__ __forceinline__ void load_first(const DeltaArguments &a, const StepWork &work,
                                           const Stages<S, kWhole> &stages, int group) {
    const int mine = work.mine, lane = static_cast<int>(threadIdx.x) % 32;
    const S *from = nullptr;
    if (lane < mine && lane < static_cast<int>(stages.count)) {
        const int slot = work.item(lane).from;
        if (slot >= 0) from = state_of<S>(a, slot, work.head(lane));
    }
    for (int j = group; j < mine && j < static_cast<int>(stages.count); j += kGroups) {
        const uint64_t address = __shfl_sync(~0u, reinterpret_cast<uint64_t>(from), j);
        stages.load(static_cast<uint32_t>(j), reinterpret_cast<const void *>(address));
    }
}

// What is computed from it is not kept in registers.
__device__ __forceinline__ uint32_t not_kept(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

template <typename T, typename S, bool kWhole>
__device__ __forceinline__ void run_group(const DeltaArguments &a, StepShared *shared,
                                          const Stages<S, kWhole> &stages, int group,
                                          float weight) {
    using Raw = typename StateFour<S>::Raw;
    const int warp = threadIdx.x / 32 % kWarps, lane = threadIdx.x % 32;
    const StepPart part;
    const int value_dim = kWhole ? kMostDeltaDim : a.value_dim;
    const auto has = [&](int r) {
        return kWhole || (part.row + r < a.key_dim && part.column < value_dim);
    };
    const int begin = part.row * value_dim + part.column;
    load_first(a, shared->work, stages, group);
    discard(weight, &shared->discarded);
    uint32_t n = 0;                            // the group's tokens so far
    uint32_t j = static_cast<uint32_t>(group); // the block's j-th S, modulo four times the stages
    float4 state[kRows];
    for (bool more = group < shared->work.mine; more;) {
        bool last = false;
        for (; !last; ++n) {
            const uint32_t place = n % kTokens;
            const StepToken &token = shared->tokens[group][place];
            await(&shared->mixed[group][place], n / kTokens);
            const bool first = token.first;
            if (first) {
                const bool continues = token.continues;
                const S *from = stages.wait(not_kept(j)) + begin;
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
            if (first) {
                const int64_t next = token.next;
                stages.load(stages.next_barrier(not_kept(j)), next < 0 ? nullptr : a.states + next);
            }
            if (n % kWarps == static_cast<uint32_t>(warp)) finish<T, kWhole>(a, token, sums);
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
            S *to = reinterpret_cast<S *>(a.states + token.to) + begin;
            last = token.last, more = token.more;
            // Before the stores: what comes behind them in a warp waits until memory has taken them.
            __syncwarp();
            if (lane == 0) arrive(&shared->used[group][place]);
            if (last) {
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    if (has(r)) {
                        *reinterpret_cast<Raw *>(to + r * value_dim) =
                            StateFour<S>::narrow(state[r]);
                    }
                }
            }
        }
        j = stages.after(j);
    }
}

// S fills stage_bytes of each of the stages in dynamic shared memory, behind StepShared.
constexpr int kStepSharedBytes = (sizeof(StepShared) + 127) / 128 * 128;
static_assert(kStepSharedBytes + 3 * 64 * 1024 <= 227 * 1024); // three S in f32

template <typename T, typename S, bool kWhole> __global__ void __launch_bounds__(kThreads, 1)
    delta_steps(const __grid_constant__ DeltaArguments a, uint32_t stage_count,
                uint32_t stage_bytes, bool several) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto *shared = reinterpret_cast<StepShared *>(memory);
    const float weight = first_weight(a);
    const Stages<S, kWhole> stages(a, memory + kStepSharedBytes, shared->loaded, stage_count,
                                   stage_bytes);
    if (threadIdx.x == kThreads - 32) { // of a warp that has no weights to load
        const StateLevel level = *a.level;
        stages.expect();
        for (int i = 0; i < kGroups * kTokens; ++i) {
            expect_arrivals(&shared->mixed[0][0] + i, 1);
            expect_arrivals(&shared->used[0][0] + i, kWarps);
        }
#if __CUDA_ARCH__ >= 900
        barrier_init_fence();
#endif
        shared->work = StepWork(a, level, several);
    }
    __syncthreads();
    const int warp = threadIdx.x / 32;
    if (warp < kGroups * kWarps) {
        run_group<T, S, kWhole>(a, shared, stages, warp / kWarps, weight);
    } else {
        const int mixer = warp - kGroups * kWarps;
        run_mixer<T, S, kWhole>(a, shared, static_cast<int>(stage_count), mixer % kGroups,
                                mixer / kGroups);
    }
}

constexpr int kRingThreads = 256;

template <typename T> __global__ void delta_rings(const __grid_constant__ DeltaArguments a) {
    const StateLevel level = *a.level;
    const int channel = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
    if (channel >= a.channels()) return;
    for (int i = level.several + static_cast<int>(blockIdx.x); i < level.end; i += gridDim.x) {
        const StateItem item = a.items[i];
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
           a.value_dim <= kMostDeltaDim && a.value_dim % 4 == 0 && a.value_heads <= INT16_MAX;
}

template <typename T, typename S, bool kWhole>
cudaError_t launch_steps(const DeltaArguments &a, bool several, cudaStream_t stream) {
    int most = 0;
    if (const cudaError_t code = most_shared(&most); code != cudaSuccess) return code;
    const int stage = (a.key_dim * a.value_dim * static_cast<int>(sizeof(S)) + 127) / 128 * 128;
    const int stages = std::min(kMostStages, (most - kStepSharedBytes) / stage);
    if (stages < 1) return cudaErrorInvalidConfiguration;
    const int bytes = kStepSharedBytes + stages * stage;
    const int64_t all = int64_t{a.most_items} * a.value_heads;
    const auto of_block = [&](int64_t blocks) { return (all + blocks - 1) / blocks; };
    // Where no block gets more S for it, as many blocks as keep to one head each: its weights stay in L1.
    const int64_t whole_rounds = a.sms / a.value_heads * a.value_heads;
    const bool keeps = whole_rounds > 0 && of_block(whole_rounds) == of_block(a.sms);
    const int64_t blocks = std::min(all, keeps ? whole_rounds : a.sms);
    return launch_with_shared(delta_steps<T, S, kWhole>, static_cast<unsigned>(blocks), kThreads,
                              bytes, stream, a, static_cast<uint32_t>(stages),
                              static_cast<uint32_t>(stage), several);
}

} // namespace
} // namespace steps

cudaError_t launch_delta_steps(const DeltaArguments &a, bool several, cudaStream_t stream) {
    if (a.most_items == 0) return cudaSuccess;
    if (!steps::fits(a)) return cudaErrorInvalidValue;
    const bool whole = a.key_dim == kMostDeltaDim && a.value_dim == kMostDeltaDim;
    return with_type(a.element, [&](auto t) {
        return with_state(a.state, [&](auto s) {
            return whole ? steps::launch_steps<decltype(t), decltype(s), true>(a, several, stream)
                         : steps::launch_steps<decltype(t), decltype(s), false>(a, several, stream);
        });
    });
}

cudaError_t launch_delta_rings(const DeltaArguments &a, cudaStream_t stream) {
    if (a.most_items == 0) return cudaSuccess;
    const dim3 grid(
        static_cast<unsigned>(std::min(a.most_items, 64)),
        static_cast<unsigned>((a.channels() + steps::kRingThreads - 1) / steps::kRingThreads));
    return with_type(a.element, [&](auto t) {
        steps::delta_rings<decltype(t)><<<grid, steps::kRingThreads, 0, stream>>>(a);
        return cudaGetLastError();
    });
}

} // namespace batchllm::cuda
